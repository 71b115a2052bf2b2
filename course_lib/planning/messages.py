"""When each stage of a pipeline posts its sends and receives, so that the pipeline can never deadlock.

Over NCCL, a posted receive is a kernel that spins on the GPU until its message arrives. Anything that waits for the
whole device waits for that kernel too: loading a kernel at its first use, allocating memory, synchronizing. If the
message depends on work that this rank has not done yet, all ranks wait forever.

This rule prevents it: put all actions of all stages into one order in which they can run. A stage posts a receive after
its last action that precedes, in that order, the action that produces the message. Whatever a rank then waits for needs
nothing more from that rank.

Proof, by induction along the order. When an action's turn comes, earlier actions have produced its messages. A rank
that waits for everything it has posted waits only for actions that precede its own next action, so its wait ends before
its turn comes.

A rank also posts its messages in this order, by the action that produces each one. All ranks agree on it, so one
communicator can carry the messages of many pairs of ranks, in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from course_lib.planning.schedules import Action, Layout, Schedule, Step
from course_lib.planning.simulation import ActionCosts, Stopwatch

SENT = ("F", "B")  # an activation goes to the next part of the model, a gradient to the one before
TYPICAL = ActionCosts(forward=1.0, backward=2.0)


@dataclass(frozen=True)
class Message:
    """The result of one action that an action on a different stage needs."""

    source: int
    made_by: Action
    to: int
    needed_by: Action

    @property
    def kind(self) -> str:
        """`F` for activations, `B` for gradients."""
        return self.made_by.kind


Postings = tuple[tuple[Message, ...], ...]  # of one stage: before its first action, and after each action


def postings_of(schedule: Schedule) -> tuple[Postings, ...]:
    """Return, for each stage, the messages it starts to send or receive, in order: at the start and after each action.

    The order of all actions is that of a run in which a backward pass takes as long as two forward passes. If real
    times differ, a receive is posted a little earlier or later than its message arrives, and nothing else changes.
    """
    order = in_order_of_completion(schedule)
    done = [0] * len(schedule.stages)  # how many actions each stage has done
    posted: list[list[list[Message]]] = [[[] for _ in range(len(row) + 1)] for row in schedule.stages]
    for stage, action in order:
        done[stage] += 1
        taker = taker_of(action, stage, schedule.places)
        if taker is not None and taker[0] != stage:
            message = Message(stage, action, *taker)
            posted[stage][done[stage]].append(message)
            posted[message.to][done[message.to]].append(message)
    return tuple(tuple(map(tuple, row)) for row in posted)


def in_order_of_completion(schedule: Schedule) -> list[Step]:
    """Return all steps in the order in which they end; of two that tie, the one the other may need comes first."""
    watch = Stopwatch(schedule)
    times = watch.times(TYPICAL)

    def key(place: int) -> tuple[float, int]:
        stage, action = watch.order[place]
        position = schedule.places.position(stage, action.virtual)
        return times[place][1], position if action.kind == "F" else -position

    return [watch.order[place] for place in sorted(range(len(times)), key=key)]


def taker_of(action: Action, stage: int, places: Layout) -> Step | None:
    """Return the step that needs the result of `action`: at the next position for a forward, the previous otherwise."""
    if action.kind not in SENT:
        return None
    found = (places.after if action.kind == "F" else places.before)(stage, action.virtual)
    return found and (found[0], replace(action, virtual=found[1]))
