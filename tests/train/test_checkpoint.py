"""Interrupted and resumed is the same as never stopped, whatever the split; and a crash costs no checkpoint."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor

from course_lib import RankDied, launch
from course_lib.core.model import Embed, Project, Recurrent, SequenceModel, cross_entropy, lstm_model
from course_lib.core.strategy import Single
from course_lib.core.text import Corpus, Streams
from course_lib.train.checkpoint.files import CheckpointError, Position, latest_checkpoint, sums_of
from course_lib.train.checkpoint.save_and_load import load_checkpoint, save_checkpoint
from course_lib.train.registry import STRATEGIES
from tests.core.own_blocks import LayerNormed, Normed
from tests.pipeline.test_pipeline import BATCHES, VOCABULARY, adam, model

NEEDS = {"accumulation": {"micro_batches": 2}, "hybrid": {"replicas": 2}}
CORPUS = Corpus.from_text("every rank writes what it has, and one of them what all have. " * 20)
WINDOWS = list(Streams(CORPUS.tokens, streams=8, window=4))


def build(name, options, whole=model, dtype=torch.float64, seed=7):
    torch.manual_seed(seed)
    return STRATEGIES[name](whole(3).to(dtype), adam, cross_entropy, **{**NEEDS.get(name, {}), **options})


def steps(strategy, start, stop, batches=BATCHES):
    return [strategy.step(strategy.share(batches[number % len(batches)]))[0].item() for number in range(start, stop)]


def everything_of(strategy):
    """What decides how training goes on from here: this rank's part of it."""
    state = {f"{name}.{slot}": value.to_local() if isinstance(value, DTensor) else value
             for name, parameter in strategy.model.named_parameters()
             for slot, value in strategy.optimizer.state[parameter].items()}  # fmt: skip
    return strategy.full_state() | state | {"random": torch.rand(3)}


def train_and_save(folder, name, options, at, stop, **others):
    strategy = build(name, options, **others)
    losses = steps(strategy, 0, at)
    save_checkpoint(strategy, folder, Position(at))
    return losses + steps(strategy, at, stop), everything_of(strategy)


def load_and_train(folder, name, options, stop, practice=True, **others):
    strategy = build(name, options, **others)
    torch.manual_seed(dist.get_rank() + 100)  # other random numbers than those that were saved
    if practice:
        steps(strategy, 0, 1)
    start = load_checkpoint(strategy, folder).position.updates
    return steps(strategy, start, stop), everything_of(strategy)


def test_on_the_same_layout_it_goes_on_to_the_last_bit(tmp_path):
    """As the other strategies do in test_kill.py; each one's weights and moments are compared in test_resharding.py."""
    options = {"clip": 0.1}
    whole = launch(train_and_save, tmp_path, "pipeline", options, 4, 9, dtype=torch.float32, ranks=4)
    resumed = launch(load_and_train, tmp_path, "pipeline", options, 9, dtype=torch.float32, ranks=4)
    for (losses, expected), (losses_after, found) in zip(whole, resumed, strict=True):
        assert losses_after == losses[4:]
        assert expected.keys() == found.keys()
        for key in expected:
            assert torch.equal(expected[key], found[key]), key


ZB_V = {"schedule": "zb-v", "virtual": 2}
ZB_H1 = {"schedule": "zb-h1", "recompute": True}
WAYS = [("ddp", 2, {}), ("hybrid", 4, ZB_V), ("pipeline", 2, ZB_H1), ("single", 1, {})]


def test_on_another_layout_it_goes_on_as_one_process_would(tmp_path):
    """A pipeline's checkpoint goes on as data parallelism, that one's as a hybrid, and so on."""
    alone = build("single", {})
    expected = steps(alone, 0, 2 * len(WAYS) + 2)
    losses, _ = launch(train_and_save, tmp_path, "pipeline", ZB_V, 2, 2, ranks=2)[0]
    for place, (name, ranks, options) in enumerate(WAYS):
        resumed = launch(load_train_and_save, tmp_path, name, options, 2 * place + 4, ranks=ranks)[0]
        losses += resumed[0]
    assert losses == pytest.approx(expected, abs=1e-10)
    for key, tensor in everything_of(alone).items():
        if key != "random":
            assert torch.allclose(resumed[1][key], tensor, rtol=0, atol=1e-10), key


def load_train_and_save(folder, name, options, stop):
    strategy = build(name, options)
    losses = steps(strategy, load_checkpoint(strategy, folder).position.updates, stop)
    save_checkpoint(strategy, folder, Position(stop))
    return losses, everything_of(strategy)


def reads_text(layers):
    return lstm_model(vocabulary=len(CORPUS.vocabulary), hidden=5, layers=layers)


def carries(folder, name, options, save):
    """Losses on the text's windows, with a checkpoint after the third; and the warnings that loading it gave."""
    strategy = build(name, {"carry_state": True, **options}, reads_text)
    start = 0
    with warnings.catch_warnings(record=True) as said:
        if not save:
            steps(strategy, 0, 1, WINDOWS)
            start = load_checkpoint(strategy, folder).position.updates
    losses = steps(strategy, start, 3, WINDOWS)
    if save:
        save_checkpoint(strategy, folder, Position(3))
    return losses + steps(strategy, 3, 6, WINDOWS), [str(warning.message) for warning in said]


@pytest.mark.parametrize(
    ("name", "options"),
    [("ddp", {}), pytest.param("pipeline", {**ZB_V, "chunks": 2}, marks=pytest.mark.slow)],
    ids=["ddp", "virtual stages"],
)
def test_carried_states_are_saved_too(tmp_path, name, options):
    whole = launch(carries, tmp_path, name, options, True, ranks=2)
    resumed = launch(carries, tmp_path, name, options, False, ranks=2)
    for (losses, _), (after, said) in zip(whole, resumed, strict=True):
        assert after == losses[3:]
        assert said == []


@pytest.mark.slow
def test_on_another_layout_a_carried_state_begins_at_zero_with_a_warning(tmp_path):
    losses, _ = launch(carries, tmp_path, "pipeline", {}, True, ranks=2)[0]
    after, said = launch(carries, tmp_path, "pipeline", {"micro_batches": 4}, False, ranks=3)[0]
    assert len(after) == 3
    assert after != losses[3:]
    assert said == [
        "update-00000003 was saved by Pipeline on 2 ranks in 4 micro-batches, and is loaded by Pipeline on 3 ranks in 4"
        " micro-batches: the carried state starts at zero"
    ]


def test_it_needs_no_process_group(tmp_path):
    strategy = build("single", {})
    losses = steps(strategy, 0, 3)
    path = save_checkpoint(strategy, tmp_path, Position(3, epoch=1, batch=2), notes={"loss": losses[-1]})
    other = build("single", {})
    loaded = load_checkpoint(other, tmp_path)
    assert (loaded.path, loaded.position, loaded.notes) == (path, Position(3, 1, 2), {"loss": losses[-1]})
    assert steps(strategy, 3, 5) == steps(other, 3, 5)


def test_what_all_ranks_have_is_written_once(tmp_path):
    wide = partial(lstm_model, vocabulary=9, hidden=64)

    def saved(folder, name, ranks):
        launch(save_at, folder, name, 1, lambda layers: wide(layers=layers), ranks=ranks)
        files = list((folder / "update-00000001").glob("*.distcp"))
        return [file.stat().st_size for file in files]

    alone, shared = saved(tmp_path / "a", "single", 1), saved(tmp_path / "b", "ddp", 4)
    assert len(shared) == 4
    assert sum(shared) < 1.1 * sum(alone)
    assert max(shared) < 0.6 * sum(alone)  # and the ranks share the work


def save_at(folder, name, update, whole=model, spoil=None, seed=7):
    strategy = build(name, {}, whole, seed=seed)
    with spoil or nullcontext():
        save_checkpoint(strategy, folder, Position(update))


def test_the_last_two_are_kept(tmp_path):
    strategy = build("single", {})
    for update in (5, 10, 15, 100):
        save_checkpoint(strategy, tmp_path, Position(update))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["update-00000015", "update-00000100"]


class Spoiled:
    """In the block, rank 1 dies, or fails, at the moment when it writes its part."""

    def __init__(self, how, when="write_data"):
        self.how, self.when = how, when

    def __enter__(self):
        if dist.get_rank() == 1:
            setattr(dcp.FileSystemWriter, self.when, lambda *_, **__: self.how())

    def __exit__(self, *_):
        pass


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def disk_is_full():
    raise OSError(28, "No space left on device")


def test_a_crash_while_it_is_written_leaves_the_one_before(tmp_path):
    launch(save_at, tmp_path, "ddp", 5, ranks=2)
    with pytest.raises(RankDied):
        launch(save_at, tmp_path, "ddp", 6, spoil=Spoiled(die), ranks=2)
    assert [path.is_dir() for path in tmp_path.glob("update-00000006.*.tmp")] == [True]
    assert latest_checkpoint(tmp_path).name == "update-00000005"
    assert launch(load_and_train, tmp_path, "pipeline", {}, 6, ranks=2)
    launch(save_at, tmp_path, "ddp", 7, ranks=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["update-00000005", "update-00000007"]


def test_a_full_disk_is_said_and_leaves_the_one_before(tmp_path):
    launch(save_at, tmp_path, "ddp", 5, ranks=2)
    with pytest.raises(Exception, match=r"rank 1 cannot write its part of .*6 \(No space left on device\)"):
        launch(save_at, tmp_path, "ddp", 6, spoil=Spoiled(disk_is_full), ranks=2)
    assert [path.name for path in tmp_path.iterdir()] == ["update-00000005"]


@pytest.mark.parametrize("moment", ["_write", "_sync", "shutil.rmtree"])
def test_a_crash_before_or_after_the_renaming_leaves_a_complete_one(tmp_path, monkeypatch, moment):
    strategy = build("single", {})
    for update in (5, 6):
        save_checkpoint(strategy, tmp_path, Position(update))
    monkeypatch.setattr(f"course_lib.train.checkpoint.files.{moment}", lambda *_, **__: disk_is_full())
    with pytest.raises(CheckpointError, match=r"cannot be written .*No space left"):
        save_checkpoint(strategy, tmp_path, Position(7))
    monkeypatch.undo()
    assert latest_checkpoint(tmp_path).name == ("update-00000007" if moment == "shutil.rmtree" else "update-00000006")
    load_checkpoint(build("single", {}), tmp_path)


def test_latest_takes_only_complete_ones(tmp_path):
    assert latest_checkpoint(tmp_path / "missing") is None
    for name in ("update-00000009.tmp", "update-00000008", "other", "update-3"):
        (tmp_path / name).mkdir()
    (tmp_path / "update-00000009.tmp" / "training.json").write_text("{}")
    assert latest_checkpoint(tmp_path) is None


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (
            lambda: lstm_model(vocabulary=9, hidden=5, layers=3).double(),
            r"it has blocks.0.table.weight of shape \(9, 4\)",
        ),
        (
            lambda: model(2).double(),
            r"it has no blocks.3.linear.bias, and this one has blocks.3.linear.bias of shape \(9,\) in float64",
        ),
        (lambda: model(3), r"in float64, and this one has .* in float32"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, other, says):
    save_checkpoint(build("single", {}), tmp_path, Position(1))
    with pytest.raises(CheckpointError, match=rf"update-00000001 belongs to another model: .*{says}"):
        load_checkpoint(Single(other(), adam, cross_entropy), tmp_path)


def test_the_whole_model_is_compared_on_every_rank(tmp_path):
    """No rank goes on alone: the difference is in another rank's part."""
    launch(save_at, tmp_path, "pipeline", 1, ranks=2)

    def load_another():
        with pytest.raises(CheckpointError, match="another model"):
            load_checkpoint(build("pipeline", {}, lambda _: model(2)), tmp_path)

    launch(load_another, ranks=2)


def test_an_older_one_is_not_saved_beside_a_newer_one_which_would_be_loaded_in_its_place(tmp_path):
    strategy = build("single", {})
    save_checkpoint(strategy, tmp_path, Position(100))
    with pytest.raises(CheckpointError, match="update-00000100 is ahead of update 5: load it and continue from there"):
        save_checkpoint(strategy, tmp_path, Position(5))
    with pytest.raises(ValueError, match="keep=0: keep at least the checkpoint being saved"):
        save_checkpoint(strategy, tmp_path, Position(200), keep=0)
    save_checkpoint(strategy, tmp_path, Position(123_456_789))
    assert load_checkpoint(strategy, tmp_path).position.updates == 123_456_789


OPTIMIZERS = {
    "Adam": partial(torch.optim.Adam, lr=0.1),
    "AMSGrad": partial(torch.optim.Adam, lr=0.1, amsgrad=True),
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize(("saved", "other"), [("Adam", "AMSGrad"), ("AMSGrad", "Adam"), ("Adam", "SGD")])
def test_an_optimizer_that_keeps_other_numbers_is_refused(tmp_path, saved, other):
    def trained_by(name):
        return Single(model(3).double(), OPTIMIZERS[name], cross_entropy)

    strategy = trained_by(saved)
    steps(strategy, 0, 1)
    save_checkpoint(strategy, tmp_path, Position(1))
    with pytest.raises(CheckpointError, match=r"was saved with Adam \(exp_avg, .* which keeps different state"):
        load_checkpoint(trained_by(other), tmp_path)
    assert load_checkpoint(trained_by(saved), tmp_path).position.updates == 1


@pytest.mark.parametrize("trained", [False, True])
def test_a_load_that_is_refused_leaves_the_strategy_as_it_was(tmp_path, trained):
    """The last thing to be refused is a buffer, when the optimizer has made all that would be loaded into."""
    decaying = partial(torch.optim.AdamW, lr=0.1, weight_decay=0.5)
    saved, loaded = (Single(model(3).double(), decaying, cross_entropy) for _ in range(2))
    steps(saved, 0, 1)
    save_checkpoint(saved, tmp_path, Position(1))
    if trained:
        steps(loaded, 0, 2)
    loaded.model.register_buffer("more", torch.zeros(2))

    def all_of_it() -> list[torch.Tensor]:
        slots = [value for state in loaded.optimizer.state.values() for value in state.values()]
        return [each.clone() for each in (*loaded.full_state().values(), *slots, *loaded.full_gradients().values())]

    before = all_of_it()
    with pytest.raises(CheckpointError, match="it has no buffer more"):
        load_checkpoint(loaded, tmp_path)
    after = all_of_it()
    assert len(before) == len(after) == (15 * 5 if trained else 15)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert (loaded.updates, loaded.optimizer.param_groups[0]["lr"]) == (2 if trained else 0, 0.1)


FILES = ["training.json", ".metadata", "__0_0.distcp", "SHA256SUMS"]


def flip_a_bit(path: Path, chance: random.Random) -> None:
    """Change one bit of a file, as a bad disk or cable does."""
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut_in_half(path: Path, _: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def take_from_another_save(path: Path, _: random.Random) -> None:
    path.write_bytes((path.parents[2] / "other" / path.parent.name / path.name).read_bytes())


def two_checkpoints(folder: Path, seed: int) -> Path:
    """The newer one of two, after updates 1 and 2."""
    torch.manual_seed(seed)
    strategy = Single(model(3).double(), adam, cross_entropy)
    for update in (1, 2):
        steps(strategy, update - 1, update)
        newest = save_checkpoint(strategy, folder, Position(update), notes={"seed": seed})
    return newest


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit,
        *(
            pytest.param(other, marks=pytest.mark.slow)
            for other in (cut_in_half, empty, Path.unlink, take_from_another_save)
        ),
    ],
)
def test_the_newest_one_damaged_is_named_and_the_one_before_it_is_used(tmp_path, damage):
    chance = random.Random(0)
    two_checkpoints(tmp_path / "other", seed=2)
    newest = two_checkpoints(tmp_path / "saved", seed=1)
    whole = {name: (newest / name).read_bytes() for name in FILES}
    for name in FILES * (5 if damage is flip_a_bit else 1):
        damage(newest / name, *([chance] if damage is not Path.unlink else []))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            loaded = load_checkpoint(build("single", {}), tmp_path / "saved")
        assert loaded.position.updates == 1, name
        (sentence,) = [str(warning.message) for warning in said if "damaged" in str(warning.message)]
        assert sentence.startswith(f"{newest} is damaged (")
        assert sentence.endswith("): update-00000001, the previous one, is loaded instead")
        (newest / name).write_bytes(whole[name])
    assert load_checkpoint(build("single", {}), tmp_path / "saved").position.updates == 2


@pytest.mark.parametrize(
    "change",
    ["[" * 100_000, {"layout": 3}, {"notes": []}, {"position": {"updates": "2"}}],
    ids=lambda change: str(change)[:20],
)
def test_facts_of_another_type_are_damage_though_their_sum_is_right(tmp_path, change):
    newest = two_checkpoints(tmp_path, seed=1)
    facts, sums = newest / "training.json", newest / "SHA256SUMS"
    before = sums_of([facts])[facts.name]
    facts.write_text(change if isinstance(change, str) else json.dumps(json.loads(facts.read_text()) | change))
    sums.write_text(sums.read_text().replace(before, sums_of([facts])[facts.name]))
    with pytest.warns(UserWarning, match=r"update-00000002 is damaged \(it cannot be read"):
        assert load_checkpoint(build("single", {}), tmp_path).position.updates == 1


def test_a_damaged_one_is_put_aside_when_the_run_comes_there_again(tmp_path):
    newest = two_checkpoints(tmp_path, seed=1)
    cut_in_half(newest / "__0_0.distcp", random.Random())
    strategy = build("single", {})
    with pytest.warns(UserWarning, match=r"__0_0\.distcp has changed since it was saved"):
        load_checkpoint(strategy, tmp_path)
    save_checkpoint(strategy, tmp_path, Position(2))
    names = ["update-00000001", "update-00000002", "update-00000002.damaged"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert load_checkpoint(strategy, tmp_path).position.updates == 2


def test_a_checkpoint_under_another_name_is_not_taken_for_it(tmp_path):
    newest = two_checkpoints(tmp_path, seed=1)
    newest.rename(tmp_path / "update-00000009")
    with pytest.warns(UserWarning, match=r"update-00000009 is damaged \(it is from update 2\)"):
        assert load_checkpoint(build("single", {}), tmp_path).position.updates == 1


@pytest.mark.parametrize("name", FILES)
def test_where_none_is_whole_all_are_named(tmp_path, name):
    two_checkpoints(tmp_path, seed=1)
    for update in (1, 2):
        empty(tmp_path / f"update-0000000{update}" / name, random.Random())
    with pytest.raises(
        CheckpointError,
        match=r"update-00000002 is damaged .*update-00000001 is damaged .*, and there is no other to resume from",
    ):
        load_checkpoint(build("single", {}), tmp_path)


@pytest.mark.slow
def test_a_part_of_another_save_is_found_on_any_rank(tmp_path):
    for folder, seed in (("saved", 7), ("other", 8)):
        for update in (1, 2):
            launch(partial(save_at, seed=seed), tmp_path / folder, "pipeline", update, ranks=2)
    name = Path("update-00000002", "__1_0.distcp")
    (tmp_path / "saved" / name).write_bytes((tmp_path / "other" / name).read_bytes())

    def loaded():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = load_checkpoint(build("pipeline", {}), tmp_path / "saved")
        return found.position.updates, [str(each.message) for each in said if "damaged" in str(each.message)]

    (first, said), (second, nothing) = launch(loaded, ranks=2)
    assert (first, second, nothing) == (1, 1, [])
    assert "__1_0.distcp has changed since it was saved" in said[0]


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs coreutils")
def test_the_sums_are_those_that_sha256sum_checks(tmp_path):
    newest = two_checkpoints(tmp_path, seed=1)
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=newest, capture_output=True).returncode == 0
    flip_a_bit(newest / "__0_0.distcp", random.Random(1))
    assert subprocess.run(check, cwd=newest, capture_output=True).returncode == 1


def normed(layers) -> SequenceModel:
    """Four blocks, with BatchNorm among them."""
    blocks = [Embed(VOCABULARY, 4), Normed(4), Recurrent(4), LayerNormed(4), Project(4, VOCABULARY)]
    return SequenceModel(dict(enumerate(blocks)))


def buffers_of(strategy) -> dict[str, list]:
    return {name: buffer.tolist() for name, buffer in strategy.model.named_buffers()}


def test_buffers_come_back_on_any_layout(tmp_path):
    options = {"pipeline": {"micro_batches": 1}}

    def save(name):
        strategy = build(name, options.get(name, {}), whole=normed)
        steps(strategy, 0, 3)
        save_checkpoint(strategy, tmp_path, Position(3))
        return buffers_of(strategy)

    def load(name):
        strategy = build(name, options.get(name, {}), whole=normed)
        load_checkpoint(strategy, tmp_path)
        return buffers_of(strategy)

    saved, loaded = {}, {}
    for part in launch(save, "pipeline", ranks=2):
        saved |= part
    assert saved["blocks.1.norm.num_batches_tracked"] == saved["blocks.3.calls"] == 3
    for part in launch(load, "fsdp", ranks=3):
        assert all(saved[name] == values for name, values in part.items())
        loaded |= part
    assert loaded == saved


def test_nothing_is_written_over(tmp_path):
    save = partial(save_checkpoint, build("single", {}), tmp_path, Position(1))
    save()
    with pytest.raises(CheckpointError, match="update-00000001 exists: load it and continue from there"):
        save()


def test_an_empty_folder_gets_a_sentence(tmp_path):
    with pytest.raises(CheckpointError, match=f"there is no checkpoint in {Path(tmp_path)}"):
        load_checkpoint(build("single", {}), tmp_path)
