"""Lessons say the same on a machine whose cores are busy. (On a quiet one: nbval's part of `make test`.)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checks.under_load import busy

ROOT = Path(__file__).resolve().parent.parent
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SPINNING = 4
NBVAL = ("-p", "nbval", "-p", "tests.conftest", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=600")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lesson", LESSONS, ids=[path.stem for path in LESSONS])
def test_a_lesson_says_the_same_beside_four_spinning_processes(lesson: Path, tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *NBVAL]
    command += ["--nbval-sanitize-with", "tests/nbval.cfg", str(lesson)]
    own = {"COURSE_LIB_LIVE": "0", "OMP_NUM_THREADS": "1", "COURSE_LIB_PROGRESS": str(tmp_path / "progress.json")}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | own
    with busy(SPINNING):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-10_000:]
