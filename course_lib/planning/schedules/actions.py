"""The smallest piece of a schedule: what one stage does with one piece of the batch."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
