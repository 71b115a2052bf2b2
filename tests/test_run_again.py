"""A test of foreign programs may fail once, and is then named; no other test may."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import run_again
from tests.conftest import PATIENCE

FAILS_ONCE = """
import pathlib, pytest

def once(name):
    been = pathlib.Path(__file__).with_name(name)
    first = not been.exists()
    been.touch()
    assert not first

{mark}
def test_that_fails_once():
    once("call")

@pytest.fixture
def broken_once():
    once("setup")

{mark}
def test_whose_setup_fails_once(broken_once):
    pass

def test_that_passes():
    pass
"""


def pytest_in(folder: Path, mark: str, *options: str) -> subprocess.CompletedProcess:
    shutil.copy(run_again.__file__, folder / "conftest.py")
    (folder / "test_once.py").write_text(FAILS_ONCE.format(mark=mark))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = integration\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins take seconds to import
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "two workers"])
def test_a_test_of_foreign_programs_that_passes_alone_is_named_and_forgiven(tmp_path, options):
    done = pytest_in(tmp_path, "@pytest.mark.integration", *options)
    assert done.returncode == 0, done.stdout
    for name in ("test_that_fails_once", "test_whose_setup_fails_once"):
        assert f"passed only when run again alone: test_once.py::{name}\n" in done.stdout
    assert "2 passed only when run again alone" in done.stdout.splitlines()[-1]


def test_a_test_of_foreign_programs_that_fails_twice_has_failed(tmp_path):
    done = pytest_in(tmp_path, "@pytest.mark.integration\n@pytest.mark.usefixtures('missing')")
    assert done.returncode == 1
    assert "failed again alone: test_once.py::test_that_fails_once\n" in done.stdout


def test_no_other_test_is_run_again(tmp_path):
    done = pytest_in(tmp_path, "")
    assert done.returncode == 1
    assert "run again alone" not in done.stdout
