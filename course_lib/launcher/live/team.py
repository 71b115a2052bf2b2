"""`ranks`: start ranks that stay alive, run cells on them, and look at their variables.

team = ranks(4)
team.run("x = torch.ones(2) * rank; dist.all_reduce(x); x")
team[2]["x"], team.pull("x"), team.push(lr=0.1)
"""

from __future__ import annotations

import contextlib
import linecache
import queue
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from course_lib.launcher.hangs.deadlock import ANSWER
from course_lib.launcher.hangs.errors import CONSEQUENCE, Interrupted, LaunchError, name_ranks
from course_lib.launcher.hangs.record import RankRecord
from course_lib.launcher.hangs.stacks import Where, cell_sources
from course_lib.launcher.live import tasks
from course_lib.launcher.live.cell import CellRun, Shown, names_in, source_entry
from course_lib.launcher.notebook import launch as local
from course_lib.launcher.notebook.listener import Listener
from course_lib.launcher.notebook.run import Run
from course_lib.launcher.wire import messages, pickling
from course_lib.runtime.patience import WallTime
from course_lib.runtime.words import counted

HOUR = 3600.0
LEAVE_WITHIN = 5.0  # seconds that a rank may take to leave a task; Python code takes milliseconds
SETTLE_WITHIN = 0.2  # seconds for a collective that all ranks have joined to end
ASK_AGAIN = 0.5  # seconds between two interrupts: code may catch the first one
REMADE = (
    "The process group was aborted and recreated; all variables are kept. Anything that holds the old group must be "
    "recreated, too: a model wrapped in DistributedDataParallel or FSDP, a group from new_group, a device mesh."
)
OLD_GROUP = "A closed connection usually belongs to a group from before the process group was last recreated. "
RESTARTED = "All ranks were restarted, so their variables are lost; the next cell runs on the new ranks."
LOST = "The team is closed, and the variables of its ranks are lost: team.restart() starts new ones."
RESTART_AFTER = (0, 2, 4)  # seconds: after a process is killed, ranks that share its GPU may find it busy for a while


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
        self.names: dict[int, set[str]] = {}  # the names on each rank
        self._task = 0  # the number of the last one
        self._busy = threading.Lock()
        local.check_timeout(timeout)
        local.check_timeout(idle)
        self._spec = local.spec_of(tasks.serve, (), {}, ranks=count, seed=seed, live=True, idle=idle)
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
        size = f"Team of {counted(len(self), 'rank')}"
        if self.is_closed:
            return f"{size}, closed"
        names = sorted(self.names.get(0, set()) - tasks.PREDEFINED)
        return f"{size}; on rank 0: {', '.join(names) or 'no variables yet'}"

    def run(
        self,
        code: str,
        ranks: int | Iterable[int] | None = None,
        *,
        timeout: float | Literal["team"] | None = "team",
        names: Mapping[str, Any] | None = None,
        file: str | None = None,
    ) -> CellRun:
        """Run a cell on all ranks, or on the given ones, and return the value of its last expression on each of them.

        Names that the cell uses and that are missing on a rank are sent from `names`, by default the main module's;
        a printed line lists them. If the cell fails on one rank, it ends on all of them, and their variables stay. If
        a rank dies, all of them are restarted. `file` stands for the code in error messages. The cell may take
        `timeout` seconds, by default as many as the team's, and None means forever.
        """
        if not isinstance(code, str):
            raise TypeError(f"team.run takes code as text, not {code!r}: team.push(f=f), then team.run('f()')")
        limit = self.timeout if timeout == "team" else timeout
        local.check_timeout(limit)
        chosen = self._ranks(ranks)
        file = file or f"<ranks {self._task + 1}>"
        linecache.cache[file] = source_entry(code, file)
        on_all = set.intersection(*(set(self.names.get(rank, tasks.PREDEFINED)) for rank in chosen))
        here = vars(sys.modules["__main__"]) if names is None else names
        missing = [name for name in names_in(code, file) if name in here and name not in on_all]
        packed_names = pickling.pack_names({name: here[name] for name in missing})
        if missing:
            print(f"[team] sent from the notebook: {', '.join(missing)}")
        sources = {name: entry for name, entry in cell_sources().items() if name not in self._sources}
        self._sources |= sources.keys()
        run = self._call(tasks.run_cell, chosen, packed_names, code, file, sources, timeout=limit)
        shown: list[Shown] = [run[rank] or Shown() for rank in range(len(self))]  # None: it did not run the cell
        values = tuple(each.value for each in shown)
        texts = {rank: each.text for rank, each in enumerate(shown) if each.text is not None}
        self.last = CellRun(**{**vars(run), "values": values, "texts": MappingProxyType(texts)})
        return self.last

    def push(self, ranks: int | Iterable[int] | None = None, /, **values: Any) -> None:
        """Assign these names on all ranks, or on the given ones: `team.push(lr=0.1)`, `team.push(2, lr=0.1)`."""
        self._call(tasks.push, self._ranks(ranks), pickling.pack_names(values))

    def pull(self, name: str, ranks: int | Iterable[int] | None = None) -> list[Any]:
        """Return a variable's value on every rank, or on the given ones, in order. Tensors are moved to the CPU."""
        chosen = self._ranks(ranks)
        missing = [rank for rank in chosen if rank in self.names and name not in {*self.names[rank], "_"}]
        if missing:
            raise NameError(f"there is no {name!r} on {name_ranks(missing)}")
        run = self._call(tasks.pull, chosen, name)
        return [run[rank] for rank in chosen]

    def restart(self) -> None:
        """End the ranks and start new ones, without variables."""
        self.close()
        self._start()

    def close(self) -> None:
        """End the ranks. Their variables are lost."""
        self._finalizer()

    @property
    def is_closed(self) -> bool:
        """Whether the ranks have been ended."""
        return not self._finalizer.alive

    def _start(self) -> None:
        self.names, self._sources, self._generation = {}, set(), 0
        stack = contextlib.ExitStack()
        channel, _ = stack.enter_context(local.supervisor_of(replace(self._spec, sources=cell_sources())))
        self._channel = OrderQueue(channel)
        stack.callback(self._channel.close, messages.DISMISS)
        self._finalizer = weakref.finalize(self, stack.close)
        try:
            self._listener = Listener(self._channel, len(self), None)
            self._listener.wait_for_start()
        except BaseException:
            self.close()
            raise

    def _ranks(self, ranks: int | Iterable[int] | None) -> list[int]:
        """Return the given ranks in order, or all ranks. Raises if one does not exist."""
        all_ranks = range(len(self))
        chosen = list(all_ranks) if ranks is None else [ranks] if isinstance(ranks, int) else list(ranks)
        if not chosen or any(not isinstance(rank, int) or not -len(self) <= rank < len(self) for rank in chosen):
            raise IndexError(f"ranks={ranks!r}: this team has the ranks 0 to {len(self) - 1}")
        return sorted({all_ranks[rank] for rank in chosen})

    def _call(self, call: Any, chosen: list[int], *arguments: Any, timeout: float | None = None) -> Run:
        """Run this call on the chosen ranks, and return the run. If it fails, the ranks can still run another cell."""
        if not self._busy.acquire(blocking=False):
            raise LaunchError("the team is busy with another cell: wait for it, or interrupt it")
        try:
            if self.is_closed:
                raise LaunchError(f"this team is closed: ranks({len(self)}) starts a new one")
            with contextlib.suppress(LaunchError):
                self._listener.listen(WallTime(0.0), until=lambda: False)  # the messages since the last task
            if self._listener.trouble:
                self.close()
                raise LaunchError(self._listener.trouble)
            if ended := sorted(self._listener.ended):
                raise LaunchError(f"{name_ranks(ended)} ended after the last cell. {self._replace_all()}")
            listener = self._send(call, chosen, *arguments, timeout=timeout)
            try:
                return self._store_names(listener.result())
            except (LaunchError, Interrupted) as error:
                if advice := self._recover(listener):
                    error.args = (f"{error}\n\n{advice}",)
                raise
        finally:
            self._busy.release()

    def _send(self, call: Any, chosen: Sequence[int], *arguments: Any, timeout: float | None = None) -> Listener:
        self._task += 1
        idle = set(range(len(self))) - set(chosen)
        self._listener = Listener(self._channel, len(self), timeout, task=self._task, idle=idle)
        self._listener.send(messages.LiveTask(self._task, pickling.pack_call(call, (list(chosen), *arguments), {})))
        return self._listener

    def _store_names(self, run: Run) -> Run:
        """Remember the names on the ranks, which come with every value, and return the run with only the values."""
        self.names = {rank: set(names) for rank, (_, names) in enumerate(run)}
        return replace(run, values=tuple(value for value, _ in run))

    def _recover(self, listener: Listener) -> str:
        """Bring the ranks back to a state in which they can run a cell. Returns what the user needs to know."""
        with contextlib.suppress(LaunchError):  # a rank may end meanwhile, or the supervisor: then we start new ones
            in_step = not (listener.ended or listener.trouble) and leave_task(listener)
            if not (listener.ended or listener.trouble or listener.busy()):
                if in_step:
                    self._store_names(self._send(tasks.report_names, range(len(self))).result())
                    return ""
                closed = listener.raised and all(CONSEQUENCE.search(report.text) for report in listener.raised)
                old_group_was_used = OLD_GROUP if self._generation and closed else ""
                self._generation += 1
                self._store_names(self._send(tasks.rejoin, range(len(self)), self._generation).result())
                return old_group_was_used + REMADE
        if listener.trouble:
            self.close()
            return LOST
        return self._replace_all()

    def _replace_all(self) -> str:
        """Start new ranks, and return what that means for the user, who must see why the old ones were lost."""
        for pause in RESTART_AFTER:
            time.sleep(pause)
            with contextlib.suppress(LaunchError):
                self.restart()
                return RESTARTED
        return LOST


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


class OrderQueue:
    """A channel that sends from a thread: a supervisor that waits for us to read what ranks print reads no order."""

    def __init__(self, channel: messages.SupervisorChannel) -> None:
        self.channel, self.recv, self.poll = channel, channel.recv, channel.poll
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send_all, daemon=True, name="course_lib sends")
        self._thread.start()

    def send(self, order: Any) -> None:
        self._orders.put(order)

    def close(self, last: Any) -> None:
        """Send a last order, and wait until it has been sent."""
        self._orders.put(last)
        self._orders.put(None)
        if self._thread is not threading.current_thread():  # garbage collection may run this in any thread
            self._thread.join(LEAVE_WITHIN)

    def _send_all(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                self.channel.send(order)
            except OSError:
                return  # the supervisor is gone: whoever listens finds out


def leave_task(listener: Listener) -> bool:
    """Make every rank leave its task, and return whether the ranks can go on with the same process group.

    Ranks that compute are interrupted as if by Ctrl-C. If a rank waits for others, the process group is aborted. Those
    that cannot leave are still `busy()` afterwards.
    """
    if listener.busy() and not listener.deadlock:
        # A rank that sends while others abort the process group may be lost: if the send fails immediately, gloo
        # forgets it, but waits for it forever. So first, those that cannot leave must reach the call they wait in.
        listener.send(messages.Interrupt(abort=False))
        listener.ask_where()  # a rank that answers has been interrupted, and starts no further call
        listener.listen(WallTime(SETTLE_WITHIN), until=lambda: not listener.busy())
    abort = any(listener.located.get(rank, Where("waiting")).doing == "waiting" for rank in listener.busy())
    aborted, until = False, time.monotonic() + LEAVE_WITHIN
    while listener.busy() and time.monotonic() < until:
        listener.send(messages.Interrupt(abort))
        listener.listen(WallTime(ASK_AGAIN), until=lambda: not listener.busy())
        aborted, abort = aborted or abort, True
    return not aborted and in_step({r.rank: r.record for r in (*listener.returned.values(), *listener.raised)})


def in_step(records: dict[int, RankRecord]) -> bool:
    """Return whether the ranks' next collectives and messages will match: all of them have started as many."""
    for group in {group for record in records.values() for group in record.begun}:
        counts = {record.begun[group] for record in records.values() if group in record.begun}
        is_world = group.split("/")[1].partition(" ")[0] in ("", "0", "default_pg")
        if len(counts) > 1 or (is_world and any(group not in record.begun for record in records.values())):
            return False
    posted = {(rank, channel): n for rank, record in records.items() for channel, n in record.posted.items()}
    return all(
        posted.get((peer, (ANSWER[kind], group, rank, tag)), 0) == count
        for (rank, (kind, group, peer, tag)), count in posted.items()
        if peer in records
    )
