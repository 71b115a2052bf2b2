"""08.8 What a hung job left: the check, and the common mistakes it recognizes.

The jobs were real, and so are their logs, stacks and records: `tests/checks/recorded` has the faulty program that ran.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from course_lib.checks.exercise import Case, Exercise
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_08 import Diagnosed
from course_lib.lessons.symptoms import observed

CAUSES = ("died", "raised", "busy", "fewer", "more", "another call", "messages")
PART_OF = {
    **dict.fromkeys(("died", "raised"), "gone"),
    **dict.fromkeys(("busy", "fewer", "more"), "counts"),
    **dict.fromkeys(("another call", "messages"), "calls"),
}
LOST = "Connection "  # "closed by peer" or "reset by peer": what a rank prints when it loses another one


def cases(seed: int) -> list[Case]:
    dice = random.Random(seed)
    by_fault: dict[str, list[dict]] = {}
    for job in _recorded_jobs():
        by_fault.setdefault(job["fault"], []).append(job)
    chosen = [job for jobs in by_fault.values() for job in dice.sample(jobs, 2)]
    made = [_case(dice, job) for job in chosen]
    return sorted(made, key=lambda case: list(PART_OF.values()).index(case.part))


def _recorded_jobs() -> list[dict[str, Any]]:
    """Return the jobs. Each rank is a dict of its `exit` code, None if it was still running, and what it left."""
    kept = json.loads(Path(__file__).with_name("recorded_jobs.json").read_text())
    texts = kept["texts"]
    return [
        {
            **job,
            "ranks": [
                {"exit": code, "log": texts[log], "stack": texts[stack], "record": texts[record]}
                for code, log, stack, record in job["ranks"]
            ],
        }
        for job in kept["jobs"]
    ]


def _case(dice: random.Random, job: dict[str, Any]) -> Diagnosed:
    """Make a case with the ranks renumbered. In some cases, the record of a rank that is not to blame is missing."""
    order = dice.sample(range(len(job["ranks"])), len(job["ranks"]))
    ranks = [dict(job["ranks"][old]) for old in order]
    guilty = sorted(order.index(old) for old in job["guilty"])
    victims = [rank for rank in range(len(ranks)) if rank not in guilty]
    if len(victims) > 2 and dice.random() < 0.5:
        ranks[dice.choice(victims)]["record"] = ""
    text = "".join(_as_text(rank, each) for rank, each in enumerate(ranks))
    says = "".join(f"\n    rank {rank}: {_in_words(each)}" for rank, each in enumerate(ranks))
    return Diagnosed(PART_OF[job["cause"]], 1, {"text": text}, says, (guilty, job["cause"], ranks))


def _as_text(rank: int, left: dict[str, Any]) -> str:
    text = f"=== rank {rank}: {_end(left)}\n"
    for heading, name in (("log", "log"), ("stack", "stack"), ("flight recorder", "record")):
        if left[name]:
            text += f"--- {heading}\n{left[name].strip()}\n".replace("[rank@]", f"[rank{rank}]")
    return text


def _end(left: dict[str, Any]) -> str:
    return "still running" if left["exit"] is None else f"exit code {left['exit']}"


def _in_words(left: dict[str, Any]) -> str:
    """Return what a rank left, in one line: how it ended, the end of its log, the top of its stack, its last
    collective.
    """
    log, stack, record = (left[name].strip().splitlines() for name in ("log", "stack", "record"))
    last = log[-1].removeprefix("[rank@]: ")
    words = [_end(left), f"log: … {LOST}closed or reset by peer …" if LOST in last else f"log: … {last}"]
    words += [f"stack: {stack[1].rpartition(' ')[2]} …"] if stack else []
    words += [f"record: … {record[-1]}" if record else "no record"]
    return "; ".join(words)


def drive(answer, text: str):
    return {"found": answer(text)}


def judge(case: Case, values: list) -> str | None:
    found, (guilty, cause, _) = values[0]["found"], _truth(case)
    if not isinstance(found, list) or len(found) != 2 or not isinstance(found[0], list):
        return f"it should return a list of ranks and a cause, but returns {found!r}"
    if found == [guilty, cause]:
        return None
    return f"it says {found[0]}, {found[1]!r}; it should be {guilty}, {cause!r}"


def _truth(case: Case) -> tuple[list[int], str, list[dict]]:
    assert isinstance(case, Diagnosed)
    return case.truth


def _blamed(case: Case, values: list) -> tuple[set, set]:
    """Return the ranks that the answer blames, and those that it should blame."""
    found = values[0]["found"][0]
    return {rank for rank in found if isinstance(rank, int)}, set(_truth(case)[0])


@observed
def blames_victims_too(case: Case, values: list) -> bool:
    """These include the ranks to blame, but also others that are in trouble only because of them."""
    found, guilty = _blamed(case, values)
    return found > guilty


@observed
def one_of_two(case: Case, values: list) -> bool:
    """Two ranks wait for each other in a message, and this is one of them. Neither is more to blame: name both."""
    found, guilty = _blamed(case, values)
    return bool(found) and found < guilty


@observed
def blames_who_lost_a_peer(case: Case, values: list) -> bool:
    """This rank's last error is about a connection: it has lost another rank, which is not a cause. Which rank left
    before it, and how: with which exit code, after which exception, or after how many collectives?
    """
    found, guilty = _blamed(case, values)
    ranks = _truth(case)[2]
    return not found & guilty and any(LOST in ranks[rank]["log"] for rank in found if rank in range(len(ranks)))


@observed
def blames_who_is_done(case: Case, values: list) -> bool:
    """This rank exited cleanly, with exit code 0, and others are to blame. "The rank to blame is
    the one that does not wait" is not a rule: count, and look for the rank whose count differs from all others.
    """
    found, guilty = _blamed(case, values)
    ranks = _truth(case)[2]
    return not found & guilty and any(ranks[rank]["exit"] == 0 for rank in found if rank in range(len(ranks)))


@observed
def overlooks_messages(case: Case, values: list) -> bool:
    """Two ranks are in `send`, or two in `recv`: you can see it in their stacks. They wait for each other, and this
    rank, which has since started a different collective, waits for them.
    """
    found, guilty = _blamed(case, values)
    return bool(found) and not found & guilty and _truth(case)[1] == "messages"


@observed
def blames_who_waits(case: Case, values: list) -> bool:
    """This rank waits where most ranks wait, or for the ranks that should have arrived there: it is a victim. Compare
    the records side by side, number by number: which rank is the first to differ?
    """
    found, guilty = _blamed(case, values)
    return bool(found) and not found & guilty


@observed
def blames_nobody(case: Case, values: list) -> bool:
    """No rank is named, but each of these jobs has a rank to blame, or two that wait for each other."""
    return not _blamed(case, values)[0]


@observed
def counts_before_it_compares(case: Case, values: list) -> bool:
    """Before the counts diverge, there is a number at which one rank made a different call than the others, or a call
    with a different shape. The counts only follow from that: compare the calls first, then their number.
    """
    return _truth(case)[1] == "another call" and values[0]["found"][1] in ("fewer", "more", "busy")


@observed
def busy_or_gone(case: Case, values: list) -> bool:
    """The rank is right, and it has started fewer collectives. Why: is it still running, and what is at the top of its
    stack? A rank that has exited is not busy, nor is one that waits for a message. And a single rank in `recv` waits
    for a message that nobody sends: "messages" takes two that wait for each other.
    """
    return _truth(case)[1] in ("busy", "fewer")


@observed
def other_cause(case: Case, values: list) -> bool:
    """The rank is right, but the cause is not. Exit code -9 is "died"; an exception that is not about a connection is
    "raised"; two ranks in send, or two in recv, are "messages"; and one more collective than all others is "more".
    """
    return _blamed(case, values)[0] == _blamed(case, values)[1]


EXERCISE = Exercise(
    **texts("08.8"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        blames_victims_too,
        one_of_two,
        blames_who_lost_a_peer,
        blames_who_is_done,
        overlooks_messages,
        counts_before_it_compares,
        blames_who_waits,
        blames_nobody,
        busy_or_gone,
        other_cause,
    ),
)
