"""08.7 Read a timeline: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from course_lib.checks.exercise import Case, Exercise
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_08 import Diagnosed
from course_lib.lessons.symptoms import observed

CAUSES = ("straggler", "uneven batches", "data", "no overlap", "network", "fine")
NOISE = 0.04  # relative variation of equal work, up or down


@dataclass(frozen=True)
class Job:
    """The duration of each part of a job, in seconds; `slower` and `slow_load` apply to the rank `slow`."""

    ranks: int
    updates: int
    forward: float = 1.0
    backward: float = 2.0
    transfer: float = 0.8
    load: float = 0.1
    slow: int | None = None
    slow_load: float = 0.1  # the slow rank's `load`
    slower: float = 1.0  # factor on the slow rank's time for forward and backward together
    longest: float = 1.0  # factor on this time for the rank with the longest batch
    stretched: tuple[str, ...] = ("forward", "backward")  # the passes that these two factors apply to
    overlap: bool = True


def cases(seed: int) -> list[Case]:
    dice = random.Random(seed)

    def case(part: str, job: Job, rank: int | None, cause: str) -> Diagnosed:
        spans = simulate(job, dice)
        end_of_first = min(end for _, name, _, end in spans if name == "communication")
        first = [span for span in spans if span[2] < end_of_first]
        begins = min(begin for _, _, begin, _ in first)
        told = f"of which the first, from {begins:.7g} on, is\n  {_in_words(first, begins)}"
        says = f"{job.ranks} ranks, {job.updates} updates, {told}"
        return Diagnosed(part, 1, {"spans": spans}, says, (rank, cause))

    def some_job(ranks: int, updates: int) -> tuple[Job, int]:
        scale = dice.choice((0.02, 0.5, 1.0, 20.0))  # so that answers can't assume how long an update takes
        backward, transfer = scale * dice.uniform(1.5, 2.5), scale * dice.uniform(0.6, 0.9)
        job = Job(ranks, updates, scale, backward, transfer, load=0.1 * scale, slow_load=0.1 * scale)
        return job, dice.randrange(ranks)

    made = []
    for ranks, updates, alone in ((2, 6, ""), (2, 5, "forward"), (3, 8, "backward"), (3, 7, "forward"), (4, 12, "")):
        job, odd = some_job(ranks, updates)
        uneven = replace(job, stretched=(alone,)) if alone else job
        compute, times = job.forward + job.backward, dice.uniform(1.6, 3.0)
        made += [
            ("one rank", replace(uneven, slow=odd, slower=times), odd, "straggler"),
            ("one rank", replace(job, slow=odd, slow_load=job.load + compute * (times - 1)), odd, "data"),
            ("all ranks", job, None, "fine"),
            ("all ranks", replace(job, load=compute * times / 3, slow_load=compute * times / 3), None, "data"),
            ("all ranks", replace(job, overlap=False, transfer=compute * times / 3), None, "no overlap"),
            ("all ranks", replace(job, transfer=job.backward / 2 + compute * times / 3), None, "network"),
            ("by turns", replace(uneven, longest=times + 0.4), None, "uneven batches"),
        ]
    parts = [case(*each) for each in made]
    return sorted(parts, key=lambda each: list(EXERCISE.parts).index(each.part))


def _in_words(spans: list[list], zero: float) -> str:
    """Return the spans of one update, one line per rank, in seconds after `zero`."""
    rows: dict[int, list[str]] = {}
    for rank, name, begin, end in sorted(spans, key=lambda span: span[2]):
        rows.setdefault(rank, []).append(f"{name} {begin - zero:.4g} to {end - zero:.4g}")
    return "\n  ".join(f"rank {rank}: {', '.join(row)}" for rank, row in sorted(rows.items()))


def simulate(job: Job, dice: random.Random) -> list[list]:
    """Return the spans of a run. An update's communication ends on all ranks at the same time, after the last one has
    its gradients.
    """
    spans: list[list] = []
    clock = dice.uniform(100, 900) * job.forward  # an arbitrary start, so that answers can't assume 0
    turns = [rank for _ in range(job.updates) for rank in dice.sample(range(job.ranks), job.ranks)]
    for update in range(job.updates):
        ready, begun = [], []
        for rank in range(job.ranks):
            times = job.slower if rank == job.slow else 1.0
            times *= job.longest if rank == turns[update] else 1.0
            now = clock
            passes = {"forward": job.forward, "backward": job.backward}
            more = (times - 1) * (job.forward + job.backward) / sum(passes[name] for name in job.stretched)
            passes |= {name: passes[name] * (1 + more) for name in job.stretched}
            for name, seconds in (("load", job.slow_load if rank == job.slow else job.load), *passes.items()):
                seconds *= dice.uniform(1 - NOISE, 1 + NOISE)
                spans.append([rank, name, now, now + seconds])
                now += seconds
            ready.append(now)
            begun.append(now - passes["backward"] / 2 if job.overlap else now)
        # with overlap, the transfer can hide behind half of the backward pass
        last = max(range(job.ranks), key=ready.__getitem__)
        clock = max(ready[last] + 0.05 * job.backward, begun[last] + job.transfer * dice.uniform(1 - NOISE, 1 + NOISE))
        spans += [[rank, "communication", begun[rank], clock] for rank in range(job.ranks)]
    return sorted(spans, key=lambda span: (span[2], span[0]))


def drive(answer, spans: list[list]):
    return {"found": answer([tuple(span) for span in spans])}


def judge(case: Case, values: list) -> str | None:
    found, right = values[0]["found"], list(_truth(case))
    if not isinstance(found, list) or len(found) != 2:
        return f"it should return a rank and a cause, but returns {found!r}"
    return None if found == right else f"it says {tuple(found)}, it should be {tuple(right)}"


def _truth(case: Case) -> tuple[int | None, str]:
    assert isinstance(case, Diagnosed)
    return case.truth


@observed
def waiting_is_no_work(case: Case, values: list) -> bool:
    """There is a lot of communication in this timeline, but most of it is waiting. Only the rank that arrives *last*
    shows how long a transfer takes: it does not wait for any other rank.
    """
    waits = _truth(case)[0] is not None or _truth(case)[1] == "uneven batches"
    return values[0]["found"][1] in ("network", "no overlap") and waits


@observed
def hidden_by_the_backward_pass(case: Case, values: list) -> bool:
    """Communication is not what takes the time here: once the last rank has finished its backward pass, hardly any of
    it is left. Add up where the time goes, for each rank and each name.
    """
    return values[0]["found"][1] in ("network", "no overlap") and _truth(case)[1] == "data"


@observed
def who_waits_most(case: Case, values: list) -> bool:
    """This rank waits for the slow one. The rank to blame is the one that waits *least*."""
    rank, right = values[0]["found"][0], _truth(case)[0]
    return None not in (rank, right) and rank != right


@observed
def once_the_last(case: Case, values: list) -> bool:
    """In every update some rank is last, but not the same one each time: the batch is long, the rank is not slow. Look
    at the updates one by one.
    """
    return _truth(case)[1] == "uneven batches"


@observed
def always_the_last(case: Case, values: list) -> bool:
    """The long batches do not move from rank to rank: the same rank is the last in every update."""
    return values[0]["found"][1] == "uneven batches" and _truth(case)[0] is not None


@observed
def nobody_to_blame(case: Case, values: list) -> bool:
    """No rank is more than a few percent later than the others. If anything is wrong, it is wrong on all ranks: the
    rank is None.
    """
    return _truth(case)[0] is None and values[0]["found"][0] is not None


@observed
def slow_in_what(case: Case, values: list) -> bool:
    """The rank is right. In which spans is it slower than the others: does it compute, or does it load?"""
    return _truth(case)[0] is not None and values[0]["found"][0] == _truth(case)[0]


@observed
def begins_when(case: Case, values: list) -> bool:
    """The transfers take long. Do they begin while the backward pass still runs, or only after it?"""
    return {values[0]["found"][1], _truth(case)[1]} == {"network", "no overlap"}


@observed
def all_is_well(case: Case, values: list) -> bool:
    """Nothing is wrong here: loading is short, all ranks are ready at the same time, and nearly all communication is
    hidden behind the backward pass.
    """
    return _truth(case)[1] == "fine"


@observed
def something_is_wrong(case: Case, values: list) -> bool:
    """Something takes a quarter of this run's time or more, but it was not found. Add up where the time goes, for each
    rank and each name.
    """
    return values[0]["found"][1] == "fine"


EXERCISE = Exercise(
    **texts("08.7"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        all_is_well,
        waiting_is_no_work,
        hidden_by_the_backward_pass,
        who_waits_most,
        always_the_last,
        once_the_last,
        nobody_to_blame,
        slow_in_what,
        begins_when,
        something_is_wrong,
    ),
)
