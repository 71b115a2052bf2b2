"""Run jobs that go wrong, and keep what they leave for exercise 08.8: `python -m tests.checks.recorded`.

Every job is a real one: its ranks are processes that talk over gloo, and one of them, or two, have a fault. What is
kept of each rank is its log, its stack and its flight recorder's record, as far as it lived to give them.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import socket
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed  # noqa: F401  here, and not again in every rank
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
KEPT = HERE.parents[2] / "course_lib" / "lessons" / "lesson_08" / "recorded_jobs.json"
CAUSES = {
    "is killed": "died",
    "raises": "raised",
    "misses a file": "raised",
    "skips": "fewer",
    "receives alone": "fewer",
    "evaluates": "more",
    "busy": "busy",
    "gathers": "another call",
    "broadcasts": "another call",
    "is shorter": "another call",
    "sends first": "messages",
    "receives first": "messages",
}
JOBS = [(fault, ranks, at) for fault in CAUSES for ranks, at in ((3, 4), (4, 2), (5, 3))]
PARTS = ("log", "stack", "record")
AT_REST = 3.0  # seconds without a word, after which a job that prints a line every few milliseconds has hung


class Rank:
    """A process that runs train.py as one rank. It is forked: importing PyTorch for each would take minutes."""

    def __init__(self, folder: Path, number: int, environment: dict[str, str], arguments: list[str]) -> None:
        self.log, self.exit = folder / f"log_{number}", None
        self.pid = os.fork()
        if not self.pid:
            os.environ.update(environment, RANK=str(number))
            sys.argv = ["train.py", str(folder), *arguments]
            _become_a_rank(self.log)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        if self.exit is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.exit = os.waitstatus_to_exitcode(status) if ended else None
        return self.exit

    def end(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _become_a_rank(log: Path) -> NoReturn:
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    code = 0
    try:
        runpy.run_path(str(HERE / "train.py"), run_name="__main__")
    except Exception as error:
        code, trace = 1, error.__traceback__
        while trace.tb_next and not trace.tb_frame.f_code.co_filename.endswith("train.py"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    sys.stderr.flush()
    os._exit(code)


def record(fault: str, ranks: int, at: int) -> dict[str, Any]:
    """What such a job leaves, for each rank: its log, its stack, its record and its exit code, None if it has hung."""
    two = fault.endswith("first")
    who = 0 if two else at % ranks
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = [Rank(folder, number, world, [fault, str(who), str(at)]) for number in range(ranks)]
        _let_it_come_to_rest(job)
        exits = [rank.poll() for rank in job]
        _ask(folder, [rank for rank, code in enumerate(exits) if code is None], job)
        left = [{**_left_by(folder, rank), "exit": exits[rank]} for rank in range(ranks)]
        for rank in job:
            rank.end()
    return {"fault": fault, "cause": CAUSES[fault], "guilty": [0, 1] if two else [who], "ranks": left}


def _let_it_come_to_rest(job: list[Rank]) -> None:
    """Until all ranks have ended, or all have begun and none has said a word or ended for some seconds."""
    before, since = None, time.monotonic()
    while any(rank.poll() is None for rank in job):
        logs = [rank.log.stat().st_size if rank.log.exists() else 0 for rank in job]
        now = (logs, [rank.poll() for rank in job])
        if now != before or not all(logs):
            before, since = now, time.monotonic()
        if time.monotonic() - since > AT_REST:
            return
        time.sleep(0.1)


def _ask(folder: Path, alive: list[int], job: list[Rank]) -> None:
    """Have those that live write down their stacks and records."""
    for rank in alive:
        os.kill(job[rank].pid, signal.SIGUSR1)
    (folder / "asked").touch()
    while not all((folder / f"record_{rank}").exists() and _read(folder / f"stack_{rank}") for rank in alive):
        time.sleep(0.1)


def _left_by(folder: Path, rank: int) -> dict[str, str]:
    return {name: _shorten(_read(folder / f"{name}_{rank}")) for name in PARTS}


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _shorten(text: str) -> str:
    """Without what only this machine knows: its folders and ports; and with @ for the number of the rank."""
    text = text.replace(sysconfig.get_path("purelib") + "/", "").replace(f"{HERE}/", "")
    text = re.sub(r"\[127\.0\.0\.1\]:\d+", "[10.0.0.1]:29400", text)
    text = re.sub(r"^\[W.*\n", "", text, flags=re.M)
    text = re.sub(r'  File "<frozen runpy>.*', "", text, flags=re.S)  # what called train.py
    return re.sub(r"^\[rank\d+\]", "[rank@]", text, flags=re.M)


def _tells_enough(job: dict[str, Any]) -> bool:
    """Whether the cause can be told: of two calls that did not fit, gloo may abort the one that tells."""
    return job["cause"] == "died" or all(job["ranks"][rank]["record"] for rank in job["guilty"])


def main() -> None:
    jobs = [job for job in (record(*job) for job in tqdm(JOBS, desc="jobs")) if _tells_enough(job)]
    texts = sorted({each[name] for job in jobs for each in job["ranks"] for name in PARTS})  # each is kept once
    for job in jobs:
        job["ranks"] = [[each["exit"], *(texts.index(each[name]) for name in PARTS)] for each in job["ranks"]]
    KEPT.write_text(json.dumps({"texts": texts, "jobs": jobs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
