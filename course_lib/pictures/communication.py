"""Communication between ranks: how fast links are, what a divided model sends, which collectives ran before a hang."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

from course_lib.data import Batch
from course_lib.launchers.diagnosis.flight_recorder import COALESCED, is_nccl, op_of
from course_lib.lstm.memory import BatchSize
from course_lib.lstm.model import Embed, Recurrent, SequenceModel
from course_lib.pictures.picture import COLORS, INK, Picture
from course_lib.planning.network import Link
from course_lib.planning.placement import Placement
from course_lib.words import counted, memory_in_words


def link(link: Link) -> Picture:
    """Draw the measured times and what the two fitted numbers predict."""
    sizes = [size for size, _ in link.measured]
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.loglog(sizes, [seconds * 1e3 for _, seconds in link.measured], "o", color=COLORS["communication"])
    smooth = [sizes[0] * (sizes[-1] / sizes[0]) ** (step / 100) for step in range(101)]
    axes.loglog(smooth, [link.seconds(size) * 1e3 for size in smooth], color=INK, linewidth=1)
    knee = link.latency * link.bandwidth
    if sizes[0] < knee < sizes[-1]:
        axes.axvline(knee, color=COLORS["idle"], linestyle="--", zorder=0)
        words, foot = "latency and bytes\ncost the same", (knee, axes.get_ylim()[0])
        axes.annotate(words, foot, (6, 6), textcoords="offset points")
    low, high = axes.get_ylim()
    round_numbers = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
    axes.set_yticks([number for number in round_numbers if low <= number <= high], minor=False)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xlabel("message size in bytes")
    axes.set_ylabel("milliseconds, one way")
    fitted = f"{link.latency * 1e6:.0f} µs + bytes / {link.bandwidth / 1e9:.1f} GB/s"
    axes.set_title(f"points: measured; line: {fitted}", loc="left", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return Picture(figure, "Message time against message size on two logarithmic axes: flat, then rising in a line")


MOST_NUMBERS = 16  # ranks: with more, the numbers do not fit in their boxes


def link_matrix(links: Mapping[tuple[int, int], Link], ranks: int) -> Picture:
    """Draw the link between every two ranks, keyed by (lower, higher) rank. Darker is worse."""
    if ranks < 2:
        figure = Figure(figsize=(4, 1))
        figure.text(0.5, 0.5, "one rank: no links", ha="center", va="center", color=INK)
        return Picture(figure, "One rank, and so no links")
    side = min(9.0, 1.6 + 0.55 * ranks)
    figure = Figure(figsize=(2 * side, side), layout="constrained")
    latency = {pair: link.latency * 1e6 for pair, link in links.items()}
    bandwidth = {pair: link.bandwidth / 1e9 for pair, link in links.items()}
    colors = ["white", COLORS["communication"]]
    tables = ("latency in microseconds", latency, colors), ("bandwidth in GB/s", bandwidth, colors[::-1])
    marks = range(0, ranks, max(1, ranks // 8))
    for axes, (title, values, low_to_high) in zip(figure.subplots(1, 2), tables, strict=True):
        cells = [[float("nan")] * ranks for _ in range(ranks)]
        for (a, b), number in values.items():
            cells[a][b] = cells[b][a] = number
            for row, column in ((a, b), (b, a)) if ranks <= MOST_NUMBERS else ():
                axes.text(column, row, f"{number:.3g}", ha="center", va="center", color=INK)
        shades = LinearSegmentedColormap.from_list("links", low_to_high).with_extremes(bad=COLORS["idle"])
        low, high = min(values.values()), max(values.values())
        # Light to dark spans at least a factor of four, so that similar values look similar.
        middle = (low * high) ** 0.5
        axes.imshow(cells, cmap=shades, norm=LogNorm(min(low, middle / 2), max(high, middle * 2)))
        axes.set_xticks(marks, [f"rank {rank}" if rank == 0 else str(rank) for rank in marks])
        axes.set_yticks(marks, [f"rank {rank}" for rank in marks])
        axes.xaxis.tick_top()
        axes.tick_params(length=0, colors=INK)
        axes.set_title(f"{title} (darker is worse)", loc="left", color=INK)
        axes.spines[:].set_visible(False)
    slowest, narrowest = max(latency, key=lambda pair: latency[pair]), min(bandwidth, key=lambda pair: bandwidth[pair])
    words = (
        f"Links between {ranks} ranks, two tables. Latency from {min(latency.values()):.3g} to "
        f"{latency[slowest]:.3g} microseconds, the longest between ranks {slowest[0]} and {slowest[1]}. "
        f"Bandwidth from {bandwidth[narrowest]:.3g} to {max(bandwidth.values()):.3g} GB/s, the lowest between ranks "
        f"{narrowest[0]} and {narrowest[1]}"
    )
    return Picture(figure, words)


DONE, WAITING, NEVER, NOT_KEPT, NO_DUMP = "done", "waiting", "never called", "not kept", "no dump"
FACES = {DONE: COLORS["communication"], WAITING: COLORS["idle"]}
WIDE, TALL = 0.9, 0.8  # the size of a box; the distance between two boxes is 1


class RecordedCall(NamedTuple):
    """One rank's call with a given sequence number, from its recorder. Without a call, `op` and `size` are empty."""

    state: str
    op: str = ""
    size: str = ""


def collectives(dumps: Mapping[int, Mapping[str, Any]], *, group: str = "0", most: int = 6) -> Picture:
    """Draw the last `most` collectives of a process group. `dumps[rank]` is the unpickled dump of NCCL's recorder.

    In the first column where the ranks differ, a thick frame marks each rank whose call differs from the majority's, or
    all ranks if there is no majority.
    """
    configs = [dump["pg_config"][group] for dump in dumps.values() if group in dump["pg_config"]]
    members = sorted({rank for config in configs for rank in json.loads(config["ranks"])})  # also those without a dump
    calls = {rank: _calls(dumps[rank], group) for rank in members if rank in dumps}
    newest = max((number for numbers in calls.values() for number in numbers), default=0)
    if newest == 0:
        raise ValueError(f"group={group!r}: the dumps hold no collective of that group")
    columns = {}
    for number in range(max(1, newest - most + 1), newest + 1):
        columns[number] = column = {}
        for rank in members:
            overwritten = calls.get(rank) and number < min(calls[rank])  # the recorder keeps only the newest
            missing = RecordedCall(NO_DUMP if rank not in calls else NOT_KEPT if overwritten else NEVER)
            column[rank] = calls.get(rank, {}).get(number, missing)
    odd_at, odd = next(((number, ranks) for number, column in columns.items() if (ranks := _odd_in(column))), (0, []))
    figure = Figure(figsize=(1.0 + 1.45 * len(columns), 0.8 + 0.62 * len(members)), layout="constrained")
    axes = figure.subplots()
    for number, column in columns.items():
        sizes = {call.size for call in column.values() if call.op}
        for row, (rank, call) in enumerate(column.items()):
            framed = number == odd_at and rank in odd
            edge, weight, width = (INK, "bold", 3.5) if framed else (COLORS["idle"], "normal", 1.0)
            corner, face = (number - WIDE / 2, row - TALL / 2), FACES.get(call.state, "white")
            axes.add_patch(Rectangle(corner, WIDE, TALL, facecolor=face, edgecolor=edge, linewidth=width))
            said = [call.op, *([call.size] if len(sizes) > 1 else []), call.state] if call.op else [call.state]
            axes.text(number, row, "\n".join(said), ha="center", va="center", color="black", weight=weight)
    axes.set_xlim(min(columns) - 0.55, max(columns) + 0.55)
    axes.set_ylim(len(members) - 0.5, -0.5)
    axes.set_xticks(list(columns))
    axes.set_yticks(range(len(members)), [f"rank {rank}" for rank in members])
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("number of the collective", color=INK)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    words = f"Collectives {min(columns)} to {newest} of {len(members)} ranks"
    if not odd:
        return Picture(figure, f"{words}: no rank differs from the others")
    cells = [f"rank {rank} {' '.join(filter(None, (*call[1:], call.state)))}" for rank, call in columns[odd_at].items()]
    framed = f"{'rank' if len(odd) == 1 else 'ranks'} {', '.join(map(str, odd))}"
    return Picture(figure, f"{words}. They first differ at number {odd_at}: {'; '.join(cells)}. Framed: {framed}")


def _calls(dump: Mapping[str, Any], group: str) -> dict[int, RecordedCall]:
    """Return a rank's collectives in a group, by number."""
    calls = {}
    for entry in dump["entries"]:
        if entry["process_group"][0] != group or entry.get("is_p2p") or op_of(entry) == COALESCED:
            continue
        if not is_nccl(entry):
            name = entry["profiling_name"]
            raise ValueError(f"{name}: gloo doesn't record which calls are done; give dumps of an NCCL job")
        state = DONE if entry["state"] == "completed" else WAITING
        sizes = ", ".join(map(str, entry["input_sizes"]))
        calls[entry["collective_seq_id"]] = RecordedCall(state, op_of(entry), sizes)
    return calls


def _odd_in(column: Mapping[int, RecordedCall]) -> list[int]:
    """Return the ranks whose call differs from the majority's, or all of them if there is no majority."""
    calls = {rank: (call.op, call.size) for rank, call in column.items() if call.state not in (NO_DUMP, NOT_KEPT)}
    (usual, count), *others = Counter(calls.values()).most_common() or [(None, 0)]
    if not others:
        return []
    return [rank for rank, call in calls.items() if 2 * count <= len(calls) or call != usual]


WIDE_BLOCK, TALL_BLOCK = 0.74, 0.5  # a block's size; the distance between two blocks is 1


def cut_edges(model: SequenceModel, placement: Placement, batch: Batch | BatchSize) -> Picture:
    """Draw the blocks of a model on their ranks, one row per rank, and the messages of one update.

    At each edge, activations go forward (blue) and their gradient comes back (orange). Both have the same size: steps x
    sequences x width numbers. Each size is written only once, at the first edge that has it.
    """
    blocks = [block for _, block in model.numbered()]
    size = next(model.parameters()).element_size() * batch.steps * batch.sequences
    figure = Figure(figsize=(1.2 + 1.05 * len(blocks), 0.9 + 0.85 * placement.stages), layout="constrained")
    axes = figure.subplots()
    look: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.08", "facecolor": "white", "edgecolor": INK}
    for place, (block, rank) in enumerate(zip(blocks, placement.stage_of, strict=True)):
        axes.add_patch(FancyBboxPatch((place - WIDE_BLOCK / 2, rank - TALL_BLOCK / 2), WIDE_BLOCK, TALL_BLOCK, **look))
        name = "embed" if isinstance(block, Embed) else "input" if place == 0 else "head"
        name = f"layer {place}" if isinstance(block, Recurrent) else name
        axes.text(place, rank, name, ha="center", va="center", color=INK)
    edges: list[int] = []
    for place, (rank, next_rank) in enumerate(pairwise(placement.stage_of)):
        if rank == next_rank:
            _arrow(axes, (place + WIDE_BLOCK / 2, rank), (place + 1 - WIDE_BLOCK / 2, rank), INK, 1.2)
            continue
        edges.append(size * blocks[place].width)
        towards = TALL_BLOCK / 2 if next_rank > rank else -TALL_BLOCK / 2
        leave, arrive = (place + 0.12, rank + towards), (place + 0.72, next_rank - towards)
        _arrow(axes, leave, arrive, COLORS["forward"], 2.0)
        _arrow(axes, (arrive[0] + 0.18, arrive[1]), (leave[0] + 0.18, leave[1]), COLORS["backward"], 2.0)
        if edges[-1] not in edges[:-1]:
            middle = ((leave[0] + arrive[0]) / 2 + 0.3, (leave[1] + arrive[1]) / 2)
            axes.text(*middle, f"{memory_in_words(edges[-1])} each", ha="left", va="center", color=INK)
    axes.set_xlim(-0.6, len(blocks) - 0.4)
    axes.set_ylim(placement.stages - 0.55, -0.45)
    axes.set_yticks(range(placement.stages), [f"rank {rank}" for rank in range(placement.stages)])
    axes.set_xticks([])
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    meanings = {"forward": "activations, forward", "backward": "their gradient, back"}
    handles = [Patch(color=COLORS[name], label=meaning) for name, meaning in meanings.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    words = (
        f"{len(blocks)} blocks on {placement.stages} ranks, cut at {counted(len(edges), 'edge')}: at each, activations "
        f"go forward and their gradient comes back, {memory_in_words(2 * sum(edges))} in all"
    )
    return Picture(figure, words)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str, width: float) -> None:
    look = {"arrowstyle": "-|>", "linewidth": width, "shrinkA": 0, "shrinkB": 0, "color": color}
    axes.annotate("", end, start, arrowprops=look)
