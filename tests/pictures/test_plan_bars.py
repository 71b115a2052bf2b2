"""Plans as stacked bars: as long as their updates, and cut where the time goes."""

from __future__ import annotations

import re

import pytest

from course_lib import pictures
from course_lib.lstm import BatchSize, lstm_model
from course_lib.planning import Link, Network, Work, best_of_each_way, explain, plans
from tests.planning.tables import even_times

WORK = Work.of(lstm_model(features=2, hidden=16, layers=4, outputs=1), BatchSize(16, 32), even_times(0.3, 512))
MADE = best_of_each_way(plans(WORK, 4, Network.flat(Link(1e-3, 1e5)), micro_batches=(1, 4)))


def test_a_bar_is_as_long_as_the_update_and_the_words_say_where_it_goes():
    picture = pictures.plan_bars(MADE)
    boxes = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="24"', picture.shapes)
    rows = {float(y): [] for _, y, _ in boxes}
    for x, y, width in boxes:
        rows[float(y)] += [float(x), float(x) + float(width)]
    lengths = [max(ends) - min(ends) for ends in rows.values()]
    longest = max(plan.seconds for plan in MADE)
    assert [length / max(lengths) for length in lengths] == pytest.approx(
        [plan.seconds / longest for plan in MADE], abs=0.01
    )
    assert all(plan.mesh in picture.alt for plan in MADE)
    assert "summing gradients" in picture.alt


def test_an_explanation_is_drawn_as_its_two_plans():
    picture = pictures.plan_bars(explain(*MADE[:2]))
    assert picture.alt.count("computing") == 2
