"""`course slides` says what it cannot do."""

from __future__ import annotations

import sys

from course_lib.authoring.outline import outlines
from course_lib.classroom.slides import lesson_screens
from course_lib.command import main
from course_lib.runtime.course_files import source


def test_a_lesson_that_is_not_there_gets_a_sentence(capsys):
    assert main(["slides", "13"]) == 2
    assert "13: there is no such lesson; give one of 00, 01" in capsys.readouterr().err


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "latex2mathml.converter", None)
    monkeypatch.delitem(sys.modules, "course_lib.classroom.slide_content", raising=False)
    assert main(["slides", "00"]) == 1
    assert "pip install 'course-lib[teaching]'" in capsys.readouterr().err


def test_a_folder_that_is_not_there_gets_a_sentence(capsys):
    assert main(["slides", "00", "--out", "no/such/folder.html"]) == 2
    assert "there is no folder no/such" in capsys.readouterr().err


def test_what_a_question_is_about_is_on_the_wall_before_its_output():
    section = [screen for screen in lesson_screens(outlines()["00"]) if screen.section == "1 · A rank"]
    place = next(place for place, screen in enumerate(section) if 'predict("00.1")' in source(screen.steps[-1][-1]))
    code, output = section[place + 1].steps[:2]
    assert "def count" in source(code[0])
    assert not code[0]["outputs"]
    assert not source(output[0])
    assert output[0]["outputs"]
