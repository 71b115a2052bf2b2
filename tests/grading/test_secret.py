"""The secret of a class stays secret: what one submission learns is worth nothing to the next."""

from __future__ import annotations

import dataclasses
import json
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course_lib.checks.catalog import exercises
from course_lib.checks.exercise import seeded
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.inside.runner import END
from course_lib.command import main
from course_lib.grading import sandbox
from course_lib.grading.grader import Grader
from course_lib.grading.judge import MOST_NAMES, NAMED, judge
from course_lib.grading.secret import BadSecret, derive, secret_of_class, seed_of_inputs
from course_lib.grading.submissions import find_submissions
from tests.checks.class_of import EXERCISE, hand_in, need_a_sandbox, patient_grader, with_first_cell

SECRET = bytes(range(16))


def test_a_class_draws_128_bits_once_for_nobody_else_to_read(tmp_path):
    first, second = secret_of_class(tmp_path / "a"), secret_of_class(tmp_path / "b")
    assert len(first) == 16
    assert first != second
    assert secret_of_class(tmp_path / "a") == first
    assert stat.S_IMODE((tmp_path / "a" / "seed.txt").stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["seed.txt"]


@pytest.mark.parametrize("content", [b"", b"torn", b"20", b"1234567890", b"\xff\xfe", b"0" * 31, b"g" * 32])
def test_a_seed_that_cannot_be_read_is_refused_and_stays(tmp_path, content):
    (tmp_path / "seed.txt").write_bytes(content)
    with pytest.raises(BadSecret, match=r"seed\.txt.*restore it"):
        secret_of_class(tmp_path)
    assert (tmp_path / "seed.txt").read_bytes() == content


def test_a_seed_that_is_no_file_is_refused(tmp_path):
    (tmp_path / "seed.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(BadSecret, match="cannot be read"):
        secret_of_class(tmp_path)
    assert (tmp_path / "seed.txt").is_symlink()


RACE = """
import sys, pathlib
from course_lib.grading.secret import secret_of_class
print("ready", flush=True)
sys.stdin.readline()
print(*[secret_of_class(pathlib.Path(sys.argv[1], str(place))).hex() for place in range(200)])
"""


def test_graders_that_start_at_once_draw_one_seed(tmp_path):
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    graders = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for grader in graders:
        assert grader.stdout.readline() == "ready\n"
    for grader in graders:
        grader.stdin.write("\n")
        grader.stdin.flush()
    one, other = (grader.communicate()[0].split() for grader in graders)
    assert len(one) == 200
    assert one == other


def test_every_exercise_student_and_submission_has_inputs_of_its_own():
    seeds = {
        seed_of_inputs(SECRET, number, student, content)
        for number in ("02.1", "02.2")
        for student in ("ada", "eve")
        for content in (b"first", b"second")
    }
    assert len(seeds) == 8
    assert min(seeds).bit_length() == 129
    assert derive(SECRET, "ab", "c") != derive(SECRET, "a", "bc")


def test_all_bits_of_a_seed_count():
    """`manual_seed` takes the lowest 32, which can be searched."""
    seed = 1 << 128
    drawn = {seeded(each).get_state().numpy().tobytes() for each in (seed, seed + (1 << 32), seed + (1 << 100))}
    assert len(drawn) == 3
    first, second = (torch.rand(1000, generator=seeded(each)) for each in (seed, seed + (1 << 64)))
    assert not first.equal(second)
    assert abs(first.mean().item() - 0.5) < 0.05
    assert torch.rand(3, generator=seeded(seed)).equal(first[:3])
    assert torch.rand(3, generator=seeded(7)).equal(torch.rand(3, generator=torch.Generator().manual_seed(7)))


@pytest.mark.parametrize("number", exercises())
def test_no_input_tells_the_seed(number):
    """Not the seed, nor a number or a text that has a part of it."""
    seed = seed_of_inputs(SECRET, number, "ada", b"notebook")
    spelled = {str(seed), hex(seed)[2:], str(seed % 2**64), str(seed % 2**63), str(seed % 2**32), str(seed >> 64)}
    exercise = exercises()[number]
    for case in exercise.cases(seed):
        given = repr([exercise.inputs_of(case, rank) for rank in range(case.ranks)])
        assert not [each for each in spelled if each in given]


def test_the_seed_that_02_2_is_given_does_not_depend_on_the_secret():
    given = {
        tuple(case.inputs["seed"] for case in exercises()["02.2"].cases(seed_of_inputs(SECRET, "02.2", name, b"")))
        for name in ("ada", "eve", "ivy")
    }
    assert len(given) == 1


def raised(number: str, place: int, name: str) -> bytes:
    outcome = dataclasses.asdict(Outcome("raised", error=name, text="x"))
    return json.dumps({"number": number, "case": place, "outcome": outcome}).encode()


def test_a_page_names_a_handful_of_exceptions(tmp_path):
    """A submission that raises another exception in every part could spell its inputs."""
    names = [*sorted(NAMED), "BlockingIOError", "Secret4711", "OverflowError"]
    ours = [each for each in exercises().values() if each.lesson == "02"]
    cases = Grader(tmp_path, secret=SECRET).cases_of("eve", b"", ours)
    places = [(number, place) for number in cases for place in range(len(cases[number]))]
    lines = [raised(*at, names[turn % len(names)]) for turn, at in enumerate(places)]
    seen = judge([each.number for each in ours], pickle.dumps(cases), [], [*lines, END], "")
    said = json.dumps(seen)
    assert len([name for name in names if f"raises {name}." in said]) <= MOST_NAMES <= 5
    assert "raises an exception." in said


@pytest.mark.slow
def test_the_next_hand_in_gains_nothing_from_what_the_last_one_saw(tmp_path):
    """A table of all inputs of the first hand-in, with their results, fits no input of the second."""
    need_a_sandbox()
    grader = patient_grader(tmp_path / "out", secret=SECRET)
    content = hand_in(tmp_path / "in", "eve", EXERCISE).read_bytes()
    known = {}
    for case in grader.cases_of("eve", content, [exercises()["02.3"]])["02.3"]:
        totals, counts = case.inputs["totals"], case.inputs["counts"]
        known |= {pair: sum(totals) / max(sum(counts), 1) for pair in zip(totals, counts, strict=True)}
    table = f"TABLE = {known!r}\ndef evaluate_together(total, count):\n    return TABLE.get((total, count), -1.0)"
    hand_in(tmp_path / "in", "eve", with_first_cell(EXERCISE, "", last=table))
    (record,) = grader.grade(find_submissions(tmp_path / "in"))
    assert record.points == 0, record
    assert next(mark for mark in record.marks if mark.number == "02.3").attempted


def test_the_command_refuses_a_broken_seed_in_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sandbox, "check_sandbox", lambda: None)
    hand_in(tmp_path / "in", "ada", EXERCISE)
    Path(tmp_path / "out").mkdir()
    (tmp_path / "out" / "seed.txt").write_text("12")
    assert main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "out")]) == 2
    assert "seed.txt does not hold 128 bits" in capsys.readouterr().err
