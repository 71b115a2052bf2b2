"""Run a submission in the sandbox: its cells once, then each exercise on ranks.

The job comes in on standard input; what was observed goes out on standard output, a line of JSON for each case.
Everything here shares a sandbox with the submission, and nobody outside believes more of it than those lines.

Three processes take part. The first reads the job, and runs nothing of the submission. The notebook's runs the cells,
knows no inputs, and is ended when it has packed the answers. The launcher's then has them tried on ranks, which get
their own inputs, each its own alone.
"""

from __future__ import annotations

import base64
import contextlib
import json
import linecache
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from course_lib.launchers.process.patience import TICK, FairTime, Patience, family

from .keeper import Keeper, Packed, PerRank, hide_memory, read_only_messages

IN_A_SANDBOX = "course_lib.checks.runner"  # where this folder has the place of the one above it

CELL = Patience(10, cpu=20, longest=100)  # for one cell
# No more than most answers need: a submission starts its own Python, and whatever is imported here, it waits for.
PRELOADED = [
    *("torch", "torch.distributed", "numpy.random", "cloudpickle", "resource", "multiprocessing.popen_forkserver"),
    *("course_lib.launchers.process.supervisor", f"{__package__}.observe", "course_lib.meter"),
]
END = b'{"end": true}'  # of what is said by a submission that was run to its end


@dataclass(frozen=True)
class Task:
    """An exercise as the sandbox sees it: how to drive an answer, by value, and on what."""

    number: str
    answer: str
    drive: bytes
    cases: list[tuple[str, int, list[bytes]]]  # part, ranks, and the inputs of each rank


@dataclass(frozen=True)
class Submission:
    """The cells of a submission, and what to try them on."""

    cells: list[str]
    tasks: list[Task]
    timeout: float
    modules: list[str] = field(default_factory=list)  # that ranks need besides: imported once, and not by every rank

    def packed(self) -> bytes:
        """As bytes without a class in them: in the sandbox, this module has another name."""
        return pickle.dumps(asdict(self))

    @classmethod
    def unpacked(cls, data: bytes) -> Submission:
        fields = pickle.loads(data)
        return cls(**{**fields, "tasks": [Task(**task) for task in fields["tasks"]]})


def main() -> None:
    """Read the job, and run it in a process that has torch already: the one that ranks are forked from as well."""
    from course_lib.launchers import warm_up

    first = json.loads(sys.stdin.buffer.readline())
    _keep_to(first["limits"])
    report, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    warm_up([*PRELOADED, *first["modules"]])
    hide_memory()
    submission = Submission.unpacked(sys.stdin.buffer.read())
    with contextlib.suppress(EOFError), open(report, "wb") as lines:

        def say(record: bytes) -> None:
            lines.write(record + b"\n")
            lines.flush()

        names = [task.answer for task in submission.tasks]
        answers = _answers(_messages_of(_play_notebook, submission.cells, names), say)
        if __name__ == IN_A_SANDBOX:
            end_all_others()
        for record in _messages_of(_launch_all, submission, answers):
            say(record)
        say(END)
    os._exit(0)  # the sandbox ends with this process, and with it whatever the submission has started


def _keep_to(limits: dict[str, int]) -> None:
    """Let the kernel enforce limits, here and in all processes that come from this one."""
    if limits:
        import resource

        for name, limit in limits.items():
            resource.setrlimit(getattr(resource, name), (limit, limit))


def _messages_of(target: Any, *args: Any) -> Iterator[bytes]:
    """What a process says until it has said it all; then it is ended. Raises `EOFError` if it ends before."""
    from course_lib.launchers.local import start_method

    context: Any = multiprocessing.get_context(start_method())
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*args, sender))
    process.start()
    sender.close()
    while message := receiver.recv_bytes():
        yield message
    process.kill()
    process.join()


def _answers(messages: Iterator[bytes], say: Any) -> dict[str, bytes]:
    """The packed answers; on the way, say what cells have raised. The messages come from the submission's process."""
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


def end_all_others() -> None:
    """End all processes of the sandbox but those that run no code of the submission: it may have left some."""
    server: Any = multiprocessing.forkserver._forkserver  # the stubs do not know all that these have
    tracker: Any = multiprocessing.resource_tracker._resource_tracker
    stay = {1, os.getpid(), os.getppid(), server._forkserver_pid, tracker._pid}
    with contextlib.suppress(OSError):
        os.kill(-1, signal.SIGSTOP)  # all but the first process and this one: nobody forks while others are ended
    for pid in {*map(int, filter(str.isdigit, os.listdir("/proc")))} - stay:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for pid in {server._forkserver_pid, tracker._pid} - {None}:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)


def _play_notebook(cells: list[str], answers: list[str], sender: Any) -> None:
    """Run the cells, and pack the answers that they define."""
    import cloudpickle

    from . import check, hint, predict, progress, reveal, solution
    from .jupyter import new_names

    checks = sys.modules["course_lib.checks"]  # without a sandbox it is the real one
    stand_ins = (check, hint, predict, progress, reveal, solution)
    vars(checks).update({stand_in.__name__: stand_in for stand_in in stand_ins})
    _fork_from_the_same_server()

    def say(record: dict[str, Any]) -> None:
        sender.send_bytes(json.dumps(record).encode())

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
    """Have the answers tried on ranks, and say what was seen. Nothing of the submission runs in this process."""
    import cloudpickle

    from .observe import Outcome, Trial

    hide_memory()
    read_only_messages()
    _fork_from_the_same_server()
    for index, cell in enumerate(submission.cells):
        _remember_lines(cell, f"<cell {index}>")
    keeper = Keeper()
    for task in submission.tasks:
        cases = [(ranks, PerRank(inputs)) for _, ranks, inputs in task.cases]
        answer = answers.get(task.answer)
        drive, packed = cloudpickle.loads(task.drive), Packed(answer or b"")
        trial = Trial(drive, packed, cases, submission.timeout, keeper, told=False)
        lost = set()  # parts
        for index, (part, _, _) in enumerate(task.cases):
            outcome = Outcome("missing" if answer is None or part in lost else "failed")
            if answer and part not in lost:
                outcome = trial.outcome(index)
            if outcome.kind != "returned":
                lost.add(part)  # its other cases would earn nothing, and take time that other answers need
            record = {"number": task.number, "case": index, "outcome": asdict(outcome)}
            sender.send_bytes(json.dumps(record).encode())
    sender.send_bytes(b"")


def _fork_from_the_same_server() -> None:
    """The server that this process was forked from runs, and will fork its ranks: nothing is to start another one."""
    multiprocessing.forkserver.ensure_running = multiprocessing.forkserver._forkserver.ensure_running = lambda: None


def _remember_lines(source: str, name: str) -> None:
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def _run_cell(source: str, name: str, names: dict[str, Any]) -> dict[str, Any] | None:
    """Run one cell; return what it raised, in which line, and whether a clock did. It may also wait for ever."""
    from .jupyter import run_code

    _remember_lines(source, name)

    by_clock = False
    everything = os.getppid()  # what starts ranks is a child of it, too
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
