"""Widgets used at random, from a seed: run by Python here and by Python in a page, it must draw the same.

Only the standard library and `in_page` are imported: a page has nothing else.
"""

from __future__ import annotations

import hashlib
import json
from random import Random

from in_page import EXPLORERS, PageView


def drawn(seed: int) -> str:
    """What a widget shows after it was used at random: picture, table, words, and where the controls stand."""
    chance, told = Random(seed), []
    explorer = list(EXPLORERS.values())[seed % len(EXPLORERS)]()
    view = PageView(0, explorer, told.append)
    view.choose({name: _place(view, name, chance) for name in explorer.controls})
    name = chance.choice(list(explorer.controls))  # after the others: it may have other options now
    view.choose({name: _place(view, name, chance)})
    if explorer.title == "The schedule bench":
        for _ in range(3):
            _work(view, chance)
    return json.dumps([view.state(), told[-1:]])


def _place(view: PageView, name: str, chance: Random) -> int:
    """Some place of a control."""
    return chance.randrange(len(view.explorer.controls[name].options))


def _work(view: PageView, chance: Random) -> None:
    """Move an action of the bench by some places, or press a button."""
    rows = view.explorer.schedule.stages
    stage = chance.randrange(len(rows))
    if chance.random() < 0.7:
        action = chance.choice(rows[stage])
        place = min(max(rows[stage].index(action) + chance.choice([-2, -1, 1, 2]), 0), len(rows[stage]) - 1)
        view.handle({"move": f"{stage}:{view.explorer.schedule.label(action)}", "to": place})
    else:
        view.handle({"press": chance.choice(view.buttons).name})


def digest(seed: int) -> str:
    """A drawing in a few letters."""
    return hashlib.sha256(drawn(seed).encode()).hexdigest()[:16]
