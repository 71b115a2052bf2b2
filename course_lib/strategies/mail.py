"""What the parts of a model in a pipeline hand each other: activations to the next part, gradients to the one before.

Parts on one rank hand over the tensor itself, cut from the graph that made it; parts on two ranks send messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace

from torch import Tensor

from course_lib.data import Batch
from course_lib.planning.schedules import Action, Layout, Schedule, Step, giver_of
from course_lib.strategies.point_to_point import PendingSend
from course_lib.strategies.stage import PendingMessage, Stage
from course_lib.trace import span


class Routes:
    """For one stage of a schedule: where everything comes from and goes to, and in which order."""

    def __init__(self, schedule: Schedule, place: int) -> None:
        places, row = schedule.places, schedule.stages[place]
        self.givers = {action: giver_of(action, place, places) for action in row}
        self.takers = {action: taker_of(action, place, places) for action in row}
        self.arrivals: dict[tuple[int, str], list[Action]] = defaultdict(list)  # by sender and kind, as they are sent
        for source in {giver[0] for giver in self.givers.values() if giver} - {place}:
            for action in schedule.stages[source]:
                taker = taker_of(action, source, places)
                if taker and taker[0] == place:
                    self.arrivals[source, action.kind].append(taker[1])
        neighbours = {taker[0] for taker in self.takers.values() if taker}
        self.numbers = {
            stage: {action: number for number, action in enumerate(schedule.stages[stage])} for stage in neighbours
        }


def taker_of(action: Action, stage: int, places: Layout) -> Step | None:
    """The step that needs what comes of `action`: the same one at the next position, of a backward the one before."""
    if action.kind not in TAKEN:
        return None
    found = (places.after if action.kind == "F" else places.before)(stage, action.virtual)
    return found and (found[0], replace(action, virtual=found[1]))


TAKEN = ("F", "B")


class Mail:
    """The messages of one stage during one step."""

    def __init__(self, stage: Stage, routes: Routes, pieces: list[list[Batch]]) -> None:
        self.stage, self.routes = stage, routes
        self.taken: tuple[Step, Inbox] | None = None  # the latest message: who sent it, and where it was
        self.here: dict[Action, Tensor] = {}  # handed over on this rank, by the action that takes it
        self.sent: dict[int, list[tuple[int, PendingSend]]] = defaultdict(list)  # with the number of who takes it

        def post_from(source: int) -> Callable[[Action], PendingMessage]:
            return lambda action: stage.receive(pieces[action.micro_batch][action.chunk], action, source)

        self.inboxes = {
            (source, kind): Inbox(order, post_from(source)) for (source, kind), order in routes.arrivals.items()
        }

    def take(self, action: Action) -> Tensor:
        """What `action` needs from another part of the model."""
        giver = self.routes.givers[action]
        if giver is None:
            raise ValueError(f"{action} on stage {self.stage.place} needs nothing from another part of the model")
        if giver[0] == self.stage.place:
            return self.here.pop(action)
        self.taken = giver, self.inboxes[giver[0], action.kind]
        return self.taken[1].take(action)

    def tidy(self) -> None:
        """After a message was taken: begin to receive the next one, and let go of what its sender has received."""
        if self.taken:
            (source, action), inbox = self.taken
            self.taken = None
            inbox.post_next()
            self._free(source, action)

    def deliver(self, action: Action, tensor: Tensor) -> None:
        """Hand what comes of `action` to the part of the model that needs it, if there is one."""
        taker = self.routes.takers[action]
        if taker is None:
            return
        to, taking = taker
        if to == self.stage.place:
            self.here[taking] = tensor.detach()
            return
        number = self.routes.numbers[to][taking]
        self.sent[to] += [(number, sending) for sending in self.stage.send(tensor, action.kind, to)]

    def finish(self) -> None:
        """Return when all messages have left."""
        for sends in self.sent.values():
            for _, sending in sends:
                sending.wait()

    def _free(self, source: int, action: Action) -> None:
        """Let go of what the sender of `action` had taken before. Gloo says of no message that it has left, until asked
        to wait for it; but whoever has done an action has taken all that it and those before it needed."""
        if source not in self.sent:
            return
        done, waiting = self.routes.numbers[source][action], []
        for number, sending in self.sent[source]:
            if number <= done:
                sending.wait()
            elif not sending.done:
                waiting.append((number, sending))
        self.sent[source] = waiting


class Inbox:
    """Messages of one kind from one stage. They are received in the order they are sent in, and taken in any order."""

    def __init__(self, order: Iterable[Action], post: Callable[[Action], PendingMessage]) -> None:
        self.order, self.post = iter(order), post
        self.posted: dict[Action, PendingMessage] = {}
        self.post_next()

    def take(self, action: Action) -> Tensor:
        """What was sent for `action`."""
        while action not in self.posted:
            self.post_next()
        with span("receive"):
            return self.posted.pop(action).wait()

    def post_next(self) -> None:
        """Begin to receive one more: it may come while another one is worked on."""
        for action in self.order:
            self.posted[action] = self.post(action)
            return
