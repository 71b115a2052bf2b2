"""How much of a long run on many GPUs is training, after failures, saves, restarts, slow nodes and the all-reduce.

`simulate_run` plays a run event by event. `expected_goodput` is the formula to compare it with: it is accurate while
failures are rare, and ignores failures during a save or a restart.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True)
class Fleet:
    """A job on `gpus` GPUs. All times are in seconds, except that failures are counted per GPU-hour."""

    gpus: int
    gpu_hours_per_failure: float
    save: float  # how long a checkpoint stops training
    restart: float  # from the failure to the first new update
    slower: float = 0.0  # how much longer a slow node computes: 0.1 is 10%. All others wait for it
    noticed: float = DAY  # how long a slow node slows the job before it is replaced, with a restart

    @property
    def between_failures(self) -> float:
        """The mean time from one failure to the next. With twice the GPUs, it is half as long."""
        return self.gpu_hours_per_failure * HOUR / self.gpus

    @property
    def best_interval(self) -> float:
        """Young's interval between two saves: the square root of 2 x save x time between failures."""
        return math.sqrt(2 * self.save * self.between_failures)


@dataclass
class Played:
    """What happened in a run, and where its seconds went."""

    seconds: float = 0.0
    useful: float = 0.0  # training that was saved
    repeated: float = 0.0  # training that a failure undid
    saving: float = 0.0
    restarting: float = 0.0
    waiting: float = 0.0  # for a slow node
    failures: int = 0
    replaced: int = 0  # slow nodes

    @property
    def goodput(self) -> float:
        """The share of the time that went into training that was saved."""
        return self.useful / self.seconds


def expected_goodput(fleet: Fleet, interval: float) -> float:
    """Return the goodput by the first-order formula: 1 minus the shares of saving, repeating and restarting."""
    return 1 - fleet.save / interval - (interval / 2 + fleet.restart) / fleet.between_failures


def simulate_run(fleet: Fleet, interval: float, days: float = 54, seed: int = 0) -> Played:
    """Play a run that saves after every `interval` seconds of training, event by event.

    Failures happen at random (a Poisson process), also during saves and restarts, which are then lost or begin again.
    With `slower`, nodes become slow as often as they fail. A slow node is replaced after `noticed` seconds: the job
    saves, stops and restarts without it.
    """
    if interval <= 0 or fleet.gpus < 1:
        raise ValueError(f"interval={interval}, gpus={fleet.gpus}: both must be positive")
    draw = random.Random(seed)
    played, end = Played(), days * DAY
    failure = draw.expovariate(1 / fleet.between_failures)
    slow_from = draw.expovariate(1 / fleet.between_failures) if fleet.slower else math.inf
    unsaved = 0.0  # seconds of training since the last save

    def pass_time(seconds: float) -> bool:
        """Let this much time pass, but only up to the next failure. Return whether all of it passed."""
        nonlocal failure
        if played.seconds + seconds <= failure:
            played.seconds += seconds
            return True
        played.seconds, played.failures = failure, played.failures + 1
        failure += draw.expovariate(1 / fleet.between_failures)
        return False

    while played.seconds < end:
        is_slow = played.seconds >= slow_from
        pace, changes_at = (1 + fleet.slower, slow_from + fleet.noticed) if is_slow else (1.0, slow_from)
        started_at, work = played.seconds, min(interval - unsaved, max((changes_at - played.seconds) / pace, 0.0))
        has_failed = not pass_time(work * pace)
        trained = (played.seconds - started_at) / pace
        unsaved, played.waiting = unsaved + trained, played.waiting + played.seconds - started_at - trained
        noticed = not has_failed and is_slow and played.seconds >= changes_at - 1e-6
        if noticed or (not has_failed and unsaved >= interval - 1e-6):  # otherwise, a node has just become slow
            started_at = played.seconds
            has_failed = not pass_time(fleet.save)
            played.saving += played.seconds - started_at
            if not has_failed:
                played.useful, unsaved = played.useful + unsaved, 0.0
        if noticed:
            played.replaced += 1
            slow_from = played.seconds + draw.expovariate(1 / fleet.between_failures)
        if noticed or has_failed:
            played.repeated, unsaved = played.repeated + unsaved, 0.0
            started_at = played.seconds
            while not pass_time(fleet.restart):
                pass
            played.restarting += played.seconds - started_at
    return played
