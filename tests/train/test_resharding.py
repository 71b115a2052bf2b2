"""What any strategy has saved on any number of ranks, any other loads on any number, and nothing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from course_lib import RankFailed, launch
from course_lib.core.model import cross_entropy
from course_lib.core.shards import Shard, gather_outlines, join
from course_lib.core.strategy import Single, Strategy
from course_lib.model_parallel.tensor_parallel import TensorParallel
from course_lib.train.checkpoint.files import Position
from course_lib.train.checkpoint.save_and_load import load_checkpoint, save_checkpoint
from course_lib.train.registry import STRATEGIES
from tests.pipeline.test_pipeline import BATCHES, adam, model

RANKS = (1, 2, 3, 4)
WAYS = STRATEGIES | {"zero": STRATEGIES["hybrid"]}  # a hybrid with shards
LAYOUTS = [(name, ranks) for ranks in RANKS for name in WAYS if name != "single" or ranks == 1]
NAMES = [f"{name}-{ranks}" for name, ranks in LAYOUTS]


def build(name: str, seed: int) -> Strategy:
    ranks = dist.get_world_size()
    needs = {
        "accumulation": {"micro_batches": 2},
        "hybrid": {"replicas": 2 if ranks % 2 == 0 else 1},
        "zero": {"replicas": 1, "shards": 2 if ranks == 4 else ranks},
        "fsdp": {"replicas": 2 if ranks == 4 else 1},
    }
    torch.manual_seed(seed)
    return WAYS[name](model(3).double(), adam, cross_entropy, clip=0.1, **needs.get(name, {}))


def everything(strategy: Strategy) -> dict[str, torch.Tensor]:
    """The whole model and all that Adam keeps for it, put together from all ranks."""
    shards = strategy.shards()
    slots = {
        f"{name}.{slot}": replace(shard, tensor=value, **({} if value.dim() else {"shape": (), "ranges": None}))
        for name, shard in shards.items()
        for slot, value in strategy.optimizer.state[shard.tensor].items()
    }
    group = strategy.model_group or dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return strategy.full_state() | join(slots, group)


def train_and_save(folder, names) -> dict[str, dict[str, torch.Tensor]]:
    saved = {}
    for name in names:
        strategy = build(name, seed=7)
        for batch in BATCHES:
            strategy.step(strategy.share(batch))
        save_checkpoint(strategy, folder / f"{name}-{dist.get_world_size()}", Position(2))
        saved[f"{name}-{dist.get_world_size()}"] = everything(strategy)
    return saved


def load_all(folder, name, saved_as) -> dict[str, dict[str, torch.Tensor]]:
    found = {}
    for each in saved_as:
        strategy = build(name, seed=100 + dist.get_rank())
        load_checkpoint(strategy, folder / each)
        assert strategy.updates == 2
        found[each] = everything(strategy)
    return found


# Each strategy on one number of ranks; on all of them, it takes minutes.
FEW = ["single-1", "ddp-3", "accumulation-2", "model-4", "tensor-3", "pipeline-2", "hybrid-4", "fsdp-3", "fsdp-4"]
FEW += ["zero-3", "zero-4"]


@pytest.fixture(scope="module")
def saved(request, tmp_path_factory):
    """A folder with a checkpoint of each of these layouts, and what each of them held."""
    folder, contents = tmp_path_factory.mktemp("saved"), {}
    for ranks in RANKS:
        names = [name for name, its_ranks in LAYOUTS if its_ranks == ranks and f"{name}-{ranks}" in request.param]
        if names:
            contents |= launch(train_and_save, folder, names, ranks=ranks, timeout=600)[0]
    assert contents.keys() == set(request.param)
    return folder, contents


THREE = ["single-1", "pipeline-2", "ddp-3"]
loaders = [pytest.param(THREE, "zero", 4, id="three-zero-4")]
loaders += [
    pytest.param(names, *layout, id=f"{text}-{name}", marks=pytest.mark.slow)
    for text, names, as_layouts in (("three", THREE, ["fsdp-3"]), ("few", FEW, FEW), ("all", NAMES, NAMES))
    for layout, name in zip(LAYOUTS, NAMES, strict=True)
    if name in as_layouts
]


@pytest.mark.parametrize(("saved", "name", "ranks"), loaders, indirect=["saved"])
def test_every_checkpoint_loads_as(saved, name, ranks):
    folder, contents = saved
    for rank, found in enumerate(launch(load_all, folder, name, list(contents), ranks=ranks, timeout=600)):
        assert found.keys() == contents.keys()
        for saved_as, content in found.items():
            for key, tensor in contents[saved_as].items():
                same = torch.equal(content[key], tensor)  # to the last bit, also on another layout: nothing is computed
                assert same, f"saved by {saved_as}, loaded as {name} on {ranks} ranks: rank {rank} has another {key}"


class Forgetful(TensorParallel):
    """Cuts the layers, and says of its rows that they are all there is."""

    def shards(self):
        return Strategy.shards(self)


class Overlapping(TensorParallel):
    """Rank 1 says that it begins a row earlier than it does."""

    def shards(self):
        shards, too_early = super().shards(), dist.get_rank()
        for name, shard in shards.items():
            if shard.ranges is not None:
                ranges = (range(each.start - too_early, each.stop - too_early) for each in shard.ranges)
                shards[name] = replace(shard, ranges=tuple(ranges))
        return shards


class WithAHole(TensorParallel):
    """Rank 1 says nothing of a layer's bias, as if rank 0 had all of it."""

    def shards(self):
        shards = super().shards()
        for name, shard in shards.items():
            if dist.get_rank() == 1 and shard.ranges is not None:
                shards[name] = replace(shard, copy=1)
        return shards


class LeavesOut(Single):
    """Forgets a parameter that it has."""

    def shards(self):
        return {name: shard for name, shard in super().shards().items() if name != "blocks.4.linear.bias"}


class Cloned(Single):
    """Tells of copies: what is loaded into them would be lost."""

    def shards(self):
        return {name: Shard.whole(shard.tensor.clone()) for name, shard in super().shards().items()}


class WithoutGroup(TensorParallel):
    """Does not say who has the model together: the norm of its gradient would be that of a part."""

    def __init__(self, *given):
        super().__init__(*given)
        self.model_group = None


class OneRange(Single):
    """Gives a range where a tuple of ranges is wanted."""

    def shards(self):
        return {name: replace(shard, ranges=range(4)) for name, shard in super().shards().items()}


class Silent(Single):
    """Says nothing at all."""

    def shards(self):
        return None


class Drifting(Single):
    """Every rank trains its own model, and says that it is everybody's."""


class Misfit(Single):
    """Says that more of a parameter is here than there is."""

    def shards(self):
        return {name: replace(shard, shape=(99, *shard.shape[1:])) for name, shard in super().shards().items()}


def save_with(kind, folder):
    torch.manual_seed(dist.get_rank() if kind is Drifting else 0)
    save_checkpoint(kind(model(3).double(), adam, cross_entropy), folder, Position(1))


@pytest.mark.parametrize(
    ("kind", "ranks", "says"),
    [
        (
            Forgetful,
            2,
            r"blocks\.1\.lstm\.bias_hh_l0 has different values in \[0:8\] on ranks 0 and 1. The ranks' shards\(\) must",
        ),
        (Forgetful, 3, r"blocks\.1\.lstm\.bias_hh_l0 is \(8,\) in .* on rank 0, \(4,\) in"),
        (Overlapping, 2, r"bias_hh_l0 overlaps: \[0:2\] on rank 0 and \[1:3\] on rank 1"),
        (WithAHole, 2, r"blocks\.1\.lstm\.bias_hh_l0 is incomplete: the ranks have 8 of its 16 numbers"),
        (LeavesOut, 2, r"shards\(\) does not describe blocks\.4\.linear\.bias as it is on this rank"),
        (Cloned, 1, r"shards\(\) does not describe blocks\.0\.table\.weight as it is on this rank"),
        (WithoutGroup, 2, r"blocks\.1\.lstm\.\w+ is cut, but model_group is None: set self\.model_group"),
        (OneRange, 1, r"does not describe blocks\.0\.table\.weight .*, and a tuple of ranges"),
        (Silent, 1, r"shards\(\) must return a dict with a Shard for each parameter"),
        (Drifting, 2, r"table\.weight has different values in .* on ranks 0 and 1.*copy=rank, a copy number"),
        (Misfit, 1, r"does not describe blocks\.0\.table\.weight as it is on this rank"),
    ],
)
def test_shards_that_are_no_whole_model_are_refused_before_anything_is_written(tmp_path, kind, ranks, says):
    with pytest.raises(RankFailed, match=says):
        launch(save_with, kind, tmp_path, ranks=ranks)
    assert not list(tmp_path.iterdir())


def test_a_parameter_of_many_millions_can_be_told_from_another():
    large = torch.zeros(1).expand(4 * 2050**2)  # float32 cannot count so far
    outline = gather_outlines({"weight": Shard.whole(large)}, sampled=True)[0]["weight"]
    assert len(outline.samples[0]) == 16


def clipped():
    """The gradient after clipping, of a vector whose first two numbers lie on both ranks, and the rest on rank 1."""
    strategy = Single(model(1).double(), adam, cross_entropy, clip=0.5)
    strategy.model_group = dist.group.WORLD
    vector = torch.nn.Parameter(torch.zeros(2 if dist.get_rank() == 0 else 6).double())
    vector.grad = torch.arange(1.0, len(vector) + 1).double()
    ranges = (range(0, 2),) if dist.get_rank() == 0 else (range(0, 2), range(2, 6))
    strategy.model = torch.nn.ParameterDict({"vector": vector})
    strategy.shards = lambda: {"vector": Shard(vector, (6,), ranges)}
    strategy.clip_gradients()
    return vector.grad


def test_the_norm_counts_every_piece_once():
    whole = torch.arange(1.0, 7.0).double()
    expected = whole * 0.5 / whole.norm()
    first, second = launch(clipped, ranks=2)
    torch.testing.assert_close(second, expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(first, expected[:2], rtol=1e-5, atol=0)


def adafactor(folder):
    strategy = TensorParallel(model(3).double(), torch.optim.Adafactor, cross_entropy)
    strategy.step(BATCHES[0])
    save_checkpoint(strategy, folder, Position(1))


def test_an_optimizer_whose_state_is_cut_in_a_way_of_its_own_is_refused(tmp_path):
    with pytest.raises(
        RankFailed, match=r"the optimizer keeps row_var of shape \(\d+, 1\) for .* is split across ranks"
    ):
        launch(adafactor, tmp_path, ranks=2)


def tied():
    whole = model(3)
    whole.blocks["2"].lstm = whole.blocks["1"].lstm
    TensorParallel(whole.double(), adam, cross_entropy)


def test_layers_that_share_a_weight_are_not_cut_apart():
    with pytest.raises(RankFailed, match="blocks 1 and 2 share a weight: give each its own"):
        launch(tied, ranks=2)
