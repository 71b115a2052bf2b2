"""Notice when an answer blinds its rank's meters, or communicates with other ranks where no meter looks.

All of this runs in the answer's process, so it proves nothing: an answer that rewrites this module goes unnoticed. It
does catch the known tricks. What it notices leaves the rank as one word, and the part then earns nothing until the
instructor has looked at it.
"""

from __future__ import annotations

import functools
import inspect
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from course_lib.launcher.hangs import call_log, flight_recorder
from course_lib.runtime import private_doors

# What is noticed, and how the pages describe it.
NOTICED = {
    "debug level": "it changes the debug level of `torch.distributed`, which hides calls from the meter",
    "hidden calls": "PyTorch counts more calls than the meter saw",
    "replaced": "it replaces methods of `torch.distributed` that the meter relies on",
    "store": "its ranks talk through the store, which no meter counts",
    "thread": "it starts a thread, and the meter looks only at the thread that calls the answer",
    "socket": "it opens a socket of its own, and no meter counts what goes through it",
    "process": "it starts a process, and the meter looks only at the one that calls the answer",
    "frames": "it looks into the code that calls it",
    "tracing": "it leaves a trace function, a profile function or a timer behind, which runs inside the meter",
    "too little": "the meter saw less communication than any right answer needs",
    "before its inputs": "it communicates while it is unpacked, before the meter begins",
}
STORES = ("Store", "TCPStore", "PrefixStore", "FileStore", "HashStore")
TALKS = (
    *("set", "get", "add", "append", "wait", "check", "compare_set", "delete_key", "multi_get", "multi_set"),
    *("queue_push", "queue_pop", "queue_len", "num_keys", "list_keys"),
)
# What Python itself reports to an audit hook, which cannot be removed.
REPORTED = {
    **{"socket.__new__": "socket", "subprocess.Popen": "process"},
    **dict.fromkeys(("os.fork", "os.forkpty", "os.posix_spawn"), "process"),
    **dict.fromkeys(("sys._getframe", "sys._current_frames", "gc.get_objects", "gc.get_referrers"), "frames"),
}
CELL = "<cell "  # the file names of a submission's code begin with this
ALLOWED = {"distributed_c10d.py", "rendezvous.py"}  # PyTorch's own callers of the store, to create groups


class Watch:
    """Watches one rank. Create it before any submitted code runs there."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist: Any = dist  # Any: it does not export all the names that we use
        self._log = call_log.of_this_process()
        self._seen: set[str] = set()
        self._watch_stores()
        self._watch_threads()
        self._watch_reports()
        self._level = self._dist.get_debug_level()
        self._classes = [dist.ProcessGroup, dist.Work, *self._stores(), threading.Thread]
        self._methods = self._current_methods()
        self.begin()

    def begin(self) -> None:
        """Start watching a new case."""
        self._seen.clear()
        self._moves = self._log.moves if self._log else 0
        self._operations, self._messages = self._counts()

    def unpacked(self) -> None:
        """Note that the answer has been unpacked. It had no reason to communicate before that."""
        if self._log and self._log.moves != self._moves:
            self._seen.add("before its inputs")

    def noticed(self) -> str:
        """Return what was noticed since `begin`: one of the words in `NOTICED`, or ""."""
        if self._dist.get_debug_level() != self._level:
            self._seen.add("debug level")
        now = self._current_methods()
        if any(now.get(place) is not method for place, method in self._methods.items()):
            self._seen.add("replaced")
        if sys.gettrace() or sys.getprofile() or any(signal.getitimer(signal.ITIMER_REAL)):
            self._seen.add("tracing")
        if self._hidden_calls():
            self._seen.add("hidden calls")
        return next((word for word in NOTICED if word in self._seen), "")

    def _hidden_calls(self) -> bool:
        """Return whether PyTorch has counted more calls since `begin` than the recorder and the log together show."""
        if self._log is None or not flight_recorder.can_be_read():
            return False
        operations, messages = self._counts()
        calls = self._log.calls()
        for group, count in operations.items():
            before = self._operations.get(group, 0)
            recorded = sum(call.group == group and before < call.order <= count for call in calls)
            if count - before > recorded + messages[group] - self._messages[group]:
                return True
        return False

    def _counts(self) -> tuple[dict[str, int], Counter[str]]:
        """Return how many operations PyTorch has counted in each group, and how many messages the log has of each."""
        if self._log is None:
            return {}, Counter()
        messages: Counter[str] = Counter()
        for (_, group, _, _), count in self._log.messages_so_far().items():
            messages[group] += count
        groups = private_doors.ranks_of_groups()
        return {self._log.name_of(group): private_doors.sequence_number(group) for group in groups}, messages

    def _stores(self) -> list[Any]:
        return [getattr(self._dist, name) for name in STORES if hasattr(self._dist, name)]

    def _watch_stores(self) -> None:
        for store in self._stores():
            for name in TALKS:
                if name in vars(store):
                    setattr(store, name, self._noting_callers(vars(store)[name]))

    def _noting_callers(self, method: Any) -> Any:
        seen = self._seen

        @functools.wraps(method)
        def noted(*arguments: Any, **keywords: Any) -> Any:
            frame = inspect.currentframe()
            caller = Path(frame.f_back.f_code.co_filename if frame and frame.f_back else "")
            if caller.name not in ALLOWED and "course_lib" not in caller.parts:
                seen.add("store")
            return method(*arguments, **keywords)

        return noted

    def _watch_threads(self) -> None:
        start, seen = threading.Thread.start, self._seen

        @functools.wraps(start)
        def noted(self: threading.Thread) -> None:
            if type(self).__module__ != "tqdm._monitor":  # a progress bar
                seen.add("thread")
            start(self)

        threading.Thread.start = noted

    def _watch_reports(self) -> None:
        seen = self._seen

        def note(event: str, arguments: tuple) -> None:
            word = REPORTED.get(event)
            if word == "frames":  # libraries look at frames, too, for good reasons
                frame = arguments[0] if event == "sys._getframe" else inspect.currentframe().f_back  # pyright: ignore
                word = word if frame and frame.f_code.co_filename.startswith(CELL) else None
            if word:
                seen.add(word)

        sys.addaudithook(note)

    def _current_methods(self) -> dict[tuple[str, str], Any]:
        found = ((cls, name, each) for cls in self._classes for name, each in vars(cls).items())
        return {(cls.__name__, name): each for cls, name, each in found if callable(each)}
