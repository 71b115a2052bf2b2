"""Run a submission in the sandbox: its cells once, then each exercise on ranks.

The job arrives on stdin; the observations leave on stdout, one line of JSON per case. Everything here shares a
sandbox with the submission, so the grader outside accepts only those lines from it.

Three processes take part. The first reads the job and runs no submitted code. The notebook process runs the
cells, without any inputs. Once it has packed the answers, it is killed, with everything it could reach. The launcher
process then runs the answers on ranks, each of which gets only its own inputs.
"""

from __future__ import annotations

import base64
import contextlib
import json
import linecache
import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from course_lib.runtime.patience import TICK, FairTime, Patience, family

from .keeper import Keeper, Packed, PerRank, hide_memory, open_fewer_files, read_only_messages
from .spare_server import SpareServer

IN_A_SANDBOX = "course_lib.checks.runner"  # this module's name where its folder replaces the parent package

CELL = Patience(10, cpu=20, longest=100)  # for one cell
# Only what most answers need: every submission starts a new Python and waits for these imports.
PRELOADED = [
    *("torch", "torch.distributed", "numpy.random", "cloudpickle", "resource", "multiprocessing.popen_forkserver"),
    *("course_lib.launcher.supervisor.supervisor", f"{__package__}.observe", "course_lib.core.metering"),
]
END = b'{"end": true}'  # the last line, if the submission ran to completion


@dataclass(frozen=True)
class Task:
    """An exercise as the sandbox sees it: the pickled `drive`, and the inputs."""

    number: str
    answer: str
    drive: bytes
    cases: list[tuple[str, int, list[bytes]]]  # part, ranks, and the inputs of each rank
    shares_files: bool = False  # whether its ranks need a shared folder


@dataclass(frozen=True)
class Submission:
    """The cells of a submission, and the exercises to run its answers on."""

    cells: list[str]
    tasks: list[Task]
    timeout: float
    modules: list[str] = field(default_factory=list)  # imports that the ranks need, done once instead of on each rank

    def packed(self) -> bytes:
        """Return the submission as bytes, without its class: in the sandbox, this module has a different name."""
        return pickle.dumps(asdict(self))

    @classmethod
    def unpacked(cls, data: bytes) -> Submission:
        fields = pickle.loads(data)
        return cls(**{**fields, "tasks": [Task(**task) for task in fields["tasks"]]})


def main() -> None:
    """Read the job and run it in processes that are forked, like the ranks, from a server that has imported torch."""
    from course_lib.launcher.notebook.launch import warm_up

    first = json.loads(sys.stdin.buffer.readline())
    _keep_to(first["limits"])
    report, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    warm_up([*PRELOADED, *first["modules"]])
    hide_memory()
    if os.getpid() == 1:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans become our children; this makes the kernel reap them
    submission = Submission.unpacked(sys.stdin.buffer.read())
    with contextlib.suppress(EOFError), open(report, "wb") as lines:

        def say(record: bytes) -> None:
            lines.write(record + b"\n")
            lines.flush()

        names = [task.answer for task in submission.tasks]
        spare = SpareServer() if __name__ == IN_A_SANDBOX else None
        answers = _answers(_messages_of(_play_notebook, submission.cells, names), say)
        if spare:
            end_all_others(spare.pid)
            _fork_from_the_same_server()
            spare.take_over()
        for record in _messages_of(_launch_all, submission, answers):
            say(record)
        say(END)
    os._exit(0)  # ends the sandbox, and with it every process the submission started


def _keep_to(limits: dict[str, int]) -> None:
    """Let the kernel enforce limits in this process and its descendants."""
    if limits:
        import resource

        for name, limit in limits.items():
            _, most = resource.getrlimit(getattr(resource, name))
            least = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.setrlimit(getattr(resource, name), (least, least))


def _messages_of(target: Any, *args: Any) -> Iterator[bytes]:
    """Yield a process's messages up to the empty one, then kill it. Raises `EOFError` if it exits first."""
    from course_lib.launcher.notebook.launch import start_method

    context: Any = multiprocessing.get_context(start_method())
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*args, sender))
    process.start()
    sender.close()
    while message := receiver.recv_bytes():
        yield message
    process.kill()  # no join: the fork server would report the exit, and a cell may have stopped that server


def _answers(messages: Iterator[bytes], say: Any) -> dict[str, bytes]:
    """Return the packed answers, and pass on the errors of cells. The submission's process sends these messages."""
    packed: dict[str, bytes] = {}
    for message in messages:
        try:
            record = json.loads(message)
            if "answer" in record:
                packed[str(record["answer"])] = base64.b64decode(record["packed"])
            else:
                say(json.dumps({name: record[name] for name in record if name not in ("number", "case")}).encode())
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return packed


def end_all_others(spare: int | None) -> None:
    """Kill every process in the sandbox but this one and the spare server: all others may run the submission's code."""
    stay = {1, os.getpid(), os.getppid(), spare}
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGSTOP)  # all but PID 1 and this process, so that none forks during the kills
    for pid in {*map(int, filter(str.isdigit, os.listdir("/proc")))} - stay:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    if spare:
        with contextlib.suppress(OSError):
            os.kill(spare, signal.SIGCONT)


def _play_notebook(cells: list[str], answers: list[str], sender: Any) -> None:
    """Run the cells and send the packed answers that they define."""
    import cloudpickle

    from . import STAND_INS
    from .jupyter import new_names

    vars(sys.modules["course_lib.checks"]).update(STAND_INS)  # without a sandbox, the real package
    _fork_from_the_same_server()

    def say(record: dict[str, Any]) -> None:
        sender.send_bytes(json.dumps(record).encode())

    if __name__ == IN_A_SANDBOX:
        open_fewer_files()
    names = new_names()
    for index, cell in enumerate(cells):
        error = _run_cell(cell, f"<cell {index}>", names)
        if error:
            say({"cell": index, **error})
    for answer in answers:
        if answer in names:
            try:
                packed = cloudpickle.dumps(names[answer])
            except Exception:
                packed = b""
            say({"answer": answer, "packed": base64.b64encode(packed).decode()})
    sender.send_bytes(b"")


def _launch_all(submission: Submission, answers: dict[str, bytes], sender: Any) -> None:
    """Run the answers on ranks and send the outcomes. No submitted code runs in this process."""
    import cloudpickle

    from .observe import Outcome, Trial

    hide_memory()
    read_only_messages()
    _fork_from_the_same_server()
    for index, cell in enumerate(submission.cells):
        _remember_lines(cell, f"<cell {index}>")
    keeper = Keeper()
    for task in submission.tasks:
        confined = __name__ == IN_A_SANDBOX and not task.shares_files
        cases = [(ranks, PerRank(inputs, confined)) for _, ranks, inputs in task.cases]
        answer = answers.get(task.answer)
        drive, packed = cloudpickle.loads(task.drive), Packed(answer or b"")
        trial = Trial(drive, packed, cases, submission.timeout, keeper, told=False)
        lost = set()  # parts
        for index, (part, _, _) in enumerate(task.cases):
            outcome = Outcome("missing" if answer is None or part in lost else "failed")
            if answer and part not in lost:
                outcome = trial.outcome(index)
            if outcome.kind != "returned":
                lost.add(part)  # its other cases could earn nothing, and would take time from other answers
            record = {"number": task.number, "case": index, "outcome": asdict(outcome)}
            sender.send_bytes(json.dumps(record).encode())
    sender.send_bytes(b"")


def _fork_from_the_same_server() -> None:
    """Make ranks fork from the server that this process was forked from, instead of starting a second one."""
    multiprocessing.forkserver.ensure_running = multiprocessing.forkserver._forkserver.ensure_running = lambda: None


def _remember_lines(source: str, name: str) -> None:
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def _run_cell(source: str, name: str, names: dict[str, Any]) -> dict[str, Any] | None:
    """Run one cell, which may hang. Returns what it raised, on which line, and whether the timeout stopped it."""
    from .jupyter import run_code

    _remember_lines(source, name)

    by_clock = False
    everything = os.getppid()  # the server that starts ranks is its child, too
    time = FairTime(CELL, lambda: family(everything))

    def look(*_: Any) -> None:
        nonlocal by_clock
        if time.over():
            by_clock = True
            raise TimeoutError

    if has_alarm := hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
    try:
        run_code(source, name, names)
    except BaseException as error:
        return {"error": type(error).__name__, "line": _line(error, name), "by_clock": by_clock}
    finally:
        if has_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def _line(error: BaseException, name: str) -> int:
    if isinstance(error, SyntaxError):
        return error.lineno or 0
    traceback, line = error.__traceback__, 0
    while traceback:
        if traceback.tb_frame.f_code.co_filename == name:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
