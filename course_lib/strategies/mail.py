"""What the parts of a pipelined model exchange: activations go to the next part, gradients to the previous one.

Parts on the same rank pass the tensor itself, detached from its graph; parts on different ranks send messages.
`planning/messages.py` decides when a message is posted: never when waiting for it could block the rank that makes it.
"""

from __future__ import annotations

from collections import defaultdict

from torch import Tensor

from course_lib.data import Batch
from course_lib.planning.messages import Message, postings_of, taker_of
from course_lib.planning.schedules import Action, Schedule, giver_of
from course_lib.strategies.point_to_point import PendingSend
from course_lib.strategies.stage import PendingMessage, Stage
from course_lib.trace import span


class Routes:
    """For one stage of a schedule: where each message comes from and goes to, and when it is posted."""

    def __init__(self, schedule: Schedule, place: int) -> None:
        places, row = schedule.places, schedule.stages[place]
        self.givers = {action: giver_of(action, place, places) for action in row}
        self.takers = {action: taker_of(action, place, places) for action in row}
        self.postings = postings_of(schedule)[place]
        neighbors = {taker[0] for taker in self.takers.values() if taker}
        self.numbers = {
            stage: {action: number for number, action in enumerate(schedule.stages[stage])} for stage in neighbors
        }


class Mail:
    """The messages of one stage during one step."""

    def __init__(self, stage: Stage, routes: Routes, pieces: list[list[Batch]]) -> None:
        self.stage, self.routes, self.pieces = stage, routes, pieces
        self.here: dict[Action, Tensor] = {}  # passed on this rank, by the action that takes it
        self.ready: dict[Action, Tensor] = {}  # to be sent, by the action that made it
        self.posted: dict[Action, PendingMessage] = {}  # receives, by the action that takes it
        self.sent: dict[int, list[tuple[int, PendingSend]]] = defaultdict(list)  # with the index of its taker

    def take(self, action: Action) -> Tensor:
        """Return the tensor that `action` needs from a different part of the model."""
        giver = self.routes.givers[action]
        if giver is None:
            raise ValueError(f"{action} on stage {self.stage.place} needs nothing from a different part of the model")
        if giver[0] == self.stage.place:
            return self.here.pop(action)
        with span("receive"):
            content = self.posted.pop(action).wait()
        self._free(*giver)
        return content

    def deliver(self, action: Action, tensor: Tensor) -> None:
        """Pass the result of `action` to the part of the model that needs it, if there is one."""
        taker = self.routes.takers[action]
        if taker is None:
            return
        if taker[0] == self.stage.place:
            self.here[taker[1]] = tensor.detach()
        else:
            self.ready[action] = tensor

    def post(self, actions_done: int) -> None:
        """Post the sends and receives that are due once this stage has done `actions_done` actions."""
        for message in self.routes.postings[actions_done]:
            if message.source == self.stage.place:
                self._send(message)
            else:
                piece = self.pieces[message.needed_by.micro_batch][message.needed_by.chunk]
                self.posted[message.needed_by] = self.stage.receive(piece, message.needed_by, message.source)

    def finish(self) -> None:
        """Wait until all messages have been sent."""
        with span("send"):
            for sends in self.sent.values():
                for _, sending in sends:
                    sending.wait()

    def _send(self, message: Message) -> None:
        sends = self.stage.send(self.ready.pop(message.made_by), message.kind, message.to)
        number = self.routes.numbers[message.to][message.needed_by]
        self.sent[message.to] += [(number, sending) for sending in sends]

    def _free(self, source: int, action: Action) -> None:
        """Free the messages that the sender of `action` has already received.

        Gloo reports that a message has been sent only in `wait`. But a rank that has done an action has received
        everything that this action and the earlier ones needed, so the wait returns at once.
        """
        if source not in self.sent:
            return
        done, waiting = self.routes.numbers[source][action], []
        for number, sending in self.sent[source]:
            if number <= done:
                sending.wait()
            elif not sending.done:
                waiting.append((number, sending))
        self.sent[source] = waiting
