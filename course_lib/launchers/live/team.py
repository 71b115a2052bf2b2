"""`ranks`: start ranks that stay alive, run cells on them, and look at their variables.

team = ranks(4)
team.run("x = torch.ones(2) * rank; dist.all_reduce(x); x")
team[2]["x"], team.pull("x"), team.push(lr=0.1)
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from course_lib.launchers import local
from course_lib.launchers.diagnosis.errors import LaunchError, name_ranks
from course_lib.launchers.diagnosis.stacks import cell_sources
from course_lib.launchers.live import rank as on_rank
from course_lib.launchers.live.cell import CellRun, Shown, names_in, source_entry, unpack_shown
from course_lib.launchers.live.listening import TaskListener, listen
from course_lib.launchers.process import messages, pickling
from course_lib.launchers.process.blame import CONSEQUENCE
from course_lib.launchers.run import Run

HOUR = 3600.0
REMADE = (
    "The process group was aborted and recreated; all variables are kept. Anything that holds the old group must be "
    "recreated, too: a model wrapped in DistributedDataParallel or FSDP, a group from new_group, a device mesh"
)
OLD_GROUP = "A closed connection usually belongs to a group from before the process group was last recreated. "
CLOSED = "this team is closed: ranks({}) starts a new one"


def ranks(count: int, *, timeout: float | None = 60.0, seed: int | None = None, idle: float | None = HOUR) -> Team:
    """Start `count` ranks that stay alive, and return them as a team.

    On every rank the process group is up, and `rank`, `world_size`, `device`, `dist` and `torch` are defined. Like a
    launch, a cell may take `timeout` seconds. After `idle` seconds without a cell, the ranks end. They also end with
    this process, or with `team.close()`; a team can be used in a `with` block.
    """
    return Team(count, timeout=timeout, seed=seed, idle=idle)


class Team:
    """Live ranks. `team.run(code)` runs a cell, `team[2]["x"]` is a variable; `last` is the run of the last cell."""

    def __init__(self, count: int, *, timeout: float | None, seed: int | None, idle: float | None) -> None:
        self.timeout = timeout
        self.last: CellRun | None = None
        self.dead: set[int] = set()  # ranks that have ended; `restart` starts them again
        self.names: dict[int, set[str]] = {}  # the names on each rank
        self._sent: dict[str, Sent] = {}  # the values of the notebook's names when they were sent
        self._sources: set[str] = set()
        self._number = self._generation = 0
        self._busy = threading.Lock()
        local.check_timeout(timeout)
        local.check_timeout(idle)
        self._spec = local.spec_of(on_rank.serve, (), {}, ranks=count, seed=seed, live=True, idle=idle)
        self._start()

    def __len__(self) -> int:
        return self._spec.ranks

    def __getitem__(self, rank: int) -> OneRank:
        return OneRank(self, *self._ranks(rank))

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        size = f"Team of {len(self)} rank{'s' * (len(self) > 1)}"
        if self.is_closed:
            return f"{size}, closed"
        have = "has" if len(self.dead) == 1 else "have"
        ended = f"; {name_ranks(sorted(self.dead))} {have} ended: team.restart()" if self.dead else ""
        names = sorted(self.names.get(0, set()) - on_rank.PREDEFINED)
        return f"{size}{ended}; on rank 0: {', '.join(names) or 'no variables yet'}"

    def run(
        self,
        code: str,
        ranks: int | Iterable[int] | None = None,
        *,
        timeout: float | None = -1.0,
        names: Mapping[str, Any] | None = None,
        file: str | None = None,
    ) -> CellRun:
        """Run a cell on all ranks, or on the given ones, and return the value of its last expression on each of them.

        Names that the cell uses and that are missing on a rank are sent from `names`, by default the main module's;
        a printed line lists them. If the cell fails on one rank, it ends on all of them, and their variables stay.
        `file` stands for the code in error messages.
        """
        if not isinstance(code, str):
            raise TypeError(f"team.run takes code as text, not {code!r}: team.push(f=f), then team.run('f()')")
        chosen = self._ranks(ranks)
        file = file or f"<ranks {self._number + 1}>"
        linecache.cache[file] = source_entry(code, file)
        values = self._missing(code, file, chosen, vars(sys.modules["__main__"]) if names is None else names)
        sources = {name: entry for name, entry in cell_sources().items() if name not in self._sources}
        self._sources |= sources.keys()
        limit = self.timeout if timeout == -1.0 else timeout
        local.check_timeout(limit)
        with pickling.wrapped(values) as packed:
            run = self._call(on_rank.run_cell, chosen, packed, code, file, sources, timeout=limit)
        shown: dict[int, Shown] = {rank: run[rank] for rank in chosen}
        fields: dict[str, Any] = dict(vars(run))
        fields["values"] = tuple(unpack_shown(shown.get(rank)) for rank in range(len(self)))
        texts = {rank: value.text for rank, value in shown.items() if value.text is not None}
        fields["texts"] = MappingProxyType(texts)
        self.last = CellRun(**fields)
        return self.last

    def push(self, ranks: int | Iterable[int] | None = None, /, **values: Any) -> None:
        """Assign these names on all ranks, or on the given ones: `team.push(lr=0.1)`, `team.push(2, lr=0.1)`."""
        with pickling.wrapped(pickling.pack_names(values)) as packed:
            self._call(on_rank.push, self._ranks(ranks), packed)
        self._sent |= {name: Sent(value) for name, value in values.items()}

    def pull(self, name: str, ranks: int | Iterable[int] | None = None) -> list[Any]:
        """Return a variable's value on every rank, or on the given ones, in order. Tensors are moved to the CPU."""
        chosen = self._ranks(ranks)
        missing = [rank for rank in chosen if rank in self.names and name not in {*self.names[rank], "_"}]
        if missing:
            raise NameError(f"there is no {name!r} on {name_ranks(missing)}")
        run = self._call(on_rank.pull, chosen, name)
        return [pickling.load_saved(run[rank]) for rank in chosen]

    def restart(self, ranks: int | Iterable[int] | None = None) -> None:
        """Restart the ranks that have ended, and the given ones, without variables. The others keep theirs."""
        again = self.dead if ranks is None else {*self._ranks(ranks)} | self.dead
        if self.is_closed or len(again) == len(self):
            self.close()
            return self._start()
        if again:
            self._revive(again)

    def close(self) -> None:
        """End the ranks. Their variables are lost."""
        self._finalizer()

    @property
    def is_closed(self) -> bool:
        """Whether the ranks have been ended."""
        return not self._finalizer.alive

    def complete(self, text: str) -> list[str]:
        """Return the completions of a name, or of a path of attributes, on rank 0."""
        return [] if self.is_closed or 0 in self.dead else self._call(on_rank.complete, [0], text)[0]

    def describe(self, name: str, rank: int = 0) -> str:
        """Return what `name?` shows for a name on a rank, or "" if there is none."""
        chosen = self._ranks(rank)
        return "" if self.is_closed or rank in self.dead else self._call(on_rank.describe, chosen, name)[rank]

    def _start(self) -> None:
        self.dead, self.names, self._sent, self._sources = set(), {}, {}, set()
        self._generation = 0
        stack = contextlib.ExitStack()
        self._supervisor = stack.enter_context(local.supervisor_of(replace(self._spec, sources=cell_sources())))
        self._finalizer = weakref.finalize(self, _end, self._supervisor, stack)
        try:
            self._listener(range(len(self))).wait_for_start()
        except BaseException:
            self.close()
            raise

    def _ranks(self, ranks: int | Iterable[int] | None) -> list[int]:
        """Return the given ranks in order, or all ranks. Raises if one does not exist."""
        if ranks is None:
            return list(range(len(self)))
        chosen = [ranks] if isinstance(ranks, int) else list(ranks)
        wrong = [rank for rank in chosen if not isinstance(rank, int) or not -len(self) <= rank < len(self)]
        if wrong or not chosen:
            raise IndexError(f"ranks={ranks!r}: this team has the ranks 0 to {len(self) - 1}")
        return sorted({range(len(self))[rank] for rank in chosen})

    def _check(self, chosen: list[int]) -> None:
        """Raise if the team is closed or one of these ranks has ended."""
        if self.is_closed:
            raise LaunchError(CLOSED.format(len(self)))
        listener = self._listener(chosen)
        listener.handle_pending()
        if listener.trouble:
            self.close()
            raise LaunchError(listener.trouble)
        if dead := sorted(self.dead & {*chosen}):
            raise LaunchError(f"{self._describe_loss(dead)}, and this needs {'it' if len(dead) == 1 else 'them'}")

    def _listener(self, chosen: Iterable[int], timeout: float | None = None) -> TaskListener:
        return TaskListener(self._supervisor, len(self), timeout, self._number, list(chosen), self.dead)

    def _call(self, call: Any, chosen: list[int], *arguments: Any, timeout: float | None = None) -> Run:
        """Run this call on the chosen ranks, and return the run. If it fails, the ranks can still run another cell."""
        if not self._busy.acquire(blocking=False):
            raise LaunchError("the team is busy with another cell: wait for it, or interrupt it")
        try:
            self._check(chosen)
            return listen(self._send(call, chosen, *arguments, timeout=timeout), self._recover, self._store_names)
        finally:
            self._busy.release()

    def _send(self, call: Any, chosen: Iterable[int], *arguments: Any, timeout: float | None = None) -> TaskListener:
        """Send a call to the ranks, and return its listener."""
        self._number += 1
        listener = self._listener(chosen, timeout)
        listener.send(messages.Task(self._number, pickling.pack_call(call, (list(chosen), *arguments), {})))
        return listener

    def _store_names(self, run: Run) -> Run:
        """Remember the names on the ranks, which come with every value, and return the run with only the values."""
        self.names = {rank: set(names) for rank, (_, names) in enumerate(run)}
        return replace(run, values=tuple(value for value, _ in run))

    def _recover(self, listener: TaskListener) -> str:
        """Bring the ranks back to a state in which they can run a cell. Returns what the user needs to know."""
        if not listener.trouble:
            listener.end_task()
        if listener.trouble:
            self.close()
            return "The team is closed, and the variables of its ranks are lost: team.restart() starts new ones."
        alive = [rank for rank in range(len(self)) if rank not in self.dead]
        as_it_was = bool(self.dead) or not listener.out_of_step()
        closed = listener.raised and all(CONSEQUENCE.search(report.text) for report in listener.raised)
        old = self._generation and closed
        if as_it_was:
            last = self._send(on_rank.report_names, alive)
        else:
            self._generation += 1
            last = self._send(on_rank.rejoin, alive, self._generation)
        try:
            run = self._store_names(last.result())
        except LaunchError:
            if not last.died:
                raise
            return self._recover(last)  # with the ranks that are left
        if as_it_was:
            return f"{self._describe_loss(self.dead)}." if self.dead else ""
        held = sorted({name for names in run for name in names})
        return f"{OLD_GROUP * bool(old)}{REMADE}{': here, ' * bool(held)}{', '.join(held)}."

    def _describe_loss(self, dead: Iterable[int]) -> str:
        dead, alive = sorted(dead), [rank for rank in range(len(self)) if rank not in self.dead]
        keep = f"; {name_ranks(alive)} {'keeps its' if len(alive) == 1 else 'keep their'} variables" if alive else ""
        have, its, them = ("has", "its", "it") if len(dead) == 1 else ("have", "their", "them")
        loss = f"{name_ranks(dead).capitalize()} {have} ended, and {its} variables are lost"
        return f"{loss}{keep}. team.restart() starts {them} again"

    def _revive(self, again: set[int]) -> None:
        """Restart these ranks, and create a process group of old and new ones."""
        all_ranks = list(range(len(self)))
        if alive := again - self.dead:
            listener = self._listener(all_ranks)
            listener.returned = {}
            listener.end(alive)
        self._generation += 1
        listener = self._send(on_rank.rejoin, all_ranks, self._generation)
        listener.started -= again
        listener.send(messages.Revive(replace(self._spec, sources=cell_sources(), generation=self._generation)))
        try:
            listener.result()
        except BaseException:
            self.close()
            raise
        self.dead = set()
        self._store_names(self._send(on_rank.report_names, all_ranks).result())

    def _missing(self, code: str, file: str, chosen: list[int], namespace: Mapping[str, Any]) -> bytes:
        """Pack the notebook's values for names that the cell uses and that a rank lacks, and print the names."""
        used, assigned = names_in(code, file)
        names_by_rank = [self.names.get(rank, on_rank.PREDEFINED) for rank in chosen]
        available = [name for name in used if name in namespace]
        send = {name: namespace[name] for name in available if any(name not in names for names in names_by_rank)}
        changed = [name for name in available if name in self._sent and not self._sent[name].is_still(namespace[name])]
        packed = pickling.pack_names(send)
        if send:
            print(f"[team] sent from the notebook: {', '.join(send)}")
        for name in changed:
            if name not in send:
                print(f"[team] {name} has changed here, but not on the ranks: team.push({name}={name}) sends it again")
        self._sent |= {name: Sent(namespace[name]) for name in (*send, *changed)}
        self._sent = {name: value for name, value in self._sent.items() if name not in assigned}
        return packed


PLAIN = (int, float, complex, bool, str, bytes, type(None))


class Sent:
    """A value that was sent, to detect that the notebook now has a different one. Keeps no large object alive."""

    def __init__(self, value: Any) -> None:
        try:
            self._get = weakref.ref(value)
        except TypeError:  # numbers, text, lists
            self._get = lambda: value

    def is_still(self, value: Any) -> bool:
        """Return whether this is the same object, or an equal number or text."""
        sent = self._get()
        return sent is value or (type(sent) is type(value) and isinstance(value, PLAIN) and sent == value)


def _end(supervisor: messages.Channel, stack: contextlib.ExitStack) -> None:
    """End the ranks of a team that is closed or no longer used."""
    with contextlib.suppress(OSError):
        supervisor.send(messages.DISMISS)
    stack.close()


class OneRank:
    """One rank of a team: `team[2]["loss"]` is a variable on it, `team[2].run(...)` runs a cell on it alone."""

    def __init__(self, team: Team, rank: int) -> None:
        self.team, self.rank = team, rank

    def __getitem__(self, name: str) -> Any:
        return self.team.pull(name, [self.rank])[0]

    def __setitem__(self, name: str, value: Any) -> None:
        self.team.push(self.rank, **{name: value})

    def run(self, code: str, **options: Any) -> Any:
        """Run a cell on this rank and return its last expression."""
        return self.team.run(code, [self.rank], **options)[self.rank]

    def __repr__(self) -> str:
        return f"rank {self.rank} of {len(self.team)}: {', '.join(sorted(self.team.names.get(self.rank, ())))}"
