"""How many learners a machine carries, measured on it: `course class --capacity`.

Some learners are started as they would be in a class: each has a Jupyter server and a kernel that is ready to launch.
Memory is proportional set size: a page that several processes share counts once, in parts.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib import machine
from course_lib.launchers.process.admission import available_memory
from course_lib.launchers.process.patience import family

RANKS = 4
AT_ONCE = 0.25  # of a class that launches or checks at the same moment
KEPT = 0.1  # of the memory, for everything else
PATIENCE = 10.0  # seconds that one waits for a check without wondering
LONGEST = 600.0  # seconds for a cell on a busy machine
READY = """import time, torch
import torch.distributed as dist
from course_lib import launch
from course_lib.launchers import warm_up
from course_lib.checks import check
def work():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.LSTM(256, 256, num_layers=2))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(64, 32, 256))[0].sum().backward()
        optimizer.step()
    time.sleep(2)  # to be seen
def average_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
launch(dist.get_rank, ranks=2)"""
LAUNCH = f"launch(work, ranks={RANKS})"
CHECK = 'check("02.1", average_gradients)'


class CannotMeasure(RuntimeError):
    """Nothing can be measured here; the sentence says why."""


@dataclass(frozen=True)
class Capacity:
    """What was measured: bytes, and seconds by how many learners checked at once."""

    memory: int  # that is there for the class
    cores: int
    at_rest: int  # of each learner
    launching: int  # more, while one launches
    check_seconds: dict[int, float]

    @property
    def by_memory(self) -> int:
        """Learners who fit, if some of them launch."""
        return int(self.memory * (1 - KEPT) / (self.at_rest + AT_ONCE * self.launching))

    @property
    def by_time(self) -> int:
        """Learners whose checks, some of them at once, take no longer than one's patience."""
        most = max(self.check_seconds)
        each = self.check_seconds[most] / most  # on busy cores, the time grows with their number
        return max(1, int(max(1.0, PATIENCE / each) / AT_ONCE))

    @property
    def learners(self) -> int:
        return min(self.by_memory, self.by_time)

    def __str__(self) -> str:
        rows = [
            ("memory of a learner at rest", f"{self.at_rest / 2**20:.0f} MB"),
            (f"more while launching {RANKS} ranks", f"{self.launching / 2**20:.0f} MB"),
            *((f"a check, {count} at once", f"{spent:.1f} s") for count, spent in self.check_seconds.items()),
        ]
        table = "\n".join(f"  {name:<34}{value:>10}" for name, value in rows)
        return f"{table}\n\n{self.verdict()}"

    def verdict(self) -> str:
        """How many, and what runs out first."""
        if not self.learners:
            return f"This machine carries no learner: {self.memory / 2**30:.1f} GB of memory are free."
        first, then = ("memory", "the cores") if self.by_memory <= self.by_time else ("the cores", "memory")
        other = max(self.by_memory, self.by_time)
        return (
            f"This machine carries {_counted(self.learners)}, a quarter of them launching or checking at once: {first} "
            f"{'runs' if first == 'memory' else 'run'} out first ({self.memory / 2**30:.1f} GB free, "
            f"{self.cores} cores; by {then} alone, {other}). Waiting for a check is counted up to {PATIENCE:.0f} s."
        )


def measure(learners: int = 4) -> Capacity:
    """Start so many learners on this machine, watch them rest, launch and check, and end them."""
    if not Path("/proc/self/smaps_rollup").exists():
        raise CannotMeasure("--capacity reads the memory of processes from /proc, which only Linux has")
    from tqdm.auto import tqdm

    memory = available_memory() or machine.memory_bytes() or 0
    counts = [2**power for power in range(learners.bit_length()) if 2**power < learners] + [learners]
    with (
        tempfile.TemporaryDirectory(prefix="capacity-") as folder,
        contextlib.ExitStack() as ended,
        tqdm(total=learners + 1 + len(counts), desc="measuring", unit="step") as bar,
    ):
        started: list[Learner] = []
        at_rest: list[int] = []
        for number in range(learners):
            started.append(ended.enter_context(_learner(Path(folder, str(number)))))
            at_rest.append(_pss(started))
            bar.update()
        resting = _growth(at_rest)
        launching = _peak(started, LAUNCH) - at_rest[-1]
        bar.update()
        seconds = {}
        for count in counts:
            seconds[count] = _together(started[:count])
            bar.update()
    return Capacity(memory, machine.cores(), resting, max(0, launching), seconds)


@dataclass
class Learner:
    """A Jupyter server, and a kernel that has launched once."""

    server: subprocess.Popen[bytes]
    kernel: Any
    client: Any

    @property
    def processes(self) -> list[int]:
        return [*family(self.server.pid), *family(self.kernel.provisioner.pid)]

    def begin(self, cell: str) -> None:
        """Start a cell, and do not wait for it."""
        self._asked = self.client.execute(cell)

    def is_done(self, wait: float = 0.1) -> bool:
        """Whether the cell is done, at the latest after so many seconds. Raises `CannotMeasure` where it failed."""
        try:
            reply = self.client.get_shell_msg(timeout=wait)
        except queue.Empty:
            return False
        if reply["parent_header"].get("msg_id") != self._asked:
            return False
        if reply["content"]["status"] != "ok":
            said = reply["content"].get("evalue", "")
            raise CannotMeasure(f"a learner's cell failed here: {said}; try `course doctor`")
        return True


@contextlib.contextmanager
def _learner(desk: Path) -> Iterator[Learner]:
    from jupyter_client.manager import start_new_kernel

    desk.mkdir()
    ours = {"COURSE_LIB_PROGRESS": str(desk / "progress.json"), "COURSE_LIB_LIVE": "0", "COURSE_LIB_LAUNCHES": ""}
    variables = {**os.environ, **ours}
    words = [sys.executable, "-m", "course_lib.lab.server", "--no-browser", "--allow-root", "--ServerApp.port=0"]
    words += [f"--ServerApp.root_dir={desk}", "--ServerApp.ip=127.0.0.1"]
    with open(desk / "log", "wb") as log:
        server = subprocess.Popen(words, cwd=desk, env=variables, stdout=log, stderr=log)
    kernel, client = None, None
    try:
        kernel, client = start_new_kernel(
            kernel_name="python3", env=variables, cwd=str(desk), startup_timeout=LONGEST, stderr=subprocess.DEVNULL
        )
        learner = Learner(server, kernel, client)
        learner.begin(READY)
        _wait_until(learner.is_done)
        _wait_until(lambda: b"http://127.0.0.1" in (desk / "log").read_bytes() or server.poll() is not None)
        yield learner
    finally:
        if client is not None and kernel is not None:
            client.stop_channels()
            kernel.shutdown_kernel(now=True)
        server.terminate()
        server.wait()


def _pss(learners: Iterable[Learner]) -> int:
    """Bytes of all their processes."""
    return sum(map(pss, (pid for learner in learners for pid in learner.processes)))


def pss(pid: int) -> int:
    """The proportional set size of a process in bytes: its own pages, and its share of those that it shares."""
    try:
        found = re.search(r"^Pss:\s+(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0


def _growth(totals: list[int]) -> int:
    """What each more has added: the first pays for what all share."""
    return totals[0] if len(totals) == 1 else (totals[-1] - totals[0]) // (len(totals) - 1)


def _peak(learners: list[Learner], cell: str) -> int:
    """The most that they use together while the first of them runs a cell."""
    learners[0].begin(cell)
    most = _pss(learners)
    while not learners[0].is_done():
        most = max(most, _pss(learners))
    return most


def _together(learners: list[Learner]) -> float:
    """Seconds until all have their result, where all of them check at once."""
    began = time.monotonic()
    for learner in learners:
        learner.begin(CHECK)
    for learner in learners:
        _wait_until(learner.is_done)
    return time.monotonic() - began


def _wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST
    while not happened() and time.monotonic() < end:
        time.sleep(0.1)


def _counted(learners: int) -> str:
    return f"{learners} learner{'' if learners == 1 else 's'}"
