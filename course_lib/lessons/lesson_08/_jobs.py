"""Jobs that hang, simulated without ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A blocking call that waits for `peer` or for all of `group`. A step named `busy` never ends and waits for no
    rank.
    """

    op: str
    line: int
    peer: int | None = None
    group: str = ""


Program = Sequence[Step]


def run(programs: Sequence[Program], groups: Mapping[str, Sequence[int]]) -> list[int]:
    """Return how many steps each rank has completed when no rank can make progress.

    A send waits for its receive. A collective waits until every member's *next* call is the same one on the same group,
    on any line.
    """
    done = [0] * len(programs)

    def now(rank: int) -> Step | None:
        return programs[rank][done[rank]] if done[rank] < len(programs[rank]) else None

    def partners(rank: int, step: Step) -> Sequence[int]:
        """Return the ranks that proceed together with this one, including it; empty while one of them is missing."""
        if step.op == "send" and step.peer is not None:
            other = now(step.peer)
            return [rank, step.peer] if other and (other.op, other.peer) == ("recv", rank) else []
        if not step.group:
            return []
        members = groups[step.group]
        there = [now(member) for member in members]
        return members if all(other and (other.op, other.group) == (step.op, step.group) for other in there) else []

    moved = True
    while moved:
        moved = False
        for rank in range(len(programs)):
            step = now(rank)
            for partner in partners(rank, step) if step else ():
                done[partner] += 1
                moved = True
    return done


def state(program: Program, done: int) -> dict:
    """Return what a rank is doing after `done` steps: it has returned, it is running, or it is waiting in a call."""
    if done == len(program):
        return {"doing": "returned", "op": None, "line": None}
    step = program[done]
    if step.op == "busy":
        return {"doing": "running", "op": None, "line": step.line}
    return {"doing": "waiting", "op": step.op, "line": step.line}
