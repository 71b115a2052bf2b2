"""What a submission writes, names or returns is data: none of it earns a point, harms another, or runs away."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import pickle
import stat
import subprocess
import threading

import pytest
import torch

from course_lib.checks.catalog import exercises
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.inside.plain import encode
from course_lib.checks.inside.runner import END
from course_lib.checks.judging import assess
from course_lib.grading.guard import Guard
from course_lib.grading.judge import judge, read_cells
from course_lib.grading.limits import Limits
from course_lib.grading.pages import write_pages
from course_lib.grading.platforms import platform_table, read_students
from course_lib.grading.records import Record
from course_lib.grading.secret import secret_of_class
from course_lib.grading.submissions import as_text, files_below, find_submissions
from course_lib.runtime.course_files import BadNotebook
from tests.checks.class_of import EXERCISE, hand_in

NAN = float("nan")
NOTHING_AT_ALL = {
    **{"nan": NAN, "inf": math.inf, "none": None, "true": True, "text": "", "an empty list": [], "an empty dict": {}},
    **{"no numbers": torch.empty(0), "a nan": torch.tensor(NAN), "a row of nan": torch.full((1, 3), NAN)},
    **{"nans": [NAN] * 3, "empty tensors": [torch.empty(0)] * 3, "a huge number": 10**300, "lists": [[[]]] * 4},
    **{"deep": [[[[[[[[[[[[[]]]]]]]]]]]]], "a nan by name": {"value": NAN, "the sum": NAN, "spent": NAN}},
}


OF_ALL = [n if n < "02" else pytest.param(n, marks=pytest.mark.slow) for n in exercises()]


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # symptoms are asked about anything
@pytest.mark.parametrize("number", OF_ALL)
def test_what_is_no_answer_is_wrong(number):
    """A comparison with nan is false, and all of nothing is true: neither is to pass for right."""
    exercise = exercises()[number]
    first = {case.part: case for case in reversed(exercise.cases(1))}
    for (name, value), case in itertools.product(NOTHING_AT_ALL.items(), first.values()):
        outcome = Outcome("returned", values=tuple([encode(value)] * case.ranks))
        report = assess(exercise, [case], lambda _, outcome=outcome: outcome)
        assert case.part in report.findings, (name, case)


def forged() -> list[bytes]:
    """Lines as nobody but a forger writes them."""
    good = dataclasses.asdict(Outcome("returned", values=(1.0, 1.0)))
    tensor = {"tensor": "float64", "shape": [1], "data": "AAAAAAAA8D8="}
    fields = [
        *({"values": [each]} for each in ({**tensor, "shape": [0, 1 << 62, 1 << 62]}, {**tensor, "shape": [-1]})),
        *({"values": [each]} for each in ({**tensor, "shape": 7}, {**tensor, "data": "A"}, {**tensor, "tensor": "x"})),
        *({"values": [each]} for each in ({"dict": [[{}, 1]]}, {"dict": 3}, {"dict": [[[1, [2]], NAN]]}, {"other": 1})),
        *({"values": each} for each in (3, "text", None, {"a": 1}, [[["[" * 10]]])),
        *({"states": each} for each in (5, [["waiting"]], [["waiting", 1, ""]], [["dancing", "", ""]] * 2)),
        *({"in_flight": each} for each in (0, ["x"], [["never waited for", "os.system"]])),
        *({"kind": each} for each in (None, [], "passed", "returned\u202e")),
        *({"line": each} for each in (True, "1", 1e300)),
        *({"noticed": each} for each in (None, "x" * 10_000)),
        *({"points": 100}, {"error": {"a": 1}}),
    ]
    lines = [json.dumps({"number": "02.3", "case": 0, "outcome": {**good, **each}}) for each in fields]
    for number, case in (("02.3", NAN), ("02.3", math.inf), ("02.3", "0 "), (["02.3"], 0), (None, None), ("02.3", -1)):
        lines.append(json.dumps({"number": number, "case": case, "outcome": good}))
    lines += ["[" * 100_000, '{"a":' * 50_000, "1" * 5000, "null", "[]", "[1]", '""', "3", "\ud800"]
    lines += ['{"cell": 0}', '{"cell": 0, "error": []}', '{"cell": [], "error": {}, "line": null}']
    lines += ['{"number": "02.3", "case": 0, "outcome": ' + "[" * 100_000, '{"end": true, "number": "02.3"}']
    lines += ['{"number": "02.3", "case": 0, "outcome": ' + "[" * 900 + "]" * 900 + "}"]
    return [each.encode(errors="surrogatepass") for each in lines] + [b"\xff\xfe\x00", b"", b"x" * (2 << 20)]


def test_forged_lines_are_read_as_nothing_and_stop_nobody():
    cases = {"02.3": exercises()["02.3"].cases(1)}
    before = judge(["02.3"], pickle.dumps(cases), [], [END], "")
    for each in forged():
        result = judge(["02.3"], pickle.dumps(cases), [], [each, END], "")
        assert sum(result["marks"][0]["parts"].values()) == 0, each[:200]
        assert len(json.dumps(result)) < len(json.dumps(before)) + 2000, each[:200]


BOMBS = {
    "deep metadata": '{"metadata": ' + '{"a": ' * 100_000 + "1" + "}" * 100_000 + ', "cells": []}',
    "a number of many digits": '{"cells": [], "metadata": ' + "9" * 100_000 + "}",
    "cells twice": '{"cells": [1], "cells": []}',
    "cells of a later kind": '{"cells": [{"cell_type": ["code"], "source": {"a": 1}, "metadata": 3, "outputs": "x"}]}',
    "sources of anything": '{"cells": [{"cell_type": "code", "source": [1, null, ["x"], {"a": NaN}]}]}',
    "half a character": '{"cells": [{"cell_type": "code", "source": "x = \\"\\ud800\\"", "id": "\\udfff"}]}',
    "a mark at the beginning": '\ufeff{"cells": []}',
    "not a number": '{"cells": NaN}',
    "a zero": '{"cells": [{"cell_type": "code", "source": "x = 1\\u0000"}]}',
    "many cells": '{"cells": [' + '{"cell_type": "code"},' * 10_000 + "{}]}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_notebook_of_odd_json_is_code_or_no_notebook(name):
    try:
        cells = read_cells(BOMBS[name].encode())
    except BadNotebook:
        return
    assert all(type(cell) is str for cell in cells)
    result = judge(["02.3"], pickle.dumps({"02.3": exercises()["02.3"].cases(1)}), cells, [END], "")
    assert len(json.dumps(result)) < 10_000


def test_millions_of_lines_are_not_read():
    """Each line costs the grader time, which the other submissions wait for."""
    flood = subprocess.Popen(["sh", "-c", "yes ''; true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    guard = Guard(flood, dataclasses.replace(Limits(seconds=600), lines=1000), threading.Event())
    lines = guard.converse(b"")
    guard.end()
    assert guard.reason == "it wrote too much"
    assert len(lines) <= 1000


ODD_NAMES = ["\x1b[2J\x1b[31mada", "ada\rgrace", "ada\n1000 points", "\u202eada", "\x9b31mada", "a\x07da"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_sends_nothing_to_a_terminal_but_letters(tmp_path, monkeypatch, capsys, name):
    hand_in(tmp_path, name, EXERCISE)
    (submitted,) = find_submissions(tmp_path)
    monkeypatch.setattr("course_lib.grading.submissions.MOST_FILES", 0)
    files_below(tmp_path / name)
    said = capsys.readouterr().err.removesuffix("\n") + submitted.student
    assert said.isprintable(), said
    assert as_text("Åda O'Né (2)") == "Åda O'Né (2)"


def test_names_that_become_the_same_stay_two_students(tmp_path):
    for name in ("\x1bada", "\\x1bada"):
        hand_in(tmp_path, name, EXERCISE)
    assert len({each.student for each in find_submissions(tmp_path)}) == 2


def test_nobody_takes_a_mark_by_taking_a_login_as_a_name(tmp_path):
    table = "First name,Last name,Username,Email address\nAda,Lovelace,ada,a@example.org\nada,,eve,e@example.org\n"
    (tmp_path / "export.csv").write_text(table)
    students = read_students(str(tmp_path / "export.csv"), "moodle")
    records = [Record(name, "02_ddp", "", []) for name in ("ada", "eve", "Ada Lovelace")]
    rows = map(students.row_of, ("ada", "eve", "Ada Lovelace"))
    assert [row["Username"] for row in rows if row] == ["ada", "eve", "ada"]
    assert platform_table(records, "moodle", students)[1] == []


def test_nobody_else_on_the_machine_reads_the_marks(tmp_path):
    before = os.umask(0o022)
    try:
        secret_of_class(tmp_path / "grades")
        write_pages([Record("ada", "02_ddp", "", [], "a problem")], tmp_path / "grades")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "grades").stat().st_mode) == 0o700
