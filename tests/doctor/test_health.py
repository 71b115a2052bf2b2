"""Ranks are measured before a run, and the one that is slow is named: only that one."""

from __future__ import annotations

import json
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

from course_lib import launch, machine
from course_lib.cli import main
from course_lib.doctor import measuring
from course_lib.doctor.health import Complaint, Health, Plan, RankHealth, complaints, health_text, measure_rank
from course_lib.doctor.measuring import DeviceRates, PairTimes, Reading, pairs_of, read_share
from course_lib.launchers.process.progress_bar import Step
from tests.conftest import PATIENCE

QUICK = Plan(tries=2, rounds=2)
MANY_TIMES = 8  # as much work as the others do
DELAY = 0.06  # seconds: some hundred times what a message takes


def with_slow_products(slow: int) -> RankHealth:
    if dist.get_rank() == slow:
        multiply = measuring.multiply
        measuring.multiply = lambda matrix, products: multiply(matrix, MANY_TIMES * products)
    return measure_rank(QUICK)


def with_slow_link(slow: int) -> RankHealth:
    if dist.get_rank() == slow:
        send = measuring.send

        def late(message: torch.Tensor, other: int) -> None:
            time.sleep(DELAY)
            send(message, other)

        measuring.send = late
    return measure_rank(replace(QUICK, rounds=1))


def health_of(measure: Callable[..., RankHealth], *arguments: object, ranks: int = 4) -> Health:
    return Health(list(launch(measure, *arguments, ranks=ranks, timeout=None)))


def one_complaint(measure: Callable[..., RankHealth], slow: int) -> Complaint:
    """About that rank alone. On a busy machine others are slow at times, too: then it is measured again."""
    for _ in range(5):
        found = complaints(health_of(measure, slow))
        if [each.ranks for each in found] == [(slow,)]:
            break
    (only,) = found
    assert only.ranks == (slow,)
    return only


def test_a_rank_whose_products_are_slow_is_named() -> None:
    found = one_complaint(with_slow_products, 2)
    assert found.sentence.startswith("Rank 2 is slow (")
    assert "its matmuls run at" in found.sentence


@pytest.mark.slow
def test_a_rank_whose_messages_are_late_is_named() -> None:
    found = one_complaint(with_slow_link, 1)
    assert found.sentence.startswith("Rank 1 has slow links: the best of its 3 links within its machine takes")


def test_where_nobody_is_slow_nobody_is_named_and_all_pairs_are_measured() -> None:
    for _ in range(5):  # a busy machine may slow one of them down
        health = health_of(measure_rank, QUICK)
        if not complaints(health):
            break
    assert complaints(health) == []
    assert list(health.links) == pairs_of(4)
    assert all(each.device.operations > 1e6 and each.device.copied > 1e6 for each in health.ranks)
    for size, measured, predicted in health.all_reduces():
        assert size >= 4096
        assert measured > 0
        assert predicted > 0
    text = health_text(health)
    for words in ("matmul", "latency in microseconds", "bandwidth in GB/s", "predicted", "No rank stands out."):
        assert words in text


def made_up(hosts: str = "0000", **of_pairs: PairTimes) -> Health:
    """All alike: 1 GFLOP/s, 1 GB/s, links of 10 microseconds and of 1 ms for 1 MiB."""
    ranks = len(hosts)
    rates = [DeviceRates(f"host{host}", "CPU", 1, 1e9, 1e9) for host in hosts]
    pairs = [of_pairs.get(f"pair_{a}_{b}", usual((a, b))) for a, b in pairs_of(ranks)]
    return Health(
        [
            RankHealth(rank, rates[rank], 0.0, [p for p in pairs if p.ranks[0] == rank], [(4096, 1e-3)], False)
            for rank in range(ranks)
        ]
    )


def usual(pair: tuple[int, int], times: float = 1.0) -> PairTimes:
    return PairTimes(pair, 1 << 20, 1e-5 * times, 2e-5 * times, 1e-3 * times, 2e-3 * times)


def test_one_slow_link_is_named_by_its_two_ends() -> None:
    (found,) = complaints(made_up(pair_1_3=usual((1, 3), 50)))
    assert found.ranks == (1, 3)
    assert found.sentence.startswith("The link between ranks 1 and 3 takes 500 µs for a small message, others 20 µs")


def test_a_link_to_another_machine_is_compared_with_its_like() -> None:
    of_rank_3 = {f"pair_{a}_{b}": usual((a, b), 50) for a, b in pairs_of(4) if b == 3}
    assert [found.ranks for found in complaints(made_up("0000", **of_rank_3))] == [(3,)]
    assert complaints(made_up("0001", **of_rank_3)) == []


def test_a_busy_machine_makes_nobody_slow() -> None:
    disturbed = replace(usual((0, 1)), typical_small=1.0, typical_large=1.0)
    assert complaints(made_up(pair_0_1=disturbed)) == []


def test_gpus_of_their_own_are_held_to_more() -> None:
    def with_rates(name: str) -> Health:
        ranks = made_up().ranks
        slower = replace(ranks[1].device, operations=0.7e9)
        rates = [slower if each.rank == 1 else each.device for each in ranks]
        return Health([replace(each, device=replace(rates[each.rank], name=name)) for each in ranks])

    assert complaints(with_rates("CPU")) == []
    (found,) = complaints(with_rates("NVIDIA H200"))
    assert "Rank 1 is slow (NVIDIA H200 on host0): its matmuls run at 0.7 GFLOP/s" in found.sentence
    assert "the others' at 1 (the median), 1.4 times as fast" in found.sentence


def test_who_cannot_read_the_data_is_named() -> None:
    ranks = [replace(each, reading=Reading(1 << 25, 0.1, 0.1)) for each in made_up().ranks]
    slow = replace(ranks[0], reading=Reading(1 << 25, 1.0, 0.1))
    blind = replace(ranks[3], reading=Reading(trouble="data: there is no such file or folder"))
    (found,) = complaints(Health([*ranks[:3], blind]))
    assert found.sentence == "Rank 3 cannot read the data on host0: data: there is no such file or folder."
    (found,) = complaints(Health([slow, *ranks[1:]]))
    assert found.sentence == "Rank 0 reads slowly: 34 MB/s, the others 336 (the median)."


def test_the_ranks_read_every_byte_of_a_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    for number, size in enumerate((1000, 0, 37, 12_345)):
        (tmp_path / ("deep" if number % 2 else ".") / f"part{number}").write_bytes(bytes(size))
    files = measuring._files(tmp_path)
    assert sum(size for _, size in files) == 13_382
    stretches = [stretch for rank in range(3) for stretch in measuring._share(files, rank, 3)]
    for file, size in files:
        own = sorted((offset, length) for each, offset, length in stretches if each == file)
        ends = [0, *(offset + length for offset, length in own)]
        assert [offset for offset, _ in own] == ends[:-1]
        assert ends[-1] == size
    found = [read_share(str(tmp_path), rank, 3) for rank in range(3)]
    assert [each.size for each in found] == [4460, 4461, 4461]
    monkeypatch.setattr(measuring, "MAX_BYTES", 100)
    assert read_share(str(tmp_path), 0, 3).size == 100


def test_what_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    assert "there is no such file or folder" in read_share(str(tmp_path / "missing"), 0, 1).trouble
    assert "has no data" in read_share(str(tmp_path), 0, 1).trouble


def turns_on_one_gpu() -> tuple[float, float]:
    """As if the ranks shared a GPU: from when to when each was measured."""
    os.environ[machine.COUNTED_GPUS] = "1"
    began = measuring.in_turn(lambda: time.sleep(DELAY) or time.monotonic())
    return began - DELAY, began


def test_ranks_that_share_a_gpu_are_measured_one_after_the_other() -> None:
    first, second, third = launch(turns_on_one_gpu, ranks=3)
    assert first[1] <= second[0]
    assert second[1] <= third[0]


@pytest.mark.slow
def test_the_command_measures_draws_and_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "data").write_bytes(bytes(100_000))
    picture = tmp_path / "links.png"
    assert main(["doctor", "--ranks", "2", "--data", str(tmp_path / "data"), "--out", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "read again" in text
    assert "The kernel was asked to forget the files" in text
    assert "No rank stands out." in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_one_rank_is_measured_too() -> None:
    health = health_of(measure_rank, QUICK, ranks=1)
    assert "There is only one rank, so there is nothing to compare." in health_text(health)


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


def steps_of() -> list[str]:
    seen: list[Step] = []
    measure_rank(QUICK, show=seen.append)
    return [json.dumps([step.done, step.total, step.note]) for step in seen]


def test_a_bar_is_told_of_every_step_by_rank_0() -> None:
    told, silent = launch(steps_of, ranks=2, timeout=None)
    assert silent == []
    steps = [json.loads(each) for each in told]
    assert [done for done, _, _ in steps] == list(range(1, steps[0][1] + 1))
    assert {note for _, _, note in steps} == {"matmuls and copies", "links", "all-reduce"}
