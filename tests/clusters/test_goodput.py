"""A long run, played event by event: its seconds add up, and where the formula holds, it agrees with it."""

from __future__ import annotations

import math
import statistics

import pytest

from course_lib.clusters.goodput import DAY, HOUR, Fleet, expected_goodput, simulate_run

LLAMA = Fleet(gpus=16_384, gpu_hours_per_failure=16_384 * 54 * 24 / 419, save=4.0, restart=600.0)


def test_without_failures_only_saving_costs():
    calm = Fleet(gpus=8, gpu_hours_per_failure=1e12, save=10.0, restart=600.0)
    played = simulate_run(calm, interval=90.0, days=1)
    assert (played.failures, played.repeated, played.restarting) == (0, 0.0, 0.0)
    assert played.goodput == pytest.approx(0.9)


@pytest.mark.parametrize("fleet", [LLAMA, Fleet(1024, 50_000, 30.0, 60.0, slower=0.1, noticed=HOUR)])
def test_every_second_is_accounted_for_once(fleet):
    played = simulate_run(fleet, interval=600.0, days=20)
    spent = played.useful + played.repeated + played.saving + played.restarting + played.waiting
    assert played.seconds - spent <= 600.0  # what was trained since the last save, when time was up
    assert played.seconds >= spent - 1e-3
    assert played.seconds == pytest.approx(20 * DAY, abs=2 * HOUR)


def test_failures_come_as_often_as_published():
    counts = [simulate_run(LLAMA, interval=300.0, seed=seed).failures for seed in range(20)]
    assert statistics.fmean(counts) == pytest.approx(419, abs=4 * math.sqrt(419 / 20))


@pytest.mark.parametrize("gpus", [256, 4096, 16_384])
def test_the_formula_agrees_where_failures_are_rare(gpus):
    fleet = Fleet(gpus, LLAMA.gpu_hours_per_failure, save=4.0, restart=600.0)
    runs = [simulate_run(fleet, fleet.best_interval, seed=seed).goodput for seed in range(12)]
    assert statistics.fmean(runs) == pytest.approx(expected_goodput(fleet, fleet.best_interval), abs=0.01)


def test_the_formula_promises_too_little_or_nothing_where_failures_are_as_quick_as_restarts():
    hopeless = Fleet(16_384 * 32, LLAMA.gpu_hours_per_failure, save=30.0, restart=600.0)
    assert expected_goodput(hopeless, hopeless.best_interval) < 0
    assert 0 < simulate_run(hopeless, hopeless.best_interval, days=5).goodput < 0.2


def test_youngs_interval_is_the_best_of_its_neighbors():
    def mean_goodput(interval: float) -> float:
        return statistics.fmean(simulate_run(LLAMA, interval, seed=seed).goodput for seed in range(8))

    best = LLAMA.best_interval
    assert mean_goodput(best) > max(mean_goodput(best / 8), mean_goodput(best * 8))


def test_a_slow_node_that_nobody_notices_slows_everybody():
    unnoticed = Fleet(16_384, LLAMA.gpu_hours_per_failure, 4.0, 600.0, slower=0.1, noticed=1000 * DAY)
    hour = Fleet(16_384, LLAMA.gpu_hours_per_failure, 4.0, 600.0, slower=0.1, noticed=HOUR)
    plain, never, soon = (simulate_run(fleet, 300.0) for fleet in (LLAMA, unnoticed, hour))
    assert never.replaced == 0
    assert never.goodput == pytest.approx(plain.goodput / 1.1, abs=0.02)
    assert soon.replaced > 100


def test_what_cannot_be_played_is_refused():
    with pytest.raises(ValueError, match="interval=0"):
        simulate_run(LLAMA, interval=0)
