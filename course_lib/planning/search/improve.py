"""Make an order better by moving single actions."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from course_lib.planning.search.problem import ROUNDING, Problem, Rows

WARMTH = 0.03  # by which share of its time an order may become worse at first, to get out of a dead end


def improved(
    problem: Problem, rows: Rows, tries: int, chance: Random, enough: float, go_on: Callable[[int], bool]
) -> tuple[float, Rows]:
    """The best order found in so many tries, and its time. A move that makes it worse is taken ever more rarely."""
    rows = [list(row) for row in rows]
    best, best_rows = _time(problem, rows), [list(row) for row in rows]
    now = best
    for number in range(tries):
        if best <= enough + ROUNDING or not go_on(1):
            break
        stage, old = _moved(problem, rows, chance)
        if old is None:
            continue
        time = _time(problem, rows)
        if time <= now + WARMTH * best * (1 - number / tries) * chance.random() ** 2:
            now = time
            if time < best - ROUNDING:
                best, best_rows = time, [list(row) for row in rows]
        else:
            rows[stage] = old
    return best, best_rows


def _time(problem: Problem, rows: Rows) -> float:
    ends = problem.ends(rows)
    return float("inf") if ends is None else max(ends)


def _moved(problem: Problem, rows: Rows, chance: Random) -> tuple[int, list[int] | None]:
    """Move an action of some stage within its row. Returns the stage, and its row as it was; None if nothing moved."""
    stage = chance.randrange(len(rows))
    row = rows[stage]
    place = chance.randrange(len(row))
    step = row[place]
    needed, followers = problem.needs[step], problem.followers[step]
    first, last = place, place
    while first and row[first - 1] not in needed:
        first -= 1
    while last + 1 < len(row) and row[last + 1] not in followers:
        last += 1
    goal = chance.randint(first, last)
    new = row[:place] + row[place + 1 :]
    new.insert(goal, step)
    if goal == place or not problem.fits(new):
        return stage, None
    rows[stage] = new
    return stage, row
