"""Secrets are secret: no answer finds the other ranks' inputs, and none knows them beforehand."""

from __future__ import annotations

import os
import pickle
import textwrap
from pathlib import Path

import pytest
import torch

from course_lib.checks import exercises
from course_lib.checks.inside.keeper import Keeper, Parcel, PerRank, plain_loads
from course_lib.grading.grader import SEED
from course_lib.grading.records import Record
from course_lib.grading.submissions import find_submissions
from course_lib.launchers.process.messages import Started
from tests.checks.class_of import (
    EXERCISE,
    SOLUTION,
    hand_in,
    need_a_sandbox,
    patient_grader,
    right_answers,
    with_first_cell,
)

pytestmark = pytest.mark.timeout(1800)

SEARCH = """
import gc, glob, json, os, sys, time, pickle, torch, torch.distributed as dist
def result(totals, counts):
    return sum(totals) / sum(counts)
"""
# Each wins 02.3 without a message if it finds what it looks for, and otherwise returns something wrong.
ON_A_RANK = {
    "frames": """
        def evaluate_together(total, count):
            frame = sys._getframe()
            while frame:
                for name in ("inputs", "given", "calls"):
                    found = frame.f_locals.get(name)
                    if type(found) is dict and "totals" in found:
                        return result(found["totals"], found["counts"])
                if "totals" in frame.f_locals:
                    return result(frame.f_locals["totals"], frame.f_locals["counts"])
                frame = frame.f_back
    """,
    "everything that is collected": """
        def evaluate_together(total, count):
            for thing in gc.get_objects():
                if type(thing) is dict and type(thing.get("totals")) is list:
                    totals, counts = thing["totals"], thing["counts"]
                    rank = dist.get_rank()
                    if (totals[rank], counts[rank]) == (total, count) and sum(map(bool, totals)) > 1:
                        return result(totals, counts)
            return -1.0
    """,
    "the parcel once more": """
        def evaluate_together(total, count):
            ranks = dist.get_world_size()
            for thing in gc.get_objects():
                if type(thing).__name__ == "Parcel":
                    try:
                        parts = [thing.open(rank)[0] for rank in range(ranks)]
                        return result([part["totals"][r] for r, part in enumerate(parts)],
                                      [part["counts"][r] for r, part in enumerate(parts)])
                    except (OSError, EOFError):
                        pass
            return -1.0
    """,
    "memory of the others": f"""
        def evaluate_together(total, count):
            for name in glob.glob("/proc/[0-9]*/mem"):
                if name != f"/proc/{{os.getpid()}}/mem":
                    try:
                        open(name, "rb").close()
                    except OSError:
                        continue
                    with open(f"/proc/{{name.split('/')[2]}}/cmdline") as file:
                        if "forkserver" not in file.read():  # which never has any inputs
                            exec(RIGHT, globals())
                            return globals()["evaluate_together"](total, count)
            return -1.0
        RIGHT = {right_answers()!r}
    """,
}
IN_A_CELL = {
    "cells look for inputs": """
        def all_of(thing):
            return b"totals" in thing if type(thing) is bytes else False
        seen = [frame.f_locals for frame in sys._current_frames().values()]
        frame = sys._getframe()
        while frame:
            seen.append(frame.f_locals)
            frame = frame.f_back
        found = any(all_of(value) for names in seen for value in names.values())
        found |= any(type(thing).__name__ in ("Task", "Submission", "PerRank") for thing in gc.get_objects())
        if found:
            exec(RIGHT)
    """,
    "a process that stays": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    open("/tmp/alive", "w").write(str(time.monotonic()))
                    time.sleep(0.05)
            os._exit(0)
        def evaluate_together(total, count):
            open("/tmp/alive", "w").close()
            time.sleep(1)
            if open("/tmp/alive").read():
                exec(RIGHT, globals())
            return -1.0
    """,
    "outcomes from a cell": """
        values = json.dumps({"number": "02.3", "case": 0, "outcome": {"kind": "returned"}}).encode()
        for thing in gc.get_objects():
            if type(thing).__name__ == "Connection" and thing.writable:
                thing.send_bytes(values)
                thing.send_bytes(b'{"cell": 1, "error": "KeyError", "line": 1, "number": "02.3", "case": 0}')
    """,
}


def lookup_table() -> str:
    """What 02.3 should return, for the inputs of all seeds that stand in the course's source."""
    known = {}
    for seed in (0, 1, SEED):
        for case in exercises()["02.3"].cases(seed):
            totals, counts = case.inputs["totals"], case.inputs["counts"]
            known |= {pair: sum(totals) / max(sum(counts), 1) for pair in zip(totals, counts, strict=True)}
    return f"TABLE = {known!r}\ndef evaluate_together(total, count):\n    return TABLE.get((total, count), -1.0)"


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> dict[str, Record]:
    need_a_sandbox()
    folder: Path = tmp_path_factory.mktemp("class")
    for name, text in ON_A_RANK.items():
        hand_in(folder / "in", name, with_first_cell(EXERCISE, SEARCH, last=textwrap.dedent(text)))
    for name, text in IN_A_CELL.items():
        right = f"RIGHT = {right_answers()!r}\n"
        hand_in(folder / "in", name, with_first_cell(EXERCISE, SEARCH + right, last=textwrap.dedent(text)))
    hand_in(folder / "in", "a lookup table", with_first_cell(EXERCISE, "", last=lookup_table()))
    hand_in(folder / "in", "ada", SOLUTION)
    records = patient_grader(folder / "out", seed=123_456_789).grade(find_submissions(folder / "in"))
    return {record.student: record for record in records}


@pytest.mark.slow  # the quicker neighbours are below
@pytest.mark.parametrize("attack", [*ON_A_RANK, *IN_A_CELL, "a lookup table"])
def test_no_answer_wins_without_a_message(graded, attack):
    assert graded[attack].points == 0, graded[attack]


@pytest.mark.slow
@pytest.mark.parametrize("attack", [*ON_A_RANK, "a lookup table", "a process that stays"])
def test_the_attack_was_run(graded, attack):
    (mark,) = (mark for mark in graded[attack].marks if mark.number == "02.3")
    assert mark.attempted
    assert all("returns something else" in said or "than the exercise" not in said for said in mark.remarks.values())


@pytest.mark.slow
def test_an_honest_student_among_them_has_all_points(graded):
    assert graded["ada"].points == 15, graded["ada"]


def test_a_rank_is_sent_none_of_the_others_numbers():
    """But where all ranks are to have them, as the exercise's text says."""
    for number, exercise in exercises().items():
        for case in exercise.cases(SEED):
            for rank in range(case.ranks):
                given = exercise.inputs_of(case, rank)
                assert given.keys() == case.inputs.keys()
                if exercise.private and case.ranks > 1:
                    assert any(not same(given[name], case.inputs[name]) for name in exercise.private), number


def same(one: object, other: object) -> bool:
    return pickle.dumps(one) == pickle.dumps(other)


@pytest.mark.parametrize("number", ["02.3", "00.1", "08.1"])
def test_the_shares_of_all_ranks_are_the_whole(number):
    exercise = exercises()[number]
    case = exercise.cases(SEED)[-1]
    for name in exercise.private:
        shares = [exercise.inputs_of(case, rank)[name] for rank in range(case.ranks)]
        for rank, share in enumerate(shares):
            assert same(share[rank], case.inputs[name][rank])
            for other in set(range(case.ranks)) - {rank}:
                assert not torch.as_tensor(share[other]).any()


def test_inputs_are_handed_to_each_rank_once():
    keeper = Keeper()
    parcel = keeper.hold([PerRank([pickle.dumps({"x": 10 * case + rank}) for rank in range(2)]) for case in range(3)])
    assert [given["x"] for given in parcel.open(1)] == [1, 11, 21]
    with pytest.raises(EOFError):
        parcel.open(1)
    with pytest.raises(EOFError):
        Parcel(parcel.address, "guessed").open(0)
    assert [given["x"] for given in parcel.open(0)] == [0, 10, 20]


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


class Deeper:
    def __reduce__(self):
        from course_lib.launchers.process.payload import unpack

        return unpack, (pickle.dumps(Evil()),)


@pytest.mark.parametrize("message", [Evil(), [Evil()], Deeper(), Started(0, Evil())])  # pyright: ignore
def test_the_launcher_makes_nothing_but_messages_of_what_ranks_send(message):
    with pytest.raises(pickle.UnpicklingError, match="no message of a launch"):
        plain_loads(pickle.dumps(message))
    assert plain_loads(pickle.dumps(Started(3))) == Started(3)
