"""Outputs are stored from a quiet machine, or not at all."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.machine import cores
from tests import refresh_notebooks
from tests.checks.under_load import busy
from tests.quiet import MOST, lateness
from tests.refresh_notebooks import Busy, main, refresh_if_quiet


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    path = tmp_path / "00_small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(6 * 7)")]), path)
    return path


def test_processes_that_spin_are_noticed():
    with busy(2 * cores()):
        assert lateness() > MOST


@pytest.mark.parametrize(("before", "after", "when"), [(1.5, 1.0, "before"), (1.0, 1.5, "after")])
def test_what_a_busy_machine_measured_is_not_stored(notebook, before, after, when):
    was, late = notebook.read_bytes(), iter((before, after))
    with pytest.raises(Busy, match=rf"not stored: {when} its run.* 1\.50 times"):
        refresh_if_quiet(notebook, lambda: next(late))
    assert notebook.read_bytes() == was
    assert list(notebook.parent.iterdir()) == [notebook]


def test_what_a_quiet_machine_measured_is_stored(notebook):
    refresh_if_quiet(notebook, lambda: 1.0)
    assert nbformat.read(notebook, as_version=4).cells[0].outputs[0]["text"] == "42\n"


def test_the_command_says_what_it_did_not_store_and_goes_on(notebook, monkeypatch, capsys):
    def refuse(path: Path) -> None:
        raise Busy(f"{path.name} was not stored")

    monkeypatch.setattr(refresh_notebooks, "refresh_if_quiet", refuse)
    monkeypatch.setenv("COURSE_LIB_PROGRESS", "")
    monkeypatch.setenv("COURSE_LIB_LIVE", "")
    assert main([str(notebook), str(notebook)]) == 1
    assert capsys.readouterr().out == "00_small.ipynb was not stored\n" * 2
    assert main(["--anyway", str(notebook)]) == 0
    assert nbformat.read(notebook, as_version=4).cells[0].outputs[0]["text"] == "42\n"
