"""Where the memory of a training step goes, and how much of it is left with each way to save memory."""

from __future__ import annotations

from course_lib.lstm.memory import OPTIMIZERS, PRECISIONS, SHARDED, BatchSize, Memory, Savings, lstm_size, predict_with
from course_lib.pictures.bars import memory_bars
from course_lib.pictures.picture import MEMORY
from course_lib.pictures.svg import SHEET, Drawing, table
from course_lib.pictures.widgets.explorer import Explorer, choice, powers_of_two, slider
from course_lib.words import memory_in_words

DEVICES = {0: "no limit", 8: "8 GiB", 24: "24 GiB", 80: "80 GiB", 141: "141 GiB"}


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
