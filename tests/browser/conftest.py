"""A browser, a server and a page for the tests of this folder: see lab.py."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.lab import ROOT, Lab, Page, need_a_browser, started_lab


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The system's own, without a window."""
    program = need_a_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    """`course lab` for all tests of a module."""
    need_a_browser()
    with started_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def page(chromium, lab) -> Iterator[Page]:
    """A new window on the module's desk, as wide as a small laptop's screen; its kernels end with the test."""
    context = chromium.new_context(viewport={"width": 1366, "height": 768})
    yield Page(lab, context.new_page())
    context.close()
    lab.tidy()


def clone() -> str:
    """What git has to say about the course's own files."""
    words = ["git", "status", "--porcelain", "--", "notebooks", "exercises", "solutions", "course_lib", "work"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module", autouse=True)
def clean_clone() -> Iterator[None]:
    """Whatever is done in a browser, the course's own files are as they were."""
    before = clone()
    yield
    assert clone() == before
