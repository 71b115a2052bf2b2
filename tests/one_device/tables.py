"""Block times for tests: a device that is equally fast at everything, so that a test can say what must come out."""

from __future__ import annotations

from course_lib.messages.link import Line
from course_lib.one_device.block_times import BlockSeconds, BlockTimes, PrecisionTimes, Surface

FAR = (1e-9, 1e9)


def even_times(layer: float, cells: int, end: float = 0.0, update: float = 0.0) -> BlockTimes:
    """An LSTM layer takes `layer` seconds for so many cells, a third of it forward, and in proportion for others.

    The blocks at the ends take `end` seconds, whatever their size; an update takes `update` seconds.
    """

    def at(row: float, column: float) -> BlockSeconds:
        whole = layer * row * column / cells
        return BlockSeconds(whole / 3, whole * 2 / 3, whole / 3, whole / 3)

    lstm = Surface(FAR, FAR, tuple(tuple(at(row, column) for column in FAR) for row in FAR))
    flat = Surface((1e9,), (1e9,), ((BlockSeconds(end / 3, end * 2 / 3, end / 3, end / 3),),))
    surfaces = {"lstm": {1: lstm, 1_000_000: lstm}, "head": {1_000_000: flat}, "embedding": {1_000_000: flat}}
    updates = dict.fromkeys(("SGD", "SGD with momentum", "Adam"), Line(update, 0.0))
    return BlockTimes("even", {"float32": PrecisionTimes(surfaces, updates)})
