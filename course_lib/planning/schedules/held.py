"""What a stage holds while it works through its actions: activations, and what waits for weight gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from course_lib.planning.schedules.actions import Action


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
