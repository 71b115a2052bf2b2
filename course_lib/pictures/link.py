"""Message time against message size, measured, with the line latency + bytes / bandwidth through it."""

from __future__ import annotations

from matplotlib.figure import Figure

from course_lib.pictures.palette import COLOURS, INK
from course_lib.pictures.picture import Picture
from course_lib.planning.network import Link


def link(link: Link) -> Picture:
    """Draw what was measured and what the two fitted numbers predict."""
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
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return Picture(figure, "Message time against message size on two logarithmic axes: flat, then rising in a line")
