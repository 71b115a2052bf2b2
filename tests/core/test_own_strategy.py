"""A strategy that a learner writes is proven, trained, saved and resumed by the functions that know ours."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_lib import RankFailed, launch
from course_lib.command import main
from course_lib.core.adding import AddingProblem
from course_lib.core.model import lstm_model, squared_error
from course_lib.core.proof import same_as_one_process
from course_lib.core.samplers import ShardedBatches
from course_lib.core.strategy import Single
from course_lib.data_parallel.ddp import Accumulation
from course_lib.one_device.loop import train
from course_lib.train.checkpoint.files import Position
from course_lib.train.checkpoint.save_and_load import load_checkpoint, save_checkpoint
from course_lib.train.log import read_log
from tests.core.local_sgd import LocalSGD

DATA = AddingProblem(24, lengths=(3, 9), dtype=torch.float64)
BATCHES = [DATA.batch(range(start, start + 8)) for start in (0, 8, 16)]
sgd, momentum = partial(torch.optim.SGD, lr=0.1), partial(torch.optim.SGD, lr=0.1, momentum=0.9)
small = partial(lstm_model, features=2, hidden=5, layers=2, outputs=1)
prove = partial(same_as_one_process, model=small, batches=BATCHES, optimizer=sgd, loss=squared_error)
SAVED_AT = 4  # of 7 updates: with an average after every third, the ranks differ by then


@pytest.mark.parametrize("ranks", [2, 3])
def test_averaged_after_every_update_it_is_the_same_as_one_process(ranks):
    assert prove(LocalSGD, ranks=ranks, every=1)


def test_averaged_less_often_it_is_not_and_the_proof_says_when():
    proof = prove(LocalSGD, ranks=2, every=2)
    assert not proof
    assert [step.same for step in proof.steps if step.rank == 0] == [False, False, False]


def learn(batches):
    torch.manual_seed(dist.get_rank())
    strategy = LocalSGD(small().double(), partial(torch.optim.Adam, lr=0.02), squared_error, every=4)
    return train(strategy, batches, updates=60).losses


def test_it_learns():
    data = AddingProblem(400, lengths=(3, 5), dtype=torch.float64)
    first, second = launch(learn, list(map(data.batch, ShardedBatches(len(data), 32).global_batches())) * 10, ranks=2)
    assert first == second  # the loss is that of the global batch, on every rank
    assert sum(first[-10:]) < 0.5 * sum(first[:10])


def interrupted(folder, resume):
    """The weights and the momentum of this rank after 7 updates, with a checkpoint after the fourth."""
    torch.manual_seed(dist.get_rank() + 50 * resume)
    strategy = LocalSGD(small().double(), momentum, squared_error, every=3)
    if resume:
        strategy.step(strategy.share(BATCHES[0]))
        load_checkpoint(strategy, folder)
    while strategy.updates < 7:
        strategy.step(strategy.share(BATCHES[strategy.updates % 3]))
        if strategy.updates == SAVED_AT and not resume:
            save_checkpoint(strategy, folder, Position(SAVED_AT))
    return [
        (parameter.detach().clone(), strategy.optimizer.state[parameter]["momentum_buffer"].clone())
        for parameter in strategy.model.parameters()
    ]


def test_it_is_resumed_to_the_last_bit_though_every_rank_has_weights_of_its_own(tmp_path):
    whole, resumed = (launch(interrupted, tmp_path, resume, ranks=3) for resume in (False, True))
    assert not torch.equal(whole[0][0][0], whole[1][0][0])  # or there would be nothing to it
    for expected, found in zip(whole, resumed, strict=True):
        for (weight, moment), (found_weight, found_moment) in zip(expected, found, strict=True):
            assert torch.equal(found_weight, weight)
            assert torch.equal(found_moment, moment)


def loaded_by_one_process(folder):
    strategy = Single(small().double(), momentum, squared_error)
    load_checkpoint(strategy, folder)
    return strategy.full_state()


def test_others_load_the_first_ranks_copy(tmp_path):
    def first_rank_at_the_checkpoint():
        strategy = LocalSGD(small().double(), momentum, squared_error, every=3)
        while strategy.updates < SAVED_AT:
            strategy.step(strategy.share(BATCHES[strategy.updates % 3]))
        return strategy.full_state()

    torch.manual_seed(0)
    launch(interrupted, tmp_path, False, ranks=3)
    (found,) = launch(loaded_by_one_process, tmp_path, ranks=1)
    expected = launch(lambda: (torch.manual_seed(dist.get_rank()), first_rank_at_the_checkpoint())[1], ranks=3)[0]
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_the_command_line_knows_it_by_its_module(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    size = ["--ranks", "2", "--updates", "12", "--batch", "16", "--hidden", "8", "--every", "5"]
    command = ["train", "tests.core.local_sgd:LocalSGD", "every=2", *size, "--checkpoint", "saved"]
    assert main([*command, "--log", "run.jsonl"]) == 0
    assert len(read_log("run.jsonl")) == 12
    assert main([*command, "--updates", "15", "--resume"]) == 0
    assert "resuming from update 12" in capsys.readouterr().out


def test_a_loss_that_counts_what_the_mask_does_not_is_refused_where_the_count_is_taken_from_the_mask():
    def counts_sequences(outputs, batch):
        total, _ = squared_error(outputs, batch)
        return total, torch.tensor(99)

    def one_update():
        strategy = Accumulation(small().double(), sgd, counts_sequences, micro_batches=2)
        strategy.step(strategy.share(BATCHES[0]))

    with pytest.raises(RankFailed, match="the loss counts 99 steps where the mask has 2: Accumulation divides by"):
        launch(one_update, ranks=2)
