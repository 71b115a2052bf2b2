"""Reports as a learner sees them: a box in a notebook, text elsewhere, and the points where nbgrader looks for them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from course_lib.checks import progress
from course_lib.checks.catalog import LESSONS, address, exercises, find, predictions
from course_lib.checks.exercise import Cost
from course_lib.checks.help import highlighted, hint_box, solution_box
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.judging import assess
from course_lib.checks.notebooks import check_metadata
from course_lib.checks.overview import overview
from course_lib.checks.progress_file import keep_prediction
from course_lib.checks.report import TOO_MUCH, Finding, Report, as_box, table_of
from tests.checks.class_of import ROOT
from tests.checks.test_pages import Elements
from tests.conftest import PATIENCE, Kernel

pytestmark = pytest.mark.usefixtures("progress_file")

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"
STUCK = (
    "the ranks wait forever; rank 0 waits in all_reduce for rank 1, which has returned\n\n"
    "  rank 0  waits in all_reduce at Cell In[2], line 5: dist.all_reduce(loss)\n  rank 1  has returned"
)


@pytest.fixture
def in_exercises(monkeypatch):
    """Where the notebook of the exercises is open."""
    monkeypatch.chdir(ROOT / "exercises")


def failing(what: str, cause: str = "", kind: str = "raised", number: str = "02.3", costs=()) -> Report:
    exercise = find(number)
    case = exercise.cases(1)[0]
    return Report(exercise, findings={case.part: Finding(case, Outcome(kind), what, cause, tuple(costs))})


def test_a_box_has_points_parts_the_case_the_cause_and_where_to_read(in_exercises):
    box = as_box(failing("it is 3, it should be 4", "Divide `once`."))
    exercise = find("02.3")
    for words in (f"1 of {exercise.points} points", "The smallest case that fails", "it is 3, it should be 4"):
        assert words in box
    assert "Divide <code>once</code>." in box
    assert [part in box for part in exercise.parts] == [True] * len(exercise.parts)
    assert 'aria-label="earned">✓' in box
    assert 'aria-label="not earned">✗' in box
    assert "hint('02.3')" in box
    assert "solution('02.3')" in box
    (link,) = re.findall('href="([^"]*)"', box)
    notebook, _, cell = link.partition("#cell-id=")
    assert notebook == "../notebooks/02_ddp.ipynb"
    cells = json.loads((ROOT / "exercises" / notebook).read_text())["cells"]
    (found,) = (each for each in cells if each["id"] == cell)
    assert f"## {exercise.read}" in "".join(found["source"])


def test_ranks_that_wait_are_a_table():
    box = as_box(failing(STUCK, kind="stuck"))
    assert '<th scope="row">1</th><td>has returned</td>' in box
    assert "<pre>the ranks wait forever; rank 0 waits in all_reduce for rank 1, which has returned</pre>" in box


def test_costs_stand_beside_their_budget():
    costs = [Cost("messages", 12, 6), Cost("bytes", 1_000_000, 2_000_000)]
    box = as_box(failing("\n".join([TOO_MUCH, *table_of(costs)]), costs=costs))
    numbers = '<td class="course-number">12</td><td class="course-number">6</td>'
    assert f'<th scope="row">messages</th>{numbers}<td>too much</td>' in box
    assert "1,000,000" in box
    passed = Report(find("02.4"), costs=tuple(costs[1:]))
    assert "within the budget" in as_box(passed)


@pytest.mark.parametrize(("spent", "is_right"), [(6, True), (7, False)])
def test_a_right_answer_that_spends_more_than_its_budget_fails(spent, is_right):
    exercise = replace(find("02.1"), judge=lambda *_: None, costs=lambda *_: [Cost("messages", spent, 6)])
    cases = exercise.cases(0)[:1]
    report = assess(exercise, cases, lambda _: Outcome("returned", values=(0,) * cases[0].ranks))
    too_much = [finding.what.startswith(TOO_MUCH) for finding in report.findings.values()]
    assert too_much == ([] if is_right else [True])


@pytest.mark.parametrize("kind", ["raised", "stuck", "returned"])
def test_what_an_answer_says_is_only_text(kind):
    report = failing(f"rank 0 raised Error: {SCRIPT}\n  rank 1  {SCRIPT}", SCRIPT, kind)
    found = Elements(as_box(report)).found
    assert not {"script", "img"} & {tag for tag, _ in found}
    assert not [name for _, attributes in found for name in attributes if name.startswith("on")]


@pytest.mark.parametrize("number", list(exercises()))
def test_the_boxes_of_every_exercise_are_whole(number, in_exercises):
    exercise = find(number)
    for report in (Report(exercise), Report(exercise, attempted=False), failing("wrong", "why", number=number)):
        Elements(as_box(report))
        assert "<script" not in as_box(report)
    for _ in exercise.hints:
        html, text = hint_box(exercise)
        Elements(html)
    assert exercise.hints[-1] in text
    assert "That was the last hint" in html
    for lesson, section in {exercise.section_for(part) for part in exercise.parts}:
        assert "#cell-id=" in address(lesson, section), f"lesson {lesson} has no section {section}"
    assert "#cell-id=" in address(exercise.lesson, f"{number} {exercise.title}", folder="exercises")


def test_a_section_that_is_not_there_is_a_link_to_the_lesson(in_exercises, monkeypatch, tmp_path):
    assert address("02", "99 · Nothing") == "../notebooks/02_ddp.ipynb"
    assert address("13") == ""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "02_ddp.ipynb").write_text("{")
    monkeypatch.chdir(tmp_path)
    assert address("02", "2 · By hand") == "notebooks/02_ddp.ipynb"
    assert address("03") == "", "no link to what is not there"


def test_the_lessons_have_the_titles_that_progress_shows():
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        first = "".join(json.loads(path.read_text())["cells"][0]["source"]).splitlines()[0]
        lesson = LESSONS[path.stem[:2]]
        assert (lesson.name, f"# {lesson.number} · {lesson.title}") == (path.stem, first)


def test_the_solution_is_highlighted_in_the_colors_of_the_editor(progress_file):
    assert "Try it first" in solution_box(find("02.3"))[1]
    progress_file.write_text('{"02.3": {"tries": 1, "points": 0, "hints": 0}}')
    html, text = solution_box(find("02.3"))
    assert "def evaluate_together(total, count):" in text
    assert "var(--jp-mirror-editor-keyword-color)" in html
    Elements(html)
    assert "<script" not in highlighted(f"x = {SCRIPT!r}")


def test_outside_of_a_notebook_a_report_is_its_text():
    report = failing("it is 3, it should be 4")
    assert report._repr_mimebundle_() is None
    assert repr(report) == str(report)
    assert str(report).startswith("✗ 02.3 Evaluate together: 1 of 3 points")
    assert float(report) == 1.0


@pytest.mark.slow
def test_in_a_notebook_the_box_is_all_there_is_to_see(kernel: Kernel, progress_file):
    kernel.run(f"import os; os.environ['COURSE_LIB_PROGRESS'] = {str(progress_file)!r}")
    kernel.run("from course_lib.checks import *\ndef wrong(total, count):\n    return 0.0")
    cell = kernel.run("check('02.3', wrong)")
    assert (cell.text, cell.result) == ("", "0.0")
    assert cell.html.count('class="course-box course-wrong"') == 1
    named = kernel.run("report = check('02.3', wrong)\nfloat(report)")
    assert named.html.count("course-box course-wrong") == 1, "shown, though the cell ends with something else"
    assert "<ol>" in kernel.run("hint('02.3')").html
    assert "evaluate_together" in kernel.run("solution('02.3')").html
    assert "Your progress" in kernel.run("progress()").html


def outputs_of(kernel: Kernel, code: str) -> list[dict]:
    """What a notebook would keep of a cell."""
    request, kept = kernel.start(code), []
    while True:
        message = kernel.client.get_iopub_msg(timeout=PATIENCE)
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] in ("execute_result", "display_data", "stream", "error"):
            kept.append({"output_type": message["msg_type"], **message["content"]})
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return kept


PARTLY = "from tests.checks.bank.lesson_02 import forgets_the_epoch as answer"
RIGHT = (
    "import torch.distributed as dist\n"
    "def answer(count, rank, ranks, epoch, seed):\n"
    "    return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))[rank::ranks]"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "points"),
    [(PARTLY, 3.0), (RIGHT, 4.0), ("def answer(*_):\n    raise NotImplementedError()", 0.0)],
    ids=["partly right", "right", "untouched"],
)
def test_nbgrader_itself_reads_the_points_from_the_box(kernel: Kernel, progress_file, answer, points):
    from nbformat import from_dict
    from nbgrader.utils import determine_grade

    kernel.run(f"import os; os.environ['COURSE_LIB_PROGRESS'] = {str(progress_file)!r}")
    kernel.run(f"from course_lib.checks import check\nimport torch\n{answer}")
    outputs = outputs_of(kernel, "check('02.2', answer)")
    assert [output["output_type"] for output in outputs].count("execute_result") == 1
    cell = {"cell_type": "code", "metadata": check_metadata(find("02.2")), "source": "", "outputs": outputs}
    assert determine_grade(from_dict(cell)) == (points, 4.0)


@pytest.mark.slow
def test_nbconvert_shows_the_box_and_not_the_points_below_it(tmp_path):
    html = as_box(failing("it is 3, it should be 4"))
    output = {"output_type": "execute_result", "execution_count": 1, "metadata": {}}
    output["data"] = {"text/html": html, "text/plain": "1.0"}
    cell = {"cell_type": "code", "id": "a", "execution_count": 1, "metadata": {}, "source": "", "outputs": [output]}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "one.ipynb").write_text(json.dumps(notebook))
    command = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "html", "one.ipynb"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "one.html").read_text()
    assert 'class="course-box course-wrong"' in page
    assert "<pre>1.0</pre>" not in page


@pytest.mark.slow
def test_a_script_prints_the_report(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "from course_lib.checks import check\n"
        "def stub(model):\n    raise NotImplementedError()\n"
        "if __name__ == '__main__':\n    check('02.1', stub)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert done.stdout == "02.1 Average the gradients by hand: not attempted yet, 3 points to earn\n", done.stderr


def test_progress_shows_a_bar_for_each_lesson_and_a_line_for_each_exercise(capsys, progress_file):
    progress_file.write_text('{"02.1": {"tries": 1, "points": 3, "hints": 1}}')
    keep_prediction("02.1", said="c", right=True)
    keep_prediction("02.2", said="c")
    progress()
    table = capsys.readouterr().out.splitlines()
    lesson = next(line for line in table if line.startswith("lesson 02"))
    assert "█" in lesson
    assert lesson.endswith("3 of 15 points")
    assert "    2 of 6 predictions made, 1 right" in table
    assert "  ✓ 02.1 Average the gradients by hand: 3 of 3 points, 1 try, 1 hint" in table
    assert table[-1] == "next: go on with lesson 02, Data parallelism: many ranks, one model"


def passed(number: str) -> dict[str, int]:
    return {"tries": 1, "points": find(number).points, "hints": 0}


@pytest.mark.parametrize(
    ("read_to", "solved", "says"),
    [
        ("", [], "lesson 00, Start here: ranks and what they say to each other"),
        ("00", [], "exercise 00.1 Pass it on"),
        ("00", ["00.1"], "exercise 00.2 All-reduce by halves"),
        ("00", ["00.1", "00.2"], "lesson 01, One device: where time and memory go"),
        ("09", ["09.1", "09.2", "09.3"], "lesson 10, Other frameworks: the same LSTM in TensorFlow and in JAX"),
        ("10", ["10.1", "10.2", "10.3", "10.4"], "exercise 11.1 Replicas of a pipeline"),
        ("12", list(exercises()), "nothing: you have done it all"),
    ],
)
def test_progress_says_what_comes_next(capsys, progress_file, read_to, solved, says):
    progress_file.write_text(json.dumps({number: passed(number) for number in solved}))
    for number in predictions():
        if number[:2] <= read_to:
            keep_prediction(number, skipped=True)
    progress()
    assert capsys.readouterr().out.splitlines()[-1] == f"next: {says}"


def test_progress_as_a_box_links_to_lessons_and_exercises(in_exercises):
    box = overview(exercises(), predictions()).as_box()
    Elements(box)
    assert 'href="../notebooks/00_start_here.ipynb"' in box
    assert re.search(r'href="\.\./exercises/02_ddp\.ipynb#cell-id=cell-02" title="02\.1 Average', box)
    nothing = f"0 of {len(predictions())} predictions made, 0 of {len(exercises())} exercises passed"
    assert nothing in box  # a lesson that was only read is not 0 points
