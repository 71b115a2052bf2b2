"""What a checkpoint costs the training: `python -m tests.benchmarks.checkpoints`.

An update without a save, one with `save_checkpoint` behind it, and updates while the same is written in the background.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial

import torch
import torch.distributed as dist

from course_lib import device, launch
from course_lib.core.batch import Batch
from course_lib.core.model import cross_entropy, lstm_model
from course_lib.data_parallel.ddp import DDP
from course_lib.train.checkpoint.files import Position, latest_checkpoint
from course_lib.train.checkpoint.save_and_load import BackgroundSaver, save_checkpoint
from tests.benchmarks.table import table, write_section

WORDS, SAVES = 10_000, 5
ON_A_GPU = {"hidden": 2048, "layers": 4, "sequences": 128, "steps": 64}
ON_A_CPU = {"hidden": 128, "layers": 2, "sequences": 16, "steps": 16}


def measure(folder: str, hidden: int, layers: int, sequences: int, steps: int) -> dict[str, float]:
    """Return milliseconds, medians of several, and the bytes of a checkpoint."""
    torch.manual_seed(0)
    model = lstm_model(vocabulary=WORDS, hidden=hidden, layers=layers)
    strategy = DDP(model, partial(torch.optim.Adam, lr=1e-3), cross_entropy)
    words = torch.randint(0, WORDS, (steps, sequences))
    lengths, mask = torch.full((sequences,), steps), torch.ones((steps, sequences), dtype=torch.bool)
    batch = Batch(words, words, lengths, mask).to(device())

    def update() -> float:
        began = time.perf_counter()
        strategy.step(batch)[0].item()
        return since(began)

    def since(began: float) -> float:
        return 1e3 * (time.perf_counter() - began)

    alone = [update() for _ in range(25)][5:]
    at_once, begins, beside, whole = [], [], [], []
    for number in range(SAVES):
        began = time.perf_counter()
        save_checkpoint(strategy, folder, Position(1 + number))
        at_once.append(since(began))
        update()
    with BackgroundSaver() as saver:
        for number in range(SAVES):
            began = time.perf_counter()
            saver.save(strategy, folder, Position(1 + SAVES + number))
            begins.append(since(began))
            while on_any_rank(saver.is_writing()):
                beside.append(update())
            saver.wait()
            whole.append(since(began))
    latest = latest_checkpoint(folder)
    assert latest is not None
    return {
        "update": statistics.median(alone),
        "save": statistics.median(at_once),
        "begin": statistics.median(begins),
        "beside": statistics.median(beside) if beside else float("nan"),
        "whole": statistics.median(whole),
        "bytes": sum(file.stat().st_size for file in latest.iterdir()),
    }


def on_any_rank(here: bool) -> bool:
    flag = torch.tensor(int(here), device=device())
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


def main() -> None:
    """Measure, print and write the table."""
    on_gpu, rows = torch.cuda.is_available(), []
    size = ON_A_GPU if on_gpu else ON_A_CPU
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            found = launch(partial(measure, folder, **size), ranks=ranks, timeout=None)[0]
        sums = [found["update"], found["update"] + found["save"], found["update"] + found["begin"]]
        times = [f"{milliseconds:.1f}" for milliseconds in (*sums, found["beside"], found["whole"])]
        rows.append([ranks, f"{found['bytes'] / 1e6:.0f}", *times])
    about = (
        f"{size['layers']} layers of {size['hidden']}, {size['sequences']} x {size['steps']} tokens, Adam, float32; "
        "medians, in ms. Two ranks share a GPU where there is one."
    )
    head = "ranks | MB | update | update + save | update + begin | update while it is written | until it is whole"
    write_section("Checkpoints (GPU)" if on_gpu else "Checkpoints", about, table(head, rows))


if __name__ == "__main__":
    main()
