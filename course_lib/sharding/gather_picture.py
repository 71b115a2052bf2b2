"""What a rank of FSDP holds while it gathers blocks and drops them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.drawing.picture import COLORS, INK, MEMORY, Picture
from course_lib.drawing.timeline import _draw_bar, _format, _from_zero, _time_unit
from course_lib.launcher.notebook.run import Run
from course_lib.runtime.trace import Span

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
KIB, MIB = 2**10, 2**20


def draw_gather_and_drop(
    run: Run, block_bytes: Mapping[str, int], shards: int, rank: int = 0, optimizer_bytes: int = 0
) -> Picture:
    """Draw what `GatherWatch` recorded for one update: one row per block, and below them the bytes on `rank`.

    `block_bytes` maps each block's place to the bytes of its whole parameters (`model_parallel.block_bytes`), and
    `shards` is the number of ranks that share them. `optimizer_bytes` is the constant size of the rank's optimizer
    state. A black stroke marks the moment when a block is dropped.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = (*BARS, "drop")
    spans = [span for span in run.spans if span.rank == rank and span.label in block_bytes and span.name in shown]
    if not spans:
        raise ValueError("no block was watched in this run: make a GatherWatch(strategy) on the rank, before the step")
    spans = _from_zero(sorted(spans, key=lambda span: span.start))
    blocks, paced = list(block_bytes), any(span.paced for span in spans)
    unit, scale = _time_unit(spans[-1].end)
    figure = Figure(figsize=(9, 2.7 + 0.34 * len(blocks)), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(0.34 * len(blocks) + 0.3, 1.6))
    for span in spans:
        row = blocks.index(span.label)
        if span.name == "drop":
            upper.vlines(span.end * scale, row - 0.42, row + 0.42, color="black", linewidth=1.6, zorder=3)
        else:
            _draw_bar(upper, span, (row - 0.38, 0.76), BARS[span.name], scale)
    times, held = _held(spans, block_bytes, shards, optimizer_bytes)
    peak = max(map(sum, zip(*held.values(), strict=True)))
    size, name_of_size = (MIB, "MiB") if peak >= 2 * MIB else (KIB, "KiB")
    areas = [[value / size for value in values] for values in held.values()]
    lower.stackplot([at * scale for at in times], areas, colors=list(AREAS.values()), step="post", linewidth=0)
    lower.set_ylim(bottom=0)
    lower.spines[["top", "right"]].set_visible(False)
    _format(upper, [f"block {row}" for row in range(len(blocks))], unit, paced)
    lower.set_xlabel(upper.get_xlabel(), color=INK)
    upper.set_xlabel("")
    lower.set_ylabel(name_of_size, color=INK)
    dropped = Line2D([], [], color="black", linewidth=1.6, marker="|", linestyle="", markersize=12, label="dropped")
    # A legend for each: blue means a forward pass in one of them, and parameters in the other.
    for axes, handles in (
        (upper, [*(Patch(facecolor=color, label=name) for name, color in BARS.items()), dropped]),
        (lower, [Patch(facecolor=AREAS[name], label=name) for name, values in held.items() if max(values)]),
    ):
        spaces = {"columnspacing": 1.2, "handlelength": 1.4, "borderaxespad": 0.1}
        place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": len(handles), "frameon": False}
        axes.legend(handles=handles, **place, **spaces)
    gathers = sum(span.name == "all-gather" for span in spans)
    words = (
        f"{'Paced gather' if paced else 'Gather'}-and-drop timeline of rank {rank}: {len(blocks)} blocks over "
        f"{shards} shards, gathered {gathers} times; the rank holds {held['parameter shard'][0] / size:.3g} "
        f"{name_of_size} of parameters at rest, and at most {peak / size:.3g} {name_of_size} of parameters"
        + (", gradients and optimizer state" if optimizer_bytes else " and gradients")
    )
    return Picture(figure, words)


def _held(
    spans: Sequence[Span], block_bytes: Mapping[str, int], shards: int, optimizer_bytes: int
) -> tuple[list[float], dict[str, list[float]]]:
    """Return the times of all events, and the bytes held after each, by name of the area.

    A block is whole from its gather to its drop, and its gradient from the backward pass until it is summed.
    """
    gathered, whole_gradients, summed = set[str](), set[str](), set[str]()
    events = [(span.start, span.name, span.label) for span in spans if span.name in ("all-gather", "backward")]
    events += [(span.end, span.name, span.label) for span in spans if span.name in ("drop", "reduce-scatter")]
    times: list[float] = []
    held: dict[str, list[float]] = {name: [] for name in AREAS}
    for moment, name, block in [(0.0, "begin", ""), *sorted(events), (max(span.end for span in spans), "end", "")]:
        if name == "all-gather":
            gathered.add(block)
        elif name == "drop":
            gathered.discard(block)
        elif name == "backward":
            whole_gradients.add(block)
        elif name == "reduce-scatter":
            whole_gradients.discard(block)
            summed.add(block)
        times.append(moment)
        held["optimizer shard"].append(optimizer_bytes)
        held["parameter shard"].append(sum(block_bytes.values()) / shards)
        held["gathered parameters"].append(sum(block_bytes[place] for place in gathered))
        gradients = sum(block_bytes[place] for place in whole_gradients)
        held["gradients"].append(gradients + sum(block_bytes[place] for place in summed) / shards)
    return times, held
