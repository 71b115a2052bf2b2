"""Who sent what to whom: one row per rank, one arrow per message, for as long as it was on its way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.launchers.run import Run
from course_lib.pictures.palette import COLOURS, INK
from course_lib.pictures.picture import Picture
from course_lib.pictures.timeline import rank_axes, spans_of, time_unit
from course_lib.trace import Span

Pair = tuple[Span, Span]  # a send and the receive that took it


def messages(run: Run | Sequence[Span] | Mapping[str, Run], ranks: int | None = None) -> Picture:
    """Draw each message of a run. Several runs, by name, are drawn one above the other on one time axis.

    The n-th `send` from a to b meets the n-th `receive` on b from a. Time counts from the first message of a run.
    """
    named = {name: (matched(each.spans), len(each)) for name, each in run.items()} if isinstance(run, Mapping) else {}
    if not isinstance(run, Mapping):
        spans, ranks = spans_of(run, ranks)
        named[""] = matched(spans), ranks
    named = {name: (_from_zero(pairs), ranks) for name, (pairs, ranks) in named.items()}
    last = max((receive.end for pairs, _ in named.values() for _, receive in pairs), default=0.0)
    figure = Figure(figsize=(9, sum(0.7 + 0.45 * ranks for _, ranks in named.values()) + 0.4), layout="constrained")
    rows = figure.subplots(len(named), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, (pairs, ranks)) in zip(rows, named.items(), strict=True):
        _draw(axes, name, pairs, ranks, *time_unit(last))
        axes.set_xlim(0, last * time_unit(last)[1] * 1.02 or 1)
        if axes is not rows[-1]:
            axes.set_xlabel("")
    told = [f"{name}: {_describe(*each)}" if name else _describe(*each) for name, each in named.items()]
    return Picture(figure, "; ".join(told))


def matched(spans: Sequence[Span]) -> list[Pair]:
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


def left_at(send: Span, receive: Span) -> float:
    """When a message leaves: not before both are there. One who comes early waits."""
    return max(send.start, receive.start)


def busiest_rank(pairs: Sequence[Pair]) -> tuple[int, int]:
    """The rank that sends and receives most often, and how often."""
    counts: dict[int, int] = defaultdict(int)
    for send, receive in pairs:
        counts[send.rank] += 1
        counts[receive.rank] += 1
    return max(counts.items(), key=lambda item: (item[1], -item[0]), default=(0, 0))


def _from_zero(pairs: Sequence[Pair]) -> list[Pair]:
    first = min((left_at(*pair) for pair in pairs), default=0.0)
    return [(send.since(first), receive.since(first)) for send, receive in pairs]


def _draw(axes: Axes, name: str, pairs: Sequence[Pair], ranks: int, unit: str, scale: float) -> None:
    """One run: an arrow for each message, over a line for each rank."""
    for send, receive in pairs:
        axes.annotate(
            "",
            xy=(receive.end * scale, receive.rank),
            xytext=(left_at(send, receive) * scale, send.rank),
            arrowprops={"arrowstyle": "-|>", "color": COLOURS["communication"], "linewidth": 1.6, "shrinkB": 2},
        )
    for rank in range(ranks):
        axes.axhline(rank, color=COLOURS["idle"], linewidth=1, zorder=0)
    rank_axes(axes, ranks, unit, any(span.paced for pair in pairs for span in pair))
    rank, times = busiest_rank(pairs)
    title = f"{len(pairs)} messages" + (f"; rank {rank} takes part in {times}" if pairs else "")
    axes.set_title(f"{name}: {title}" if name else title, loc="left", fontsize=10, color=INK)


def _describe(pairs: Sequence[Pair], ranks: int) -> str:
    links = sorted({(send.rank, receive.rank) for send, receive in pairs})
    arrows = ", ".join(f"{a} to {b}" for a, b in links) or "none"
    paced = any(span.paced for pair in pairs for span in pair)
    return f"{'Paced messages' if paced else 'Messages'} between {ranks} ranks: {len(pairs)}, over the links {arrows}"
