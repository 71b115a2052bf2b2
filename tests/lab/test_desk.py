"""The desk: made once, never overwritten, brought up to date; the course's own files are never touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from course_lib import lab
from course_lib.checks import progress_file
from course_lib.command import main
from course_lib.lab import desk as desks
from course_lib.lab.desk import BadDesk, Desk, choose_desk, lay_out
from course_lib.lab.settings import environment
from course_lib.runtime.course_files import course_folder, is_answer, read, source, write_whole
from course_lib.runtime.version import __version__

ROOT = Path(__file__).resolve().parent.parent.parent
EXERCISE, LESSON = "exercises/02_ddp.ipynb", "notebooks/06_pipeline_parallelism.ipynb"


@pytest.fixture
def desk(tmp_path) -> Desk:
    """A desk as it is after the first `course lab`."""
    made = Desk(tmp_path / "desk")
    lay_out(made)
    return made


@pytest.fixture
def newer(tmp_path) -> Path:
    """A newer course, to be changed."""
    folder = tmp_path / "newer"
    for name in ("notebooks", "exercises"):
        shutil.copytree(course_folder() / name, folder / name)
    return folder


def change(path: Path, old: str, new: str) -> None:
    """Other words in the first cell that has the old ones."""
    notebook = read(path)
    cell = next(cell for cell in notebook["cells"] if old in source(cell))
    cell["source"] = source(cell).replace(old, new)
    path.write_text(json.dumps(notebook))


def words(path: Path) -> str:
    return "\n\n".join(map(source, read(path)["cells"]))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_desk_has_every_lesson_and_exercise_and_no_output(desk):
    for folder in ("notebooks", "exercises"):
        ours = sorted(path.name for path in (ROOT / folder).glob("*.ipynb"))
        assert sorted(path.name for path in (desk.folder / folder).iterdir()) == ours
        assert ours
    cells = [c for path in desk.folder.rglob("*.ipynb") for c in read(path)["cells"] if c["cell_type"] == "code"]
    assert len(cells) > 200
    assert not [cell for cell in cells if cell["outputs"] or cell["execution_count"]]
    assert not list(desk.folder.rglob("*.tmp"))


def test_every_link_in_a_notebook_leads_to_something_on_the_desk(desk):
    followed = 0
    for path in desk.folder.rglob("*.ipynb"):
        text = "\n".join(source(cell) for cell in read(path)["cells"] if cell["cell_type"] == "markdown")
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
            assert (path.parent / link).exists(), f"{path.name}: {link}"
            followed += 1
    assert followed > 20


def test_a_second_start_touches_nothing(desk):
    before = files(desk.folder)
    assert str(lay_out(desk)) == "The desk is up to date."
    assert files(desk.folder) == before


def test_what_the_learner_wrote_is_as_it_was_after_another_start_with_a_newer_course(desk, newer):
    for name in (EXERCISE, LESSON):
        change(desk.folder / name, "#", "# Mine:")
        change(newer / name, "#", "# Newer:")
    before = files(desk.folder / "exercises") | files(desk.folder / "notebooks")
    done = lay_out(desk, course=newer)
    assert files(desk.folder / "exercises") | files(desk.folder / "notebooks") == before
    assert done.waiting == [LESSON, EXERCISE]
    assert "`course update` brings them in and keeps your cells." in str(done)


def test_what_the_learner_has_not_changed_is_renewed_by_another_start(desk, newer):
    change(newer / LESSON, "#", "# Newer:")
    done = lay_out(desk, course=newer)
    assert words(desk.folder / LESSON) == words(newer / LESSON)
    assert str(done) == f"Updated: {LESSON}"
    assert str(lay_out(desk, course=newer)) == "The desk is up to date."


def test_a_file_that_the_learner_has_removed_is_laid_out_again(desk):
    (desk.folder / LESSON).unlink()
    assert str(lay_out(desk)) == f"New: {LESSON}"
    assert (desk.folder / LESSON).exists()


def test_an_update_keeps_the_answer_and_renews_the_text(desk, newer):
    stub = next(source(cell) for cell in read(desk.folder / EXERCISE)["cells"] if is_answer(cell))
    change(desk.folder / EXERCISE, stub, "def average_gradients(model): ...")
    change(newer / EXERCISE, "## 02.1", "## Newer 02.1")
    done = lay_out(desk, update=True, course=newer)
    assert str(done) == f"Updated: {EXERCISE}, with your cell in it"
    assert words(desk.folder / EXERCISE) == words(newer / EXERCISE).replace(stub, "def average_gradients(model): ...")
    assert str(lay_out(desk, update=True, course=newer)) == "The desk is up to date."


def test_what_both_have_changed_is_kept_beside_and_a_second_time_too(desk, newer):
    for again in ("", " 2"):
        change(desk.folder / LESSON, "#", "# Mine:")
        mine = (desk.folder / LESSON).read_bytes()
        change(newer / LESSON, "#", f"# Newer{again}:")
        done = lay_out(desk, update=True, course=newer)
        beside = LESSON.replace(".ipynb", f" (yours{again}).ipynb")
        assert str(done) == f"Updated: {LESSON}; your old version is kept in {beside}"
        assert (desk.folder / beside).read_bytes() == mine
        assert words(desk.folder / LESSON) == words(newer / LESSON)


def test_a_file_that_is_no_notebook_any_more_is_kept_beside(desk, newer):
    (desk.folder / LESSON).write_bytes(b"{ half of it")
    change(newer / LESSON, "#", "# Newer:")
    lay_out(desk, update=True, course=newer)
    assert (desk.folder / LESSON.replace(".ipynb", " (yours).ipynb")).read_bytes() == b"{ half of it"
    assert words(desk.folder / LESSON) == words(newer / LESSON)


@pytest.mark.parametrize("memory", [None, b"", b"{}", b"[]", b'{"format": 1, "version": "0.1.0", "notebooks": [3]}'])
def test_without_its_memory_a_desk_is_brought_up_to_date_and_keeps_answers(desk, newer, memory):
    desk.memory.unlink() if memory is None else desk.memory.write_bytes(memory)
    stub = next(source(cell) for cell in read(desk.folder / EXERCISE)["cells"] if is_answer(cell))
    change(desk.folder / EXERCISE, stub, "def average_gradients(model): ...")
    change(newer / EXERCISE, "## 02.1", "## Newer 02.1")
    done = lay_out(desk, update=True, course=newer)
    assert list(done.kept_beside) == [EXERCISE]
    assert "def average_gradients(model): ..." in words(desk.folder / EXERCISE)
    assert "## Newer 02.1" in words(desk.folder / EXERCISE)


def test_answers_in_the_courses_own_exercises_come_along_and_stay(tmp_path, newer):
    """As they were written before there were desks; later, the course's file is a stub again."""
    stub = next(source(cell) for cell in read(newer / EXERCISE)["cells"] if is_answer(cell))
    change(newer / EXERCISE, stub, "def average_gradients(model): ...")
    desk = Desk(tmp_path / "desk")
    lay_out(desk, course=newer)
    for update in (False, True):
        lay_out(desk, update=update)
        assert "def average_gradients(model): ..." in words(desk.folder / EXERCISE)


def test_a_notebook_that_the_course_has_no_more_goes_unless_the_learner_wrote_into_it(desk, newer):
    change(desk.folder / EXERCISE, "#", "# Mine:")
    for name in (EXERCISE, LESSON):
        (newer / name).unlink()
    done = lay_out(desk, course=newer)
    assert not (desk.folder / LESSON).exists()
    assert (desk.folder / EXERCISE).exists()
    assert str(done) == f"No longer in the course: {EXERCISE}; it stays, because you have changed it"


def test_files_of_the_learners_own_are_never_touched(desk, newer):
    own = {"notes.txt": b"mine", "exercises/02_ddp (yours).ipynb": b"mine", "progress.json": b'{"02.1": {}}'}
    for name, content in own.items():
        (desk.folder / name).write_bytes(content)
    change(newer / EXERCISE, "#", "# Newer:")
    change(desk.folder / EXERCISE, "#", "# Mine:")
    lay_out(desk, update=True, course=newer)
    assert {name: (desk.folder / name).read_bytes() for name in own} == own


def test_a_desk_that_could_not_be_finished_is_finished_the_next_time(tmp_path, monkeypatch):
    real, place = desks.write_to_desk, Desk(tmp_path / "desk")

    def full(path: Path, content: bytes) -> None:
        if path.name.startswith("05"):
            raise BadDesk(f"{path} cannot be written: No space left on device")
        real(path, content)

    monkeypatch.setattr("course_lib.lab.desk.write_to_desk", full)
    with pytest.raises(BadDesk, match="No space left"):
        lay_out(place)
    monkeypatch.undo()
    assert choose_desk(str(place.folder)) == place
    lay_out(place)
    assert str(lay_out(place)) == "The desk is up to date."


def test_a_file_is_written_whole_and_for_its_owner_alone(tmp_path):
    path = tmp_path / "new folder" / "secret.txt"
    write_whole(path, "first")
    write_whole(path, b"second", mode=0o600)
    assert path.read_text() == "second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_is_a_sentence_and_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "notebook.ipynb"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BadDesk, match="cannot be written: No space left on device; your work is unchanged"):
        desks.write_to_desk(path, b"new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("notebook.ipynb", "old")]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """A folder with nothing in it, in which the command is called."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def opened(monkeypatch) -> list:
    """What JupyterLab would have been started with; it does not really open."""
    calls: list = []
    monkeypatch.setattr(lab.os, "chdir", lambda _: None)
    monkeypatch.setattr(lab.os, "execve", lambda *words: calls.append(words))
    monkeypatch.setattr(lab.subprocess, "call", lambda words, env: 0)
    return calls


def test_the_desk_is_work_where_one_is_or_in_the_clone_around(elsewhere, monkeypatch):
    assert choose_desk(None).folder == elsewhere / "work"
    assert choose_desk("mine").folder == elsewhere / "mine"
    lay_out(Desk(elsewhere / "work"))
    monkeypatch.chdir(elsewhere / "work" / "exercises")
    assert choose_desk(None).folder == elsewhere / "work"
    monkeypatch.chdir(ROOT / "tests")
    assert choose_desk(None).folder == ROOT / "work"
    ignored = subprocess.run(["git", "check-ignore", "work/notebooks/x.ipynb"], cwd=ROOT, capture_output=True)
    assert ignored.returncode == 0


@pytest.mark.parametrize("place", [".", "notebooks", "notebooks/mine", "exercises", "course_lib/lab", "working"])
def test_no_desk_can_be_among_the_courses_own_files(place, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main(["lab", "--desk", place]) == 2
    assert f"{place} is inside the course's own files: give a folder elsewhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lab", "--desk", "link"], "is inside the course's own files"),
        (["lab", "--desk", "full"], "has other files in it: give --desk a folder that is new or empty"),
        (["lab", "--desk", "file"], "is a file: give the name of a folder"),
        (["lab", "--desk", "file/desk"], "cannot be written: Not a directory"),
        (["update"], "there is no desk at"),
    ],
)
def test_what_cannot_be_a_desk_is_left_alone_with_a_sentence(elsewhere, capsys, words, says):
    (elsewhere / "link").symlink_to(ROOT / "notebooks")
    (elsewhere / "full").mkdir()
    (elsewhere / "full" / "thesis.tex").write_text("")
    (elsewhere / "file").write_text("")
    before = files(elsewhere)
    assert main(words) == 2
    assert says in capsys.readouterr().err
    assert files(elsewhere) == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_rights_is_a_sentence(elsewhere, capsys):
    elsewhere.chmod(0o500)
    assert main(["lab"]) == 2
    assert "cannot be written: Permission denied" in capsys.readouterr().err


MAJOR = int(__version__.split(".")[0])


@pytest.mark.parametrize(
    ("key", "value"), [("version", f"{MAJOR}.99.0"), ("version", f"{MAJOR + 1}.0.0"), ("format", 99)]
)
@pytest.mark.parametrize("command", ["lab", "update"])
def test_a_desk_of_a_newer_course_is_left_alone(elsewhere, monkeypatch, capsys, command, key, value):
    opened(monkeypatch)
    assert main(["lab"]) == 0
    memory = Desk(elsewhere / "work").memory
    memory.write_text(json.dumps({**json.loads(memory.read_text()), key: value, "notebooks": {"new": "form"}}))
    before = files(elsewhere)
    assert main([command]) == 2
    assert "was laid out by version" in capsys.readouterr().err
    assert files(elsewhere) == before


def test_the_command_makes_a_desk_and_becomes_jupyterlab(elsewhere, monkeypatch, capsys):
    calls = opened(monkeypatch)
    assert main(["lab", "--no-browser", "--port", "9000"]) == 0
    ((_, words, variables),) = calls
    assert f"--ServerApp.root_dir={elsewhere / 'work'}" in words
    assert "--ServerApp.port=9000" in words
    assert "--no-browser" in words
    assert variables["COURSE_LIB_PROGRESS"] == str(elsewhere / "work" / "progress.json")
    assert "A new desk, with 12 lessons and 13 notebooks of exercises." in capsys.readouterr().out
    assert (elsewhere / "work" / LESSON).exists()


@pytest.mark.parametrize("here", [".", "work", "work/exercises"])
def test_progress_is_found_on_the_desk_from_any_place_near_it(tmp_path, monkeypatch, here):
    monkeypatch.delenv("COURSE_LIB_PROGRESS", raising=False)
    desk = Desk(tmp_path / "work")
    lay_out(desk)
    monkeypatch.chdir(tmp_path / here)
    assert progress_file.place() == desk.progress


def test_nothing_that_the_server_reads_or_writes_lies_in_the_learners_own_settings(desk, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/somewhere/else")
    variables = environment(desk)
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"):
        assert Path(variables[name]).is_relative_to(desk.folder)
    assert Path(variables["JUPYTER_CONFIG_PATH"]).is_relative_to(Path(lab.__file__).parent)


def test_what_was_open_is_not_forgotten_by_another_start(elsewhere, monkeypatch):
    opened(monkeypatch)
    main(["lab"])
    (screen,) = Desk(elsewhere / "work").jupyter.rglob("*.jupyterlab-workspace")
    assert "00_start_here" in screen.read_text()
    screen.write_text("what the learner had open")
    main(["lab"])
    assert screen.read_text() == "what the learner had open"
