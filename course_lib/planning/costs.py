"""How long the actions of a schedule take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from course_lib.planning.schedules import Action, Schedule

Cost = float | Sequence[float]


@dataclass(frozen=True)
class ActionCosts:
    """How long *one action* takes: a number, or one for each stage, or one for each position of the model.

    `backward` is a whole backward pass. Where it is split, `B` takes `input_gradients` and `W` takes
    `weight_gradients`; each is half of `backward` unless given. To compute a forward pass again takes `forward`.
    `link` is how long a message is under way to another stage; no stage works for it.
    """

    forward: Cost = 1.0
    backward: Cost = 1.0
    link: float = 0.0
    input_gradients: Cost | None = None
    weight_gradients: Cost | None = None

    def __post_init__(self) -> None:
        for name, given in vars(self).items():
            numbers = given if isinstance(given, Sequence) else [0.0 if given is None else given]
            if min(numbers, default=0) < 0:
                raise ValueError(f"{name}={given}: a cost is a time, 0 or more")

    def of(self, action: Action, stage: int, schedule: Schedule | None = None) -> float:
        """How long `stage` works for `action`. Virtual stages and split backward passes are those of `schedule`."""
        is_split = schedule is not None and (stage, action.piece) in schedule.split
        given = self._given(action.kind, is_split)
        if not isinstance(given, Sequence):
            return given
        by_position = schedule is not None and len(given) > len(schedule.stages)
        return given[schedule.places.position(stage, action.virtual) if schedule and by_position else stage]

    def _given(self, kind: str, is_split: bool) -> Cost:
        if kind in ("F", "R"):
            return self.forward
        if kind == "B" and not is_split:
            return self.backward
        given = self.input_gradients if kind == "B" else self.weight_gradients
        return _changed(self.backward, lambda cost: cost / 2) if given is None else given

    def split_over(self, schedule: Schedule) -> ActionCosts:
        """These costs, given for a whole batch, per action of `schedule`. The link's stays: it is per message.

        A number, or one per stage, is for the whole stage, with all its virtual stages.
        """
        stages, pieces = len(schedule.stages), schedule.micro_batches * schedule.chunks

        def share(given: Cost) -> Cost:
            by_position = isinstance(given, Sequence) and len(given) > stages
            return _changed(given, lambda cost: cost / (pieces if by_position else pieces * schedule.virtual))

        return self._each(share)

    def per_part(self, schedule: Schedule) -> ActionCosts:
        """These costs, given for a stage as a whole, shared out equally among its virtual stages."""
        return self._each(lambda given: _changed(given, lambda cost: cost / schedule.virtual))

    def with_overhead(self, seconds: float) -> ActionCosts:
        """These costs, if starting an action takes so long, however small it is."""
        halves = replace(self, input_gradients=self._given("B", True), weight_gradients=self._given("W", True))
        return halves._each(lambda given: _changed(given, lambda cost: cost + seconds))

    def _each(self, change: Callable[[Cost], Cost]) -> ActionCosts:
        halves = (self.input_gradients, self.weight_gradients)
        inputs, weights = (None if given is None else change(given) for given in halves)
        return ActionCosts(change(self.forward), change(self.backward), self.link, inputs, weights)

    def check_for(self, schedule: Schedule) -> None:
        """Refuse lists of costs that are not one per stage, or one per position."""
        stages, positions = schedule.places.stages, schedule.places.positions
        for name, given in vars(self).items():
            if isinstance(given, Sequence) and len(given) not in (stages, positions):
                choices = "one per stage" + (f", or {positions}, one per position" if positions > stages else "")
                raise ValueError(f"{name} has {len(given)} costs for {stages} stages: give one number, or {choices}")


def _changed(given: Cost, change: Callable[[float], float]) -> Cost:
    return tuple(map(change, given)) if isinstance(given, Sequence) else change(given)
