"""Secrets are secret: no answer finds the other ranks' inputs, and none knows them beforehand."""

from __future__ import annotations

import dataclasses
import os
import pickle
import textwrap
from pathlib import Path

import pytest
import torch

from course_lib.checks.catalog import exercises
from course_lib.checks.exercise import Case
from course_lib.checks.inside.keeper import Keeper, Parcel, PerRank, plain_loads
from course_lib.checks.private import by_rank
from course_lib.grading.grader import SEED
from course_lib.grading.records import Record
from course_lib.grading.submissions import find_submissions
from course_lib.launcher.wire.messages import Started
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
                        parts = [thing.claim(rank).next_case() for rank in range(ranks)]
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
    records = patient_grader(folder / "out", secret=b"of this class").grade(find_submissions(folder / "in"))
    return {record.student: record for record in records}


@pytest.mark.slow  # the quicker neighbors are below
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


@pytest.mark.slow
def test_with_the_inputs_of_all_ranks_the_same_attack_works(tmp_path, monkeypatch):
    """The attack is real: what earns nothing above earns points where a rank is sent everything."""
    need_a_sandbox()
    monkeypatch.setitem(exercises(), "02.3", dataclasses.replace(exercises()["02.3"], private={}))
    attack = with_first_cell(EXERCISE, SEARCH, last=textwrap.dedent(ON_A_RANK["frames"]))
    hand_in(tmp_path / "in", "eve", attack)
    (record,) = patient_grader(tmp_path / "out").grade(find_submissions(tmp_path / "in"))
    assert record.points > 0, record


FOR_ALL = {"02.2", "03.3", "07.1", "11.1"}  # every rank is given what all have, and finds its own part of it


def test_every_exercise_with_several_ranks_says_what_is_whose():
    several = {n for n, exercise in exercises().items() if any(case.ranks > 1 for case in exercise.cases(SEED))}
    assert {number for number in several if not exercises()[number].private} == several & FOR_ALL


@pytest.mark.parametrize("number", [number for number, exercise in exercises().items() if exercise.private])
def test_a_rank_is_sent_its_own_numbers_and_of_the_others_only_their_form(number):
    exercise, hidden = exercises()[number], set()
    for case in exercise.cases(SEED):
        for name in exercise.private:
            whole = numbers(case.inputs[name])
            shares = [numbers(exercise.inputs_of(case, rank)[name]) for rank in range(case.ranks)]
            for share in shares:
                assert all(mine in (0, each) for mine, each in zip(share, whole, strict=True))
            assert all(each in of_ranks for each, *of_ranks in zip(whole, *shares, strict=True)), "nothing is lost"
            hidden |= {name for share in shares if share != whole}
    assert hidden == exercise.private.keys()


def test_a_piece_of_a_tensor_travels_without_the_rest():
    exercise = dataclasses.replace(exercises()["08.2"], private={"batches": by_rank})
    secret = torch.full((4, 100), 0.123456789, dtype=torch.float64)
    secret[1] = 7.0
    case = Case("part", 4, {"batches": list(secret)}, "")
    assert pickle.dumps(0.123456789)[-10:-2][::-1] not in pickle.dumps(exercise.inputs_of(case, 1))


def numbers(value: object) -> list:
    """All numbers in it, in order."""
    if isinstance(value, torch.Tensor):
        return value.nan_to_num(nan=77.0).flatten().tolist()
    if isinstance(value, dict):
        value = list(value.values())
    return [each for item in value for each in numbers(item)] if isinstance(value, (list, tuple)) else [value]


def test_inputs_are_handed_to_each_rank_once():
    keeper = Keeper()
    parcel = keeper.hold([PerRank([pickle.dumps({"x": 10 * case + rank}) for rank in range(2)]) for case in range(3)])
    claim = parcel.claim(1)
    for token in (parcel, Parcel(parcel.address, "guessed")):
        with pytest.raises(EOFError):
            token.claim(1)
    assert [claim.next_case()["x"] for _ in range(3)] == [1, 11, 21]
    with pytest.raises((EOFError, OSError)):
        claim.next_case()
    assert parcel.claim(0).next_case()["x"] == 0


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


class Deeper:
    def __reduce__(self):
        from course_lib.launcher.wire.pickling import unpack

        return unpack, (pickle.dumps(Evil()),)


@pytest.mark.parametrize("message", [Evil(), [Evil()], Deeper(), Started(Evil())])  # pyright: ignore
def test_the_launcher_makes_nothing_but_messages_of_what_ranks_send(message):
    with pytest.raises(pickle.UnpicklingError, match="is not a launcher message"):
        plain_loads(pickle.dumps(message))
    assert plain_loads(pickle.dumps(Started(3))) == Started(3)
