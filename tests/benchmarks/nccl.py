"""What NCCL does to several ranks: numbers, and what a real hang leaves behind. Made on a machine with a GPU, by

    python -m course_lib.launcher.jobs.shared_gpu python -m tests.benchmarks.nccl OUT

which needs `course_lib.launcher.jobs.shared_gpu` only where ranks share a GPU. It writes into the folder OUT:

    all_reduce.json          milliseconds of an all-reduce, by ranks and bytes
    hang/watchdog.log        what four ranks print when rank 2 leaves out an all-reduce, until they are stopped
    hang/flight_recorder_N   each rank's flight recorder, as PyTorch dumps it
    hang/torchfrtrace.txt    what PyTorch's own reader of these dumps says
    hang/ras.txt             what NCCL's RAS service answered while they hung
    trace_STRATEGY.json.gz   an update of four ranks under the profiler, with kernels: for ui.perfetto.dev
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_lib import device, launch
from course_lib.core.adding import AddingProblem
from course_lib.core.model import lstm_model, squared_error
from course_lib.runtime import machine
from course_lib.train.registry import STRATEGIES

RANKS = (2, 4, 8)
SIZES = (4 << 10, 256 << 10, 4 << 20, 64 << 20, 256 << 20)
RAS_PORT = 28028
HANG_SECONDS = 12  # PyTorch's timeout for a collective in the job that hangs
HANGING_JOB = Path(__file__).resolve().parents[2] / "docs" / "nccl" / "hang" / "job.py"


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    times = {str(ranks): launch(all_reduce_times, ranks=ranks)[0] for ranks in RANKS}
    found = {"device": torch.cuda.get_device_name(), "gpus": machine.gpus(), "milliseconds": times}
    found |= {"nccl": ".".join(map(str, machine.nccl_version())), "torch": torch.__version__}
    (out / "all_reduce.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    for name in ("ddp", "fsdp", "pipeline"):
        launch(one_update, name, ranks=4, timeout=120)  # kernels are loaded, and the GPU is warm
        path = out / f"trace_{name}.json"
        launch(one_update, name, ranks=4, profile=True, timeout=120).trace(path)
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()
    hang(out / "hang")


def all_reduce_times() -> dict[int, float]:
    """Bytes, and the median milliseconds of an all-reduce of that size."""
    times = {}
    for size in SIZES:
        message, taken = torch.zeros(size // 4, device=device()), []
        for _ in range(22):
            dist.all_reduce(torch.zeros(1))  # on the host: all begin together
            torch.cuda.synchronize()
            began = time.monotonic()
            dist.all_reduce(message)
            torch.cuda.synchronize()
            taken.append((time.monotonic() - began) * 1e3)
        times[size] = round(statistics.median(taken[2:]), 4)
    return times


def one_update(name: str) -> None:
    """An update of a strategy, large enough to see its kernels."""
    torch.manual_seed(0)
    strategy = STRATEGIES[name](
        lstm_model(features=2, hidden=512, layers=2, outputs=1), torch.optim.Adam, squared_error
    )
    strategy.step(strategy.share(AddingProblem(64, lengths=(16, 16)).batch(range(64))))
    torch.cuda.synchronize()


def hang(out: Path) -> None:
    """Run the job that hangs, ask NCCL about it meanwhile, and keep what it leaves behind."""
    out.mkdir(exist_ok=True)
    variables = {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(out.resolve() / "flight_recorder_"),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(HANGING_JOB)]
    with (out / "watchdog.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})
        time.sleep(HANG_SECONDS * 0.8 + 4)
        (out / "ras.txt").write_text(ask_ras())
        process.wait(timeout=180)
    for path in out.glob("flight_recorder_*"):
        path.write_bytes(pickle.dumps(with_short_paths(pickle.loads(path.read_bytes())), protocol=2))
    reader = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(out), "-p", "flight_recorder_"]
    said = subprocess.run(reader, capture_output=True, text=True)
    (out / "torchfrtrace.txt").write_text(said.stdout + said.stderr)
    for path in (out / "watchdog.log", out / "torchfrtrace.txt", out / "ras.txt"):
        path.write_text(without_this_machine(path.read_text()))


def ask_ras() -> str:
    """NCCL's answer to `verbose status`, which its `ncclras` command would print."""
    try:
        with socket.create_connection(("localhost", RAS_PORT), timeout=5) as connection:
            connection.sendall(b"verbose status\n")
            connection.settimeout(10)
            answer = b""
            while part := connection.recv(65536):
                answer += part
            return answer.decode()
    except OSError as error:
        return f"no answer: {error}\n"


def with_short_paths(found: Any) -> Any:
    """The same without the folders of files."""
    if isinstance(found, str):
        return re.sub(r"^/.*/(?=[\w.-]+\.py$)", "", found)
    if isinstance(found, dict):
        return {name: with_short_paths(value) for name, value in found.items()}
    return type(found)(map(with_short_paths, found)) if isinstance(found, (list, tuple)) else found


def without_this_machine(text: str) -> str:
    """The same without the names of this host and of its folders."""
    text = re.sub(r"\b\d+\.\d+\.\d+\.\d+\b", "10.0.0.1", text.replace(socket.gethostname(), "node1"))
    text = re.sub(r"(/[\w.+-]+)*/(site-packages/)?(?=torch/)", "", text)
    return re.sub(r"(/[\w.+-]+)+/(?=[\w.-]+)", "", text)


if __name__ == "__main__":
    main()
