"""A class to join, which can be killed and come back, and a desk that is not in one yet."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from course_lib.classroom import learner
from course_lib.classroom.learner.channel import start_channel
from tests.browser.lab import end_with_us, free_port, wait
from tests.classroom.serving import Served, class_here
from tests.classroom.small_class import CODE

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass
class SmallClass:
    """A server in a process of its own."""

    folder: Path
    port: int = field(default_factory=free_port)
    code: str = CODE
    process: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = [sys.executable, "-m", "tests.classroom.small_class", str(self.port), str(self.folder)]
        self.process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, preexec_fn=end_with_us)
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        """As the system would: nothing is said, nothing is written."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def ask(self, state: dict[str, Any]) -> None:
        """Say this to everybody."""
        aside = self.folder / "aside"
        aside.write_text(json.dumps(state))
        aside.replace(self.folder / "state.json")

    def record(self) -> list[dict[str, Any]]:
        """All events that were kept."""
        file = self.folder / "record.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """The record, when it has so many events."""
        return wait(lambda: len(found := self.record()) >= count and found)


@pytest.fixture
def small_class(tmp_path_factory) -> Iterator[SmallClass]:
    made = SmallClass(tmp_path_factory.mktemp("class"))
    made.start()
    yield made
    if made.process.poll() is None:
        made.kill()


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
