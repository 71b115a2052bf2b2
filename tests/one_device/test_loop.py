"""Training on one device works, is the same every time, and is what the proof compares with."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_lib import trace
from course_lib.core.adding import AddingProblem, at_last_padded_step
from course_lib.core.memory import predict_memory
from course_lib.core.model import cross_entropy, lstm_model, squared_error
from course_lib.core.proof import same_as_one_process
from course_lib.core.samplers import ShardedBatches
from course_lib.core.strategy import Single
from course_lib.core.text import Corpus, Streams
from course_lib.one_device.loop import epochs, evaluate, train
from course_lib.one_device.measurement import measure_memory

adam = partial(torch.optim.Adam, lr=0.01)
sgd = partial(torch.optim.SGD, lr=0.1)


def small_model():
    return lstm_model(features=2, hidden=6, layers=2, outputs=1)


def batches(number: int = 3) -> list:
    data = AddingProblem(8 * number, (3, 9), dtype=torch.float64)
    return [data.batch(range(start, start + 8)) for start in range(0, 8 * number, 8)]


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_reading_the_last_padded_step_learns_far_less_on_the_same_budget():
    errors = {}
    for name, read in (("last valid step", lambda batch: batch), ("last padded step", at_last_padded_step)):
        torch.manual_seed(0)
        data = AddingProblem(5_000, (4, 30))
        strategy = Single(lstm_model(features=2, hidden=32, layers=1, outputs=1), adam, squared_error)
        train(strategy, map(read, epochs(data, ShardedBatches(len(data), 32))), updates=250, progress=False)
        unseen = [read(AddingProblem(500, (4, 30), seed=1).batch(range(500)))]
        errors[name] = evaluate(strategy, unseen)
    assert errors["last valid step"] < 0.05
    assert errors["last padded step"] > 0.1


def test_the_same_seed_gives_the_same_bits():
    def losses(seed):
        torch.manual_seed(seed)
        return train(Single(small_model().double(), adam, squared_error), batches(), progress=False).losses

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_a_batch_in_which_nothing_counts_moves_nothing():
    strategy = Single(small_model().double(), sgd, squared_error)
    before = strategy.full_state()
    loss, count = strategy.step(batches(1)[0].rows([]))
    assert (loss.item(), count.item()) == (0.0, 0)
    torch.testing.assert_close(strategy.full_state(), before, rtol=0, atol=0)


def test_carried_state_continues_where_the_last_window_ended():
    corpus = Corpus.from_text("a b c d e f g h i j k l m n o p q r s t u v w x y z. " * 4)
    windows = Streams(corpus.tokens, streams=2, window=8)
    model = lstm_model(vocabulary=len(corpus.vocabulary), hidden=5, layers=2).double()
    still = Single(model, partial(torch.optim.SGD, lr=0.0), cross_entropy, carry_state=True)
    carried = [still.step(windows[i])[0].item() for i in range(3)]
    whole, _ = model(torch.cat([windows[i].inputs for i in range(3)]))
    for i, outputs in enumerate(whole.split(8)):
        total, count = cross_entropy(outputs, windows[i])
        assert carried[i] == pytest.approx((total / count).item(), abs=1e-10)
    assert not still.states[0][1][0].requires_grad


def test_a_step_is_recorded_as_forward_backward_update():
    strategy = Single(small_model().double(), sgd, squared_error)
    with trace.recording() as spans:
        strategy.step(batches(1)[0])
    assert [span.name for span in spans] == ["forward", "backward", "update"]
    strategy.step(batches(1)[0])
    assert len(spans) == 3
    assert not trace.recorder.spans


def test_evaluation_divides_once_by_the_global_count():
    strategy = Single(small_model().double(), sgd, squared_error)
    (batch,) = batches(1)
    uneven = [batch.rows([0]), batch.rows(range(1, 8))]
    assert evaluate(strategy, uneven) == pytest.approx(evaluate(strategy, [batch]), abs=1e-12)


def test_history_counts_real_steps_and_smooths_over_a_window():
    data = batches()
    history = train(Single(small_model().double(), sgd, squared_error), data, progress=False)
    assert history.tokens == [int(batch.lengths.sum()) for batch in data]
    assert history.smoothed(2)[2] == pytest.approx(sum(history.losses[1:3]) / 2)
    assert history.tokens_per_second > 0


def test_parameters_gradients_and_optimizer_take_what_the_formula_says():
    (batch,) = batches(1)
    strategy = Single(small_model().double(), adam, squared_error)
    measured, predicted = measure_memory(strategy, batch), predict_memory(strategy.model, batch)
    assert measured.parameters == predicted.parameters
    assert measured.gradients == predicted.gradients
    counters = 4 * len(list(strategy.model.parameters()))  # Adam also counts its steps
    assert measured.optimizer == predicted.optimizer + counters


class Forgetful(Single):
    """Trains on its own share and never talks to the others."""

    def share(self, batch):
        return batch.shard(dist.get_rank(), dist.get_world_size())


def test_one_process_is_the_same_as_one_process():
    proof = same_as_one_process(
        Single, ranks=1, model=small_model, batches=batches(), optimizer=adam, loss=squared_error
    )
    assert proof
    assert repr(proof).startswith("the same as one process: 1 rank, after each of 3 updates")


def test_ranks_that_do_not_agree_are_found_out_and_named():
    proof = same_as_one_process(
        Forgetful, ranks=2, model=small_model, batches=batches(), optimizer=adam, loss=squared_error
    )
    assert not proof
    assert repr(proof).startswith("NOT the same as one process: after update 1 rank 0 is off by")
    assert {step.rank for step in proof.steps if not step.same} == {0, 1}


def test_different_seeds_per_rank_are_found_out():
    proof = same_as_one_process(
        Single, ranks=2, model=small_model, batches=batches(1), optimizer=sgd, loss=squared_error
    )
    assert [step.same for step in proof.steps] == [True, False]


def test_a_number_that_is_none_is_not_the_same():
    class Broken(Single):
        def full_gradients(self):
            return {name: gradient * float("nan") for name, gradient in super().full_gradients().items()}

    proof = same_as_one_process(
        Broken, ranks=1, model=small_model, batches=batches(1), optimizer=sgd, loss=squared_error
    )
    assert not proof
