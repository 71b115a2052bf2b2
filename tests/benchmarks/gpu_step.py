"""One update on one GPU, waited for: `Strategy.step` against bare PyTorch. `python -m tests.benchmarks.gpu_step`

Both train 4 LSTM layers with Adam and clipped gradients. Every update is waited for, so that what the host spends in
`step` shows. The second table has the most memory that PyTorch held, alone and with DDP.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from torch import nn

from course_lib import device, launch, trace
from course_lib.core.adding import AddingProblem
from course_lib.core.batch import Batch
from course_lib.core.model import lstm_model, squared_error
from course_lib.core.strategy import Single
from course_lib.data_parallel.ddp import DDP
from tests.benchmarks.table import alternate, table, write_section

LAYERS, STEPS, SEQUENCES = 4, 128, 128
SIZES = (256, 512, 1024, 2048)
ROUNDS, WARM_UP = 40, 8
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
WHAT = f"an update that is waited for: {LAYERS} layers, {SEQUENCES} sequences of {STEPS} steps, Adam, clipping"
BATCH = AddingProblem(SEQUENCES, (STEPS, STEPS)).batch(range(SEQUENCES))
Step = Callable[[Batch], object]


class BareModel(nn.Module):
    """What one writes without the course. A call for all layers, or one for each: ours must match the faster one."""

    def __init__(self, hidden: int, calls: int) -> None:
        super().__init__()
        self.way_in = nn.Linear(2, hidden)
        self.lstms = nn.ModuleList(nn.LSTM(hidden, hidden, LAYERS // calls) for _ in range(calls))
        self.way_out = nn.Linear(hidden, 1)
        with torch.no_grad():  # forget gates start open, as ours do: a GPU is faster where gradients have vanished
            for name, bias in self.named_parameters():
                if "bias_ih" in name or "bias_hh" in name:
                    bias[hidden : 2 * hidden] = float("bias_ih" in name)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.way_in(inputs)
        for lstm in self.lstms:
            outputs, _ = lstm(outputs)
        return self.way_out(outputs)


def bare(hidden: int, calls: int, precision: torch.dtype | None, ddp: bool) -> Step:
    """Return the shortest training step there is."""
    model: nn.Module = BareModel(hidden, calls).to(device())
    if ddp:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        with torch.autocast(device().type, precision) if precision else contextlib.nullcontext():
            answers = model(batch.inputs).float().squeeze(-1)
            loss = nn.functional.mse_loss(answers[-1], batch.targets[-1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def ours(hidden: int, precision: torch.dtype | None, ddp: bool) -> Step:
    """Return our strategy's step."""
    model = lstm_model(features=2, hidden=hidden, layers=LAYERS, outputs=1)
    adam = partial(torch.optim.Adam, lr=0.001)
    return (DDP if ddp else Single)(model, adam, squared_error, clip=1.0, autocast=precision).step


def times(hidden: int, precision: torch.dtype | None) -> list[float]:
    """Return the median seconds of an update: bare with one call, bare with a call per layer, ours, ours recorded."""
    batch = BATCH.to(device())
    recorded = ours(hidden, precision, ddp=False)

    def unrecorded(batch: Batch) -> None:
        with trace.paused():
            recorded(batch)

    steps = [*(bare(hidden, calls, precision, ddp=False) for calls in (1, LAYERS)), unrecorded, recorded]
    return alternate([partial(step, batch) for step in steps], ROUNDS, WARM_UP)


def memory(hidden: int, precision: torch.dtype | None, ddp: bool) -> list[str]:
    """Return the most MiB that PyTorch held: bare with one call, bare with a call per layer, ours."""
    kinds = [*(partial(bare, hidden, calls) for calls in (1, LAYERS)), partial(ours, hidden)]
    batch, most = BATCH.to(device()), []
    for kind in kinds:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step = kind(precision, ddp)
        for _ in range(3):
            step(batch)
        most.append(f"{torch.cuda.max_memory_allocated() / 2**20:,.0f}")
        del step
    return most


def main() -> None:
    """Measure, print and write the tables."""
    speed, held = [], []
    for hidden, (name, precision) in product(SIZES, PRECISIONS.items()):
        one, each, alone, recorded = launch(times, hidden, precision, ranks=1, timeout=None)[0]
        columns = [f"{1e3 * seconds:.2f}" for seconds in (one, each, alone, recorded)]
        ratios = [f"{min(one, each) / seconds:.3f}" for seconds in (alone, recorded)]
        speed.append([hidden, name, *columns[:3], ratios[0], columns[3], ratios[1]])
    for hidden, name, ddp in product(SIZES[-2:], PRECISIONS, (False, True)):
        most = launch(memory, hidden, PRECISIONS[name], ddp, ranks=1, timeout=None)[0]
        held.append([hidden, name, "ddp" if ddp else "single", *most])
    head = "hidden | precision | bare, one call | bare, one per layer | `step` | ratio | `step`, spans recorded | ratio"
    about = (
        f"Milliseconds of {WHAT}; the median of {ROUNDS} rounds in which all four take turns. The ratios are the "
        "faster bare loop's time over ours."
    )
    write_section("An update (GPU)", about, table(head, speed))
    head = "hidden | precision | strategy | bare, one call | bare, one per layer | `step`"
    write_section("Memory of an update (GPU)", f"The most MiB that PyTorch held in {WHAT}.", table(head, held))


if __name__ == "__main__":
    main()
