"""Exercises to the students and back: no answer goes out, nothing newer is lost, and no file leads elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from course_lib import command as cli
from course_lib.classroom.exchange import BadExchange, answers_in, collect, exercise_notebooks, read_below, release
from course_lib.grading.submissions import find_submissions
from course_lib.runtime.course_files import NOT_YET, course_folder, is_answer, read, source

DDP = "02_ddp"
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def answered(text: str = "return 7") -> bytes:
    """The exercises of lesson 02, with something written into the first."""
    notebook = read(course_folder() / "exercises" / f"{DDP}.ipynb")
    cell = next(cell for cell in notebook["cells"] if is_answer(cell))
    cell["source"] = source(cell).replace(NOT_YET, text)
    return json.dumps(notebook).encode()


def hand_in(folder: Path, content: bytes | None = None, name: str = f"{DDP}.ipynb", at: float = 1e9) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(answered() if content is None else content)
    os.utime(path, (at, at))
    return path


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    (tmp_path / "homes").mkdir()
    return tmp_path / "homes"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "submissions"


def test_every_lesson_is_released_as_it_is(tmp_path):
    names = release(tmp_path)
    ours = exercise_notebooks().values()
    assert names == [path.stem for path in ours]
    assert all((tmp_path / path.stem / path.name).read_bytes() == path.read_bytes() for path in ours)


def test_no_exercise_gives_an_answer_away():
    for path in exercise_notebooks().values():
        assert answers_in(read(path), read(course_folder() / "solutions" / path.name)) == []


def test_every_solution_gives_its_answers_away():
    for path in exercise_notebooks().values():
        solution = read(course_folder() / "solutions" / path.name)
        assert len(answers_in(solution, solution)) >= sum(map(is_answer, solution["cells"]))


def test_lines_of_the_solution_in_a_remark_are_found():
    path = exercise_notebooks()["02"]
    exercise, solution = read(path), read(course_folder() / "solutions" / path.name)
    answer = next(source(cell) for cell in solution["cells"] if is_answer(cell))
    remark = answer.split("### BEGIN SOLUTION")[1].split("### END SOLUTION")[0].replace("\n", "\n    ")
    exercise["cells"].insert(0, {"cell_type": "markdown", "metadata": {}, "source": f"Note to self: {remark}"})
    assert answers_in(exercise, solution) == ["cell 1 has lines of the solution"]


def test_a_release_does_not_overwrite_what_somebody_wrote(tmp_path):
    written = hand_in(tmp_path / DDP)
    with pytest.raises(BadExchange, match="somebody wrote"):
        release(tmp_path)
    assert written.read_bytes() == answered()
    assert not (tmp_path / "00_start_here").exists()


def test_an_unknown_lesson_is_a_sentence(tmp_path, capsys):
    assert cli.main(["release", str(tmp_path), "--lessons", "02", "77"]) == 2
    assert "--lessons 77: there are exercises for 00, 01" in capsys.readouterr().err


def test_what_was_released_is_collected_once_somebody_has_begun(homes, into):
    release(homes / "ada" / "work", ["02", "03"])
    assert collect(homes, into, ["02", "03"]).missing == {"ada": ["02", "03"]}
    hand_in(homes / "ada" / "work" / DDP)
    done = collect(homes, into, ["02", "03"])
    assert (done.taken, done.missing) == ({"ada": [DDP]}, {"ada": ["03"]})
    (handed,) = find_submissions(into)
    assert (handed.student, handed.notebook, handed.content()) == ("ada", DDP, answered())


def test_what_is_collected_is_for_no_other_user_of_the_machine(homes, tmp_path):
    hand_in(homes / "ada")
    collect(homes, tmp_path / "a new place", ["02"])
    assert (tmp_path / "a new place").stat().st_mode & 0o077 == 0


def test_whoever_is_expected_and_has_no_folder_is_named(homes, into):
    hand_in(homes / "ada")
    told = str(collect(homes, into, ["02"], expected=["ada", "grace"]))
    assert told == "Collected: 1 notebook from 1 student\nHanded in nothing: grace"


def test_lessons_that_nobody_has_handed_in_are_missing_only_if_asked_for(homes, into):
    hand_in(homes / "ada")
    assert collect(homes, into).missing == {}
    assert collect(homes, into, expected=["grace"]).missing == {"grace": ["02"]}
    assert collect(homes, into, ["02", "03"]).missing == {"ada": ["03"]}


def test_what_is_newer_here_stays_and_what_is_newer_there_comes(homes, into):
    theirs = hand_in(homes / "ada", at=1e9)
    collect(homes, into, ["02"])
    assert collect(homes, into, ["02"]).same == 1
    hand_in(into / "ada", answered("return 'mended by hand'"), at=2e9 - 1e9 + 50)
    assert collect(homes, into, ["02"]).newer_here == [f"ada/{DDP}.ipynb"]
    hand_in(homes / "ada", answered("return 8"), at=1e9 + 100)
    assert collect(homes, into, ["02"]).taken == {"ada": [DDP]}
    assert (into / "ada" / theirs.name).read_bytes() == answered("return 8")


def test_a_date_to_come_does_not_keep_later_work_out(homes, into):
    hand_in(homes / "ada", at=4e9)
    collect(homes, into, ["02"])
    hand_in(homes / "ada", answered("return 8"), at=3e9)
    assert collect(homes, into, ["02"]).taken == {"ada": [DDP]}


def test_links_are_refused_wherever_they_stand(homes, into, tmp_path):
    secret = hand_in(tmp_path / "elsewhere")
    (homes / "eve").mkdir()
    (homes / "eve" / secret.name).symlink_to(secret)
    (homes / "mallory").symlink_to(tmp_path / "elsewhere")
    (homes / "oscar").mkdir()
    (homes / "oscar" / "work").symlink_to(tmp_path / "elsewhere")
    done = collect(homes, into, ["02"])
    assert not done.taken
    assert sorted(done.missing) == ["eve", "oscar"]
    assert any(text.startswith("mallory: it is a link") for text in done.refused)
    with pytest.raises(ValueError, match="or is a link"):  # also if it became one after it was found
        read_below(homes, Path("oscar", "work", secret.name))
    assert not into.exists()


def test_pipes_folders_and_giants_are_refused(homes, into):
    (homes / "eve").mkdir()
    os.mkfifo(homes / "eve" / f"{DDP}.ipynb")
    (homes / "oscar" / f"{DDP}.ipynb").mkdir(parents=True)
    with open(hand_in(homes / "trudy"), "r+b") as file:
        file.truncate(21 << 20)
    done = collect(homes, into, ["02"])
    assert (len(done.refused), done.taken) == (3, {})


@pytest.mark.skipif(not ROOT, reason="only root can give a file to somebody else")
def test_a_file_of_somebody_else_is_refused(homes, into):
    path = hand_in(homes / "eve")
    os.chown(homes / "eve", 1001, -1)
    os.chown(path, 1002, -1)
    assert "its owner is not the owner of the folder it is in" in str(collect(homes, into, ["02"]))


def test_no_name_leads_out_of_the_folder(homes, into):
    for name in ("eve..", "a\\..\\b", "-rf", "con", "x" * 200):
        hand_in(homes / name)
    assert len(collect(homes, into, ["02"]).taken) == 5
    assert {path.parent.parent for path in into.rglob("*.ipynb")} == {into}
    assert not (into / "con").exists()  # which is a device on Windows


def test_files_as_canvas_packs_them_are_somebodys(homes, into):
    hand_in(homes, name="doejane_LATE_1234_5678_02_ddp-1.ipynb")
    hand_in(homes, name="lovelaceada_99_5678_02_ddp.ipynb")
    assert sorted(collect(homes, into).taken) == ["doejane", "lovelaceada"]


def test_broken_notebooks_are_collected_for_the_grader_to_judge(homes, into):
    hand_in(homes / "ada", b"not json")
    assert collect(homes, into, ["02"]).taken == {"ada": [DDP]}


def test_the_folders_must_lie_apart(homes):
    with pytest.raises(BadExchange, match="neither inside"):
        collect(homes, homes / "submissions")


def test_collect_says_what_to_give(tmp_path, capsys):
    assert cli.main(["collect", str(tmp_path)]) == 2
    assert "required: --into" in capsys.readouterr().err
    assert cli.main(["collect", str(tmp_path / "nowhere"), "--into", str(tmp_path / "into")]) == 2
    assert "is not a folder" in capsys.readouterr().err
