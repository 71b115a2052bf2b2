"""An action is the smallest unit of a schedule: what it needs, where it runs, and what its stage then holds.

A stage holds one part of the model, or several: its virtual stages. For position g in the model, micro-batch m and
time chunk c:

F(g, m, c) needs F(g-1, m, c), the activations, and F(g, m, c-1), the state (h, c);
R(g, m, c) needs F(g, m, c), and reruns it from the same inputs and state;
B(g, m, c) needs F(g, m, c), and R(g, m, c) if there is one, for the saved activations; B(g+1, m, c), the gradient; and
B(g, m, c+1), the gradient of the state;
W(g, m, c) needs B(g, m, c).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

KINDS = {
    "F": "a forward pass",
    "B": "a backward pass",
    "W": "the weight gradients of a backward pass, computed separately",
    "R": "a forward pass that is recomputed",
}
WRITTEN = re.compile(r"([FBWR])(\d+)(?:\.(\d+))?(?:v(\d+))?")


class IllegalSchedule(ValueError):
    """A schedule that cannot be executed. The message explains why."""


@dataclass(frozen=True, order=True)
class Action:
    """One pass of one micro-batch, or one of its time chunks, on one of a stage's virtual stages.

    `F` is the forward pass and `B` the backward pass. If the schedule also has a `W` for the same piece, `B` computes
    only the gradients of inputs and states, and `W` the gradients of the weights. If it has an `R`, the activations of
    `F` are dropped, and `R` recomputes them.
    """

    kind: str
    micro_batch: int
    chunk: int = 0
    virtual: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            choices = ", ".join(f"{kind} ({meaning})" for kind, meaning in KINDS.items())
            raise ValueError(f"kind={self.kind!r}: an action is {choices}")
        if min(self.micro_batch, self.chunk, self.virtual) < 0:
            numbers = f"micro_batch={self.micro_batch}, chunk={self.chunk}, virtual={self.virtual}"
            raise ValueError(f"{numbers}: all of them count from 0")

    @classmethod
    def of(cls, text: Action | str) -> Action:
        """Parse an action: `F3`, with a chunk `F3.2`, with a virtual stage `F3v1`. Actions are returned unchanged."""
        if isinstance(text, Action):
            return text
        match = WRITTEN.fullmatch(str(text))
        if not match:
            raise ValueError(
                f"{text!r} is not an action: write F, B, W or R, the micro-batch and, if any, the chunk (F3.2) "
                "and the virtual stage (F3v1, F3.2v1)"
            )
        kind, *numbers = match.groups()
        return cls(kind, *(int(number or 0) for number in numbers))

    def label(self, chunks: int = 1, virtual: int = 1) -> str:
        """Return `F3`; `F3.0` in a schedule with several chunks, `F3v0` in one with several virtual stages."""
        chunk = f".{self.chunk}" if chunks > 1 else ""
        return f"{self.kind}{self.micro_batch}{chunk}" + (f"v{self.virtual}" if virtual > 1 else "")

    @property
    def piece(self) -> tuple[int, int, int]:
        """The (micro-batch, chunk, virtual stage) that this action works on."""
        return self.micro_batch, self.chunk, self.virtual

    def __str__(self) -> str:
        return self.label(self.chunk + 1, self.virtual + 1)


Step = tuple[int, Action]  # a stage, and one of its actions


LAYOUTS = ("loop", "v")


@dataclass(frozen=True)
class Layout:
    """Which part of the model each virtual stage of each stage holds. A position is a part's index in the model.

    In a loop, the parts go around all stages: 0, 1, 2, then 0, 1, 2 again. In a V, every second round goes backward: 0,
    1, 2, then 2, 1, 0. So the two neighboring parts at each tip of the V are on the same stage.
    """

    stages: int
    virtual: int = 1
    style: str = "loop"

    def __post_init__(self) -> None:
        if self.style not in LAYOUTS:
            raise ValueError(f"layout={self.style!r}: choose {' or '.join(LAYOUTS)}")
        if min(self.stages, self.virtual) < 1:
            raise ValueError(f"stages={self.stages}, virtual={self.virtual}: a schedule needs at least one of each")

    @property
    def positions(self) -> int:
        """The number of parts that the model is cut into."""
        return self.stages * self.virtual

    def position(self, stage: int, virtual: int = 0) -> int:
        """Return the position of the part that this virtual stage holds."""
        is_reversed = self.style == "v" and virtual % 2
        return virtual * self.stages + (self.stages - 1 - stage if is_reversed else stage)

    def stage_at(self, position: int) -> tuple[int, int]:
        """Return (stage, virtual) of the part at this position."""
        virtual, offset = divmod(position, self.stages)
        is_reversed = self.style == "v" and virtual % 2
        return (self.stages - 1 - offset if is_reversed else offset), virtual

    def neighbor(self, stage: int, virtual: int, step: int) -> tuple[int, int] | None:
        """Return (stage, virtual) of the part `step` positions further; None if the model ends before."""
        position = self.position(stage, virtual) + step
        return self.stage_at(position) if 0 <= position < self.positions else None


@lru_cache(maxsize=65536)  # the planner of lesson 07 needs this for every action of every schedule
def same_stage_needs(action: Action, chunks: int, recomputed: bool = False) -> tuple[Action, ...]:
    """Return the actions that the same virtual stage must do before `action`."""
    kind, (m, c, v) = action.kind, action.piece
    if kind == "F":
        return (Action("F", m, c - 1, v),) if c else ()
    if kind == "R":
        return (Action("F", m, c, v),)
    if kind == "W":
        return (Action("B", m, c, v),)
    needed = [Action("F", m, c, v), *([Action("R", m, c, v)] if recomputed else [])]
    return (*needed, Action("B", m, c + 1, v)) if c < chunks - 1 else tuple(needed)


@lru_cache(maxsize=65536)
def producer_of(action: Action, stage: int, layout: Layout) -> Step | None:
    """Return the step at the neighboring position of the model whose result `action` needs; None if there is none."""
    if action.kind not in ("F", "B"):
        return None
    producer = layout.neighbor(stage, action.virtual, -1 if action.kind == "F" else 1)
    return producer and (producer[0], Action(action.kind, action.micro_batch, action.chunk, producer[1]))


def reason_for(action: Action, dependency: Action) -> str:
    """Return why a stage must do `dependency` before `action`."""
    if action.kind == "W":
        return "weight gradients are computed from what the backward pass saves"
    if action.kind == "R":
        return "a recomputation repeats an earlier forward"
    if dependency.kind == "R":
        return "a backward needs the recomputed activations"
    if action.kind != dependency.kind:
        return "a backward needs what its forward saved"
    if action.virtual != dependency.virtual:
        return "its input comes from there" if action.kind == "F" else "its gradient comes from there"
    if action.kind == "F":
        return "a chunk starts from the final state of the previous chunk"
    return "the gradient of the state comes from the next chunk"


@dataclass(frozen=True)
class Held:
    """What is held for backward passes, and for weight gradients: counts of pieces, or shares of a batch."""

    activations: float = 0
    for_weights: float = 0

    @property
    def total(self) -> float:
        """The sum of both, assuming that a piece takes the same memory for either purpose."""
        return self.activations + self.for_weights

    @property
    def percent(self) -> str:
        """The sum of both as text, for shares of the batch: "12.5%"."""
        return f"{100 * self.total:.3g}%"

    def share_of(self, pieces: int) -> Held:
        """Return both as shares of this many pieces."""
        return Held(self.activations / pieces, self.for_weights / pieces)


def held_after_each(actions: Iterable[Action]) -> list[Held]:
    """Return how many pieces a stage holds after each of these actions.

    Activations are held from the forward pass, or its recomputation, to the backward pass; tensors for weight gradients
    from a split backward pass to its `W`. Inputs and states saved for recomputation don't count: they are small.
    """
    row = list(actions)
    recomputed, split = ({action.piece for action in row if action.kind == kind} for kind in "RW")
    activations, for_weights, held = 0, 0, []
    for action in row:
        if action.kind == "R" or (action.kind == "F" and action.piece not in recomputed):
            activations += 1
        elif action.kind == "B":
            activations -= 1
            for_weights += action.piece in split
        elif action.kind == "W":
            for_weights -= 1
        held.append(Held(activations, for_weights))
    return held


def peak_held(actions: Iterable[Action]) -> int:
    """Return the largest number of pieces whose activations a stage holds while it runs these actions in order."""
    return max((int(held.activations) for held in held_after_each(actions)), default=0)


def fullest(moments: Sequence[Held]) -> Held:
    """Return the moment with the largest total."""
    return max(moments, key=lambda held: (held.total, held.activations), default=Held())
