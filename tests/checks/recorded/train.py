"""A job with one fault in it: `python train.py FOLDER FAULT RANK UPDATE`, with torchrun's variables in the environment.

It trains nothing, but makes the calls of a job that does. Rank RANK does something else at update UPDATE. Into FOLDER,
each rank writes its stack when it gets SIGUSR1, and what its flight recorder knows when it raises or is asked to.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

UPDATES = 5


def train(fault: str, odd: bool, at: int) -> None:
    weights = torch.zeros(8)
    dist.broadcast(weights, 0)
    for update in range(1, UPDATES + 1):
        now = odd and update == at
        print("update", update, flush=True)
        gradient = gradient_of(load(slow=now and fault == "busy"), broken=fault if now else "")
        if now and fault == "skips":
            continue
        if now and fault in ("gathers", "broadcasts", "is shorter", "receives alone"):
            another_call(fault, gradient)
        else:
            dist.all_reduce(gradient)
        if now and fault == "evaluates":
            evaluate(gradient)
        if fault in ("sends first", "receives first") and update == at:
            pass_on(gradient, first=fault.split()[0])
    print("done", flush=True)


def load(slow: bool) -> torch.Tensor:
    while slow:
        time.sleep(0.1)
    return torch.ones(8)


def gradient_of(batch: torch.Tensor, broken: str) -> torch.Tensor:
    if broken == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if broken == "raises":
        raise ValueError("a batch without sequences")
    if broken == "misses a file":
        Path("shards", "part_7").read_bytes()
    return batch * 2


def another_call(fault: str, gradient: torch.Tensor) -> None:
    if fault == "gathers":
        dist.all_gather([torch.empty(8) for _ in range(dist.get_world_size())], gradient)
    elif fault == "broadcasts":
        dist.broadcast(gradient, 0)
    elif fault == "receives alone":
        dist.recv(gradient, (dist.get_rank() + 1) % dist.get_world_size())  # which sends nothing
    else:
        dist.all_reduce(gradient[:6])


def evaluate(error: torch.Tensor) -> None:
    dist.all_reduce(error)


def pass_on(numbers: torch.Tensor, first: str) -> None:
    """Two neighbors, ranks 0 and 1, swap their numbers, and both begin at the same end."""
    if dist.get_rank() < 2:
        other = 1 - dist.get_rank()
        if first == "sends":
            dist.send(numbers, other)
            dist.recv(numbers, other)
        else:
            dist.recv(numbers, other)
            dist.send(numbers, other)


def write_record(path: Path) -> None:
    entries = pickle.loads(_dump_fr_trace(True, False, False))["entries"]
    lines = [f"{e['collective_seq_id']} {e['profiling_name']} {e['input_sizes'][0]}\n" for e in entries]
    path.with_suffix(".part").write_text("".join(lines))
    path.with_suffix(".part").rename(path)


def answer(folder: Path, path: Path) -> None:
    while not (folder / "asked").exists():
        time.sleep(0.05)
    write_record(path)


def main(folder: Path, fault: str, who: int, at: int) -> None:
    rank = int(os.environ["RANK"])
    record = folder / f"record_{rank}"
    faulthandler.register(signal.SIGUSR1, file=open(folder / f"stack_{rank}", "w"), all_threads=False)  # noqa: SIM115
    dist.init_process_group("gloo")
    threading.Thread(target=answer, args=(folder, record), daemon=True).start()
    try:
        train(fault, rank == who, at)
    finally:
        write_record(record)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
