"""How long until n ranks have met in one all-reduce: `launch` beside the launchers people use.

Each contender runs the same function from a fresh Python process that has imported torch, as a notebook
has. Rounds alternate between the contenders, so that a noisy minute hits them all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

from tests.bench.table import describe_machine, write_section

RANKS = (2, 4, 8)
PREAMBLE = """
import json, os, sys, time
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

def timed(go):
    began = time.monotonic()
    go()
    return time.monotonic() - began
"""
COLD = """
from course_lib import launch
if __name__ == "__main__":
    print(json.dumps(timed(lambda: launch(meet, ranks=n))))
"""
WARM = """
from course_lib import launch
if __name__ == "__main__":
    launch(meet, ranks=n)
    print(json.dumps(timed(lambda: launch(meet, ranks=n))))
"""
SPAWN = """
import torch.multiprocessing as mp
def rank_main(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(n))
    meet_in_own_group()
def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
if __name__ == "__main__":
    print(json.dumps(timed(lambda: mp.spawn(rank_main, args=(free_port(),), nprocs=n))))
"""
ACCELERATE = """
from accelerate import notebook_launcher
from accelerate.state import PartialState
def rank_main():
    PartialState(cpu=True)
    meet()
def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])
if __name__ == "__main__":
    from contextlib import redirect_stdout
    go = lambda: notebook_launcher(rank_main, num_processes=n, use_port=free_port())
    with redirect_stdout(sys.stderr):
        seconds = timed(go)
    print(json.dumps(seconds))
"""
TORCHRUNX = """
import torchrunx
if __name__ == "__main__":
    go = lambda: torchrunx.Launcher(hostnames=["localhost"], workers_per_host=n, backend="gloo").run(meet)
    print(json.dumps(timed(go)))
"""
TORCHRUN = """
import subprocess, tempfile
if __name__ == "__main__":
    if "RANK" in os.environ:
        meet_in_own_group()
    else:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
        print(json.dumps(timed(lambda: subprocess.run([*command, __file__, str(n)], check=True, capture_output=True))))
"""
CONTENDERS = {
    "launch, warm": WARM,
    "launch, first time": COLD,
    "accelerate.notebook_launcher": ACCELERATE,
    "torch.multiprocessing.spawn": SPAWN,
    "torchrun": TORCHRUN,
    "torchrunx": TORCHRUNX,
}


def measure(code: str, ranks: int) -> float:
    """Seconds that one contender took, in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "contender.py")
        script.write_text(PREAMBLE + code)
        done = subprocess.run(
            [sys.executable, script, str(ranks)], cwd=folder, capture_output=True, text=True, timeout=300
        )
    if done.returncode:
        raise RuntimeError(f"the contender failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    seconds: dict[tuple[str, int], list[float]] = {(name, n): [] for name in CONTENDERS for n in RANKS}
    for name, ranks in tqdm([key for _ in range(rounds) for key in seconds], desc="launches"):
        seconds[name, ranks].append(measure(CONTENDERS[name], ranks))
    median = {key: statistics.median(values) for key, values in seconds.items()}
    write_section("Launch latency", _table(median, rounds))


def _table(median: dict[tuple[str, int], float], rounds: int) -> str:
    lines = [
        "Seconds until n ranks have started, met in one all-reduce and returned; "
        f"median of {rounds} rounds, each in a fresh process with torch imported.",
        "",
        f"On {describe_machine()}.",
        "",
        "| launcher | " + " | ".join(f"{n} ranks" for n in RANKS) + " | 4 ranks, against warm `launch` |",
        "|---|" + "--:|" * (len(RANKS) + 1),
    ]
    warm = median["launch, warm", 4]
    for name in CONTENDERS:
        cells = [f"{median[name, n]:.2f}" for n in RANKS]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {median[name, 4] / warm:.1f} x |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
