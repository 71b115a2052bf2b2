"""A plot of how long a message takes against its size: measured, and as the fitted link predicts."""

from __future__ import annotations

from course_lib.drawing.picture import COLORS, INK, Picture
from course_lib.messages.link import Link


def draw_link(link: Link) -> Picture:
    """Draw the measured times and what the two fitted numbers predict."""
    from matplotlib.figure import Figure

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
