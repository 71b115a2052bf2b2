"""What tests of checks share: a learner's progress of their own, and a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import chromium  # noqa: F401, a fixture


@pytest.fixture
def progress_file(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "progress.json"
    monkeypatch.setenv("COURSE_LIB_PROGRESS", str(path))
    return path
