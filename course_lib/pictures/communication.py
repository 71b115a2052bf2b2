"""Communication between ranks: how fast their links are, and which collectives ran before a hang.

A hang is drawn from the flight recorders' dumps: one row per rank, one column per collective.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.launchers.diagnosis.flight_recorder import COALESCED, is_nccl, op_of
from course_lib.pictures.picture import COLORS, INK, Picture
from course_lib.planning.network import Link


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
    left, right = figure.subplots(1, 2)
    latency = {pair: link.latency * 1e6 for pair, link in links.items()}
    bandwidth = {pair: link.bandwidth / 1e9 for pair, link in links.items()}
    colors = ["white", COLORS["communication"]]
    _draw_matrix(left, "latency in microseconds", latency, ranks, colors)
    _draw_matrix(right, "bandwidth in GB/s", bandwidth, ranks, colors[::-1])
    slowest, narrowest = max(latency, key=lambda pair: latency[pair]), min(bandwidth, key=lambda pair: bandwidth[pair])
    words = (
        f"Links between {ranks} ranks, two tables. Latency from {min(latency.values()):.3g} to "
        f"{latency[slowest]:.3g} microseconds, the longest between ranks {slowest[0]} and {slowest[1]}. "
        f"Bandwidth from {bandwidth[narrowest]:.3g} to {max(bandwidth.values()):.3g} GB/s, the lowest between ranks "
        f"{narrowest[0]} and {narrowest[1]}"
    )
    return Picture(figure, words)


def _draw_matrix(
    axes: Axes, title: str, values: Mapping[tuple[int, int], float], ranks: int, colors: list[str]
) -> None:
    """Draw one number per pair of ranks, with `colors` from the lowest to the highest."""
    table = [
        [float("nan") if row == column else values[min(row, column), max(row, column)] for column in range(ranks)]
        for row in range(ranks)
    ]
    shades = LinearSegmentedColormap.from_list("links", colors).with_extremes(bad=COLORS["idle"])
    low, high = min(values.values()), max(values.values())
    # Light to dark spans at least a factor of four, so that similar values look similar.
    middle = (low * high) ** 0.5
    axes.imshow(table, cmap=shades, norm=LogNorm(min(low, middle / 2), max(high, middle * 2)))
    for row, cells in enumerate(table if ranks <= MOST_NUMBERS else []):
        for column, number in enumerate(cells):
            if row != column:
                axes.text(column, row, f"{number:.3g}", ha="center", va="center", color=INK)
    marks = range(0, ranks, max(1, ranks // 8))
    axes.set_xticks(marks, [f"rank {rank}" if rank == 0 else str(rank) for rank in marks])
    axes.set_yticks(marks, [f"rank {rank}" for rank in marks])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK)
    axes.set_title(f"{title} (darker is worse)", loc="left", color=INK)
    axes.spines[:].set_visible(False)


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
        _draw_column(axes, number, column, odd if number == odd_at else [])
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


def _draw_column(axes: Axes, number: int, column: Mapping[int, RecordedCall], odd: list[int]) -> None:
    sizes = {call.size for call in column.values() if call.op}
    for row, (rank, call) in enumerate(column.items()):
        edge, weight, width = (INK, "bold", 3.5) if rank in odd else (COLORS["idle"], "normal", 1.0)
        corner = (number - WIDE / 2, row - TALL / 2)
        face = FACES.get(call.state, "white")
        axes.add_patch(Rectangle(corner, WIDE, TALL, facecolor=face, edgecolor=edge, linewidth=width))
        words = [call.op, *([call.size] if len(sizes) > 1 else []), call.state] if call.op else [call.state]
        axes.text(number, row, "\n".join(words), ha="center", va="center", color="black", weight=weight)
