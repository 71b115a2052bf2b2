"""`launch`: run one function on several ranks of this machine, from a cell or a script."""

from __future__ import annotations

import builtins
import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any, Protocol

from course_lib.launcher.hangs.errors import Interrupted, LaunchError, explain_failure
from course_lib.launcher.hangs.stacks import cell_sources
from course_lib.launcher.notebook.listener import Listener
from course_lib.launcher.notebook.run import Run
from course_lib.launcher.rank.joining import INSIDE_A_RANK
from course_lib.launcher.supervisor.supervisor import supervise
from course_lib.launcher.wire import messages, pickling
from course_lib.runtime import machine
from course_lib.runtime.patience import FairTime, Patience, family


class Cluster(Protocol):
    """A place other than this machine to run the ranks. `check` raises if it cannot run this number of them."""

    def check(self, ranks: int) -> None: ...

    def run(self, spec: messages.LaunchSpec, timeout: float | None) -> Run: ...


PRELOADED = (  # imported once, in the fork server: what is missing here, each rank would import again
    *("torch", "torch.distributed", "torch.nn.parallel"),
    *("course_lib.launcher.supervisor.supervisor", "course_lib.launcher.live.tasks"),
    # torch imports `_dynamo`, which takes as long as torch, when a model is first wrapped or optimized.
    *("torch._dynamo", "torch.distributed.fsdp", "course_lib.train", "torch.distributed.checkpoint"),
)
MAX_RANKS = 64
MAX_PATH = 55  # bytes of a folder's path: a socket's may have 108, and multiprocessing appends about 40
MAX_TIMEOUT = 2_000_000  # seconds (three weeks); in milliseconds, it still fits the 32 bits that a system call takes


def launch(
    fn: Callable,
    *args: Any,
    ranks: int,
    timeout: float | Patience | None = 60.0,
    on: Cluster | None = None,
    profile: bool = False,
    seed: int | None = None,
    **kwargs: Any,
) -> Run:
    """Run `fn(*args, **kwargs)` in `ranks` processes on this machine and return what each of them returned.

    On every rank, the process group is up and `course_lib.device()` is the rank's device. What ranks print appears
    here, tagged with the rank. `timeout` counts seconds from the moment all ranks have started; None waits forever. A
    `Patience` does not count time that ranks lose to other load on the machine. `on=slurm(nodes=2)` runs the ranks on
    the nodes of a cluster instead. With `profile`, PyTorch's profiler records the whole call, and `run.trace(file)`
    writes the result; use it for calls that take seconds, not hours.

    Every rank of every launch draws different random numbers. With `seed=7` they repeat in the next launch, as if
    rank 2 had started with `torch.manual_seed(7 + 2)`; Python's and NumPy's generators are seeded, too. (`hash` of a
    string is the same on all ranks, because they are forks of one process. Under torchrun it differs.)
    """
    patience = timeout if isinstance(timeout, Patience) else None
    seconds = timeout.seconds if isinstance(timeout, Patience) else timeout
    check_timeout(seconds)
    try:
        spec = spec_of(fn, args, kwargs, ranks=ranks, seed=seed, local=on is None, profile=bool(profile))
        if on is not None:
            on.check(ranks)
            return on.run(spec, seconds)
        with supervisor_of(spec) as (supervisor, pid):
            clock = patience and (lambda: FairTime(patience, lambda: [*family(pid), os.getpid()]))
            return Listener(supervisor, ranks, seconds, clock=clock).result()
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted() from None


def spec_of(
    fn: Callable, args: tuple, kwargs: dict[str, Any], *, ranks: int, seed: int | None, local: bool = True, **more: Any
) -> messages.LaunchSpec:
    """Return what a supervisor needs to run a call on ranks that start in this process's folder and environment.

    With `local`, they all run on this machine. `more` holds further fields of the specification.
    """
    if INSIDE_A_RANK in os.environ:
        raise LaunchError(
            f"launch() was called on rank {os.environ[INSIDE_A_RANK]}: a rank cannot launch ranks. "
            "Call it from the notebook or from the script's main block"
        )
    if not callable(fn):
        raise TypeError(f"fn={fn!r}: launch needs a function to run on every rank")
    if isinstance(ranks, bool) or not isinstance(ranks, int):
        raise TypeError(f"ranks={ranks!r}: give the number of ranks as a whole number, for example ranks=4")
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: a launch needs at least one rank")
    if local and ranks > MAX_RANKS:
        raise ValueError(
            f"ranks={ranks}: at most {MAX_RANKS} ranks on one machine; use torchrun on several, or on=slurm(...)"
        )
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"seed={seed!r}: give a whole number, or leave it out for new random numbers in every launch")
    if seed is not None and not 0 <= seed <= machine.MAX_SEED:
        raise ValueError(f"seed={seed}: a seed is 0 or more, and at most {machine.MAX_SEED}")
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        raise LaunchError("the current folder no longer exists: change to another one with os.chdir(...)") from None
    in_a_kernel = "ipykernel" in sys.modules and "get_ipython" in vars(builtins)
    return messages.LaunchSpec(
        call=pickling.pack_call(fn, args, kwargs),
        ranks=ranks,
        environment=dict(os.environ),
        folder=folder,
        sources=cell_sources(),
        here=range(ranks),
        argv=sys.argv[:1] if in_a_kernel else list(sys.argv),  # a script's arguments, but not those of a kernel
        seed=seed,
        **more,
    )


def warm_up(modules: Sequence[str] = PRELOADED) -> None:
    """Start the server that ranks are forked from. It imports torch in the background while the learner reads."""
    if start_method() != "forkserver":
        return
    from multiprocessing import forkserver, resource_tracker, util

    if len(os.fsencode(tempfile.gettempdir())) > MAX_PATH:
        usual, tempfile.tempdir = tempfile.tempdir, "/tmp"
        util.get_temp_dir()  # multiprocessing keeps its sockets there from now on
        tempfile.tempdir = usual
    multiprocessing.set_forkserver_preload(list(modules))
    resource_tracker.ensure_running()  # starting it unmasks Ctrl-C, so start it before we mask Ctrl-C
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # or the server may print an import's traceback
    try:
        forkserver.ensure_running()  # the server inherits the mask, and so do the ranks, which unmask Ctrl-C
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def start_method() -> str:
    """Return `forkserver` on Linux, else `spawn`: Windows has no fork, and macOS's frameworks don't survive one."""
    default = "forkserver" if sys.platform.startswith("linux") else "spawn"
    return os.environ.get("COURSE_LIB_START_METHOD", default)


def check_timeout(timeout: Any) -> None:
    """Raise unless this is None or a valid number of seconds."""
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"timeout={timeout!r}: give a number of seconds, or None to wait forever")
    if not 0 < float(timeout) <= MAX_TIMEOUT:
        raise ValueError(
            f"timeout={timeout}: give a number of seconds above 0 and up to {MAX_TIMEOUT}, or None to wait forever"
        )


@contextlib.contextmanager
def supervisor_of(spec: messages.LaunchSpec) -> Iterator[tuple[messages.SupervisorChannel, int]]:
    """Yield a connection to a new supervisor, and its process id. Closing it ends the launch and all its processes."""
    context: Any = multiprocessing.get_context(start_method())
    ranks_method = "fork" if start_method() == "forkserver" else "spawn"
    try:
        notebook_end, supervisor_end = context.Pipe()
        process = context.Process(target=supervise, args=(spec, supervisor_end, ranks_method), name="supervisor")
        with main_module_hidden():
            try:
                warm_up()
                process.start()
            except (EOFError, ConnectionError):  # the server that it is forked from may have just been killed
                time.sleep(0.2)
                warm_up()
                process.start()
    except (EOFError, ConnectionError) as error:
        raise LaunchError(
            "the process that ranks are forked from ended immediately. Most likely, a limit on processes, files or "
            "memory is too low (`ulimit -a`): raise it, or close other programs"
        ) from error
    except (OSError, MemoryError) as error:
        raise LaunchError(f"the ranks cannot be started: {explain_failure(error)}") from error
    supervisor_end.close()
    try:
        yield notebook_end, process.pid or 0
    finally:
        notebook_end.close()
        process.join()


_starting = threading.Lock()


@contextlib.contextmanager
def main_module_hidden() -> Iterator[None]:
    """Keep `multiprocessing` from running the learner's script again in the supervisor.

    It does that to look functions up by name, but ours are sent by value. Without this, a script would need
    `if __name__ == "__main__":`, and a script read from a pipe could not launch at all.
    """
    main = sys.modules["__main__"]
    with _starting:
        file, spec = main.__dict__.pop("__file__", None), getattr(main, "__spec__", None)
        main.__spec__ = None
        try:
            yield
        finally:
            main.__spec__ = spec
            if file is not None:
                main.__file__ = file
