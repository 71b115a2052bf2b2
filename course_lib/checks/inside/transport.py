"""The transport of a check: data in flight arrives only when it is waited for.

Over gloo on one machine, an all-reduce that nobody waits for is usually done in time, and a message that nobody waits
for usually arrives. In a real job it's a matter of luck. So on the ranks of a check, every call that returns a `Work`
runs on copies: a rank finds the result in its tensor only after `wait`. Until then, the tensor holds a NaN that we
recognize wherever it goes. Calls in flight stay alive, so at the end of a case we know which ones nobody waited for.
"""

from __future__ import annotations

import functools
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.runtime.private_doors import COLLECTIVES, SENDS, writes_so_far

NEVER, CHANGED, USED = FAULTS = ("never waited for", "changed in flight", "used in flight")
MOST_TOLD = 20  # faults reported per rank
# Quiet NaNs with our own payload, which survives arithmetic and conversions between precisions.
DYES = {"torch.float64": (0x7FFDA00000000000, "int64"), "torch.float32": (0x7FED0000, "int32")}
TO_ROOT = ("reduce", "gather")
MESSAGES = {"send": "isend", "recv": "irecv"}
CALLS = {"", *COLLECTIVES.values(), *MESSAGES.values()}
HELD_BY_US = 2  # references to a work: the flight's, and the argument of `getrefcount`


@dataclass
class Flight:
    """A call in flight: the rank's tensors, what they held when it started, and the copies that travel."""

    op: str
    arguments: tuple  # the call's, with copies in place of the tensors
    outputs: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    work: Any = None
    before: list[Any] = field(default_factory=list)

    def begin(self, work: Any, group: Any) -> None:
        """Record what the tensors hold from now on. Those that the call will write to are filled with our NaN."""
        self.work = work
        root = _option(self.arguments, {}, "rootRank", None)
        writes = root in (None, group.rank()) if self.op in TO_ROOT else self.op != "broadcast" or root != group.rank()
        for tensor in self.outputs if writes else ():
            if str(tensor.dtype) in DYES:
                tensor.data.copy_(_dyed(tensor))
        self.before = [(tensor.detach().clone(), writes_so_far(tensor)) for tensor in (*self.outputs, *self.inputs)]

    def land(self) -> bool:
        """Put what has arrived into the caller's tensors, and return whether they were changed in the meantime."""
        now = (*self.outputs, *self.inputs)
        changed = any(not _same(tensor, *before) for tensor, before in zip(now, self.before, strict=False))
        for target, copy in zip(self.outputs, _tensors(self.arguments[:1]), strict=False):
            target.data.copy_(copy)
        return changed


class Transport:
    """The calls that one rank has started in the current case."""

    def __init__(self, aside: Path | None = None) -> None:
        self._aside = aside  # a file for the faults so far, in case the rank never returns
        self._flights: dict[int, Flight] = {}  # by the id of the work, which stays alive
        self._faults: list[list[str]] = []
        self._kept: list[Any] = []  # gloo cancels a message if its work is dropped, and its peer may still wait for it
        self._written: list[list[str]] = []

    def install(self) -> None:
        """Put this transport between Python's calls and the process groups, for the rest of the process's life."""
        import torch.distributed as dist

        for name, op in (COLLECTIVES | SENDS).items():
            _replace(dist.ProcessGroup, name, functools.partial(self._begin, op))
        _replace(dist.Work, "wait", self._wait)
        _replace(dist.Work, "synchronize", self._wait)
        _replace(dist.Work, "is_completed", self._ask)
        _replace(dist.Work, "result", self._result)
        _replace(dist.Work, "get_future", self._future)

    def files(self) -> list[str]:
        """Create the file that this transport writes to, and return its path, which a confined rank may write to."""
        if self._aside is None:
            return []
        self._aside.touch()
        return [str(self._aside)]

    def begin_case(self) -> None:
        """Forget what happened in earlier cases. Their `Work` objects stay alive."""
        self._kept.extend(flight.work for flight in self._flights.values())
        self._flights, self._faults = {}, []

    def faults(self, value: Any) -> list[list[str]]:
        """Return what went wrong in flight, as pairs of fault and call, in a case that ended with this `value`."""
        found = [*([NEVER, flight.op] for flight in self._flights.values()), *self._faults]
        if _is_dyed(value):
            found.append([USED, ""])
        self._write(found[:MOST_TOLD])
        return found[:MOST_TOLD]

    def note_dropped(self) -> None:
        """Write down the calls that can no longer be waited for, in case this rank never returns."""
        flights = list(self._flights.values())
        gone = [[NEVER, flight.op] for flight in flights if sys.getrefcount(flight.work) <= HELD_BY_US]
        self._write([*gone, *self._faults][:MOST_TOLD])

    def _begin(self, op: str, method: Callable, group: Any, *arguments: Any, **keywords: Any) -> Any:
        flight = _departure(op, arguments) if _option(arguments, keywords, "asyncOp", True) else None
        if flight is None:  # PyTorch itself waits before its call returns
            return method(group, *arguments, **keywords)
        work = method(group, *flight.arguments, **keywords)
        if work is None:
            flight.land()
        else:
            flight.begin(work, group)
            self._flights[id(work)] = flight
        return work

    def _wait(self, method: Callable, work: Any, *arguments: Any, **keywords: Any) -> Any:
        self.note_dropped()
        result = method(work, *arguments, **keywords)
        self._land(work)
        return result

    def _ask(self, method: Callable, work: Any) -> bool:
        done = method(work)
        if done:
            self._land(work)
        return done

    def _result(self, method: Callable, work: Any) -> Any:
        flight = self._flights.get(id(work))
        result = method(work)
        self._land(work)
        return flight.outputs if flight else result

    def _future(self, method: Callable, work: Any) -> Any:
        """Return a future that lands the flight. Whoever asks for it is trusted to wait for it."""
        future, flight = method(work), self._flights.pop(id(work), None)
        if flight is None:
            return future

        def land(arrived: Any) -> Any:
            arrived.value()  # raises what went wrong
            flight.land()
            return flight.outputs

        return future.then(land)

    def _land(self, work: Any) -> None:
        flight = self._flights.pop(id(work), None)
        if flight is not None and flight.land():
            self._faults.append([CHANGED, flight.op])

    def _write(self, faults: list[list[str]]) -> None:
        if self._aside is not None and faults != self._written:
            self._written = faults
            self._aside.write_text("".join(f"{kind}\t{op}\n" for kind, op in faults))


def read(file: Path) -> list[list[str]]:
    """Return the faults that a rank wrote down before it failed to return."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [line.split("\t") for line in lines if line.count("\t") == 1]


def _replace(owner: Any, name: str, replacement: Callable) -> None:
    method = getattr(owner, name, None)
    if method is not None:

        @functools.wraps(method)
        def through_us(*arguments: Any, **keywords: Any) -> Any:
            return replacement(method, *arguments, **keywords)

        setattr(owner, name, through_us)


def _option(arguments: tuple, keywords: dict[str, Any], name: str, default: Any) -> Any:
    options = [each for each in (*arguments, *keywords.values()) if type(each).__name__.endswith("Options")]
    return getattr(options[0], name, default) if options else default


def _departure(op: str, arguments: tuple) -> Flight | None:
    """Return the flight of a call, or None if PyTorch will refuse the call or we can't copy it."""
    if any(str(each.layout) != "torch.strided" or not each.is_contiguous() for each in _tensors(arguments)):
        return None
    outputs, inputs = list(_tensors(arguments[:1])), list(_tensors(arguments[1:]))
    if op == "send":
        outputs, inputs = [], outputs
    return Flight(MESSAGES.get(op, op), tuple(map(_copy, arguments)), outputs, inputs)


def _dyed(like: Any) -> Any:
    import torch

    bits, kind = DYES[str(like.dtype)]
    return torch.full(like.shape, bits, dtype=getattr(torch, kind)).view(like.dtype)


def _is_dyed(value: Any, depth: int = 0) -> bool:
    """Return whether a value contains our NaN."""
    import torch

    if isinstance(value, torch.Tensor):
        if str(value.dtype) not in DYES or not value.numel():
            return False
        bits, kind = DYES[str(value.dtype)]
        plain = value.detach().cpu().contiguous().reshape(-1).view(getattr(torch, kind))
        return bool((plain.bitwise_and(_magnitude(kind)) == bits).any())
    if type(value) is float:
        return struct.unpack("<q", struct.pack("<d", value))[0] & _magnitude("int64") == DYES["torch.float64"][0]
    if depth < 20 and isinstance(value, dict):
        return any(_is_dyed(each, depth + 1) for each in value.values())
    if depth < 20 and isinstance(value, (list, tuple)):
        return any(_is_dyed(each, depth + 1) for each in value)
    return False


def _magnitude(kind: str) -> int:
    return 0x7FFFFFFFFFFFFFFF if kind == "int64" else 0x7FFFFFFF


def _copy(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copy(each) for each in value]
    return value.detach().clone() if hasattr(value, "untyped_storage") else value


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
    elif hasattr(value, "untyped_storage"):
        yield value


def _same(now: Any, before: Any, writes_before: int) -> bool:
    """Return whether a tensor is unchanged. Halving our NaN leaves it as is, so we also count writes to the storage."""
    import torch

    whole = now.nbytes == now.untyped_storage().nbytes()
    if now.shape != before.shape or not now.is_contiguous() or (whole and writes_so_far(now) != writes_before):
        return False
    as_bytes = (each.detach().reshape(-1).view(torch.uint8) for each in (now, before))
    return torch.equal(*as_bytes)
