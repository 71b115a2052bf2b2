"""A generator of faults: one rank of a program that talks does something else than the others.

`python -m tests.foreign.faults 500` breaks five hundred programs and prints the table of tests/README.md.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from tqdm import tqdm

from course_lib import CollectivesDiffer, LaunchError, RankDied, RankFailed, RanksStuck, launch
from tests.foreign import collectives
from tests.foreign.collectives import BREAKABLE, Turn

STEPS = {step.__name__: step for step in BREAKABLE}
EVERYWHERE = ("skip", "order", "late", "raise", "exit", "kill", "stop", "hold the lock")
IN_THE_CALL = ("shape", "dtype", "root", "group")
ENDLESS = ("stop", "hold the lock")  # nothing but the time-out ends these
TIMEOUT = {True: 8.0, False: 30.0}


@dataclass(frozen=True)
class Case:
    """One program and what is wrong with it: `rank` deviates at `step`, and then all go on to `after`, if any."""

    step: str
    fault: str
    ranks: int
    rank: int
    after: str | None

    def __str__(self) -> str:
        return f"{self.step}, {self.fault} on rank {self.rank} of {self.ranks}, then {self.after or 'nothing'}"


@dataclass(frozen=True)
class Outcome:
    """What the launcher made of it."""

    case: Case
    detected: bool
    named: bool
    seconds: float
    says: str


def cases(number: int, seed: int = 0) -> list[Case]:
    """Different programs with different faults: every kind of fault at every step first, then at random."""
    draw = random.Random(seed)
    combinations = [
        (step.__name__, fault) for step, ways in BREAKABLE.items() for fault in (*EVERYWHERE, *sorted(ways))
    ]
    draw.shuffle(combinations)
    found: dict[Case, None] = {}
    while len(found) < number:
        for step, fault in combinations:
            ranks = draw.choice([2, 3, 4])
            after = draw.choice([None, "all_reduce", "barrier", "broadcast", "all_gather"])
            found[Case(step, fault, ranks, draw.randrange(ranks), after)] = None
    return list(found)[:number]


def program(case: Case) -> bool:
    """What every rank runs. All is right but for one rank's turn."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    others = dist.new_group([case.rank, (case.rank + 1) % ranks])  # whoever has the wrong group, has this one
    turn, steps = Turn(rank, ranks), [collectives.all_reduce, STEPS[case.step]]
    if case.after:
        steps.append(getattr(collectives, case.after))
    if rank != case.rank:
        return [step(turn) for step in steps].count(False) == 0
    return list(_deviate(case.fault, steps, turn, others)).count(False) == 0


def _deviate(fault: str, steps: list, turn: Turn, others: dist.ProcessGroup) -> Iterator[bool]:
    """The steps of the one rank, with its fault at the second."""
    first, second, *after = steps
    yield first(turn)
    if fault == "order":
        yield collectives.all_reduce(replace(turn, size=9))
    elif fault in IN_THE_CALL:
        yield second(wrong_turn(fault, turn, others))
    elif fault != "skip":
        happen(fault)
        yield second(turn)
    if fault == "order":
        yield second(turn)
    for step in after:
        yield step(turn)


def wrong_turn(fault: str, turn: Turn, others: dist.ProcessGroup) -> Turn:
    """The turn of a rank that calls with something else than the others."""
    if fault == "shape":
        return replace(turn, size=turn.size + 1)
    if fault == "dtype":
        return replace(turn, dtype=torch.float64)
    return replace(turn, root=turn.ranks - 1) if fault == "root" else replace(turn, group=others)


def happen(fault: str) -> None:
    """What befalls a rank before it makes its call."""
    if fault == "late":
        time.sleep(1.2)
    elif fault == "raise":
        raise KeyError("no such batch")
    elif fault == "exit":
        os._exit(5)
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "hold the lock":
        ctypes.PyDLL(None).sleep(600)  # a call of this kind keeps Python's lock


def judge(case: Case) -> Outcome:
    """Run the broken program and look whether the launcher noticed, and whom it blames."""
    began = time.monotonic()
    try:
        run = launch(program, case, ranks=case.ranks, timeout=TIMEOUT[case.fault in ENDLESS])
    except LaunchError as error:
        seconds = time.monotonic() - began
        return Outcome(case, case.fault != "late", blames(error, case), seconds, f"{type(error).__name__}: {error}")
    silent = case.fault == "late" and all(run)
    return Outcome(case, silent, silent, time.monotonic() - began, str(list(run)))


def blames(error: LaunchError, case: Case) -> bool:
    """Whether the error points at the rank that deviates."""
    if case.fault == "late":
        return False
    if case.fault in ("exit", "kill"):
        return isinstance(error, RankDied) and error.rank == case.rank
    if case.fault == "raise":
        return isinstance(error, RankFailed) and error.rank == case.rank and isinstance(error.exception, KeyError)
    if case.fault in ENDLESS:
        return isinstance(error, RanksStuck) and error.odd == (case.rank,)
    if isinstance(error, RanksStuck):
        return case.rank in error.odd or _is_between_two(error.odd, case)
    if isinstance(error, CollectivesDiffer):
        return error.rank == case.rank or (error.rank is None and case.rank in error.calls)
    return getattr(error, "rank", None) == case.rank


def _is_between_two(odd: tuple[int, ...], case: Case) -> bool:
    """Two ranks that wait for each other: neither stands out, and nobody can tell who is wrong."""
    return case.ranks == 2 and not odd


def judge_all(chosen: Iterable[Case], at_once: int = 3) -> Iterator[Outcome]:
    """Several at a time: most of a broken program is waiting."""
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(judge, chosen)


def table(outcomes: Iterable[Outcome]) -> str:
    """A line for each kind of fault."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.case.fault].append(outcome)
    groups = {**dict(sorted(groups.items())), "all": [outcome for group in groups.values() for outcome in group]}
    lines = ["| fault | programs | detected | named rightly | median seconds |", "|---|---:|---:|---:|---:|"]
    for fault, group in groups.items():
        middle = sorted(outcome.seconds for outcome in group)[len(group) // 2]
        detected, named = (sum(getattr(outcome, what) for outcome in group) for what in ("detected", "named"))
        lines.append(f"| {fault} | {len(group)} | {detected} | {named} | {middle:.1f} |")
    return "\n".join(lines)


def main(number: int, seed: int) -> None:
    outcomes = []
    for outcome in tqdm(judge_all(cases(number, seed)), total=number, unit="fault"):
        outcomes.append(outcome)
        late = outcome.seconds > 0.8 * TIMEOUT[False]
        if not outcome.detected or not outcome.named or late:
            wrong = "MISSED" if not outcome.detected else "MISNAMED" if not outcome.named else "LATE"
            print(f"\n{wrong}  {outcome.case}  ({outcome.seconds:.0f} s)\n{outcome.says}", flush=True)
    print(table(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
