"""A browser, a server and a page for the tests of this folder: see lab.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.lab import Lab, Page, need_a_browser, started_lab


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
