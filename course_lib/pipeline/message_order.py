"""When the stages of a pipeline post their messages, so that they cannot deadlock, and the mail that posts them.

Activations go to the next part of the model, gradients to the previous one. Parts on the same rank pass the tensor
itself, detached from its graph; parts on different ranks send messages.

Over NCCL, a posted receive is a kernel that spins on the GPU until its message arrives. Anything that waits for the
whole device waits for that kernel too: loading a kernel at its first use, allocating memory, synchronizing. If the
message depends on work that this rank has not done yet, all ranks wait forever.

This rule prevents it: put all actions of all stages into one order in which they can run. A stage posts a receive after
its last action that comes, in this order, before the action that produces the message. Then everything that a rank
waits for can finish without this rank.

Proof, by induction along the order. When an action's turn comes, earlier actions have produced its messages. A rank
that waits for everything it has posted waits only for actions that precede its own next action, so its wait ends before
its turn comes.

A rank also posts its messages in this order, by the action that produces each one. The order is the same on all ranks,
so one communicator can carry the messages of many pairs of ranks, in both directions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from course_lib.core.batch import Batch
from course_lib.model_parallel.point_to_point import PendingMessage
from course_lib.pipeline.actions import Action, Layout, Step, producer_of
from course_lib.pipeline.schedule import Schedule
from course_lib.pipeline.simulation import ActionCosts, Stopwatch
from course_lib.pipeline.stage import Stage
from course_lib.runtime.trace import span


class Routes:
    """Where each message of one stage comes from and goes to, and when it is posted."""

    def __init__(self, schedule: Schedule, index: int) -> None:
        layout, row = schedule.stage_map, schedule.stages[index]
        self.producers = {action: producer_of(action, index, layout) for action in row}
        self.consumers = {action: consumer_of(action, index, layout) for action in row}
        self.postings = postings_of(schedule)[index]
        neighbors = {consumer[0] for consumer in self.consumers.values() if consumer}
        self.numbers = {
            stage: {action: number for number, action in enumerate(schedule.stages[stage])} for stage in neighbors
        }


class Mail:
    """The messages of one stage during one step."""

    def __init__(self, stage: Stage, routes: Routes, pieces: list[list[Batch]]) -> None:
        self.stage, self.routes, self.pieces = stage, routes, pieces
        self.local: dict[Action, Tensor] = {}  # tensors passed on this rank, by the action that takes each one
        self.ready: dict[Action, Tensor] = {}  # tensors to send, by the action that made each one
        self.posted: dict[Action, Callable[[], Tensor]] = {}  # receives, by the action that takes each one
        self.sent: dict[int, list[tuple[int, PendingMessage]]] = defaultdict(list)  # with the index of its consumer

    def receive(self, action: Action) -> Tensor:
        """Return the tensor that `action` needs from another part of the model."""
        producer = self.routes.producers[action]
        if producer is None:
            raise ValueError(f"{action} on stage {self.stage.index} needs nothing from another part of the model")
        if producer[0] == self.stage.index:
            return self.local.pop(action)
        with span("receive"):
            content = self.posted.pop(action)()
        self._free(*producer)
        return content

    def deliver(self, action: Action, tensor: Tensor) -> None:
        """Pass the result of `action` to the part of the model that needs it, if there is one."""
        consumer = self.routes.consumers[action]
        if consumer is None:
            return
        if consumer[0] == self.stage.index:
            self.local[consumer[1]] = tensor.detach()
        else:
            self.ready[action] = tensor

    def post(self, actions_done: int) -> None:
        """Post the sends and receives that are due once this stage has done `actions_done` actions."""
        for transfer in self.routes.postings[actions_done]:
            action, to = transfer.needed_by, transfer.to
            if transfer.source == self.stage.index:
                sends = self.stage.send(self.ready.pop(transfer.made_by), transfer.made_by.kind, to)
                self.sent[to] += [(self.routes.numbers[to][action], sending) for sending in sends]
            else:
                piece = self.pieces[action.micro_batch][action.chunk]
                self.posted[action] = self.stage.receive(piece, action, transfer.source)

    def finish(self) -> None:
        """Wait until all messages have been sent."""
        with span("send"):
            for sends in self.sent.values():
                for _, sending in sends:
                    sending.wait()

    def _free(self, source: int, action: Action) -> None:
        """Free the messages that the sender of `action` has already received.

        Gloo reports that a message has been sent only in `wait`. But once a rank has done an action, it has received
        everything that this action and the earlier ones needed, so the wait returns immediately.
        """
        if source not in self.sent:
            return
        received, unconfirmed = self.routes.numbers[source][action], []
        for number, sending in self.sent[source]:
            if number <= received:
                sending.wait()
            elif not sending.is_completed:
                unconfirmed.append((number, sending))
        self.sent[source] = unconfirmed


@dataclass(frozen=True)
class Transfer:
    """The result of one action that an action on a different stage needs."""

    source: int
    made_by: Action
    to: int
    needed_by: Action


Postings = tuple[tuple[Transfer, ...], ...]  # one stage's messages, before its first action and after each action


def postings_of(schedule: Schedule) -> tuple[Postings, ...]:
    """Return, for each stage, the messages it starts to send or receive, in order: at the start and after each action.

    The actions are ordered as they end in a run in which a backward pass takes as long as two forward passes. If real
    times differ, only the time between posting a receive and its message's arrival changes.
    """
    watch, layout = Stopwatch(schedule), schedule.stage_map
    times = watch.times(ActionCosts(forward=1.0, backward=2.0))

    def ends(index: int) -> tuple[float, int]:
        """Return when a step ends. In a tie, the step that the other may need comes first."""
        stage, action = watch.order[index]
        position = layout.position(stage, action.virtual)
        return times[index][1], position if action.kind == "F" else -position

    actions_done = [0] * len(schedule.stages)  # how many actions each stage has done
    posted: list[list[list[Transfer]]] = [[[] for _ in range(len(row) + 1)] for row in schedule.stages]
    for index in sorted(range(len(times)), key=ends):
        stage, action = watch.order[index]
        actions_done[stage] += 1
        consumer = consumer_of(action, stage, layout)
        if consumer is not None and consumer[0] != stage:
            transfer = Transfer(stage, action, *consumer)
            posted[stage][actions_done[stage]].append(transfer)
            posted[transfer.to][actions_done[transfer.to]].append(transfer)
    return tuple(tuple(map(tuple, row)) for row in posted)


def consumer_of(action: Action, stage: int, layout: Layout) -> Step | None:
    """Return the step that needs the result of `action`: at the next position for a forward pass, else the previous."""
    if action.kind not in ("F", "B"):
        return None
    neighbor = layout.neighbor(stage, action.virtual, 1 if action.kind == "F" else -1)
    return neighbor and (neighbor[0], replace(action, virtual=neighbor[1]))
