"""Batch size, pool and ranks of a bucketed epoch: the padding, how well lengths mix, and how long ranks wait."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from course_lib.drawing.explorer import Explorer, powers_of_two, slider, whole_number
from course_lib.drawing.svg import Drawing, box, legend, line, text
from course_lib.padding.buckets import BucketedBatches, Load, load_of
from course_lib.runtime.words import counted

SHOWN = 40  # batches in the picture
LEFT, TOP, WIDTH, HEIGHT = 60, 40, 420, 200
METERS = 560  # the left edge of the meters


class BatchExplorer(Explorer):
    """Show padding, balance over ranks and mixing of a bucketed epoch, with sliders for batch size and pool.

    The first batches are drawn as bars of tokens and padding, and three numbers describe the whole epoch.
    """

    title = "Batches of sequences of similar length"

    def __init__(self, lengths: Sequence[int], ranks: int = 4) -> None:
        self.lengths = numpy.asarray(lengths, dtype=numpy.int64)
        if not self.lengths.size:
            raise ValueError("lengths is empty: give the length of each sequence")
        super().__init__(
            [
                slider("tokens", "tokens per batch", powers_of_two(256, 16384), 2048),
                slider("pool", "batches per pool", [1, 2, 5, 10, 20, 50, 100], 10),
                slider("ranks", "ranks", range(1, 9), whole_number(ranks, "ranks", 1, 8)),
            ]
        )

    def draw(self) -> Drawing:
        tokens, pool, ranks = (self.values[name] for name in ("tokens", "pool", "ranks"))
        batches = BucketedBatches(self.lengths, tokens, pool=pool).global_batches()
        load = load_of(batches, self.lengths, ranks)
        words = f"{tokens} tokens per batch, pools of {pool}, {counted(ranks, 'rank')}: {load}"
        return Drawing(self._bars(batches[:SHOWN]) + _meters(load, ranks), 740, TOP + HEIGHT + 34, words)

    def _bars(self, batches: list[list[int]]) -> str:
        cells = [len(batch) * int(self.lengths[batch].max()) for batch in batches]
        tokens = [int(self.lengths[batch].sum()) for batch in batches]
        scale, step, foot = HEIGHT / max(cells), WIDTH / len(batches), TOP + HEIGHT
        shapes = [legend([("forward", "tokens"), ("idle", "padding")], LEFT, 16), line(LEFT, TOP, LEFT, foot)]
        for number, (padded, filled) in enumerate(zip(cells, tokens, strict=True)):
            x = LEFT + step * number
            shapes += [box(x + 1, foot - padded * scale, step - 1.5, padded * scale, "idle")]
            shapes += [box(x + 1, foot - filled * scale, step - 1.5, filled * scale, "forward")]
        shapes += [text(LEFT - 6, TOP + 10, f"{max(cells):,}", "ink", "end"), text(LEFT - 6, foot, "0", "ink", "end")]
        return "".join([*shapes, text(LEFT, foot + 22, f"cells of the first {len(batches)} batches of the epoch")])


explore_batches = BatchExplorer


def _meters(load: Load, ranks: int) -> str:
    """Draw shares from 0 to 100%."""
    values = {"padding": load.padding, "mixing": load.mixing, f"idle of {ranks} ranks": 1 - 1 / load.balance}
    shapes = []
    for number, (name, value) in enumerate(values.items()):
        y = TOP + 14 + 62 * number
        shapes += [text(METERS, y, f"{name}: {value:.1%}"), box(METERS, y + 8, 160, 18, "frame")]
        shapes += [box(METERS, y + 8, 160 * value, 18, "forward" if name == "mixing" else "idle")]
    return "".join(shapes)
