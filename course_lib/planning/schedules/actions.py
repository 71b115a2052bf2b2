"""The smallest piece of a schedule, an action: what it needs, on which stage it runs, and what the stage then holds.

A stage holds one part of the model, or several: its virtual stages. With position g of the model, micro-batch m and
time chunk c:

F(g, m, c) needs F(g-1, m, c), the activations, and F(g, m, c-1), the state (h, c);
R(g, m, c) needs F(g, m, c), from whose inputs and state it starts again;
B(g, m, c) needs F(g, m, c), and R(g, m, c) where there is one: what they kept; B(g+1, m, c), the gradient; and
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
    "W": "the weight gradients of a backward pass, made apart",
    "R": "a forward pass made again",
}
WRITTEN = re.compile(r"([FBWR])(\d+)(?:\.(\d+))?(?:v(\d+))?")


class IllegalSchedule(ValueError):
    """No stages could execute this, and the message says why."""


@dataclass(frozen=True, order=True)
class Action:
    """What is done with one micro-batch, or one of its time chunks, on one of a stage's virtual stages.

    `F` is the forward pass and `B` the backward pass. Where a schedule also has a `W` for the same piece, `B` makes
    only the gradients of inputs and states, and `W` those of the weights. Where it has an `R`, what `F` computed is
    dropped, and `R` computes it again.
    """

    kind: str
    micro_batch: int
    chunk: int = 0
    virtual: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            known = ", ".join(f"{kind} ({meaning})" for kind, meaning in KINDS.items())
            raise ValueError(f"kind={self.kind!r}: an action is {known}")
        if min(self.micro_batch, self.chunk, self.virtual) < 0:
            numbers = f"micro_batch={self.micro_batch}, chunk={self.chunk}, virtual={self.virtual}"
            raise ValueError(f"{numbers}: all of them count from 0")

    @classmethod
    def of(cls, given: Action | str) -> Action:
        """The action written as `F3`, with a chunk `F3.2`, with a virtual stage `F3v1`; an action is already one."""
        if isinstance(given, Action):
            return given
        parts = WRITTEN.fullmatch(str(given))
        if not parts:
            raise ValueError(
                f"{given!r} is not an action: write F, B, W or R, the micro-batch and, if any, the chunk (F3.2) "
                "and the virtual stage (F3v1, F3.2v1)"
            )
        kind, *numbers = parts.groups()
        return cls(kind, *(int(number or 0) for number in numbers))

    def label(self, chunks: int = 1, virtual: int = 1) -> str:
        """`F3`; `F3.0` in a schedule of several chunks, `F3v0` in one of several virtual stages."""
        chunk = f".{self.chunk}" if chunks > 1 else ""
        return f"{self.kind}{self.micro_batch}{chunk}" + (f"v{self.virtual}" if virtual > 1 else "")

    @property
    def piece(self) -> tuple[int, int, int]:
        """What it works on: micro-batch, chunk and virtual stage."""
        return self.micro_batch, self.chunk, self.virtual

    def __str__(self) -> str:
        return self.label(self.chunk + 1, self.virtual + 1)


Step = tuple[int, Action]  # which stage does what


LAYOUTS = ("loop", "v")


@dataclass(frozen=True)
class Layout:
    """Which virtual stage of which stage holds which part of the model. A position counts the parts in order.

    In a loop, part after part goes round all stages: stages 0, 1, 2, then 0, 1, 2 again. In a V, every second round
    goes backwards: 0, 1, 2, then 2, 1, 0, so that two neighbouring parts at each tip lie on the same stage.
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
        """How many parts the model is cut into."""
        return self.stages * self.virtual

    def position(self, stage: int, virtual: int = 0) -> int:
        """Which part of the model the stage's virtual stage holds."""
        turned = self.style == "v" and virtual % 2
        return virtual * self.stages + (self.stages - 1 - stage if turned else stage)

    def place(self, position: int) -> tuple[int, int]:
        """(stage, virtual) of that part of the model."""
        virtual, within = divmod(position, self.stages)
        turned = self.style == "v" and virtual % 2
        return (self.stages - 1 - within if turned else within), virtual

    def before(self, stage: int, virtual: int) -> tuple[int, int] | None:
        """Where the part before this one lies, as (stage, virtual); None for the model's first part."""
        return _neighbour(self, stage, virtual, -1)

    def after(self, stage: int, virtual: int) -> tuple[int, int] | None:
        """Where the part after this one lies, as (stage, virtual); None for the model's last part."""
        return _neighbour(self, stage, virtual, 1)


@lru_cache(maxsize=65536)  # asked for every action of every schedule that a planner tries
def _neighbour(layout: Layout, stage: int, virtual: int, way: int) -> tuple[int, int] | None:
    position = layout.position(stage, virtual) + way
    return layout.place(position) if 0 <= position < layout.positions else None


@lru_cache(maxsize=65536)  # asked for every action of every stage of every schedule that a planner tries
def own_needs(action: Action, chunks: int, recomputed: bool = False) -> tuple[Action, ...]:
    """What the same virtual stage must have done before `action`."""
    kind, (m, c, v) = action.kind, action.piece
    if kind == "F":
        return (Action("F", m, c - 1, v),) if c else ()
    if kind == "R":
        return (Action("F", m, c, v),)
    if kind == "W":
        return (Action("B", m, c, v),)
    kept = [Action("F", m, c, v), *([Action("R", m, c, v)] if recomputed else [])]
    return (*kept, Action("B", m, c + 1, v)) if c < chunks - 1 else tuple(kept)


@lru_cache(maxsize=65536)
def giver_of(action: Action, stage: int, places: Layout) -> Step | None:
    """The step at the neighbouring position of the model whose result `action` needs; None where there is none.

    From another stage the result comes over a link; at the tip of a V it is there at once.
    """
    if action.kind not in ("F", "B"):
        return None
    giver = (places.before if action.kind == "F" else places.after)(stage, action.virtual)
    return giver and (giver[0], Action(action.kind, action.micro_batch, action.chunk, giver[1]))


def why(action: Action, needed: Action) -> str:
    """Why a stage must do `needed` before `action`."""
    if action.kind == "W":
        return "weight gradients are made from what the backward pass leaves"
    if action.kind == "R":
        return "what is computed again was computed before"
    if needed.kind == "R":
        return "a backward needs what was computed again for it"
    if action.kind != needed.kind:
        return "a backward needs what its forward kept"
    if action.virtual != needed.virtual:
        return "its input comes from there" if action.kind == "F" else "its gradient comes from there"
    if action.kind == "F":
        return "a chunk starts in the state in which the chunk before it ended"
    return "the gradient of the state comes from the chunk after it"


@dataclass(frozen=True)
class Held:
    """Activations held for backward passes, and what split backward passes keep for their weight gradients.

    Both count pieces, or are shares of what the stage would hold for the whole batch.
    """

    activations: float = 0
    for_weights: float = 0

    @property
    def total(self) -> float:
        """Both together, if a piece takes as much room for one as for the other."""
        return self.activations + self.for_weights

    @property
    def percent(self) -> str:
        """Both together, if they are shares of the batch: "12.5%"."""
        return f"{100 * self.total:.3g}%"

    def share_of(self, pieces: int) -> Held:
        """The same as a share of so many pieces."""
        return Held(self.activations / pieces, self.for_weights / pieces)


def held_after_each(actions: Iterable[Action]) -> list[Held]:
    """How many pieces a stage holds after each of these actions.

    Activations are held from the forward pass, or from where it is made again, to the backward pass. What weight
    gradients need is held from a split backward pass to its `W`. Inputs and states kept to compute a forward pass again
    are not counted: they are small beside what it computes.
    """
    row = list(actions)
    again, apart = ({action.piece for action in row if action.kind == kind} for kind in "RW")
    activations = for_weights = 0
    held = []
    for action in row:
        if action.kind == "R" or (action.kind == "F" and action.piece not in again):
            activations += 1
        elif action.kind == "B":
            activations -= 1
            for_weights += action.piece in apart
        elif action.kind == "W":
            for_weights -= 1
        held.append(Held(activations, for_weights))
    return held


def peak_held(actions: Iterable[Action]) -> int:
    """Of how many pieces one stage holds activations at most while it does these actions in this order."""
    return max((int(held.activations) for held in held_after_each(actions)), default=0)


def fullest(moments: Sequence[Held]) -> Held:
    """The moment at which most is held, of both together."""
    return max(moments, key=lambda held: (held.total, held.activations), default=Held())
