"""Installed as a wheel, far from any clone, the course is complete; and a submission still sees no solution."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checks.class_of import ROOT, need_a_sandbox
from tests.conftest import PATIENCE

pytestmark = pytest.mark.slow
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def run(*words: str | Path, **options) -> str:
    """What a program prints; it must end well."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=PATIENCE, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sources() -> list[str]:
    """What git knows, so that nothing which lies about gets in."""
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    return [name for name in names if not name.startswith("tests/") and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(sources, tmp_path_factory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    for name in sources:
        (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "clone" / name)
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, folder / "clone")
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel) -> Iterator[Path]:
    """A folder that has the package, among those in which a submission's Python finds what is installed."""
    folder = Path(sys.prefix) / f"installed-for-a-test-{os.getpid()}"
    run(*PIP, "install", "--no-deps", "--target", folder, wheel)
    yield folder
    shutil.rmtree(folder)


def course(installed: Path, code: str, cwd: Path) -> str:
    """What a program prints that finds the installed package, and no clone."""
    environment = {k: v for k, v in os.environ.items() if k != "COURSE_LIB_PROGRESS"}
    return run(sys.executable, "-c", code, cwd=cwd, env={**environment, "PYTHONPATH": str(installed)})


def test_the_wheel_has_every_notebook_and_every_file_of_the_library(wheel, sources):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("notebooks", "exercises", "solutions"):
        ours = {f"course_lib/_course/{folder}/{path.name}" for path in (ROOT / folder).glob("*.ipynb")}
        assert ours
        assert ours <= names
    assert {name for name in sources if name.startswith("course_lib/")} <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"course_lib"}


def test_a_desk_can_be_made_in_an_empty_folder(installed, tmp_path):
    code = (
        "from course_lib.runtime import course_files; from course_lib import lab\n"
        "from course_lib.command import main\n"
        f"assert course_files.PACKAGE.is_relative_to({str(installed)!r})\n"
        "lab.os.execve = lambda *_: None; lab.subprocess.call = lambda *_, **__: 0\n"
        "assert main(['lab']) == 0\n"
        "assert main(['update']) == 0\n"
    )
    assert "A new desk, with 12 lessons and 13 notebooks of exercises." in course(installed, code, tmp_path)
    assert (tmp_path / "work" / "exercises" / "11_capstone.ipynb").exists()


def test_solutions_are_shown_there_too(installed, tmp_path):
    code = (
        "from course_lib.checks.catalog import find\n"
        "from course_lib.checks.notebooks import answer_cell\n"
        "print(answer_cell(find('02.1')))\n"
    )
    assert "def average_gradients(model):" in course(installed, code, tmp_path)


def test_a_submission_sees_no_notebook_of_the_wheels(installed, tmp_path):
    need_a_sandbox()
    look = f"(find {installed} /course -name '*.ipynb' 2>/dev/null); (ls -d /course/course_lib/*)"  # vfork is refused
    code = (
        "from course_lib.grading import sandbox\n"
        f"print(sandbox.shows(sandbox.PACKAGE), sandbox.try_inside(['sh', '-c', {look!r}]).stdout)\n"
    )
    seen = course(installed, code, tmp_path)
    assert seen.startswith("True")  # the folder it is installed in is one that submissions see
    assert "/course/course_lib/launcher" in seen
    assert ".ipynb" not in seen
