"""What a node's ranks say, in the job's own output file: for whoever looks there, when nobody watches or afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from course_lib.launchers.diagnosis.errors import RankDied, RankFailed
from course_lib.launchers.process.messages import Died, Lines, Raised, SupervisorFailed
from course_lib.launchers.process.progress_bar import Bar, record_of


class NodeLog:
    """Writes lines behind their rank's name, how far the run is every ten seconds, and how ranks have failed."""

    def __init__(self) -> None:
        self.faults = 0
        self._bar = Bar(sys.stdout)

    def write(self, text: str) -> None:
        """Write a line now."""
        print(text, flush=True)

    def add(self, messages: Iterable[Any]) -> None:
        """Write what is worth it."""
        for message in messages:
            match message:
                case Lines(rank, lines):
                    self._add_lines(rank, lines)
                case Raised(rank):
                    self._fault(RankFailed(f"{message.type_name}: {message.text}", rank=rank, stack=message.stack))
                case Died(rank):
                    self._fault(RankDied(rank=rank, exitcode=message.exitcode, stack=message.stack))
                case SupervisorFailed(text):
                    self._fault(text)

    def _add_lines(self, rank: int, lines: list[str]) -> None:
        for line in lines:
            if progress := record_of(line):
                self._bar.show(progress)
            else:
                self.write(f"[rank {rank}] {line}")

    def _fault(self, what: object) -> None:
        self.faults += 1
        self.write(f"[launch] {what}")
