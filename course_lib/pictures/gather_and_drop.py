"""When a rank gathers, computes and drops the blocks of a sharded model, and the bytes it holds over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from course_lib.launchers.run import Run
from course_lib.pictures.picture import COLORS, INK, MEMORY, Picture
from course_lib.pictures.timeline import draw_bar, rank_axes, time_unit
from course_lib.trace import Span

BARS = {
    "all-gather": COLORS["send"],
    "forward": COLORS["forward"],
    "backward": COLORS["backward"],
    "reduce-scatter": COLORS["receive"],
}
AREAS = {
    "optimizer shard": MEMORY["optimizer"],
    "parameter shard": MEMORY["parameters"],
    "gathered parameters": "#7FB8D8",  # lighter than the parameter shard, because they are temporary
    "gradients": MEMORY["gradients"],
}
OWN = "parameter shard"
KIB, MIB = 2**10, 2**20


@dataclass
class _Bytes:
    """The bytes held between events, by kind."""

    times: list[float] = field(default_factory=list)
    areas: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in AREAS})

    def at(self, moment: float, areas: Mapping[str, float]) -> None:
        self.times.append(moment)
        for name, values in self.areas.items():
            values.append(areas[name])

    @property
    def peak(self) -> float:
        return max(map(sum, zip(*self.areas.values(), strict=True)))


def gather_and_drop(
    run: Run, block_bytes: Mapping[str, int], shards: int, rank: int = 0, optimizer_bytes: int = 0
) -> Picture:
    """Draw what `GatherWatch` recorded for one update: one row per block, and below them the bytes on `rank`.

    `block_bytes` maps each block's place to the bytes of its whole parameters (`planning.sharding.block_bytes`), and
    `shards` is the number of ranks that share them. `optimizer_bytes` is the constant size of the rank's optimizer
    state. A black stroke marks the moment when a block is dropped.
    """
    spans = sorted(
        (
            span
            for span in run.spans
            if span.rank == rank and span.label in block_bytes and span.name in (*BARS, "drop")
        ),
        key=lambda span: span.start,
    )
    if not spans:
        raise ValueError("no block was watched in this run: make a GatherWatch(strategy) on the rank, before the step")
    spans = [span.since(spans[0].start) for span in spans]
    unit, scale = time_unit(spans[-1].end)
    figure = Figure(figsize=(9, 2.7 + 0.34 * len(block_bytes)), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(0.34 * len(block_bytes) + 0.3, 1.6))
    _draw_blocks(upper, spans, list(block_bytes), scale)
    held = _held(spans, block_bytes, shards, optimizer_bytes)
    paced = any(span.paced for span in spans)
    size, name_of_size = (MIB, "MiB") if held.peak >= 2 * MIB else (KIB, "KiB")
    _draw_bytes(lower, held, scale, size)
    rank_axes(upper, len(block_bytes), unit, paced, rows="block")
    upper.set_xlabel("")
    lower.set_xlabel(f"time in {unit}" + (" (paced: blocks sleep to a fixed length)" if paced else ""), color=INK)
    lower.set_ylabel(name_of_size, color=INK)
    dropped = Line2D([], [], color="black", linewidth=1.6, marker="|", linestyle="", markersize=12, label="dropped")
    _legend(upper, [*(Patch(facecolor=color, label=name) for name, color in BARS.items()), dropped])
    _legend(lower, [Patch(facecolor=AREAS[name], label=name) for name, values in held.areas.items() if max(values)])
    gathers = sum(span.name == "all-gather" for span in spans)
    words = (
        f"{'Paced gather' if paced else 'Gather'}-and-drop timeline of rank {rank}: {len(block_bytes)} blocks over "
        f"{shards} shards, gathered {gathers} times; the rank holds {held.areas[OWN][0] / size:.3g} {name_of_size} of "
        f"parameters at rest, and at most {held.peak / size:.3g} {name_of_size} of parameters"
        + (", gradients and optimizer state" if optimizer_bytes else " and gradients")
    )
    return Picture(figure, words)


def _legend(axes: Axes, handles: list[Artist]) -> None:
    """Draw a legend for these axes alone: blue means a forward pass in one of them, and parameters in the other."""
    place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1}
    axes.legend(
        handles=handles,
        ncols=len(handles),
        frameon=False,
        columnspacing=1.2,
        handlelength=1.4,
        **place,
    )


def _draw_blocks(axes: Axes, spans: Sequence[Span], blocks: list[str], scale: float) -> None:
    for span in spans:
        row = blocks.index(span.label)
        if span.name == "drop":
            axes.vlines(span.end * scale, row - 0.42, row + 0.42, color="black", linewidth=1.6, zorder=3)
            continue
        draw_bar(axes, span, (row - 0.38, 0.76), BARS[span.name], scale)


def _draw_bytes(axes: Axes, held: _Bytes, scale: float, size: int) -> None:
    times = [moment * scale for moment in held.times]
    areas = [[value / size for value in values] for values in held.areas.values()]
    axes.stackplot(times, areas, colors=list(AREAS.values()), step="post", linewidth=0)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)


def _held(spans: Sequence[Span], block_bytes: Mapping[str, int], shards: int, optimizer_bytes: int) -> _Bytes:
    """Return the bytes after every event: a block is whole from its gather to its drop, and its gradient from the
    backward pass until it is summed.
    """
    own_rows, gathered, whole_gradients, rows = sum(block_bytes.values()) / shards, set[str](), set[str](), set[str]()
    events = sorted(
        [(span.start, span.name, span.label) for span in spans if span.name in ("all-gather", "backward")]
        + [(span.end, span.name, span.label) for span in spans if span.name in ("drop", "reduce-scatter")]
    )
    held = _Bytes()
    for moment, name, block in [(0.0, "begin", ""), *events, (max(span.end for span in spans), "end", "")]:
        if name == "all-gather":
            gathered.add(block)
        elif name == "drop":
            gathered.discard(block)
        elif name == "backward":
            whole_gradients.add(block)
        elif name == "reduce-scatter":
            whole_gradients.discard(block)
            rows.add(block)
        gradients = (
            sum(block_bytes[place] for place in whole_gradients) + sum(block_bytes[place] for place in rows) / shards
        )
        gathered_bytes = sum(block_bytes[place] for place in gathered)
        held.at(moment, dict(zip(AREAS, (optimizer_bytes, own_rows, gathered_bytes, gradients), strict=True)))
    return held
