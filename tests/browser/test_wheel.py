"""Installed as a wheel, `course lab` in an empty folder opens a desk on which a lesson can be worked through."""

from __future__ import annotations

import pytest

from tests.browser.lab import Page, need_a_browser, started_lab
from tests.lab.wheel import build_wheel, installed_wheel


@pytest.mark.slow  # tests/lab/test_wheel.py does the same without a browser
def test_the_first_lesson_opens_and_its_first_launch_runs(tmp_path_factory, chromium):
    need_a_browser()
    folder = tmp_path_factory.mktemp("wheel")
    with installed_wheel(build_wheel(folder)) as installed, started_lab(folder, PYTHONPATH=str(installed)) as lab:
        page = Page(lab, chromium.new_page())
        page.first_screen()
        page.run(page.code_cell("from course_lib"))
        assert "rank 3 of 4" in page.run(page.code_cell("who_am_i"))
        page.browser.keyboard.press("Escape")
        page.screenshot("from_a_wheel")
        page.write(page.code_cell("who_am_i"), "import course_lib; print(course_lib.__file__)")
        assert str(installed) in page.run(page.code_cell("course_lib.__file__"))
