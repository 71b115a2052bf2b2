"""Run a submission in the sandbox: its cells once, then each exercise on ranks.

The job comes in on standard input; what was observed goes out on standard output, a line of JSON for each case.
Everything here shares a sandbox with the submission, and nobody outside believes more of it than those lines.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import resource
import signal
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

CELL_SECONDS = 10
# No more than most answers need: a submission starts its own Python, and whatever is imported here, it waits for.
PRELOADED = ["torch", "torch.distributed", "course_lib.launchers.process.supervisor"]
END = b'{"end": true}'  # of what is said by a submission that was run to its end


@dataclass(frozen=True)
class Task:
    """An exercise as the sandbox sees it: how to drive an answer, by value, and on what."""

    number: str
    answer: str
    drive: bytes
    cases: list[tuple[str, int, dict[str, Any]]]  # part, ranks and inputs


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
    for name, limit in first["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    report, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    warm_up([*PRELOADED, *first["modules"]])
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    host = context.Process(target=_be_host, args=(sys.stdin.buffer.read(), sender))
    host.start()
    sender.close()
    with contextlib.suppress(EOFError), open(report, "wb") as lines:
        while record := receiver.recv_bytes():
            lines.write(record + b"\n")
            lines.flush()
        lines.write(END + b"\n")
    os._exit(0)  # the sandbox ends with this process, and with it whatever the submission has started


def _be_host(packed: bytes, sender: Any) -> None:
    """Play the notebook: run the cells, then launch ranks that call what they have defined."""
    import cloudpickle

    from . import check, hint, solution
    from .jupyter import new_names
    from .observe import Outcome, Trial

    checks = sys.modules["course_lib.checks"]  # without a sandbox it is the real one
    vars(checks).update(check=check, hint=hint, solution=solution)

    # The server that this process was forked from runs, and will fork its ranks: nothing is to start another one.
    multiprocessing.forkserver.ensure_running = multiprocessing.forkserver._forkserver.ensure_running = lambda: None
    submission = Submission.unpacked(packed)

    def say(record: dict[str, Any]) -> None:
        sender.send_bytes(json.dumps(record).encode())

    names = new_names()
    for index, cell in enumerate(submission.cells):
        error = _run_cell(cell, f"<cell {index}>", names)
        if error:
            say({"cell": index, **error})
    for task in submission.tasks:
        cases = [(ranks, inputs) for _, ranks, inputs in task.cases]
        trial = Trial(cloudpickle.loads(task.drive), names.get(task.answer), cases, submission.timeout)
        lost = set()  # parts
        for index, (part, _, _) in enumerate(task.cases):
            outcome = Outcome("missing")
            if task.answer in names and part not in lost:
                outcome = trial.outcome(index)
            if outcome.kind != "returned":
                lost.add(part)  # its other cases would earn nothing, and take time that other answers need
            say({"number": task.number, "case": index, "outcome": asdict(outcome)})
    sender.send_bytes(b"")


def _run_cell(source: str, name: str, names: dict[str, Any]) -> dict[str, Any] | None:
    """Run one cell; return what it raised, and in which line. A learner's cell may also wait for ever."""
    from .jupyter import run_code

    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)

    def give_up(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(CELL_SECONDS)
    try:
        run_code(source, name, names)
    except BaseException as error:
        return {"error": type(error).__name__, "line": _line(error, name)}
    finally:
        signal.alarm(0)
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
