"""Watch the resources of a sandbox from outside, and make sure that nothing in it keeps running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from io import BufferedReader, BufferedWriter

from course_lib.grading.cgroups import Group
from course_lib.grading.limits import Limits, uses_more_than
from course_lib.runtime.patience import FairTime, descendants, family

TOO_MUCH_MEMORY = "it used too much memory"
LONG = 5.0  # seconds of sleep, less than any time limit on an answer


class Guard:
    """Watches the time, memory and output of one sandbox.

    `reason` is why it was ended early, or ""; `by_clock` is True if it hit its time limit.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], limits: Limits, stop: threading.Event, group: Group | None = None
    ) -> None:
        self.process, self.limits, self.stop, self.reason, self.by_clock = process, limits, stop, "", False
        assert isinstance(process.stdin, BufferedWriter)
        assert isinstance(process.stdout, BufferedReader)
        self._stdin, self._stdout = process.stdin, process.stdout
        self.group = group
        self._time = FairTime(limits.patience, lambda: family(process.pid), group and group.cpu_seconds)
        threading.Thread(target=self._watch, daemon=True).start()

    def converse(self, job: bytes) -> list[bytes]:
        """Send the job and return all complete lines of the answer."""
        threading.Thread(target=self._send, args=(job,), daemon=True).start()
        said, lines = bytearray(), 0
        while piece := self._stdout.read1(1 << 16):
            said += piece
            lines += piece.count(b"\n")
            if len(said) > self.limits.output or lines > self.limits.lines:
                self._stop("it wrote too much")
                break
        if self.group and self.group.out_of_memory():  # the kernel may have killed all its processes at once
            self.reason = self.reason or TOO_MUCH_MEMORY
        *whole, _ = bytes(said).split(b"\n", self.limits.lines)
        return whole

    def rested(self) -> bool:
        """Whether it slept, or its processes waited for each other, long enough to explain a time limit that it hit."""
        return self._time.slept > LONG

    def end(self) -> None:
        """Kill everything: when the sandbox's first process dies, all others die with it."""
        deadline = time.monotonic() + 10
        while self.process.poll() is None and time.monotonic() < deadline:
            for each in list(descendants(self.process.pid)):  # bubblewrap may not have started the first one yet
                with contextlib.suppress(OSError):
                    os.kill(each, signal.SIGKILL)
            time.sleep(0.01)
        self.process.kill()
        self.process.wait()
        self._stdout.close()

    def _send(self, job: bytes) -> None:
        try:
            with self._stdin as stdin:
                stdin.write(job)
        except OSError:
            pass  # the process ended before reading everything

    def _watch(self) -> None:
        while self.process.poll() is None and not self.reason:
            if spent := self._time.over():
                self.by_clock = True
                self._stop(f"it ran for more than {spent}")
            elif self._uses_too_much_memory():
                self._stop(TOO_MUCH_MEMORY)
            elif self.stop.wait(0.1):
                self._stop("somebody interrupted it")

    def _uses_too_much_memory(self) -> bool:
        inside = list(descendants(self.process.pid))
        if self.group and self.group.version == 2:  # version 2 counts data in sockets, too
            return self.group.out_of_memory()
        if self.group and self.group.out_of_memory():
            return True
        return uses_more_than(self.limits.total_memory, inside, self.group and self.group.memory())

    def _stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.end()
