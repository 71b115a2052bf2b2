"""The latency and the bandwidth between every two ranks, as two matrices."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.drawing.picture import COLORS, INK, Picture
from course_lib.messages.link import Link

MOST_NUMBERS = 16  # ranks: with more, the numbers do not fit in their boxes


def draw_link_matrix(links: Mapping[tuple[int, int], Link], ranks: int) -> Picture:
    """Draw the link between every two ranks, keyed by (lower, higher) rank. Darker is worse."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.figure import Figure

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
