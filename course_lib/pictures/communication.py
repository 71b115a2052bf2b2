"""Communication between ranks: how fast their links are, and which collectives ran before a hang.

A hang is drawn from the flight recorders' dumps: one row per rank, one column per collective.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
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

Links = Mapping[tuple[int, int], Link]


def link_matrix(links: Links, ranks: int) -> Picture:
    """Draw the link between every two ranks, keyed by (lower, higher) rank. Darker is worse."""
    if ranks < 2:
        figure = Figure(figsize=(4, 1))
        figure.text(0.5, 0.5, "one rank: no links", ha="center", va="center", color=INK)
        return Picture(figure, "One rank, and so no links")
    side = min(9.0, 1.6 + 0.55 * ranks)
    figure = Figure(figsize=(2 * side, side), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_matrix(left, "latency in microseconds", links, ranks, lambda link: link.latency * 1e6, high_is_bad=True)
    _draw_matrix(right, "bandwidth in GB/s", links, ranks, lambda link: link.bandwidth / 1e9, high_is_bad=False)
    return Picture(figure, _describe_links(links, ranks))


def _draw_matrix(
    axes: Axes, title: str, links: Links, ranks: int, value: Callable[[Link], float], *, high_is_bad: bool
) -> None:
    values = {pair: value(link) for pair, link in links.items()}
    table = [
        [float("nan") if row == column else values[min(row, column), max(row, column)] for column in range(ranks)]
        for row in range(ranks)
    ]
    colors = ["white", COLORS["communication"]]
    shades = LinearSegmentedColormap.from_list("links", colors if high_is_bad else colors[::-1])
    shades = shades.with_extremes(bad=COLORS["idle"])
    low, high = min(values.values()), max(values.values())
    # Light to dark spans at least a factor of four, so that similar values look similar.
    middle = (low * high) ** 0.5
    axes.imshow(table, cmap=shades, norm=LogNorm(min(low, middle / 2), max(high, middle * 2)))
    if ranks <= MOST_NUMBERS:
        for row, cells in enumerate(table):
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


def _describe_links(links: Links, ranks: int) -> str:
    slowest, narrowest = max(links, key=lambda pair: links[pair].latency), min(links, key=lambda p: links[p].bandwidth)
    best = min(link.latency for link in links.values()), max(link.bandwidth for link in links.values())
    return (
        f"Links between {ranks} ranks, two tables. Latency from {best[0] * 1e6:.3g} to "
        f"{links[slowest].latency * 1e6:.3g} microseconds, the longest between ranks {slowest[0]} and {slowest[1]}. "
        f"Bandwidth from {links[narrowest].bandwidth / 1e9:.3g} to {best[1] / 1e9:.3g} GB/s, the lowest between ranks "
        f"{narrowest[0]} and {narrowest[1]}"
    )


DONE, WAITING, NEVER, NOT_KEPT, NO_DUMP = "done", "waiting", "never called", "not kept", "no dump"
FACES = {DONE: COLORS["communication"], WAITING: COLORS["idle"]}
WIDE, TALL = 0.9, 0.8  # the size of a box; the distance between two boxes is 1


class Cell(NamedTuple):
    """One rank's call with a given sequence number, from its recorder. Without a call, `op` and `size` are empty."""

    state: str
    op: str = ""
    size: str = ""


Column = dict[int, Cell]  # by rank


def collectives(dumps: Mapping[int, Mapping[str, Any]], *, group: str = "0", most: int = 6) -> Picture:
    """Draw the last `most` collectives of a process group. `dumps[rank]` is the unpickled dump of NCCL's recorder.

    In the first column where the ranks differ, a thick frame marks each rank whose call differs from the majority's, or
    all ranks if there is no majority.
    """
    members = _members(dumps, group)
    calls = {rank: _calls(dumps[rank], group) for rank in members & dumps.keys()}
    newest = max((number for numbers in calls.values() for number in numbers), default=0)
    if newest == 0:
        raise ValueError(f"group={group!r}: the dumps hold no collective of that group")
    columns = {
        number: {rank: _cell(calls.get(rank), number) for rank in sorted(members)}
        for number in range(max(1, newest - most + 1), newest + 1)
    }
    odd_at, odd = next(((number, ranks) for number, column in columns.items() if (ranks := _odd_in(column))), (0, []))
    figure = Figure(figsize=(1.0 + 1.45 * len(columns), 0.8 + 0.62 * len(members)), layout="constrained")
    axes = figure.subplots()
    for number, column in columns.items():
        _draw_column(axes, number, column, odd if number == odd_at else [])
    _format_axes(axes, columns)
    return Picture(figure, _describe_collectives(columns, odd_at, odd))


def _members(dumps: Mapping[int, Mapping[str, Any]], group: str) -> set[int]:
    """Return the ranks that the dumps list for a group, including ranks without a dump."""
    configs = [dump["pg_config"][group] for dump in dumps.values() if group in dump["pg_config"]]
    return {rank for config in configs for rank in json.loads(config["ranks"])}


def _calls(dump: Mapping[str, Any], group: str) -> dict[int, Cell]:
    """Return a rank's collectives in a group, by number."""
    calls = {}
    for entry in dump["entries"]:
        if entry["process_group"][0] != group or entry.get("is_p2p") or op_of(entry) == COALESCED:
            continue
        if not is_nccl(entry):
            raise ValueError(
                f"{entry['profiling_name']}: gloo doesn't record which calls are done; give dumps of an NCCL job"
            )
        state = DONE if entry["state"] == "completed" else WAITING
        calls[entry["collective_seq_id"]] = Cell(state, op_of(entry), ", ".join(map(str, entry["input_sizes"])))
    return calls


def _cell(calls: Mapping[int, Cell] | None, number: int) -> Cell:
    if calls is None:
        return Cell(NO_DUMP)
    overwritten = calls and number < min(calls)  # the recorder keeps only the newest
    return calls.get(number, Cell(NOT_KEPT if overwritten else NEVER))


def _odd_in(column: Column) -> list[int]:
    """Return the ranks whose call differs from the majority's, or all of them if there is no majority."""
    calls = {rank: (cell.op, cell.size) for rank, cell in column.items() if cell.state not in (NO_DUMP, NOT_KEPT)}
    (usual, count), *others = Counter(calls.values()).most_common() or [(None, 0)]
    if not others:
        return []
    return [rank for rank, call in calls.items() if 2 * count <= len(calls) or call != usual]


def _draw_column(axes: Axes, number: int, column: Column, odd: list[int]) -> None:
    sizes = {cell.size for cell in column.values() if cell.op}
    for row, (rank, cell) in enumerate(column.items()):
        edge, weight, width = (INK, "bold", 3.5) if rank in odd else (COLORS["idle"], "normal", 1.0)
        corner = (number - WIDE / 2, row - TALL / 2)
        face = FACES.get(cell.state, "white")
        axes.add_patch(Rectangle(corner, WIDE, TALL, facecolor=face, edgecolor=edge, linewidth=width))
        words = [cell.op, *([cell.size] if len(sizes) > 1 else []), cell.state] if cell.op else [cell.state]
        axes.text(number, row, "\n".join(words), ha="center", va="center", color="black", weight=weight)


def _format_axes(axes: Axes, columns: Mapping[int, Column]) -> None:
    ranks = list(next(iter(columns.values())))
    axes.set_xlim(min(columns) - 0.55, max(columns) + 0.55)
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_xticks(list(columns))
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("number of the collective", color=INK)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)


def _describe_collectives(columns: Mapping[int, Column], odd_at: int, odd: list[int]) -> str:
    oldest, newest = min(columns), max(columns)
    words = f"Collectives {oldest} to {newest} of {len(columns[newest])} ranks"
    if not odd:
        return f"{words}: no rank differs from the others"
    cells = [f"rank {rank} {' '.join(filter(None, (*cell[1:], cell.state)))}" for rank, cell in columns[odd_at].items()]
    framed = f"{'rank' if len(odd) == 1 else 'ranks'} {', '.join(map(str, odd))}"
    return f"{words}. They first differ at number {odd_at}: {'; '.join(cells)}. Framed: {framed}"
