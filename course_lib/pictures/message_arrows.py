"""Who sent what to whom: one row per rank, one arrow per message, from when it left to when it had arrived."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from matplotlib.figure import Figure

from course_lib.launchers.run import Run
from course_lib.pictures.palette import COLOURS, INK
from course_lib.pictures.picture import Picture
from course_lib.pictures.timeline import rank_axes, spans_of, time_unit
from course_lib.trace import Span


def messages(run: Run | Sequence[Span], ranks: int | None = None) -> Picture:
    """Draw each message of a run. The n-th `send` from a to b meets the n-th `receive` on b from a."""
    spans, ranks = spans_of(run, ranks)
    pairs = matched(spans)
    unit, scale = time_unit(max((span.end for pair in pairs for span in pair), default=0.0))
    figure = Figure(figsize=(9, 1.0 + 0.55 * ranks), layout="constrained")
    axes = figure.subplots()
    for send, receive in pairs:
        axes.annotate(
            "",
            xy=(receive.end * scale, receive.rank),
            xytext=(send.start * scale, send.rank),
            arrowprops={"arrowstyle": "-|>", "color": COLOURS["communication"], "linewidth": 1.6, "shrinkB": 2},
        )
    for rank in range(ranks):
        axes.axhline(rank, color=COLOURS["idle"], linewidth=1, zorder=0)
    last = max((receive.end for _, receive in pairs), default=0.0)
    paced = any(span.paced for pair in pairs for span in pair)
    rank_axes(axes, ranks, unit, paced)
    axes.set_xlim(0, last * scale * 1.02 or 1)
    busiest = busiest_rank(pairs)
    title = f"{len(pairs)} messages" + (f"; rank {busiest[0]} takes part in {busiest[1]}" if pairs else "")
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    return Picture(figure, _describe(pairs, ranks, paced))


def matched(spans: Sequence[Span]) -> list[tuple[Span, Span]]:
    """Every send with the receive that took it, in the order of sending."""
    receives: dict[tuple[int | None, int | None], list[Span]] = defaultdict(list)  # by sender and receiver
    for span in sorted(spans, key=lambda span: span.start):
        if span.name == "receive":
            receives[span.peer, span.rank].append(span)
    pairs = []
    for span in sorted(spans, key=lambda span: span.start):
        if span.name == "send" and receives[span.rank, span.peer]:
            pairs.append((span, receives[span.rank, span.peer].pop(0)))
    return pairs


def busiest_rank(pairs: Sequence[tuple[Span, Span]]) -> tuple[int, int]:
    """The rank that sends and receives most often, and how often."""
    counts: dict[int, int] = defaultdict(int)
    for send, receive in pairs:
        counts[send.rank] += 1
        counts[receive.rank] += 1
    return max(counts.items(), key=lambda item: (item[1], -item[0]), default=(0, 0))


def _describe(pairs: Sequence[tuple[Span, Span]], ranks: int, paced: bool) -> str:
    links = sorted({(send.rank, receive.rank) for send, receive in pairs})
    arrows = ", ".join(f"{a} to {b}" for a, b in links) or "none"
    return f"{'Paced messages' if paced else 'Messages'} between {ranks} ranks: {len(pairs)}, over the links {arrows}"
