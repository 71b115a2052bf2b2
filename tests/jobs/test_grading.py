"""A class that is graded by a job array has the marks that it has in one go."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checks.class_of import ROOT, need_a_sandbox
from tests.conftest import PATIENCE

pytestmark = [pytest.mark.timeout(6 * PATIENCE), pytest.mark.slow]
SCRIPT = ROOT / "docs" / "deploy" / "grade-array.sbatch"


def marks(folder: Path) -> dict[str, str]:
    rows = csv.DictReader((folder / "grades.csv").read_text().splitlines())
    return {row["student"]: row["total"] for row in rows}


def test_an_array_of_jobs_gives_the_marks_of_one_go(on_cluster, monkeypatch):
    """The script of the page as it stands, except that there are two parts and that they ask for less."""
    need_a_sandbox()
    shutil.copytree(ROOT / "tests" / "checks" / "example_class", "submitted")
    programs = on_cluster / "bin"
    programs.mkdir()
    (programs / "course").write_text(f'#!/bin/sh\nexec {sys.executable} -m course_lib "$@"\n')
    (programs / "course").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    script = SCRIPT.read_text()
    assert "PARTS=8" in script
    Path("array.sbatch").write_text(script.replace("PARTS=8", "PARTS=2"))
    submit = ["sbatch", "--wait", "--array=1-2", "--cpus-per-task=1", "--mem=0", "--time=50", "array.sbatch"]
    done = subprocess.run(submit, capture_output=True, text=True, timeout=5 * PATIENCE)
    logs = [path.read_text() for path in sorted(Path().glob("grade-*.log"))]
    assert done.returncode == 0, (done.stderr, logs)
    assert sorted(path.name for path in Path("grades", "parts").iterdir()) == ["1-of-2.json", "2-of-2.json"]
    subprocess.run(["course", "grade", "submitted", "--out", "grades", "--merge"], check=True, timeout=PATIENCE)
    assert marks(Path("grades")) == {"good": "15", "half_right": "6", "hostile": "0"}
