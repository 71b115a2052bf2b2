"""`course train` on four NCCL ranks, with every strategy: killed, resumed, and equal to the last bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import wait_until

pytestmark = pytest.mark.usefixtures("over_nccl")
RANKS = 4
OPTIONS = {"accumulation": ["micro_batches=2"], "hybrid": ["replicas=2"], "zero": ["replicas=1", "shards=2"]}
RUN = ["--updates", "24", "--every", "4", "--batch", "32", "--hidden", "16", "--layers", "4", "--seed", "3"]


def train(folder, name: str, *more: str, ranks: int = RANKS) -> subprocess.Popen:
    ranks = 1 if name == "single" else ranks
    strategy = "hybrid" if name == "zero" else name
    command = [sys.executable, "-m", "course_lib", "train", strategy, *OPTIONS.get(name, []), "--ranks", str(ranks)]
    command += ["--backend", "nccl", "--checkpoint", "saved", "--log", "run.jsonl", *RUN, *more]
    (folder).mkdir(exist_ok=True)
    with (folder / "said").open("a") as said:
        return subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, start_new_session=True)


def train_to_its_end(folder, name: str, *more: str) -> None:
    """Trains, and again if the GPU is not ready yet: MPS needs a moment after a client was killed."""
    for _ in range(5):
        if train(folder, name, *more).wait(120) == 0:
            return
        if "busy or unavailable" not in (folder / "said").read_text():
            break
    pytest.fail((folder / "said").read_text())


def losses(folder) -> dict[int, float]:
    records = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    return {record["update"]: record["loss"] for record in records if "update" in record}


@pytest.mark.parametrize(
    "name", ["single", "ddp", "accumulation", "model", "tensor", "pipeline", "hybrid", "zero", "fsdp"]
)
def test_killed_and_resumed_it_has_the_losses_of_a_run_that_was_not(tmp_path, monkeypatch, name):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    first = train(killed, name)
    assert wait_until(lambda: any((killed / "saved").glob("update-????????")), 120), (killed / "said").read_text()
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    with ThreadPoolExecutor() as together:
        running = [
            together.submit(train_to_its_end, whole, name),
            together.submit(train_to_its_end, killed, name, "--resume"),
        ]
    for each in running:
        each.result()
    assert losses(killed) == losses(whole)


@pytest.mark.parametrize(
    ("saved_by", "loaded_by", "ranks"),
    [
        ("pipeline", "ddp", 2),
        ("ddp", "hybrid", 8),
        ("fsdp", "tensor", 2),
        ("hybrid", "fsdp", 4),
        ("tensor", "model", 2),
        ("zero", "pipeline", 2),
        ("fsdp", "zero", 8),
    ],
)
def test_another_strategy_on_other_ranks_goes_on_from_a_checkpoint(tmp_path, saved_by, loaded_by, ranks):
    """Sums are added up in another order: the losses are near, and no longer the same to the last bit."""
    moved = tmp_path / "moved"
    whole, first = train(tmp_path / "whole", saved_by), train(moved, saved_by, "--updates", "8")
    assert first.wait(180) == 0, (moved / "said").read_text()
    assert train(moved, loaded_by, "--resume", ranks=ranks).wait(180) == 0, (moved / "said").read_text()
    assert whole.wait(180) == 0, (tmp_path / "whole" / "said").read_text()
    assert losses(moved) == pytest.approx(losses(tmp_path / "whole"), rel=1e-3)
