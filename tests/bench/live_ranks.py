"""Ranks that stay between cells: `%%ranks` beside the nbdistributed extension, in one run.

Each contender gets the same cells in an IPython shell of its own: first cell, a cell with an all-reduce, a tensor of
100 MB, and ten faults. It has named a fault if its output has the rank to blame and the line of the cell. After a
fault, it gets a cell that communicates; if that does not work, it starts again.

    pip install nbdistributed
    python -m tests.bench.live_ranks
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.table import describe_machine, write_section

MEGABYTES = 100
FAULTS: dict[str, tuple[str, int, str]] = {  # code, the rank to blame, the line to show
    "one rank raises": ("if rank == 1:\n    raise ValueError('no data')", 1, "raise ValueError"),
    "one raises, the others wait": (
        "if rank == 1:\n    raise ValueError('no data')\ndist.barrier()",
        1,
        "raise ValueError",
    ),
    "one skips a collective": ("if rank != 1:\n    dist.all_reduce(x)", 1, "dist.all_reduce(x)"),
    "one calls it once more": ("if rank == 1:\n    dist.all_reduce(x)", 1, "dist.all_reduce(x)"),
    "another collective": (
        "if rank == 1:\n    dist.broadcast(x, 0)\nelse:\n    dist.all_reduce(x)",
        1,
        "dist.broadcast(x, 0)",
    ),
    "another shape": ("y = torch.ones(5 if rank == 1 else 4)\ndist.all_reduce(y)", 1, "dist.all_reduce(y)"),
    "all receive": ("dist.recv(x, (rank + 1) % world_size)", 0, "dist.recv(x"),
    "one is killed": (
        "import os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()",
        1,
        "SIGKILL",
    ),
    "one exits": ("import os\nif rank == 1:\n    os._exit(3)\ndist.barrier()", 1, "exit code 3"),
    "one never comes": ("while rank == 1:\n    pass\ndist.barrier()", 1, "while rank == 1:"),
}
# What both contenders run in. nbdistributed ends workers with `pkill -f`, which must not reach anybody else's.
DRIVER = """
import json, os, statistics, sys, time
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance()
faults, rounds, megabytes = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
GOOD = "together = torch.ones(1); dist.all_reduce(together); int(together.item()) * 1111"

def cell(text):
    with capture_output() as got:
        done = shell.run_cell(text)
    for error in (done.error_in_exec, done.error_before_exec):
        got._stdout.write(str(error) if error else "")
    if done.result is not None:
        got._stdout.write(repr(done.result))
    return got.stdout + got.stderr

def works():
    return cell(HEAD + GOOD).count("2222") >= 2

def timed(go):
    began = time.monotonic()
    value = go()
    return time.monotonic() - began, value

found = {}
load()
found["first"], found["began"] = timed(first_cell)
found["since_start"] = time.time() - float(sys.argv[4])
import torch  # what is pulled is a tensor
found["cells"] = [timed(works)[0] for _ in range(rounds)]
cell(HEAD + f"big = torch.zeros({megabytes} * 250_000)")
found["pull"], size = timed(lambda: pull("big").nbytes)
assert size == megabytes * 1_000_000, size
found["faults"] = {}
print(json.dumps(found), flush=True)
before_faults()
for name, code in faults.items():
    cell(HEAD + "x = torch.ones(4)")
    seconds, said = timed(lambda: cell(HEAD + code))
    lives = after_fault()
    found["faults"][name] = [seconds, said, lives]
    print(json.dumps(found), flush=True)
    if not lives:
        end()
        first_cell()
end()
"""
OURS = """
HEAD = "%%ranks --timeout 8\\n"
def load():
    shell.run_line_magic("load_ext", "course_lib")
def first_cell():
    return cell("%%ranks 2\\n" + GOOD).count("2222") >= 2
def pull(name):
    return shell.user_ns["team"][1][name]
def before_faults():
    pass
def after_fault():
    return works()
def end():
    cell("%ranks close")
"""
THEIRS = """
HEAD = "%%distributed\\n"
from nbdistributed.magic import DistributedMagic
def load():
    shell.register_magics(DistributedMagic)
    shell.run_line_magic("load_ext", "nbdistributed")
def first_cell():
    DistributedMagic._process_manager = DistributedMagic._comm_manager = None
    shell.run_line_magic("dist_init", "-n 2")
    return any(works() for _ in range(3))
def manager():
    return shell.magics_manager.registry["DistributedMagic"]
def pull(name):
    return manager()._comm_manager.send_to_ranks([1], "get_var", name)[1]["value"]
def before_faults():  # its time-out is 30 s, and there are several in a row
    from nbdistributed.communication import CommunicationManager
    CommunicationManager.send_to_all.__defaults__ = CommunicationManager.send_to_ranks.__defaults__ = (10.0,)
def after_fault():
    return works()
def end():
    for process in manager()._process_manager.processes:
        process.kill()
        process.wait()
    manager()._comm_manager.running = False
"""
# Its first cell is lost, and waited for 30 s, if the workers are not there yet. This is how fast it could be.
THEIRS_AT_BEST = f"""{THEIRS}
def first_cell():
    shell.run_line_magic("dist_init", "-n 2")
    while True:
        try:
            manager()._comm_manager.send_to_all("get_status", {{}}, timeout=0.1)
            return works()
        except TimeoutError:
            pass
"""


def measure(contender: str, rounds: int, *, faults: bool = True) -> dict[str, Any]:
    """Run one contender in a fresh process, and return what was measured, with or without the faults."""
    with tempfile.TemporaryDirectory() as folder:
        harmless = Path(folder, "pkill")
        harmless.write_text("#!/bin/sh\n")
        harmless.chmod(0o755)
        script = Path(folder, "contender.py")
        imports, rest = DRIVER.split("def works", 1)
        script.write_text(f"{imports}\n{contender}\ndef works{rest}")
        path = os.pathsep.join([folder, str(Path(sys.executable).parent), os.environ["PATH"]])
        codes = {name: code for name, (code, _, _) in FAULTS.items()} if faults else {}
        command = [sys.executable, script, json.dumps(codes), str(rounds), str(MEGABYTES), str(time.time())]
        environment = {**os.environ, "PATH": path, "IPYTHONDIR": folder, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=Path.cwd(), env=environment, capture_output=True, text=True, timeout=3000)
    if done.returncode:
        raise RuntimeError(f"the contender failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return json.loads([line for line in done.stdout.splitlines() if line.startswith('{"first"')][-1])


def is_named(name: str, said: str) -> bool:
    """Whether the output has the rank to blame, and the line of the cell (its text or number) or how the rank ended."""
    code, rank, line = FAULTS[name]
    number = next((at for at, text in enumerate(code.splitlines(), 1) if line in text), None)
    has_line = line in said or f'"<string>", line {number}' in said
    return f"rank {rank} " in said.lower().replace(":", " ") and has_line


def main() -> None:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="print times only; no faults, and no file is written")
    parser.add_argument("--raw", type=Path, help="also write everything that was said, as JSON")
    options = parser.parse_args()
    contenders = {"%%ranks": OURS, "nbdistributed": THEIRS}
    found = {name: measure(code, options.rounds, faults=not options.quick) for name, code in contenders.items()}
    contenders["at best"] = THEIRS_AT_BEST
    found["at best"] = measure(THEIRS_AT_BEST, options.rounds, faults=False)
    again = [{name: measure(code, options.rounds, faults=False) for name, code in contenders.items()} for _ in range(2)]
    for name, each in found.items():  # medians of three, in turns, so that a noisy minute hits all
        for key in ("first", "since_start", "pull"):
            each[key] = [each[key], *(more[name][key] for more in again)]
        each["cells"] += [seconds for more in again for seconds in more[name]["cells"]]
    if options.raw:
        options.raw.write_text(json.dumps(found, indent=1))
    if options.quick:
        return print("\n".join(_times(*found.values())))
    write_section("Live ranks", _tables(*found.values()))


def _times(ours: dict[str, Any], theirs: dict[str, Any], at_best: dict[str, Any]) -> list[str]:
    rows = [
        ("`%load_ext` done: two ranks started, first cell done, s", "first", 1, theirs),
        ("the same, with a user who knows when its workers are there, s", "first", 1, at_best),
        ("from the start of the process, s", "since_start", 1, theirs),
        ("the same, with that user, s", "since_start", 1, at_best),
        ("a cell with an all-reduce, ms (median)", "cells", 1000, theirs),
        (f"pulling a tensor of {MEGABYTES} MB, s", "pull", 1, theirs),
    ]
    lines = ["| | `%%ranks` | nbdistributed 0.1.0 | ratio |", "|---|--:|--:|--:|"]
    for text, key, unit, other in rows:
        pair = [_middle(each[key]) * unit for each in (ours, other)]
        lines.append(f"| {text} | {pair[0]:.3g} | {pair[1]:.3g} | {pair[1] / pair[0]:.1f} |")
    return lines


def _tables(ours: dict[str, Any], theirs: dict[str, Any], at_best: dict[str, Any]) -> str:
    lines = [
        "Ranks that stay alive between cells, in an IPython shell; two ranks over gloo.",
        "",
        f"On {describe_machine()}.",
        "",
        *_times(ours, theirs, at_best),
    ]
    lines += [
        "",
        "| fault | `%%ranks`: named, s | goes on | nbdistributed: named, s | goes on |",
        "|---|---|---|---|---|",
    ]
    for name in FAULTS:
        cells = []
        for each in (ours, theirs):
            seconds, said, lives = each["faults"][name]
            cells += [f"{'yes' if is_named(name, said) else 'no'}, {seconds:.1f}", "yes" if lives else "no"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    counts = [sum(is_named(name, each["faults"][name][1]) for name in FAULTS) for each in (ours, theirs)]
    return "\n".join([*lines, f"| all, named | {counts[0]} of {len(FAULTS)} | | {counts[1]} of {len(FAULTS)} | |"])


def _middle(value: float | list[float]) -> float:
    return sorted(value)[len(value) // 2] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
