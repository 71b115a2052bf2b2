"""Ranks that stay between cells: `%%ranks` beside the nbdistributed extension, in one run.

Each contender gets the same cells in an IPython shell of its own: a first cell, cells with an all-reduce, a tensor of
100 MB. nbdistributed loses a cell that comes before its workers are there, and waits for it for 30 s; so it is measured
"at best": with a user who knows when they are there.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.table import table, write_section

MEGABYTES, CELLS = 100, 20
BEFORE = """
import json, sys, time
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance()
GOOD = "together = torch.ones(1); dist.all_reduce(together); int(together.item()) * 1111"

def cell(text):
    with capture_output() as got:
        done = shell.run_cell(text)
    return got.stdout + got.stderr + repr(done.result)

def works():
    return cell(HEAD + GOOD).count("2222") >= 2

def timed(go):
    began = time.monotonic()
    value = go()
    return time.monotonic() - began, value
"""
AFTER = """
found = {}
load()
found["first"] = timed(first_cell)[0]
found["since_start"] = time.time() - float(sys.argv[3])
import torch  # what is pulled is a tensor
cells = sorted(timed(works) for _ in range(int(sys.argv[1])))
assert all(worked for _, worked in cells), "a cell did not work"
found["cell"] = cells[len(cells) // 2][0]
cell(HEAD + f"big = torch.zeros({sys.argv[2]} * 250_000)")
found["pull"], size = timed(lambda: pull("big").nbytes)
assert size == int(sys.argv[2]) * 1_000_000, size
print(json.dumps(found), flush=True)
end()
"""
OURS = """
HEAD = "%%ranks\\n"
def load():
    shell.run_line_magic("load_ext", "course_lib")
def first_cell():
    return cell("%%ranks 2\\n" + GOOD).count("2222") >= 2
def pull(name):
    return shell.user_ns["team"][1][name]
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
    shell.run_line_magic("dist_init", "-n 2")
    while True:
        try:
            manager()._comm_manager.send_to_all("get_status", {}, timeout=0.1)
            return works()
        except TimeoutError:
            pass
def manager():
    return shell.magics_manager.registry["DistributedMagic"]
def pull(name):
    return manager()._comm_manager.send_to_ranks([1], "get_var", name)[1]["value"]
def end():
    for process in manager()._process_manager.processes:
        process.kill()
        process.wait()
    manager()._comm_manager.running = False
"""


def measure(contender: str) -> dict[str, float]:
    """Run one contender in a fresh process, and return what was measured, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        harmless = Path(folder, "pkill")  # nbdistributed ends workers with `pkill -f`, which must not reach others'
        harmless.write_text("#!/bin/sh\n")
        harmless.chmod(0o755)
        script = Path(folder, "contender.py")
        script.write_text(BEFORE + contender + AFTER)
        path = os.pathsep.join([folder, str(Path(sys.executable).parent), os.environ["PATH"]])
        command = [sys.executable, script, str(CELLS), str(MEGABYTES), str(time.time())]
        environment = {**os.environ, "PATH": path, "IPYTHONDIR": folder, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"the contender failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"first"')))


def main() -> None:
    """Measure, print and write the table."""
    rounds = [[measure(contender) for contender in (OURS, THEIRS)] for _ in range(3)]  # in turn
    ours, theirs = (
        {key: statistics.median(found[key] for found in runs) for key in runs[0]} for runs in zip(*rounds, strict=True)
    )
    rows = []
    for text, key, unit in (
        ("`%load_ext` done: two ranks started, first cell done, s", "first", 1),
        ("from the start of the process, s", "since_start", 1),
        ("a cell with an all-reduce, ms (median)", "cell", 1000),
        (f"pulling a tensor of {MEGABYTES} MB, s", "pull", 1),
    ):
        cells = [f"{each[key] * unit:.3g}" for each in (ours, theirs)]
        rows.append([text, *cells, f"{theirs[key] / ours[key]:.1f}"])
    about = "Ranks that stay alive between cells, in IPython; two ranks over gloo. Medians of three runs, in turn."
    write_section("Live ranks", about, table(" | `%%ranks` | nbdistributed 0.1.0 | ratio", rows))


if __name__ == "__main__":
    main()
