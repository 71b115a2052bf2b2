"""`course slides` says what it cannot do."""

from __future__ import annotations

import sys

from course_lib.cli import main


def test_a_lesson_that_is_not_there_gets_a_sentence(capsys):
    assert main(["slides", "12"]) == 2
    assert "12: there is no such lesson; give one of 00, 01" in capsys.readouterr().err


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "latex2mathml.converter", None)
    monkeypatch.delitem(sys.modules, "course_lib.classroom.slide_content", raising=False)
    assert main(["slides", "00"]) == 1
    assert "pip install 'course-lib[teaching]'" in capsys.readouterr().err


def test_a_folder_that_is_not_there_gets_a_sentence(capsys):
    assert main(["slides", "00", "--out", "no/such/folder.html"]) == 2
    assert "there is no folder no/such" in capsys.readouterr().err
