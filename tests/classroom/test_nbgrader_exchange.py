"""A class that fetches and submits with nbgrader: what was released arrives, and what was submitted can be graded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib import cli
from course_lib.grading.submissions import find_submissions
from tests.classroom.test_exchange import DDP, answered

pytest.importorskip("nbgrader", reason="nbgrader is not installed")


@pytest.mark.slow
def test_what_was_released_is_fetched_submitted_and_collected(tmp_path: Path, capsys):
    for name in ("exchange", "course", "student"):
        (tmp_path / name).mkdir()
    (tmp_path / "exchange").chmod(0o777)
    settings = f"c = get_config()\nc.Exchange.root = {str(tmp_path / 'exchange')!r}\n"
    (tmp_path / "course" / "nbgrader_config.py").write_text(settings)
    (tmp_path / "student" / "nbgrader_config.py").write_text(settings)
    asked = [str(tmp_path / "course"), "--nbgrader", "lstm", "--lessons", "02"]

    assert cli.main(["release", *asked]) == 0
    nbgrader(tmp_path / "student", "fetch_assignment", DDP)
    (tmp_path / "student" / DDP / f"{DDP}.ipynb").write_bytes(answered())
    nbgrader(tmp_path / "student", "submit", DDP)
    assert cli.main(["collect", *asked]) == 0

    assert f"{DDP} of 1" in capsys.readouterr().out
    (handed,) = find_submissions(tmp_path / "course" / "submitted")
    assert handed.content() == answered()


def nbgrader(folder: Path, command: str, assignment: str) -> None:
    words = [sys.executable, "-m", "nbgrader", command, assignment, "--course", "lstm"]
    known = {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1", "HOME": str(folder)}
    done = subprocess.run(words, cwd=folder, env=known, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
