"""What Accelerate and Lightning do with two ranks is our data parallelism: the same weights after every epoch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.core.adding import AddingProblem
from course_lib.core.model import lstm_model, squared_error
from course_lib.data_parallel.ddp import DDP

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "trainers"
SCRIPTS = {"accelerate": "accelerate_loop.py", "lightning": "lightning_trainer.py"}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
BATCH, SEQUENCES = 8, 32  # of both ranks together


def ours() -> dict[str, torch.Tensor]:
    """Our own DDP, on the same global batches in the same order."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    data = AddingProblem(SEQUENCES, lengths=(6, 6), dtype=torch.float64)
    model = lstm_model(features=2, hidden=6, layers=1, outputs=1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    strategy = DDP(model, partial(torch.optim.SGD, lr=0.1), squared_error)
    for start in range(0, SEQUENCES, BATCH):
        strategy.step(data.batch(range(start, start + BATCH)))
    after = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert max((after[name] - before[name]).abs().max() for name in after) > 1e-3, "nothing was trained"
    return after if dist.get_rank() == 0 else {}


@pytest.fixture(scope="module")
def our_weights() -> dict[str, torch.Tensor]:
    return launch(ours, ranks=2, timeout=300)[0]


@pytest.mark.parametrize("library", SCRIPTS)
@pytest.mark.timeout(400)
def test_two_ranks_end_with_the_weights_of_our_own_ddp(library, our_weights, tmp_path):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed here: pip install {library}")
    result = tmp_path / "weights.pt"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *TORCHRUN, str(FOLDER / SCRIPTS[library]), str(result)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=350, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    theirs = torch.load(result, weights_only=True)
    assert theirs.keys() == our_weights.keys()
    off = max((theirs[name] - our_weights[name]).abs().max().item() for name in theirs)
    assert off < 1e-10
