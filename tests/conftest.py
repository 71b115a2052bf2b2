"""What several tests share: a real Jupyter kernel, and a look at the processes it leaves behind."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from course_lib.launcher.notebook import launch as local
from tests.kernels import prepare_nbval, tried_again

# `nbformat` would take two seconds to import, in each process that runs tests: see course_lib/lab/server.py.
sys.modules.setdefault("rfc3987_syntax", None)  # pyright: ignore[reportArgumentType]

# Two tests run at a time: threads that wait for each other on a core that is not free are slower than none.
os.environ.setdefault("OMP_NUM_THREADS", "1")

collect_ignore_glob = ["checks/example_class/*"]  # students' notebooks, and one of them is hostile
MARK = "COURSE_TEST_FAMILY"
PATIENCE = 300  # seconds to wait for what happens in one on a quiet machine: a wait ends when the thing happens

# A shell makes what it starts in the background deaf to Ctrl-C, and that is inherited by all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Under `nohup`, we go on not hearing a hang-up, but what we start does, as it would elsewhere.
    signal.signal(signal.SIGHUP, lambda *_: None)


# Modules that ranks import when they are sent a test's function: once, in the server that they are forked from.
IMPORTED = ("pytest", "hypothesis.strategies", "course_lib.checks", "tests.pipeline.test_pipeline")


def pytest_configure(config: pytest.Config) -> None:
    prepare_nbval()
    if hasattr(config, "workerinput") and not config.pluginmanager.hasplugin("nbval"):
        local.warm_up([*local.PRELOADED, *IMPORTED])


def pytest_collection_finish() -> None:
    gc.freeze()  # neither the tests nor what they import is garbage: looking through it again and again takes long


@dataclass
class Cell:
    """What a cell printed, and how it failed, if it did."""

    text: str = ""
    shown: list[str] = field(default_factory=list)  # as HTML, the latest last
    error: str | None = None
    message: str = ""
    seconds: float = 0.0
    result: str = ""

    @property
    def html(self) -> str:
        return "".join(self.shown)


@dataclass
class Kernel:
    """A real ipykernel. `family()` lists every process that descends from it, wherever it hides."""

    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        # ipykernel behaves differently under pytest if it sees the first; the second is for lessons that are compared.
        ours = {"PYTEST_CURRENT_TEST", "COURSE_LIB_LIVE"}
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        from jupyter_client.manager import start_new_kernel

        start = tried_again(start_new_kernel)
        self.manager, self.client = start(kernel_name="python3", env={**environment, MARK: self.mark})

    @property
    def pid(self) -> int:
        return self.manager.provisioner.pid

    def start(self, code: str) -> str:
        """Begin a cell and return at once."""
        return self.client.execute(code, stop_on_error=False)  # the cell after one that fails is not thrown away

    def finish(self, request: str, timeout: float = PATIENCE, until: str | None = None) -> Cell:
        """Wait for a cell that was begun; or only until something with these words in it is shown."""
        cell, began = Cell(), time.monotonic()
        while until is None or not any(until in shown for shown in cell.shown):
            message = self.client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                cell.text += content["text"]
            elif kind in ("display_data", "update_display_data"):
                cell.shown.append(content["data"].get("text/html", ""))
            elif kind == "execute_result":
                cell.result = content["data"]["text/plain"]
                cell.shown.append(content["data"].get("text/html", ""))
            elif kind == "error":
                cell.error, cell.message = content["ename"], "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                cell.seconds = time.monotonic() - began
                return cell
        return cell

    def run(self, code: str, timeout: float = PATIENCE) -> Cell:
        return self.finish(self.start(code), timeout)

    def family(self) -> dict[int, str]:
        """Living processes that carry this kernel's mark, without the kernel and its helpers."""
        return {pid: line for pid, line in processes_with(self.mark).items() if pid != self.pid}

    def stop(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        for pid in processes_with(self.mark):
            os.kill(pid, signal.SIGKILL)


def processes_with(mark: str) -> dict[int, str]:
    """Living processes whose environment carries `mark`, with their command lines."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def ranks_of(family: dict[int, str]) -> dict[int, str]:
    """The family without the server that ranks are forked from and multiprocessing's bookkeeper."""
    parents = {pid: parent_of(pid) for pid in family}
    servers = {
        pid for pid, line in family.items() if "multiprocessing.forkserver" in line and parents[pid] not in family
    }
    return {pid: line for pid, line in family.items() if pid not in servers and "resource_tracker" not in line}


def parent_of(pid: int) -> int | None:
    """The id of a process's parent."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def wait_until(true, seconds: float = PATIENCE) -> bool:
    """Whether `true()` comes to hold within `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# Workers take whole modules, in this order: none should be left alone with a long one at the end.
LONGEST = ("test_job", "test_grading", "test_exercises", "test_slurm", "test_attacks", "test_checkpoint")


@pytest.hookimpl(tryfirst=True)  # before marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notebooks first, then what takes longest, then the rest."""

    def place(item: pytest.Item) -> int:
        if item.path.suffix == ".ipynb":
            return -1
        return LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST)

    items.sort(key=place)
    for item in items:
        if item.path.suffix == ".ipynb" and item.path.parent.name != "notebooks":
            item.add_marker(pytest.mark.slow)  # checks/test_exercises.py has their answers and stubs in `make test`
    missing = [name for name in ("tensorflow", "jax") if importlib.util.find_spec(name) is None]
    for item in items if missing else ():
        if item.path.name.startswith("10_") or "[10." in item.name:
            item.add_marker(pytest.mark.skip(reason=f"lesson 10 runs in {' and '.join(missing)}, not installed here"))


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    """One kernel for all tests of a module, as a learner keeps one for a whole lesson."""
    kernel = Kernel()
    kernel.run("import os, signal, sys, time, torch, torch.distributed as dist\nfrom course_lib import *")
    cell = kernel.run("launch(dist.get_rank, ranks=2)")  # the first one waits for torch; the tests' limits do not
    assert cell.error is None, cell.message
    yield kernel
    kernel.stop()


@pytest.fixture
def new_kernel() -> Iterator[Kernel]:
    """A kernel of the test's own, for tests that kill it."""
    kernel = Kernel()
    yield kernel
    kernel.stop()


def pytest_terminal_summary(terminalreporter) -> None:
    """Show the tables that tests have made, from whichever worker."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, text in getattr(report, "user_properties", ()):
                if name == "table" and getattr(report, "when", "") == "call":
                    terminalreporter.write_line(f"\n{report.nodeid}\n{text}")
