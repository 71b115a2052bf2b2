"""08.4 The first difference: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import random
from collections.abc import Callable

from course_lib.checks.exercise import Case, Exercise
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_08 import Diagnosed
from course_lib.lessons.lesson_08._jobs import Step, run, state
from course_lib.lessons.symptoms import observed

CAUSES = ("returned", "busy", "mismatch", "extra", "skipped")
OPS = ("all_reduce", "all_gather", "broadcast", "barrier")


def cases(seed: int) -> list[Case]:
    dice = random.Random(seed)
    made = [
        *(("ends too early", fault, 3 + place) for fault in (returns, is_busy) for place in range(3)),
        *(("another collective", calls_another, 3 + place) for place in range(3)),
        *(("found out later", fault, 3 + place) for fault in (skips_once, evaluates_alone) for place in range(4)),
        *(("found out later", fault, 3 + place) for fault in (once_more, goes_round_again) for place in range(2)),
        *(("found out later", fault, 3 + place) for fault in (starts_anew, skips_at_once) for place in range(2)),
    ]
    return [_job(dice, part, fault, ranks) for part, fault, ranks in made]


def _job(dice: random.Random, part: str, fault: Callable, ranks: int) -> Diagnosed:
    """Return a job in which one rank deviates. For some faults, the hang is never on a line of the first difference."""
    while True:
        case = _any_job(dice, part, fault, ranks)
        if fault not in (skips_once, skips_at_once, evaluates_alone) or not _ends(case) & set(_sides(case)):
            return case


def _any_job(dice: random.Random, part: str, fault: Callable, ranks: int) -> Diagnosed:
    body = _body(dice)
    before = [Step("broadcast", 4, group="world"), Step("all_reduce", 6, group="world")]
    right = [*before, *body * dice.randint(3, 5), Step("barrier", 40, group="world")]
    wrong, line, cause = fault(dice, right, len(body))
    odd = dice.randrange(ranks)
    programs = [wrong if rank == odd else right for rank in range(ranks)]
    done = run(programs, {"world": range(ranks)})
    record = [
        {**state(program, many), "calls": [[step.op, step.line] for step in program[: many + 1] if step.op != "busy"]}
        for program, many in zip(programs, done, strict=True)
    ]
    says = "".join(f"\n    rank {rank} {_in_words(each)}" for rank, each in enumerate(record))
    return Diagnosed(part, 1, {"record": record}, says, (odd, line, cause))


def _body(dice: random.Random) -> list[Step]:
    """Return the calls of one update: two or three all-reduces, each on its own line, and perhaps a different
    collective.
    """
    lines = sorted(dice.sample(range(8, 30, 2), 4))
    body = [Step("all_reduce", line, group="world") for line in lines[: dice.choice((2, 3))]]
    if dice.random() < 0.5:
        body.append(Step(dice.choice(("all_gather", "barrier")), lines[-1], group="world"))
    return body


def _in_words(each: dict) -> str:
    doing = {"waiting": f"waits in {each['op']} at line {each['line']}", "running": f"is running line {each['line']}"}
    calls = ", ".join(f"{op} {line}" for op, line in each["calls"])
    return f"{doing.get(each['doing'], 'has returned')}; its calls, with their lines: {calls or 'none'}"


def _anywhere(dice: random.Random, right: list[Step]) -> int:
    """Return a position in the program, often its very beginning."""
    return dice.choice((0, dice.randrange(len(right)), dice.randrange(len(right))))


def returns(dice: random.Random, right: list[Step], size: int) -> tuple[list[Step], int, str]:
    place = _anywhere(dice, right)
    return right[:place], right[place].line, "returned"


def is_busy(dice: random.Random, right: list[Step], size: int) -> tuple[list[Step], int, str]:
    place, line = _anywhere(dice, right), dice.randrange(9, 30, 2)
    return [*right[:place], Step("busy", line)], line, "busy"


def calls_another(dice: random.Random, right: list[Step], size: int) -> tuple[list[Step], int, str]:
    place, line = _anywhere(dice, right), dice.randrange(31, 39)
    op = dice.choice([op for op in OPS if op != right[place].op])
    return [*right[:place], Step(op, line, group="world"), *right[place + 1 :]], line, "mismatch"


def skips_once(dice: random.Random, right: list[Step], size: int) -> tuple[list[Step], int, str]:
    """Leave out one call of one update. The next call is to the same collective and takes its place."""
    places = [place for place in range(2, len(right) - size) if right[place].op == right[place + 1].op]
    place = dice.choice(places)
    return [*right[:place], *right[place + 1 :]], right[place].line, "skipped"


def skips_at_once(dice: random.Random, right: list[Step], size: int) -> tuple[list[Step], int, str]:
    """Leave out the first call of the first update, before any rank has reached the line of the next call."""
    return [*right[:2], *right[3:]], right[2].line, "skipped"


def evaluates_alone(dice: random.Random, right: list[Step], size: int) -> tuple[list[Step], int, str]:
    """Add an all-reduce on a separate line after one update, or after every update from there on."""
    updates = range(2 + size, len(right) - 1, size)
    first, line = dice.choice(updates), dice.randrange(31, 39)
    hit = [place for place in updates if place >= first] if dice.random() < 0.5 else [first]
    extra = Step(right[first].op, line, group="world")
    wrong = [each for place, step in enumerate(right) for each in ([extra, step] if place in hit else [step])]
    return wrong, line, "extra"


def starts_anew(dice: random.Random, right: list[Step], size: int) -> tuple[list[Step], int, str]:
    """Replace one update's calls with the call on line 6, which the others make only before the first update."""
    first = dice.choice(range(2 + size, len(right) - 1, size))
    return [*right[:first], right[1], *right[first + size :]], right[first].line, "skipped"


def once_more(dice: random.Random, right: list[Step], size: int) -> tuple[list[Step], int, str]:
    """Add a call at the end, after the others have returned."""
    line = dice.randrange(41, 50)
    return [*right, Step(dice.choice(OPS), line, group="world")], line, "extra"


def goes_round_again(dice: random.Random, right: list[Step], size: int) -> tuple[list[Step], int, str]:
    """Add one more update at the end. The others make calls on the same lines, but they have already returned."""
    return [*right, *right[2 : 2 + size]], right[2].line, "extra"


def drive(answer, record: list[dict]):
    return {"found": answer([{**each, "calls": [tuple(call) for call in each["calls"]]} for each in record])}


def judge(case: Case, values: list) -> str | None:
    found, right = values[0]["found"], list(_truth(case))
    if not isinstance(found, list) or len(found) != 3:
        return f"it should return a rank, a line and a cause, but returns {found!r}"
    return None if found == right else f"it says {tuple(found)}, it should be {tuple(right)}"


def _truth(case: Case) -> tuple[int, int, str]:
    assert isinstance(case, Diagnosed)
    return case.truth


def _of_both(case: Case) -> tuple[dict, dict]:
    """Return the record of the rank to blame, and the record of the other ranks."""
    odd, record = _truth(case)[0], case.inputs["record"]
    return record[odd], record[odd - 1]


def _ends(case: Case) -> set[int]:
    """Return the lines where the ranks are at the end."""
    return {each["line"] for each in _of_both(case)} - {None}


def _sides(case: Case) -> list[int]:
    """Return the lines of both sides' calls at the first difference."""
    mine, usual = (each["calls"] for each in _of_both(case))
    both = min(len(mine), len(usual))
    place = next((place for place in range(both) if mine[place] != usual[place]), both)
    return [calls[place][1] for calls in (mine, usual) if place < len(calls)]


@observed
def blames_a_victim(case: Case, values: list) -> bool:
    """This rank does what most ranks do, and has made the same calls as they have: it is a victim. The rank to blame is
    the one whose calls differ from all others', whether it is waiting or not.
    """
    rank = values[0]["found"][0]
    return rank != _truth(case)[0] and rank in range(len(case.inputs["record"]))


@observed
def line_of_the_hang(case: Case, values: list) -> bool:
    """The rank is right, but the line is one where ranks wait at the end. That is where it was noticed, not where it
    went wrong: compare the calls from the beginning, and stop at the first difference.
    """
    rank, line, _ = values[0]["found"]
    return rank == _truth(case)[0] and line != _truth(case)[1] and line in _ends(case)


@observed
def line_of_the_other_side(case: Case, values: list) -> bool:
    """The rank is right, but the line is that of the other side. For a skipped call, return the line where the others
    made it; for a call that only this rank made, or if it is busy, return this rank's line.
    """
    rank, line, _ = values[0]["found"]
    return rank == _truth(case)[0] and line != _truth(case)[1] and line in _sides(case)


@observed
def another_line(case: Case, values: list) -> bool:
    """The rank is right, but the line is not: neither of the two calls at the first difference is on it."""
    return values[0]["found"][0] == _truth(case)[0] and values[0]["found"][1] != _truth(case)[1]


@observed
def extra_for_skipped(case: Case, values: list) -> bool:
    """The rank is right. The call that it makes here is on a line where the others make calls as well, before this
    place or after it: it has skipped theirs, so return the line where they made it.
    """
    rank, _, cause = values[0]["found"]
    return rank == _truth(case)[0] and cause == "extra" and _truth(case)[2] == "skipped"


@observed
def skipped_for_extra(case: Case, values: list) -> bool:
    """The rank is right, but it has left nothing out: the others have returned, and make no call at this point. Its
    call is one too many, no matter which line it is on: return that line.
    """
    rank, _, cause = values[0]["found"]
    mine, usual = _of_both(case)
    too_many = mine["calls"][: len(usual["calls"])] == usual["calls"]
    return rank == _truth(case)[0] and cause == "skipped" and _truth(case)[2] == "extra" and too_many


@observed
def other_cause(case: Case, values: list) -> bool:
    """Rank and line are right, but the cause is not. Look again at the first difference: is there a call on both sides?
    If not: who has returned, and who is running? If so: is it the same collective, and do the others ever call it on
    that line, before this place or after it?
    """
    return values[0]["found"][:2] == list(_truth(case)[:2])


EXERCISE = Exercise(
    **texts("08.4"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        blames_a_victim,
        extra_for_skipped,
        skipped_for_extra,
        line_of_the_other_side,
        line_of_the_hang,
        another_line,
        other_cause,
    ),
)
