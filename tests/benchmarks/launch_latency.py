"""How long until n ranks have met in one all-reduce: `launch` beside the launchers people use.

Each contender runs the same function from a fresh Python process that has imported torch, as a notebook has. Rounds
alternate between the contenders, so that a noisy minute hits them all.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

from tests.benchmarks.table import table, write_section

RANKS, ROUNDS = (2, 4, 8), 3
PREAMBLE = """
import contextlib, json, os, socket, subprocess, sys, time
import torch, torch.distributed as dist
n = int(sys.argv[1])

def meet():
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()

def meet_in_own_group():
    dist.init_process_group("gloo")
    meet()
    dist.destroy_process_group()

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])

def spawned(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(n))
    meet_in_own_group()

def accelerated():
    from accelerate.state import PartialState
    PartialState(cpu=True)
    meet()
"""
MEASURE = """
if __name__ == "__main__" and "RANK" not in os.environ:
    began = time.monotonic()
    with contextlib.redirect_stdout(sys.stderr):
        go()
    print(json.dumps(time.monotonic() - began))
"""
LAUNCH = """
from course_lib import launch
go = lambda: launch(meet, ranks=n)
"""
# The imports are in each script's head, before the clock starts. A warm launch is the second one.
CONTENDERS = {
    "launch, warm": LAUNCH + 'if __name__ == "__main__":\n    go()\n',
    "launch, first time": LAUNCH,
    "accelerate.notebook_launcher": """
from accelerate import notebook_launcher
go = lambda: notebook_launcher(accelerated, num_processes=n, use_port=free_port())
""",
    "torch.multiprocessing.spawn": """
import torch.multiprocessing as mp
go = lambda: mp.spawn(spawned, args=(free_port(),), nprocs=n)
""",
    "torchrun": """
command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
go = lambda: subprocess.run([*command, __file__, str(n)], check=True, capture_output=True)
if "RANK" in os.environ:
    meet_in_own_group()
""",
    "torchrunx": """
import torchrunx
go = lambda: torchrunx.Launcher(hostnames=["localhost"], workers_per_host=n, backend="gloo").run(meet)
""",
}


def measure(code: str, ranks: int) -> float:
    """Return the seconds that one contender took, in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "contender.py")
        script.write_text(PREAMBLE + code + MEASURE)
        command = [sys.executable, script, str(ranks)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"the contender failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure, print and write the table."""
    seconds: dict[tuple[str, int], list[float]] = {(name, n): [] for name in CONTENDERS for n in RANKS}
    for name, ranks in tqdm([key for _ in range(ROUNDS) for key in seconds], desc="launches"):
        seconds[name, ranks].append(measure(CONTENDERS[name], ranks))
    median = {key: statistics.median(values) for key, values in seconds.items()}
    rows = []
    for name in CONTENDERS:
        ratio = f"{median[name, 4] / median['launch, warm', 4]:.1f} x"
        rows.append([name, *(f"{median[name, n]:.2f}" for n in RANKS), ratio])
    about = (
        "Seconds until n ranks have started, met in one all-reduce and returned; "
        f"median of {ROUNDS} rounds, each in a fresh process with torch imported."
    )
    head = " | ".join(["launcher", *(f"{n} ranks" for n in RANKS), "4 ranks, against warm `launch`"])
    write_section("Launch latency", about, table(head, rows))


if __name__ == "__main__":
    main()
