"""The work of one update, and a plan for it: a mesh, its rank order, a schedule, and the resulting time and memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from course_lib.lstm.memory import EMBEDDING, LSTM, OPTIMIZERS, predict_block_memory, size_of
from course_lib.planning.block_times import BlockSeconds, BlockTimes
from course_lib.planning.placement import Placement
from course_lib.planning.schedule import Schedule
from course_lib.planning.schedules import make_schedule
from course_lib.planning.simulation import ActionCosts, Stopwatch
from course_lib.words import counted

if TYPE_CHECKING:
    from course_lib.data import Batch
    from course_lib.lstm.memory import BatchSize, BlockSize, Memory, ModelSize
    from course_lib.lstm.model import SequenceModel

HALF = "bfloat16"  # under autocast: activations, messages and gathered weights take two bytes, gradients four
ZERO_1, FSDP = "ZeRO-1", "FSDP"


@dataclass(frozen=True)
class Work:
    """One update of a model on a batch of `sequences` and `steps`, on devices with known block times."""

    blocks: tuple[BlockSize, ...]
    times: BlockTimes
    sequences: int
    steps: int
    precision: str
    optimizer: str
    memory: tuple[Memory, ...]  # per block, for the whole batch
    edges: tuple[int, ...]  # per block: bytes of its outputs as a message, for the whole batch
    speed: float = 1.0  # of the devices, relative to the measured ones
    _seconds: dict[tuple[BlockSize, int, int], BlockSeconds] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        model: SequenceModel | ModelSize,
        batch: Batch | BatchSize,
        times: BlockTimes,
        *,
        precision: str = "float32",
        optimizer: str = "Adam",
    ) -> Work:
        """Return the work of training `model` on `batch`. Only the model's size matters: it is never run."""
        if optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer={optimizer!r}: choose {', '.join(OPTIMIZERS)}")
        times.in_precision(precision)
        blocks = tuple(size_of(block) for _, block in model.numbered())
        numbers, places = OPTIMIZERS[optimizer], [place for place, _ in model.numbered()]
        memory = [predict_block_memory(*pair, batch, numbers) for pair in zip(places, blocks, strict=True)]
        if precision == HALF:  # autocast saves activations in bfloat16; the weights stay in float32
            memory = [replace(block, activations=block.activations // 2) for block in memory]
        cells = batch.steps * batch.sequences * (2 if precision == HALF else blocks[0].number_bytes)
        edges = tuple(cells * size.width for size in blocks)
        return cls(blocks, times, batch.sequences, batch.steps, precision, optimizer, tuple(memory), edges)

    def seconds(self, place: int, pieces: int, chunks: int = 1) -> BlockSeconds:
        """Return the block's time for one piece, if the sequences are cut into `pieces` and the steps into `chunks`."""
        key = self.blocks[place], math.ceil(self.sequences / pieces), math.ceil(self.steps / chunks)
        if key not in self._seconds:
            self._seconds[key] = self.times.of(*key, self.precision)
        return self._seconds[key] if self.speed == 1 else self._seconds[key] * (1 / self.speed)

    def block_seconds(self, replicas: int, pieces: Pieces) -> list[BlockSeconds]:
        """Return each block's times for one of these pieces, if `replicas` replicas divide the sequences."""
        cut = replicas * pieces.micro_batches
        return [self.seconds(place, cut, pieces.chunks) for place in range(len(self.blocks))]

    def update_seconds(self, places: Iterable[int], shards: int = 1) -> float:
        """Return how long the optimizer takes for these blocks, or for one shard of each."""
        count = sum(self.memory[place].parameters for place in places) / shards / self.blocks[0].number_bytes
        return self.times.update_seconds(count, self.optimizer, self.precision) / self.speed

    def scaled(self, *, speed: float = 1.0, sequences: float = 1.0) -> Work:
        """Return the same work on faster or slower devices, or with more or fewer sequences."""
        count = max(1, round(self.sequences * sequences))
        share = count / self.sequences
        memory = tuple(replace(block, activations=round(block.activations * share)) for block in self.memory)
        edges = tuple(round(size * share) for size in self.edges)
        return replace(self, sequences=count, memory=memory, edges=edges, speed=self.speed * speed)

    def states(self, places: Iterable[int], shards: int = 1) -> float:
        """Return the bytes of these blocks' parameters and gradients, and of one shard of their optimizer state."""
        blocks = [self.memory[place] for place in places]
        whole = sum(block.parameters + block.gradients for block in blocks)
        return whole + sum(block.optimizer for block in blocks) / shards

    def gathered(self, place: int) -> float:
        """Return the bytes that FSDP gathers for a block: in half precision, weights are sent and used in two bytes."""
        return self.memory[place].parameters / (self.blocks[0].number_bytes / 2 if self.precision == HALF else 1)

    @cached_property
    def tensors(self) -> list[int]:
        """The number of weights of each block: an LSTM layer has two matrices and two biases."""
        return [{LSTM: 4, EMBEDDING: 1}.get(size.kind, 2) for size in self.blocks]

    def activations(self, places: Iterable[int]) -> int:
        """Return the bytes that these blocks' forward passes save, for the whole batch."""
        return sum(self.memory[place].activations for place in places)


@dataclass(frozen=True)
class Pieces:
    """A schedule's name, stages, micro-batches and chunks, with or without recomputation."""

    name: str
    stages: int
    micro_batches: int
    chunks: int = 1
    recompute: bool = False

    @property
    def prepared(self) -> Prepared:
        """The schedule, prepared to be timed repeatedly."""
        return prepared(self)

    def __str__(self) -> str:
        cut = counted(self.micro_batches, "micro-batch", "micro-batches")
        cut += f" x {self.chunks} chunks" if self.chunks > 1 else ""
        return f"{self.name}, " * (self.stages > 1) + cut + ", recomputed" * self.recompute


class Prepared:
    """A schedule, its stopwatch, and everything about it that does not depend on costs."""

    def __init__(self, pieces: Pieces) -> None:
        sizes = pieces.stages, pieces.micro_batches, pieces.chunks
        self.schedule = make_schedule(pieces.name, *sizes, recompute=pieces.recompute)
        self.stopwatch = Stopwatch(self.schedule)
        self.held = [share.total for share in self.schedule.peak_share]  # per stage, as a share of the replica's batch
        self.inputs_held = [0.0 for _ in self.schedule.stages]  # the share of its inputs, for recomputation
        if pieces.recompute:
            for stage, row in enumerate(self.schedule.stages):
                held = accumulate((action.kind == "F") - (action.kind == "B") for action in row)
                self.inputs_held[stage] = max(held) / self.schedule.pieces

    @cached_property
    def finals(self) -> list[list[tuple[int, int]]]:
        """Per stage, the step that makes each part's gradients final, in order: (position, number of the step)."""
        last: dict[int, int] = {}
        for number, (stage, action) in enumerate(self.stopwatch.order):
            if action.kind in "BW":
                last[self.schedule.stage_map.position(stage, action.virtual)] = number
        finals: list[list[tuple[int, int]]] = [[] for _ in self.schedule.stages]
        for position, number in sorted(last.items(), key=lambda item: item[1]):
            finals[self.stopwatch.order[number][0]].append((position, number))
        return finals

    def busy(self, costs: ActionCosts, kinds: str = "FBWR") -> list[float]:
        """Return how long each stage spends on actions of these kinds."""
        spent = [0.0] * len(self.schedule.stages)
        often = Counter(cost for _, cost, _ in self.stopwatch.steps)
        for cost, (stage, action) in enumerate(self.stopwatch.examples):
            if action.kind in kinds:
                spent[stage] += often[cost] * costs.of(action, stage, self.schedule)
        return spent


prepared = lru_cache(maxsize=512)(Prepared)  # comparing networks needs the same schedules again and again

# Where the time of an update goes. `Plan.parts` leaves out the parts that take no time.
PARTS = (
    "computing", "recomputing", "starting actions", "bubble", "messages",
    "gathering and summing", "summing gradients", "updating weights",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A mesh of replicas x shards x stages, and the predicted time of a step on the slowest rank.

    `costs` are the costs of one action, without the `overhead` of starting it. All-reduces and gathers, over replicas
    or shards, count only if computation does not hide them (`timing.py`).
    """

    replicas: int
    pieces: Pieces
    placement: Placement  # maps blocks to positions: stages, or virtual stages
    costs: ActionCosts
    overhead: float
    pipeline_seconds: float  # from the first action to the last
    exposed_seconds: float  # all-reduces and gathers that the pipeline does not hide
    update_seconds: float  # the optimizer step
    bytes: int  # on the fullest rank
    inside: str = "stages"  # which ranks are neighbors: a replica's stages, or a stage's replicas
    shards: int = 1
    sharding: str = ""  # what the shards divide: with ZeRO-1 the optimizer state, with FSDP everything
    gather_seconds: float = 0.0  # the part of the exposed seconds that gathers weights

    @property
    def stages(self) -> int:
        return self.pieces.stages

    @property
    def ranks(self) -> int:
        return self.replicas * self.stages * self.shards

    @property
    def schedule(self) -> Schedule:
        return self.pieces.prepared.schedule

    @property
    def seconds(self) -> float:
        """The predicted seconds of one update."""
        return self.pipeline_seconds + self.exposed_seconds + self.update_seconds

    @property
    def mesh(self) -> str:
        """The mesh as text: `8 x 2` for 8 pipelines of 2 stages, or `2 x 8 sharded`."""
        if self.sharding == FSDP:
            return f"{self.replicas} x {self.shards} sharded"
        return f"{self.replicas * self.shards} x {self.stages}"

    @property
    def name(self) -> str:
        """The mesh, and the number of ranks that divide the optimizer: `8 x 2 ZeRO-1 over 4`."""
        return f"{self.mesh} {ZERO_1} over {self.shards}" if self.sharding == ZERO_1 else self.mesh

    @property
    def way(self) -> tuple[Any, ...]:
        """The mesh and its rank order. Plans with the same way differ only in their schedule and number of pieces."""
        return self.replicas, self.stages, self.shards, self.inside, self.sharding

    @cached_property
    def parts(self) -> dict[str, float]:
        """Where the seconds of a step go. The parts add up to `seconds`."""
        prepared, costs = self.pieces.prepared, self.costs.with_overhead(self.overhead)
        busy = prepared.busy(costs)
        busiest = max(range(self.stages), key=busy.__getitem__)
        recomputing = prepared.busy(self.costs, "R")[busiest]
        starting = len(self.schedule.stages[busiest]) * self.overhead
        without_links = max(end for _, end in prepared.stopwatch.times(replace(costs, link=0.0)))
        spent = {
            "computing": busy[busiest] - recomputing - starting,
            "recomputing": recomputing,
            "starting actions": starting,
            "bubble": without_links - busy[busiest],
            "messages": self.pipeline_seconds - without_links,
            "gathering and summing": self.gather_seconds,
            "summing gradients": self.exposed_seconds - self.gather_seconds,
            "updating weights": self.update_seconds,
        }
        return {part: seconds for part, seconds in spent.items() if seconds > 1e-12}

    def price(self, updates: int, per_hour: float) -> float:
        """Return the price of `updates` updates if each rank's GPU costs `per_hour`, whether busy or idle."""
        return self.ranks * per_hour * updates * self.seconds / 3600

    @property
    def strategy(self) -> tuple[str, dict[str, Any]]:
        """The name and options of the strategy that runs this plan, as `course train` takes them."""
        if self.sharding == FSDP:
            return "fsdp", {"replicas": self.replicas, "micro_batches": self.pieces.micro_batches}
        options = {"replicas": self.replicas, **({"shards": self.shards} if self.sharding else {})}
        options |= {"inside": self.inside, "schedule": self.pieces.name, "micro_batches": self.pieces.micro_batches}
        options |= {"chunks": self.pieces.chunks, "recompute": self.pieces.recompute, "placement": self.placement}
        return "hybrid", options

    @property
    def neighbors(self) -> str:
        """Which ranks are neighbors, `stages inside` or `replicas inside`; empty if the mesh has only one order."""
        return f"{self.inside} inside" if min(self.ranks // self.stages, self.stages) > 1 else ""

    @property
    def name_and_order(self) -> str:
        """The name, and which ranks are neighbors: `8 x 2 (replicas inside)`."""
        return f"{self.name} ({self.neighbors})" if self.neighbors else self.name

    def __str__(self) -> str:
        size = f"{self.bytes / 2**30:,.1f} GiB" if self.bytes >= 2**30 else f"{self.bytes / 2**20:,.1f} MiB"
        return f"{self.name_and_order}, {self.pieces}: {self.seconds * 1000:.1f} ms, {size} per rank"
