"""Log a rank's collectives and messages, and what it is waiting for.

PyTorch's flight recorder knows every collective, but not the root of a broadcast, messages over gloo, or which of
several `Work` objects a rank is waiting for. So on every rank we wrap `ProcessGroup`'s methods and log the calls.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from course_lib.launcher.hangs import flight_recorder
from course_lib.launcher.hangs.record import ANYBODY, Channel, LoggedCall, LoggedMessage, RankRecord, Splits, Wait
from course_lib.runtime import private_doors

MAX_ENTRIES = 2000  # same as the flight recorder
NCCL = " over NCCL"  # appended to a group's name, because each backend counts its collectives separately
DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "Int": "int32", "Long": "int64"}

Details = tuple[str, "int | None", Any, "Splits | None"]  # of a call: op, root, PyTorch's ReduceOp, splits


class CallLog:
    """The log of one rank: its calls write to the log, and the thread that answers the supervisor reads it."""

    def __init__(self) -> None:
        self._details: dict[tuple[str, int], Details] = {}  # by group and the call's order in it
        self._messages: deque[LoggedMessage] = deque(maxlen=MAX_ENTRIES)
        self._posted: Counter[Channel] = Counter()  # sends or receives, by channel
        self._works: weakref.WeakKeyDictionary[Any, Wait] = weakref.WeakKeyDictionary()
        self._waits: dict[int, Wait | None] = {}  # by thread
        self.waits_so_far = 0  # completed waits
        self.moves = 0  # calls, messages and waits: if it grows, the rank has moved, even if it is on the same line
        self._newest: dict[str, int] = {}  # the number of the newest collective, by group
        self._ended: dict[tuple[str, int], float] = {}  # wall-clock time at which the wait for a call returned
        self._generations = [0]  # when each default group was created, in nanoseconds
        self._first_generation = 0
        self._since = 0  # when a live rank's task began, in nanoseconds: what finished before is not part of it

    def install(self) -> None:
        """Start logging what goes through Python's process groups, for the rest of the process's life."""
        import torch.distributed as dist

        for name, op in private_doors.COLLECTIVES.items():
            watch_calls(dist.ProcessGroup, name, lambda *call: call, functools.partial(self._after_collective, op))
        for name, kind in private_doors.SENDS.items():
            watch_calls(dist.ProcessGroup, name, functools.partial(self._before_message, kind), self._after_message)
        watch_calls(dist.Work, "wait", self._begin_wait, self._end_wait)
        _installed.append(self)

    def messages_so_far(self) -> Counter[Channel]:
        """Return the number of messages on each channel."""
        return Counter(self._posted)

    def name_of(self, group: Any, over_nccl: bool = False) -> str:
        """Return the name that this log uses for a group."""
        return f"{self._first_generation + len(self._generations) - 1}/{group.group_name}{NCCL if over_nccl else ''}/0"

    def messages_since(self, before: Mapping[Channel, int]) -> list[LoggedMessage]:
        """Return the messages after the counts in `before`. Only the last 2000 are still in the log."""
        return [message for message in self._messages if message.number > before.get(message.channel, 0)]

    def new_generation(self) -> None:
        """Note that the default group was destroyed and re-created, so names and numbers start over."""
        self._generations.append(time.time_ns())

    def start_task(self) -> None:
        """Forget what has finished so far. Numbering continues, so that unfinished calls can still be matched."""
        self._since = time.time_ns()
        self._messages.clear()

    def start_over(self, generation: int) -> None:
        """Forget everything: live ranks have created a new default group, their `generation`-th."""
        for table in (self._details, self._messages, self._posted, self._works, self._waits, self._newest, self._ended):
            table.clear()
        self._first_generation, self._generations = generation, [time.time_ns()]

    def record(self, wait_of: int | None = None, alone: bool = True) -> RankRecord:
        """Return a snapshot of everything known now. `wait_of` is the thread whose wait counts as the rank's."""
        calls = self.calls()
        wait = self._wait(calls, wait_of) if wait_of is not None else None
        return RankRecord(calls, list(self._messages), dict(self._newest), dict(self._posted), wait, alone)

    def calls(self) -> list[LoggedCall]:
        """Return the collectives this process has started, oldest first."""
        incarnations: dict[str, list[int]] = {}  # groups that were destroyed and created again have one name
        calls = []
        for entry in flight_recorder.entries():
            created, incarnation = entry.get("time_created_ns", 0), entry.get("pg_id", 0)
            generation = self._generation(created)
            if generation < self._first_generation:
                continue
            name = f"{generation}/{next(iter(entry.get('process_group', ('',))), '')}"
            name += NCCL if flight_recorder.is_nccl(entry) else ""
            ids = incarnations.setdefault(name, [])
            if incarnation not in ids:
                ids.append(incarnation)
            call = self._call(f"{name}/{ids.index(incarnation)}", entry)
            self._newest[call.group] = max(call.number, self._newest.get(call.group, 0))
            if created >= self._since or not call.finished:
                calls.append(call)
        return calls

    def _generation(self, created: int) -> int:
        """Return the number of the default group that existed at this time."""
        return self._first_generation + sum(group_created <= created for group_created in self._generations) - 1

    def _call(self, group: str, entry: dict[str, Any]) -> LoggedCall:
        over_nccl, sizes = flight_recorder.is_nccl(entry), entry.get("input_sizes") or []
        dtype = (entry.get("input_dtypes") or [""])[0]
        number, op = entry.get("collective_seq_id", 0), flight_recorder.op_of(entry)
        order = number if over_nccl else entry.get("op_id", 0)
        logged, root, reduction, splits = self._details.get((group, order), (None, None, None, None))
        if logged is None or not op.replace("_", "").startswith(logged.replace("_", "")):
            root = reduction = splits = None  # of another call
        operators = {} if reduction is None else sys.modules["torch"].distributed.ReduceOp.RedOpType.__members__
        return LoggedCall(
            group,
            number,
            op,
            DTYPES.get(dtype, dtype.lower()),
            tuple(sizes[0]) if sizes else None,
            root,
            next((name.lower() for name, operator in operators.items() if reduction == operator), ""),
            splits,
            finished=entry.get("state") == "completed" if over_nccl else bool(entry.get("retired", False)),
            order=order,
            numbers=sum(map(math.prod, sizes)),
            began=entry.get("time_created_ns", 0) / 1e9,
            ended=self._ended.get((group, order)),
        )

    def _wait(self, calls: list[LoggedCall], thread: int) -> Wait | None:
        """Return what a thread is waiting for, if that is certain."""
        wait = self._waits.get(thread)
        if wait is None:  # a wait in C++: certain if exactly one collective is in flight
            call, *others = [call for call in calls if not call.finished] or [None]
            if call is None or others or (members := self._members().get(call.group)) is None:
                return None
            return Wait(call.op, call.group, call.number, members, call.root, guessed=True)
        if wait.peer is not None:
            return wait
        same = [call for call in calls if (call.group, call.order) == (wait.group, wait.number)]
        return replace(wait, number=same[-1].number) if same else None

    def gpu_wait(self) -> tuple[Wait | None, bool]:
        """Return the first NCCL operation that this rank's GPU has yet to finish, if any, and whether it has started.

        If it has started, the GPU is waiting in it for other ranks. If not, the GPU is still busy with earlier work.
        """
        operations = flight_recorder.on_gpu()
        if not operations:
            return None, False
        first = operations[0]
        name = next(iter(first.get("process_group", ("",))), "")
        group = f"{self._generation(first.get('time_created_ns', 0))}/{name}{NCCL}/0"
        ranks = self._members().get(group, ())
        has_started = first["state"] == "started"
        op, peer = flight_recorder.op_of(first), flight_recorder.peer_of(first)
        if peer is None:
            number = first.get("collective_seq_id", 0)
            root = (self._details.get((group, number)) or ("", None))[1]
            return Wait(op, group, number, ranks, root, guessed=True), has_started
        other = ranks[peer] if peer < len(ranks) else peer
        channel = (op, group, other, 0)
        ahead = sum(
            flight_recorder.op_of(operation) == op and flight_recorder.peer_of(operation) == peer
            for operation in operations
            if operation.get("pg_id") == first.get("pg_id")
        )
        return Wait(op, group, self._posted.get(channel, 0) - ahead + 1, peer=other, guessed=True), has_started

    def latest_message(self) -> Wait | None:
        """Return this rank's last message, as a wait: NCCL blocks in the first message to a peer until it answers."""
        return replace(self._messages[-1].as_wait, guessed=True) if self._messages else None

    def _members(self) -> dict[str, tuple[int, ...]]:
        """Return the ranks of each existing group, keyed by the group's name in a record."""
        groups = private_doors.ranks_of_groups().items()
        return {self.name_of(group, over_nccl): ranks for group, ranks in groups for over_nccl in (False, True)}

    def _after_collective(self, op: str, call: tuple[Any, tuple, Mapping[str, Any]], work: Any, returned: bool) -> None:
        """Note a collective, once it has begun."""
        if not returned:
            return
        group, arguments, keywords = call
        self.moves += 1
        ranks = private_doors.ranks_of_group(group)
        options = next((a for a in (*arguments, *keywords.values()) if type(a).__name__.endswith("Options")), None)
        root = getattr(options, "rootRank", None)
        over_nccl = private_doors.goes_over_nccl(group, arguments)
        counter = private_doors.backend_of(group, sys.modules["torch"].device("cuda")) if over_nccl else group
        name, order = self.name_of(group, over_nccl), private_doors.sequence_number(counter)
        splits = None
        if op == "all_to_all" and len(arguments) >= 4 and all(isinstance(a, list) for a in arguments[2:4]):
            splits = (tuple(arguments[3]), tuple(arguments[2]))
        root = None if root is None or root < 0 or not ranks else ranks[root]
        self._details[name, order] = (op, root, getattr(options, "reduceOp", None), splits)
        if len(self._details) > MAX_ENTRIES:
            self._details.pop(next(iter(self._details)), None)
        if work is not None:
            self._works[work] = Wait(op, name, order, ranks, root)

    def _before_message(
        self, kind: str, group: Any, arguments: tuple, keywords: Mapping[str, Any]
    ) -> LoggedMessage | None:
        """Note a message before it is sent or received: gloo may abort a rank inside that call if sizes differ."""
        self.moves += 1
        if len(arguments) < 3:  # a receive from any source
            tag = arguments[1] if len(arguments) == 2 else 0
            self._posted["recv", self.name_of(group), ANYBODY, tag] += 1
            return None
        (tensor, *_), peer, tag = arguments[:3]
        ranks = private_doors.ranks_of_group(group)
        over_nccl = tensor.is_cuda and private_doors.goes_over_nccl(group, arguments)
        # NCCL ignores tags and matches messages by their order.
        channel = (kind, self.name_of(group, over_nccl), ranks[peer] if ranks else peer, 0 if over_nccl else tag)
        self._posted[channel] += 1
        dtype = str(tensor.dtype).removeprefix("torch.")
        message = LoggedMessage(*channel, self._posted[channel], dtype, tuple(tensor.shape))
        self._messages.append(message)
        return message

    def _after_message(self, message: LoggedMessage | None, work: Any, returned: bool) -> None:
        """Note that a call has returned this work, or that it has failed and sent nothing."""
        self.moves += 1
        if message is None:
            return
        if work is not None:
            self._works[work] = message.as_wait
        if not returned and message in self._messages:
            self._messages.remove(message)
            self._posted[message.channel] -= 1

    def _begin_wait(self, work: Any, _arguments: tuple, _keywords: Mapping[str, Any]) -> None:
        self.moves += 1
        self._waits[threading.get_ident()] = self._works.get(work)

    def _end_wait(self, _call: None, _result: Any, returned: bool) -> None:
        wait, self._waits[threading.get_ident()] = self._waits.get(threading.get_ident()), None
        self.waits_so_far += returned
        if returned and wait is not None and wait.peer is None:
            self._ended.setdefault((wait.group, wait.number), time.time())
            if len(self._ended) > MAX_ENTRIES:
                self._ended.pop(next(iter(self._ended)), None)


_installed: list[CallLog] = []


def watch_calls(cls: Any, name: str, before: Callable[..., Any], after: Callable[..., None]) -> None:
    """Before each call of a method, call `before(self, arguments, keywords)`; afterwards, pass its result to `after`.

    `after` also gets the call's `Work`, which is None inside a batch, and whether the call returned rather than raised.
    """
    method = getattr(cls, name, None)
    if method is None:
        return

    @functools.wraps(method)
    def logged(owner: Any, *arguments: Any, **keywords: Any) -> Any:
        call, work, returned = None, None, False
        with contextlib.suppress(Exception):  # a call that we can't log must still work
            call = before(owner, arguments, keywords)
        try:
            work = method(owner, *arguments, **keywords)
            returned = True
            return work
        finally:
            with contextlib.suppress(Exception):
                after(call, work, returned)

    setattr(cls, name, logged)


def of_this_process() -> CallLog | None:
    """Return the log of this rank, or None if this process is not a rank."""
    return _installed[-1] if _installed else None
