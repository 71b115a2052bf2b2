"""A rank's output: caught at the file descriptor, so that `print`, `logging`, C code and children are in it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import _ConnectionBase as Connection  # a pipe's end has another class on Windows

CHUNK = 1 << 16
LONGEST_LINE = 1 << 12  # bytes of an unfinished line that are looked at


def redirect(stdout: Connection, stderr: Connection) -> None:
    """Send this process's standard output and error into two pipes; Python's own streams go by the line."""
    for number, pipe, name in ((1, stdout, "stdout"), (2, stderr, "stderr")):
        os.dup2(_file_descriptor(pipe), number)
        stream = os.fdopen(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _file_descriptor(pipe: Connection) -> int:
    if sys.platform != "win32":
        return pipe.fileno()
    import msvcrt

    return msvcrt.open_osfhandle(pipe.fileno(), 0)


class LineReader:
    """Cuts what arrives on a pipe into whole lines. Bytes that are not UTF-8 arrive as `\\xff`."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.closed = False
        self._rest = b""
        if sys.platform != "win32":
            os.set_blocking(pipe.fileno(), False)

    def read(self) -> list[str]:
        """The lines that a chunk of the pipe completes; never waits."""
        *whole, self._rest = (self._rest + self._chunk()).split(b"\n")
        return [_text(line) for line in whole]

    def read_all(self) -> list[str]:
        """Everything that is in the pipe, the last line too though no newline ended it."""
        while chunk := self._chunk():
            self._rest += chunk
        data, self._rest = self._rest.removesuffix(b"\n"), b""
        return [_text(line) for line in data.split(b"\n")] if data else []

    def unfinished(self) -> str:
        """The line that has begun and not ended, as a terminal would show it now."""
        return _text(self._rest[-LONGEST_LINE:])

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
    """A line as a terminal would leave it: a progress bar's `\\r` overwrites what was there before."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", errors="backslashreplace")
