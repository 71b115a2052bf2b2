"""A rank's stacks, formatted for learners: lines of their cells, without absolute paths."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from types import TracebackType

from course_lib.runtime import private_doors

LAUNCHERS = "/course_lib/launcher/"  # calls the learner's function, and stands between it and PyTorch
CHECKS = "/course_lib/(checks|lessons)/"
COLLECTIVE_MODULES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/nn/functional.py",
    "torch/distributed/_functional_collectives.py",
)
ONLY_LOOKS = ("get_", "_get_", "is_", "_is_")  # get_rank and similar functions, which never block
DONE = {"returned": "has returned", "idle": "does not run this cell"}
# PyTorch's Python code that calls collectives in C++: DistributedDataParallel compares shapes across ranks there.
TALKS_IN_C = r"/torch/(distributed|nn/parallel)/"


@dataclass(frozen=True)
class Frame:
    """One line of a stack: file, line number, function, and the source text if we know it."""

    file: str
    line: int
    function: str
    source: str = ""

    @property
    def path(self) -> str:
        """The file, with slashes on every system."""
        return self.file.replace(os.sep, "/")

    @property
    def library(self) -> str:
        """`torch` for a file of that package, `Python` for the standard library, "" for the learner's and ours."""
        if "/course_lib/" in self.path:
            return ""
        if package := re.search(r"/(?:site|dist)-packages/([^/.]+)", self.path):
            return package[1]
        stdlib = sysconfig.get_path("stdlib").replace(os.sep, "/")
        return "Python" if self.path.startswith((stdlib, "<frozen")) else ""

    @property
    def text(self) -> str:
        """The source text, "" if nobody knows it."""
        return self.source or linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{short_name(self.file)}, line {self.line}" + (f": {self.text}" if self.text else "")


@dataclass(frozen=True)
class Where:
    """What a rank is doing: `waiting` in a collective, `running` its own code, `stopped` by a signal, or `returned`.

    `idle` means that it has no part in this cell.
    `computing` means that its GPU has not reached the next collective; its Python may be ahead, or waiting for the GPU.

    `whom` says which ranks it waits for, unless it waits for all of them: `for rank 1`, `with ranks 0 and 1`.
    """

    doing: str
    collective: str | None = None
    frame: Frame | None = None
    whom: str = ""
    group: str = ""

    @property
    def kind(self) -> tuple:
        """A key that is equal for two ranks that do the same thing in the same place."""
        return (self.doing, self.collective, self.frame and (self.frame.file, self.frame.line), self.group)

    def __str__(self) -> str:
        if self.doing in DONE:
            return DONE[self.doing]
        if self.doing == "computing":
            text = f"has a GPU that is still computing and has not started {self.collective}"
            return f"{text}; its Python is at {self.frame}" if self.frame else text
        text = "is stopped (by SIGSTOP or a debugger)" if self.doing == "stopped" else "is running"
        if self.doing == "waiting":
            text = f"waits in {self.collective} {self.whom}".rstrip()
        return f"{text} at {self.frame}" if self.frame else text


def stack_of_exception(tb: TracebackType | None) -> list[Frame]:
    """Return the frames of a traceback, oldest first, without the launcher's own."""
    return _learner_frames(
        [Frame(s.filename, s.lineno or 0, s.name, (s.line or "").strip()) for s in traceback.extract_tb(tb)]
    )


def stack_of_thread(thread: int | None) -> list[Frame]:
    """Return a running thread's frames, oldest first, without the launcher's own; [] if they change while we read.

    A reference to a frame keeps its function's tensors alive after the function has returned. So we drop it before we
    read any source text.
    """
    lines: list[tuple[str, int, str]] = []
    frame = private_doors.frame_of(thread)
    try:
        while frame is not None:
            lines.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
            frame = frame.f_back
    except AttributeError:  # CPython gave us a frame that the thread has just left
        return []
    return _learner_frames([Frame(*place, linecache.getline(*place[:2]).strip()) for place in reversed(lines)])


def stack_of_dump(text: str) -> list[Frame]:
    """Return the frames of the last dump that `faulthandler` wrote, oldest first. They have no source text."""
    last = re.split(r"^(?=(?:Current thread|Thread|Stack) .*$)", text, flags=re.MULTILINE)[-1]
    matches = re.findall(r'File "(.+?)", line (\d+) in (.+)', last)
    frames = [Frame(file, int(line), function) for file, line, function in reversed(matches)]
    # faulthandler stops after a hundred frames: then where we called the learner's function is not among them.
    return _learner_frames(frames, whole="\n  ..." not in last)


def _learner_frames(frames: list[Frame], whole: bool = True) -> list[Frame]:
    """Return the frames of the learner's function: those below the launcher's call of it, and below a check.

    If the stack is `whole`, it begins with Python's own frames and ours: a rank is forked from its supervisor.
    """
    entry = -1
    for place, frame in enumerate(frames):
        if LAUNCHERS in frame.path:
            entry = place
        elif entry >= 0 and frame.library != "Python":
            break
    below = entry + 1 if whole else 0
    frames = [frame for frame in frames[below:] if LAUNCHERS not in frame.path]
    is_check = [bool(re.search(CHECKS, frame.path)) for frame in frames]
    user_frames = user_code_frames(frames)
    # Further in, the learner's code may call a function that the check passed to it.
    innermost = frames.index(user_frames[-1]) if user_frames else len(frames)
    start = max((i + 1 for i in range(innermost) if is_check[i]), default=0)
    return [frames[i] for i in range(start, len(frames)) if not is_check[i]] or frames


def locate(stack: Sequence[Frame], pending: str | None = None) -> Where:
    """Return what a rank with this stack is doing. `pending` is a collective it has started but not finished.

    A blocking call appears on the stack by name. A wait for work started earlier, explicitly or by the backward pass
    of DistributedDataParallel, is C code; then `pending` is what the rank waits for.
    """
    if not stack:
        return Where("running")
    at = next((frame for frame in reversed(stack) if not frame.library), stack[-1])
    collective = next((frame.function for frame in stack if frame.path.endswith(COLLECTIVE_MODULES)), None)
    if collective and collective.startswith(ONLY_LOOKS):
        return Where("running", None, at)
    if collective in ("wait", "wait_tensor", "trigger_wait"):
        collective = pending or collective
    if collective is None and re.search(r"\.wait\(|run_backward\(", stack[-1].source):
        collective = pending or ("wait" if ".wait(" in stack[-1].source else None)
    if collective is None and re.search(TALKS_IN_C, stack[-1].path):
        collective = pending
    return Where("waiting" if collective else "running", collective, at)


def user_code_frames(stack: Sequence[Frame]) -> list[Frame]:
    """Return the frames of the learner's code, without the frames of libraries, including this one."""
    user_frames = [frame for frame in stack if "/course_lib/" not in frame.path and not frame.library]
    # Before Python 3.12, a comprehension has a separate frame on the same line.
    repeated = [after.function.startswith("<") and before.line == after.line for before, after in pairwise(user_frames)]
    return user_frames[:1] + [frame for frame, again in zip(user_frames[1:], repeated, strict=True) if not again]


def describe_stack(stack: Sequence[Frame]) -> str:
    """Format a stack as text, oldest call first, like a Python traceback. Calls inside a library are only counted."""
    lines = []
    has_user_frames = any(not frame.library for frame in stack)
    for library, run in groupby(stack, key=lambda frame: frame.library):
        frames = list(run)
        if library and has_user_frames and len(frames) > 2:
            lines.append(f"  ... {len(frames)} calls inside {library}")
            continue
        for frame in frames:
            lines.append(f"  {short_name(frame.file)}, line {frame.line}, in {frame.function}")
            if frame.text:
                lines.append(f"    {frame.text}")
    return "\n".join(lines)


def short_name(file: str) -> str:
    """Return `Cell In[3]` for a notebook cell, otherwise the path relative to its package or folder."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    number = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(file)
    if number is not None:
        return f"Cell In[{number}]"
    roots = [*map(sysconfig.get_path, ("purelib", "platlib", "stdlib")), *sys.path, os.getcwd()]
    for root in sorted(filter(None, roots), key=len, reverse=True):
        if file.startswith(root.rstrip(os.sep) + os.sep):
            return os.path.relpath(file, root)
    return os.path.basename(file) if os.path.isabs(file) else file


def cell_sources() -> dict[str, tuple]:
    """Return the `linecache` entries of code that is not in a file. Ranks need them to show source in tracebacks."""
    return {name: entry for name, entry in list(linecache.cache.items()) if len(entry) == 4 and entry[1] is None}
