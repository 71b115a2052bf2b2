"""Ranks are measured before a run, and the one that is slow is named: only that one."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.clusters import health as measuring
from course_lib.clusters.health import Health, PairTimes, RankHealth, health_text, measure_rank, slow_ranks
from course_lib.command import main
from tests.conftest import PATIENCE

MANY_TIMES = 8  # as much work as the others do
DELAY = 0.06  # seconds: some hundred times what a message takes


def with_slow_products(slow: int) -> RankHealth:
    if dist.get_rank() == slow:
        multiply = measuring.multiply
        measuring.multiply = lambda matrix, products: multiply(matrix, MANY_TIMES * products)
    return measure_rank(tries=2, rounds=2)


def with_slow_link(slow: int) -> RankHealth:
    if dist.get_rank() == slow:
        exchange = measuring.exchange

        def late(operation: Callable, message: torch.Tensor, other: int) -> None:
            time.sleep(DELAY if operation is dist.isend else 0)
            exchange(operation, message, other)

        measuring.exchange = late
    return measure_rank(tries=2, rounds=1)


def health_of(measure: Callable[..., RankHealth], *arguments: object, ranks: int = 4) -> Health:
    return Health(list(launch(measure, *arguments, ranks=ranks, timeout=None)))


def the_slow_one(measure: Callable[..., RankHealth], slow: int) -> str:
    """What is said about that rank alone. On a busy machine others are slow at times, too: then we measure again."""
    for _ in range(5):
        found = slow_ranks(health_of(measure, slow))
        if list(found) == [slow]:
            break
    assert list(found) == [slow]
    return found[slow]


def test_a_rank_whose_products_are_slow_is_named() -> None:
    sentence = the_slow_one(with_slow_products, 2)
    assert sentence.startswith("Rank 2 is slow (CPU on ")
    assert "1 TFLOP of matmuls takes" in sentence


@pytest.mark.slow
def test_a_rank_whose_messages_are_late_is_named() -> None:
    assert "its fastest small message within its machine takes" in the_slow_one(with_slow_link, 1)


def test_where_nobody_is_slow_nobody_is_named_and_all_pairs_are_measured() -> None:
    for _ in range(5):  # a busy machine may slow one of them down
        health = health_of(measure_rank, 2, 2)
        if not slow_ranks(health):
            break
    assert slow_ranks(health) == {}
    assert list(health.links) == list(itertools.combinations(range(4), 2))
    assert all(each.operations > 1e6 and each.copied > 1e6 for each in health.ranks)
    for size, measured, predicted in health.all_reduces():
        assert size >= 4096
        assert measured > 0
        assert predicted > 0
    text = health_text(health)
    for words in ("matmul", "latency in microseconds", "bandwidth in GB/s", "predicted", "No rank stands out."):
        assert words in text


def made_up(hosts: str = "0000", slow_pairs: tuple[tuple[int, int], ...] = ()) -> Health:
    """All alike: 1 GFLOP/s, 1 GB/s, links of 10 µs and of 1 ms for 1 MiB; slow pairs take 50 times as long."""
    pairs = {pair: PairTimes(1 << 20, 1e-5, 1e-3) for pair in itertools.combinations(range(len(hosts)), 2)}
    pairs |= {pair: PairTimes(1 << 20, 5e-4, 5e-2) for pair in slow_pairs}
    return Health(
        [
            RankHealth(f"host{host}", "CPU", False, 1e9, 1e9, {p: pairs[p] for p in pairs if p[0] == rank}, [], False)
            for rank, host in enumerate(hosts)
        ]
    )


def test_a_link_to_another_machine_is_compared_with_links_to_other_machines() -> None:
    of_rank_3 = ((0, 3), (1, 3), (2, 3))
    (sentence,) = slow_ranks(made_up("0000", of_rank_3)).values()
    assert sentence == (
        "Rank 3 is slow (CPU on host0): its fastest small message within its machine takes 500 µs, "
        "the others' 10 µs (the median)."
    )
    assert slow_ranks(made_up("0001", of_rank_3)) == {}


def test_ranks_with_a_gpu_each_are_held_to_more() -> None:
    def with_rates(has_own_gpu: bool) -> Health:
        ranks = [replace(each, has_own_gpu=has_own_gpu) for each in made_up().ranks]
        return Health([ranks[0], replace(ranks[1], operations=0.7e9), *ranks[2:]])

    assert slow_ranks(with_rates(has_own_gpu=False)) == {}
    assert list(slow_ranks(with_rates(has_own_gpu=True))) == [1]


@pytest.mark.slow
def test_the_command_measures_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "links.png"
    status = main(["doctor", "--ranks", "2", "--out", str(picture)])
    assert ("No rank stands out." in capsys.readouterr().out) == (status == 0)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_one_rank_is_measured_too() -> None:
    assert "There is only one rank, so there is nothing to compare." in health_text(health_of(measure_rank, ranks=1))


@pytest.mark.slow
def test_torchruns_ranks_are_measured_by_the_same_command() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "-m", "course_lib", "doctor"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("No rank stands out.") == 1
