"""A class to join, which can go away and come back, and a desk that is not in one yet."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from course_lib.classroom import learner
from course_lib.classroom.learner.channel import start_channel
from tests.browser.lab import end_with_us
from tests.classroom.serving import HeldClass, Served, class_here

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def small_class(tmp_path_factory) -> Iterator[HeldClass]:
    """A class to join, in the same process."""
    made = HeldClass(tmp_path_factory.mktemp("class") / "class.db")
    yield made
    made.stop()


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder of a learner's own; whoever runs here is no test."""
    (tmp_path / ".course").mkdir()
    (tmp_path / ".course" / "laid_out.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COURSE_LIB_PROGRESS", raising=False)
    monkeypatch.setattr(learner, "NOT_A_LEARNER", ())
    yield tmp_path
    if (tmp_path / ".course" / "class.json").exists():
        channel = start_channel(tmp_path)
        channel.stop()
        channel.join()


def in_another_process(code: str, desk: Path, **variables: str) -> subprocess.Popen[str]:
    """Python on that desk, which is not a test."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    environment.update({"PYTHONPATH": str(ROOT), **variables})
    words = [sys.executable, "-c", code]
    return subprocess.Popen(words, cwd=desk, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=end_with_us)


@pytest.fixture
def anyio_backend() -> str:
    """What runs tests that are coroutines."""
    return "asyncio"


@pytest.fixture
async def served(tmp_path) -> AsyncIterator[Served]:
    """A class that is open, in the test's own loop."""
    async with class_here(tmp_path / "class.db") as served:
        yield served


@pytest.fixture
def in_class(tmp_path):
    """A function that plays a scene, a coroutine, in a class: to open it with options, or again."""

    def play(scene, **given):
        async def whole():
            async with class_here(tmp_path / "class.db", **given) as served:
                return await scene(served)

        return asyncio.run(whole())

    return play
