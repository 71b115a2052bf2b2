"""Bars that show what fills the memory of a rank, and a widget that predicts them."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.core.memory import OPTIMIZERS, PRECISIONS, SHARDED, BatchSize, Memory, Savings, lstm_size, predict_with
from course_lib.drawing.explorer import Explorer, choice, powers_of_two, slider
from course_lib.drawing.picture import MEMORY
from course_lib.drawing.svg import SHEET, Drawing, bar, breadth, legend, line, table, text
from course_lib.runtime.words import memory_in_words

TALL = 24  # the height of a bar
AFTER = 76  # the room behind the longest bar, for its sum
DEVICES = {0: "no limit", 8: "8 GiB", 24: "24 GiB", 80: "80 GiB", 141: "141 GiB"}


def draw_memory(bars: Mapping[str, Memory], budget: int | None = None) -> Drawing:
    """Draw one bar for each named `Memory`, split into parameters, gradients, optimizer and activations.

    A dashed line marks the `budget` in bytes, if there is one.
    """
    largest = {name: max(MEMORY, key=lambda part: getattr(bar, part)) for name, bar in bars.items()}
    words = "Memory bars: " + ", ".join(f"{name} (most is {part})" for name, part in largest.items())
    if budget is not None:
        over = [name for name, bar in bars.items() if bar.total > budget]
        words += f"; above the budget of {memory_in_words(budget)}: {', '.join(over) or 'none'}"
    shapes, height = memory_bars(bars, budget, "budget")
    return Drawing(shapes, SHEET, height, words)


def memory_bars(bars: Mapping[str, Memory], budget: int | None, name_of_budget: str) -> tuple[str, float]:
    """Return the shapes of these bars with their legend, and their height; a dashed line marks the `budget`."""
    left = max(map(breadth, bars)) + 12
    scale = (SHEET - AFTER - left) / max([budget or 1, *(memory.total for memory in bars.values())])
    shown = [part for part in MEMORY if any(getattr(memory, part) for memory in bars.values())]
    shapes, y = [legend([(part, part) for part in shown], 0, 16)], 40.0
    for name, memory in bars.items():
        sizes = {part: getattr(memory, part) for part in MEMORY}
        parts = [(part, size * scale, memory_in_words(size)) for part, size in sizes.items()]
        shapes += [text(0, y + 16.5, name), bar(left, y, TALL, parts, memory_in_words(memory.total))]
        y += TALL + 10
    if budget:
        x = left + budget * scale
        shapes += [line(x, 32, x, y, "dashed"), text(x, y + 13, name_of_budget, "ink", "end")]
    return "".join(shapes), y + 18


class MemoryExplorer(Explorer):
    """Show what fills the memory of one rank: widths, lengths, optimizer, precision, recomputation, sharding.

    The top bar shows the current memory, and the bar below it the memory before the last change.
    """

    title = "The memory of a training step"

    def __init__(self) -> None:
        self.now: Memory | None = None
        super().__init__(
            [
                slider("hidden", "hidden units", powers_of_two(64, 16384), 1024),
                slider("layers", "layers", [1, 2, 4, 8, 16, 32], 4),
                slider("vocabulary", "vocabulary", [100, 1000, 10_000, 50_000], 10_000),
                slider("steps", "steps", powers_of_two(8, 2048), 128),
                slider("sequences", "sequences per rank", powers_of_two(1, 1024), 64),
                choice("optimizer", "optimizer", list(OPTIMIZERS), "Adam"),
                choice("precision", "precision", list(PRECISIONS), "float32"),
                choice("recompute", "activations", {False: "kept", True: "recomputed, layer by layer"}, False),
                choice("sharded", "sharded over ranks", list(SHARDED), "nothing"),
                slider("ranks", "ranks", powers_of_two(1, 64), 8),
                choice("device", "memory of a device", DEVICES, 8),
            ]
        )

    def memory(self) -> Memory:
        """Return the memory that one rank needs."""
        model = lstm_size(*(self.values[name] for name in ("vocabulary", "hidden", "layers")))
        size = BatchSize(self.values["steps"], self.values["sequences"])
        names = ("optimizer", "precision", "recompute", "sharded", "ranks")
        return predict_with(model, size, Savings(**{name: self.values[name] for name in names}))

    def changed(self, names: set[str]) -> None:
        """Save the previous memory for comparison."""
        if (now := self.memory()) != self.now:
            self.before, self.now = self.now, now

    def draw(self) -> Drawing:
        now, size = self.memory(), self.values["device"]
        bars = {"now": now, **({"before": self.before} if self.before else {})}
        shapes, height = memory_bars(bars, size * 2**30, f"a device: {DEVICES[size]}")
        rows = []
        for part in (*MEMORY, "total"):
            rows.append([part, *(memory_in_words(getattr(memory, part)) for memory in bars.values())])
        most = max(MEMORY, key=lambda part: getattr(now, part))
        words = f"{memory_in_words(now.total)} on each rank; most of it, {getattr(now, most) / now.total:.0%}, {most}."
        if size:
            room = now.total / (size * 2**30)
            words += f" It fits: {room:.0%} of the device." if room <= 1 else f" Too much: {room:.1f} times the device."
        if self.before:
            moved = {part: getattr(now, part) - getattr(self.before, part) for part in MEMORY}
            changed = [f"{part} {'+' if by > 0 else '-'}{memory_in_words(abs(by))}" for part, by in moved.items() if by]
            words += f" The last change: {', '.join(changed) or 'nothing'}."
        return Drawing(shapes, SHEET, height, words, table(["part", *bars], rows, "Memory of one rank"))


explore_memory = MemoryExplorer
