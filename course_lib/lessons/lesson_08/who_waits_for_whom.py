"""08.5 Who waits for whom: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import random

from course_lib.checks.exercise import Case, Exercise
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_08 import Diagnosed
from course_lib.lessons.lesson_08._jobs import Program, Step, run, state
from course_lib.lessons.symptoms import observed

CAUSES = ("returned", "busy", "all send", "all receive", "order")
Job = tuple[list[list[Step]], dict[str, list[int]], list[int], str]  # programs, groups, ranks to blame, cause


def cases(seed: int) -> list[Case]:
    dice = random.Random(seed)
    made = [
        ("gone or busy", _pipeline(dice, 3, "returned")),
        ("gone or busy", _pipeline(dice, 3, "busy")),
        ("gone or busy", _pipeline(dice, 5, "returned")),
        ("gone or busy", _pipeline(dice, 6, "busy")),
        ("gone or busy", _mesh_of_two_rows(dice, 6, "busy")),
        ("gone or busy", _mesh_of_two_rows(dice, 8, "returned")),
        ("messages", _ring(dice, 2, 2, "all send")),
        ("messages", _ring(dice, 3, 3, "all receive")),
        ("messages", _ring(dice, 5, 3, "all send")),
        ("messages", _ring(dice, 6, 2, "all receive")),
        ("messages", _ring(dice, 6, 4, "order")),
        ("messages", _ring(dice, 7, 5, "order")),
        ("messages", _ring(dice, 8, 6, "all send")),
        ("groups", _two_groups(dice, 2)),
        ("groups", _two_groups(dice, 5)),
        ("groups", _groups_in_a_ring(dice, 3)),
        ("groups", _groups_in_a_ring(dice, 6)),
        ("groups", _mesh_of_two_rows(dice, 4, "order")),
        ("groups", _mesh_of_two_rows(dice, 6, "order")),
        ("groups", _two_collectives(dice, 2)),
        ("groups", _two_collectives(dice, 5)),
        ("groups", _hub(dice, 3)),
        ("groups", _hub(dice, 4)),
        ("groups", _hub(dice, 6)),
        ("groups", _message_and_group(dice, 4)),
    ]
    return [_case(dice, part, *job) for part, job in made]


def _case(
    dice: random.Random,
    part: str,
    programs: list[list[Step]],
    groups: dict[str, list[int]],
    blamed: list[int],
    cause: str,
) -> Diagnosed:
    """Make a case with the ranks renumbered at random, so that no rank number gives anything away."""
    new = dice.sample(range(len(programs)), len(programs))
    done = run(programs, groups)
    states = {new[rank]: _record(program, done[rank], groups, new) for rank, program in enumerate(programs)}
    record = [states[rank] for rank in range(len(programs))]
    says = "".join(f"\n    rank {rank} {_in_words(each)}" for rank, each in enumerate(record))
    truth = {new[rank]: states[new[rank]]["line"] for rank in blamed}
    return Diagnosed(part, 1, {"record": record}, says, (truth, cause))


def _record(program: Program, done: int, groups: dict[str, list[int]], new: list[int]) -> dict:
    step = program[done] if done < len(program) else Step("", 0)
    return {
        **state(program, done),
        "peer": None if step.peer is None else new[step.peer],
        "group": step.group or None,
        "members": sorted(new[member] for member in groups[step.group]) if step.group else None,
    }


def _in_words(each: dict) -> str:
    if each["doing"] != "waiting":
        return "has returned" if each["doing"] == "returned" else f"is running at line {each['line']}"
    towards = "to" if each["op"] == "send" else "from"
    whom = f"{towards} rank {each['peer']}" if each["group"] is None else f"of {each['group']} {each['members']}"
    return f"waits in {each['op']} {whom} at line {each['line']}"


def _pipeline(dice: random.Random, stages: int, cause: str) -> Job:
    """Make a job that passes activations down the stages and ends in a barrier. One stage returns early or is busy."""
    receives, sends, micro_batches = dice.randrange(5, 15), dice.randrange(15, 25), dice.randint(2, 4)
    programs = []
    for stage in range(stages):
        each = [Step("recv", receives, peer=stage - 1)] if stage else []
        each += [Step("send", sends, peer=stage + 1)] if stage + 1 < stages else []
        line = 30 if stage else 41  # the first stage has a branch of its own, with the same barrier
        programs.append([*each * micro_batches, Step("barrier", line, group="everyone")])
    odd = dice.randrange(stages)
    place = dice.randrange(len(programs[odd]))
    programs[odd] = [*programs[odd][:place], *([Step("busy", dice.randrange(31, 40))] if cause == "busy" else [])]
    return programs, {"everyone": list(range(stages))}, [odd], cause


def _ring(dice: random.Random, ranks: int, size: int, cause: str) -> Job:
    """Make a job in which the first `size` ranks pass messages around; the others wait for messages or in a barrier."""
    first = {"all send": ["send"] * size, "all receive": ["recv"] * size}.get(cause)
    if first is None:  # some send and some receive, but no send matches a receive
        first = ["send" if dice.random() < 0.5 else "recv" for _ in range(size)]
        first[:2] = ["send", "recv"]
    programs = []
    for rank in range(size):
        # senders send to the next rank; receivers also wait for the next rank, which is the wrong direction
        calls = [Step(first[rank], dice.randrange(5, 20), peer=(rank + 1) % size)]
        programs.append([*calls, Step("barrier", 30, group="everyone")])
    if _meet(programs):
        return _ring(dice, ranks, size, cause)
    for rank in range(size, ranks):
        programs.append([Step("barrier", 30, group="everyone")])
        if dice.random() < 0.7:  # it exchanges a message with a rank that never gets that far
            towards, (here, there) = dice.randrange(rank), dice.choice((("send", "recv"), ("recv", "send")))
            programs[rank].insert(0, Step(here, dice.randrange(20, 25), peer=towards))
            programs[towards].insert(-1, Step(there, dice.randrange(25, 29), peer=rank))
    return programs, {"everyone": list(range(ranks))}, list(range(size)), cause


def _meet(programs: list[list[Step]]) -> bool:
    """Return whether any first message is one that its peer is waiting for."""
    return any(run(programs, {"everyone": range(len(programs))}))


def _two_groups(dice: random.Random, ranks: int) -> Job:
    """Make a job in which two ranks call their two groups in a different order; every other rank is in one group."""
    lines = dice.sample(range(5, 29), 2)
    a, b = (Step("all_reduce", line, group=group) for line, group in zip(lines, "AB", strict=True))
    groups = {"A": [0, 1], "B": [0, 1]}
    programs = [[a, b], [b, a]]
    for rank in range(2, ranks):
        group = dice.choice("AB")
        groups[group].append(rank)
        programs.append([a if group == "A" else b])
    return programs, groups, [0, 1], "order"


def _groups_in_a_ring(dice: random.Random, ranks: int) -> Job:
    """Make a job in which neighbors share a group, and each calls the one with its right neighbor first."""
    groups = {f"pair {rank}": [rank, (rank + 1) % ranks] for rank in range(ranks)}
    calls = [Step("all_reduce", dice.randrange(5, 29), group=f"pair {rank}") for rank in range(ranks)]
    return [[calls[rank], calls[rank - 1]] for rank in range(ranks)], groups, list(range(ranks)), "order"


def _two_collectives(dice: random.Random, ranks: int) -> Job:
    """Make a job with one group: some of its ranks are in one collective, the rest in another. If the group has more
    than two ranks, there is one more rank outside it, which has returned and which nobody waits for.
    """
    lines = dice.sample(range(5, 29), 2)
    first, second = (Step(op, line, group="data") for op, line in zip(("all_reduce", "all_gather"), lines, strict=True))
    turned = dice.randint(1, ranks - 1)
    programs = [[first, second] if rank < turned else [second, first] for rank in range(ranks)]
    beside: list[list[Step]] = [[]] * (ranks > 2)
    return [*programs, *beside], {"data": list(range(ranks))}, list(range(ranks)), "order"


def _hub(dice: random.Random, ranks: int) -> Job:
    """Make a job in which the first rank waits for several others at once, and each of these waits for the first. With
    more than three ranks, the last one is a victim: it waits for the first, and nobody waits for it.
    """
    last = ranks - 1
    spokes = [f"pair {rank}" for rank in range(1, ranks)]
    groups = {"hub": list(range(last)) if ranks > 3 else list(range(ranks))}
    groups |= {name: [0, rank] for rank, name in enumerate(spokes, 1)}
    hub = Step("all_reduce", dice.randrange(5, 15), group="hub")
    own = [Step("all_reduce", dice.randrange(15, 29), group=name) for name in spokes]
    programs = [[hub, *own], *([call, hub] for call in own)]
    if ranks == 3:
        return programs, groups, [0, 1, 2], "order"
    programs[last] = [own[-1]]  # a victim, outside the hub's group
    return programs, groups, list(range(last)), "order"


def _message_and_group(dice: random.Random, ranks: int) -> Job:
    """Make a job in which one rank waits for a message from a rank that waits for it in a barrier."""
    receive = Step("recv", dice.randrange(5, 15), peer=1)
    barriers = [Step("barrier", line, group="everyone") for line in (30, 30, *range(34, 32 + ranks))]
    programs = [[receive, barriers[0]], [barriers[1], Step("send", 33, peer=0)], *([last] for last in barriers[2:])]
    return programs, {"everyone": list(range(ranks))}, [0, 1], "order"


def _mesh_of_two_rows(dice: random.Random, ranks: int, cause: str) -> Job:
    """Make a job that calls collectives of its rows, then of its columns. Two ranks at opposite corners reverse the
    order; or one rank is missing.
    """
    columns = ranks // 2
    groups = {f"row {row}": [row * columns + column for column in range(columns)] for row in range(2)}
    groups |= {f"column {column}": [column, columns + column] for column in range(columns)}
    in_row, in_column = dice.sample(range(5, 29), 2)
    programs = []
    for rank in range(ranks):
        row = Step("all_reduce", in_row, group=f"row {rank // columns}")
        column = Step("all_gather", in_column, group=f"column {rank % columns}")
        programs.append([row, column])
    if cause == "order":
        for rank in (0, ranks - 1):
            programs[rank].reverse()
        # rank 0 waits in its column for a rank that waits in its row for the last rank, and so on around the cycle
        return programs, groups, [0, columns - 1, columns, ranks - 1], cause
    odd = dice.randrange(ranks)
    programs[odd] = [*programs[odd][: dice.randrange(2)], *([Step("busy", 33)] if cause == "busy" else [])]
    return programs, groups, [odd], cause


def drive(answer, record: list[dict]):
    return {"found": answer([dict(each) for each in record])}


def judge(case: Case, values: list) -> str | None:
    found, (lines, cause) = values[0]["found"], _truth(case)
    if not isinstance(found, list) or len(found) != 2 or not isinstance(found[0], dict):
        return f"it should return a dict of lines and a cause, but returns {found!r}"
    if found[0] == lines and found[1] == cause:
        return None
    return f"it says {_shown(found[0])}, {found[1]!r}; it should be {_shown(lines)}, {cause!r}"


def _shown(lines: dict) -> str:
    return str(dict(sorted(lines.items(), key=lambda item: str(item[0]))))


def _truth(case: Case) -> tuple[dict[int, int | None], str]:
    assert isinstance(case, Diagnosed)
    return case.truth


@observed
def blames_victims_too(case: Case, values: list) -> bool:
    """All ranks to blame are named, and others besides. Follow the waits to their end, and name only the ranks where
    they end.
    """
    return values[0]["found"][0].keys() > _truth(case)[0].keys()


@observed
def part_of_the_circle(case: Case, values: list) -> bool:
    """These are some ranks of the circle, but not all of it. A rank may wait for several others at once: all that it
    waits for, and that wait for it, directly or through others, belong to the circle.
    """
    found, right = values[0]["found"][0].keys(), _truth(case)[0].keys()
    return bool(found) and found < right


@observed
def names_nobody(case: Case, values: list) -> bool:
    """No rank is named, but every one of these jobs has a rank, or a circle of them, where all waiting ends."""
    return not values[0]["found"][0]


@observed
def blames_some_victims(case: Case, values: list) -> bool:
    """Some of these ranks are to blame, some only wait for them, and others that are to blame are missing. Follow *all*
    ranks that a rank waits for, to their end.
    """
    return bool(values[0]["found"][0].keys() & _truth(case)[0].keys())


@observed
def blames_a_victim(case: Case, values: list) -> bool:
    """These ranks wait for another rank, and would go on if that one did. Which rank do they wait for, and what is it
    doing?
    """
    ranks = range(len(case.inputs["record"]))
    found = values[0]["found"][0].keys()
    return all(rank in ranks and case.inputs["record"][rank]["doing"] == "waiting" for rank in found)


@observed
def nobody_waits_for_it(case: Case, values: list) -> bool:
    """No rank waits for this one, so nobody would go on if it did: it is done, or busy with work of its own. Start at a
    rank that waits, and follow whom it waits for.
    """
    record, found = case.inputs["record"], values[0]["found"][0].keys()
    return not any(record[rank]["doing"] == "waiting" or _is_waited_for(record, rank) for rank in found)


def _is_waited_for(record: list[dict], rank: int) -> bool:
    """Return whether some rank waits for this one, which is not waiting itself."""
    return any(each["peer"] == rank or rank in (each["members"] or ()) for each in record)


@observed
def other_lines(case: Case, values: list) -> bool:
    """The ranks are right, but a line is not: it should be the one in that rank's own row, or None if returned."""
    found, right = values[0]["found"][0], _truth(case)[0]
    return found.keys() == right.keys() and found != right


@observed
def other_cause(case: Case, values: list) -> bool:
    """Ranks and lines are right, but the cause is not. What do the ranks in the circle do: do all of them send, do all
    receive, or is it neither?
    """
    return values[0]["found"][0] == _truth(case)[0] and len(_truth(case)[0]) > 1


@observed
def other_cause_of_one(case: Case, values: list) -> bool:
    """Rank and line are right, but the cause is not: has it returned, or is it running?"""
    return values[0]["found"][0] == _truth(case)[0]


EXERCISE = Exercise(
    **texts("08.5"),
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=(
        blames_victims_too,
        part_of_the_circle,
        names_nobody,
        nobody_waits_for_it,
        other_lines,
        other_cause,
        other_cause_of_one,
        blames_some_victims,
        blames_a_victim,
    ),
)
