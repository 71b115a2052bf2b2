"""One rank, as its supervisor sees it: a process, its pipes, and the lines that arrive on them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.launchers.diagnosis.stacks import Frame, stack_of_dump
from course_lib.launchers.process import rank as rank_module
from course_lib.launchers.process.messages import LaunchSpec

if TYPE_CHECKING:
    from multiprocessing.connection import _ConnectionBase as Connection  # pipes have a different class on Windows
    from multiprocessing.context import ForkContext, SpawnContext


CHUNK = 1 << 16
MAX_UNFINISHED = 1 << 12  # how many bytes of an unfinished line we look at


class RankHandle:
    """One rank, as its supervisor sees it: a process and three pipes."""

    def __init__(self, rank: int, spec: LaunchSpec, folder: str, context: ForkContext | SpawnContext) -> None:
        self.rank = rank
        self.dump = Path(folder, f"stack.{rank}")
        self.alive = True
        self.control: Connection
        self.control, control = context.Pipe()
        stdout_reader, stdout = context.Pipe(duplex=False)
        stderr_reader, stderr = context.Pipe(duplex=False)
        rank_pipes = (control, stdout, stderr)
        self.process = context.Process(
            target=rank_module.main, args=(rank, spec, folder, *rank_pipes), name=f"rank {rank}"
        )
        self.process.start()
        assert self.process.pid is not None  # set by start()
        self.pid = self.process.pid
        for pipe in rank_pipes:
            pipe.close()
        self.readers = [LineReader(stdout_reader), LineReader(stderr_reader)]

    def exitcode(self) -> int | None:
        """Return the rank's exit code, or None if it is running. Does not reap it: a zombie's pid is not reused."""
        if not hasattr(os, "waitid"):
            return self.process.exitcode
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def stack(self) -> list[Frame]:
        """Return the stack that `faulthandler` last dumped for this rank."""
        return stack_of_dump(self.dump.read_text(errors="replace")) if self.dump.exists() else []

    def drain(self) -> list[str]:
        """Return every line that the rank has printed and that we have not read yet."""
        return [line for reader in self.readers for line in reader.read_all()]

    def is_stopped(self) -> bool:
        """Return whether a signal has stopped the rank. If so, neither it nor its faulthandler can answer."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
        except OSError:
            return False

    def kill(self) -> None:
        """End the rank and every process in its group."""
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.process.kill()


class LineReader:
    """Splits what arrives on a pipe into whole lines. Bytes that are not UTF-8 become escapes such as `\\xff`."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.closed = False
        self._rest = b""
        if sys.platform != "win32":
            os.set_blocking(pipe.fileno(), False)

    def read(self) -> list[str]:
        """Read a chunk and return the lines that it completes. Never blocks."""
        *whole, self._rest = (self._rest + self._chunk()).split(b"\n")
        return [_text(line) for line in whole]

    def read_all(self) -> list[str]:
        """Return all lines in the pipe, including a last line without a newline."""
        while chunk := self._chunk():
            self._rest += chunk
        data, self._rest = self._rest.removesuffix(b"\n"), b""
        return [_text(line) for line in data.split(b"\n")] if data else []

    def unfinished(self) -> str:
        """Return the current unfinished line, as a terminal would show it now."""
        return _text(self._rest[-MAX_UNFINISHED:])

    def _chunk(self) -> bytes:
        try:
            if sys.platform == "win32":
                return self.pipe.recv_bytes() if self.pipe.poll() else b""
            data = os.read(self.pipe.fileno(), CHUNK)
        except BlockingIOError:
            return b""
        except (EOFError, OSError):
            data = b""
        self.closed = not data
        return data


def _text(line: bytes) -> str:
    """Return a line as a terminal would show it: a progress bar's `\\r` overwrites what came before."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", errors="backslashreplace")
