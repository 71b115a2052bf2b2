"""The links between ranks: message time against message size, and two heat maps over all pairs of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from course_lib.pictures.picture import COLOURS, INK, Picture
from course_lib.planning.network import Link


def link(link: Link) -> Picture:
    """Draw the measured times and what the two fitted numbers predict."""
    sizes = [size for size, _ in link.measured]
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.loglog(sizes, [seconds * 1e3 for _, seconds in link.measured], "o", color=COLOURS["communication"])
    smooth = [sizes[0] * (sizes[-1] / sizes[0]) ** (step / 100) for step in range(101)]
    axes.loglog(smooth, [link.seconds(size) * 1e3 for size in smooth], color=INK, linewidth=1)
    knee = link.latency * link.bandwidth
    if sizes[0] < knee < sizes[-1]:
        axes.axvline(knee, color=COLOURS["idle"], linestyle="--", zorder=0)
        axes.annotate("half latency,\nhalf bytes", (knee, axes.get_ylim()[0]), (6, 6), textcoords="offset points")
    low, high = axes.get_ylim()
    round_numbers = [digit * 10.0**power for power in range(-4, 5) for digit in (1, 2, 5)]
    axes.set_yticks([number for number in round_numbers if low <= number <= high], minor=False)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xlabel("message size in bytes")
    axes.set_ylabel("milliseconds, one way")
    axes.set_title(f"measured (points) and fitted: {link}", loc="left", fontsize=10, color=INK)
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
    _draw(left, "latency in microseconds", links, ranks, lambda link: link.latency * 1e6, high_is_bad=True)
    _draw(right, "bandwidth in GB/s", links, ranks, lambda link: link.bandwidth / 1e9, high_is_bad=False)
    return Picture(figure, _describe(links, ranks))


def _draw(
    axes: Axes, title: str, links: Links, ranks: int, value: Callable[[Link], float], *, high_is_bad: bool
) -> None:
    values = {pair: value(link) for pair, link in links.items()}
    table = [
        [float("nan") if row == column else values[min(row, column), max(row, column)] for column in range(ranks)]
        for row in range(ranks)
    ]
    colours = ["white", COLOURS["communication"]]
    shades = LinearSegmentedColormap.from_list("links", colours if high_is_bad else colours[::-1])
    shades = shades.with_extremes(bad=COLOURS["idle"])
    low, high = min(values.values()), max(values.values())
    # Light to dark spans at least a factor of four, so that similar values look similar.
    middle = (low * high) ** 0.5
    axes.imshow(table, cmap=shades, norm=LogNorm(min(low, middle / 2), max(high, middle * 2)))
    if ranks <= MOST_NUMBERS:
        for row, cells in enumerate(table):
            for column, number in enumerate(cells):
                if row != column:
                    axes.text(column, row, f"{number:.3g}", ha="center", va="center", color=INK, fontsize=9)
    marks = range(0, ranks, max(1, ranks // 8))
    axes.set_xticks(marks, [f"rank {rank}" if rank == 0 else str(rank) for rank in marks])
    axes.set_yticks(marks, [f"rank {rank}" for rank in marks])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK)
    axes.set_title(f"{title} (darker is worse)", loc="left", fontsize=10, color=INK)
    axes.spines[:].set_visible(False)


def _describe(links: Links, ranks: int) -> str:
    slowest, narrowest = max(links, key=lambda pair: links[pair].latency), min(links, key=lambda p: links[p].bandwidth)
    best = min(link.latency for link in links.values()), max(link.bandwidth for link in links.values())
    return (
        f"Links between {ranks} ranks, two tables. Latency from {best[0] * 1e6:.3g} to "
        f"{links[slowest].latency * 1e6:.3g} microseconds, the longest between ranks {slowest[0]} and {slowest[1]}. "
        f"Bandwidth from {links[narrowest].bandwidth / 1e9:.3g} to {best[1] / 1e9:.3g} GB/s, the lowest between ranks "
        f"{narrowest[0]} and {narrowest[1]}"
    )
