"""Timelines: one row per rank, one bar per span, one arrow per message; or one rank of several runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.drawing.picture import COLORS, INK, Picture, colors_for
from course_lib.launcher.live.team import Team
from course_lib.launcher.notebook.run import Run
from course_lib.launcher.tracing.trace_file import EXPOSED, exposed_communication, read_trace, spans_in
from course_lib.runtime.trace import Span
from course_lib.runtime.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LETTERS_IN_A_ROW = 55  # in a legend
CHARACTER = 0.015  # the width of a label's character, as a share of the picture's
MESSAGES = ("communication", EXPOSED, "send", "receive")  # drawn below what the rank computes at the same time


def draw_timeline(run: Run | Team | Sequence[Span] | str | Path, ranks: int | None = None) -> Picture:
    """Draw what a run recorded, or the last cell of a team of live ranks. Time starts at the first span.

    Rank 0 is on top. For a list of spans, give the number of `ranks`. You can also draw a trace file from
    `run.trace(FILE)` or `course train --profile FILE`; with a profile, the picture shows exposed communication, which
    no computation hides.

    Spans that run *during* another span on the same rank are drawn at half height, so that both are visible. Messages
    are always drawn below.
    """
    from matplotlib.figure import Figure

    spans, ranks = _spans_of(run, ranks)
    spans = _from_zero(spans)
    names = list(dict.fromkeys(span.name for span in sorted(spans, key=lambda span: span.start)))
    colors = colors_for(names)
    unit, scale = _time_unit(max((span.end for span in spans), default=0.0))
    figure = Figure(figsize=(9, 1.3 + 0.38 * ranks), layout="constrained")
    axes = figure.subplots()
    spans.sort(key=lambda span: (span.name in MESSAGES, -span.seconds))  # what comes later lies on top
    for place, span in enumerate(spans):
        covers = False
        for other in spans[:place]:
            if other.rank == span.rank and other.name != span.name:
                shorter, longer = sorted((span, other), key=lambda span: span.seconds)
                covers |= longer.start <= (shorter.start + shorter.end) / 2 <= longer.end
        _draw_bar(axes, span, (span.rank, 0.38) if covers else (span.rank - 0.38, 0.76), colors[span.name], scale)
    paced = any(span.paced for span in spans)
    _format(axes, [f"rank {rank}" for rank in range(ranks)], unit, paced)
    if not names:
        return Picture(figure, f"Timeline of {ranks} ranks with no spans: record some with trace.span(name)")
    _add_legend(figure, colors, min(6, len(names)) if sum(map(len, names)) <= LETTERS_IN_A_ROW else 3)
    kind = "Paced timeline" if paced else "Timeline"
    return Picture(figure, f"{kind} of {counted(ranks, 'rank')}: {', '.join(names)}")


def _spans_of(run: Run | Team | Sequence[Span] | str | Path, ranks: int | None) -> tuple[list[Span], int]:
    """Return the spans of a run, of a trace file, or the given ones, and the number of ranks."""
    if isinstance(run, Team):
        if run.last is None:
            raise ValueError("this team has not run a cell yet: there is nothing to draw")
        run = run.last
    if isinstance(run, str | Path):
        count, spans = spans_in(read_trace(run))
        return spans, count
    if isinstance(run, Run):
        exposed = [span for profile in run.profiles for span in exposed_communication(profile)]
        return [*run.spans, *exposed], len(run)
    if ranks is None:
        raise ValueError("spans alone do not show how many ranks there were: give ranks=4, or the whole run")
    return list(run), ranks


def _from_zero(spans: Sequence[Span]) -> list[Span]:
    start = min((span.start for span in spans), default=0.0)
    return [span.since(start) for span in spans]


def _add_legend(figure: Figure, colors: Mapping[str, str], columns: int) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=color, label=name) for name, color in colors.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=columns, frameon=False)


def _draw_bar(axes: Axes, span: Span, rows: tuple[float, float], color: str, scale: float) -> None:
    """Draw a span as a bar; `rows` is its upper edge and its height."""
    times = [(span.start * scale, span.seconds * scale)]
    axes.broken_barh(times, rows, facecolor=color, edgecolor="white", linewidth=0.6)


def _format(axes: Axes, rows: Sequence[str], unit: str, paced: bool, sleeping: str = "blocks") -> None:
    """Format axes of named rows over time, the first on top. In a paced run, `sleeping` is what sleeps."""
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"time in {unit}" + (f" (paced: {sleeping} sleep to a fixed length)" if paced else ""), color=INK)


def _time_unit(longest: float) -> tuple[str, float]:
    """Return a readable unit for times up to `longest` seconds, and the factor that converts seconds to it."""
    return ("seconds", 1.0) if longest >= 2 else ("milliseconds", 1000.0)


def draw_comparison(runs: Mapping[str, Run], rank: int = 0) -> Picture:
    """Draw one row per run, all starting at zero: what `rank` computed, and below it what it communicated, if anything.

    If there is room, a bar shows the label of its span: its layer or bucket. The part of a backward pass after its last
    layer, in which it only waits for messages, is drawn as idle.
    """
    from matplotlib.figure import Figure

    rows = {}
    for name, run in runs.items():
        spans = [span for span in run.spans if span.rank == rank]
        rows[name] = _from_zero(sorted([*spans, *_waits(spans)], key=lambda span: -span.seconds))
    spans = [span for row in rows.values() for span in row]
    longest = max((span.end for span in spans), default=0.0)
    unit, scale = _time_unit(longest)
    names = list(dict.fromkeys(span.name for span in sorted(spans, key=lambda span: span.start)))
    names.sort(key=lambda name: [*COLORS, name].index(name))  # the same order in every legend
    colors = colors_for(names)
    figure = Figure(figsize=(9, 1.3 + 0.62 * len(rows)), layout="constrained")
    axes = figure.subplots()
    height = 0.4 if any(name in MESSAGES for name in names) else 0.8
    for place, row in enumerate(rows.values()):
        for span in row:
            bottom, color = place if span.name in MESSAGES else place - 0.4, colors[span.name]
            _draw_bar(axes, span, (bottom, height), color, scale)
            if span.label and span.seconds > CHARACTER * (len(span.label) + 1) * longest:
                middle = (span.start + span.end) / 2 * scale
                red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
                ink = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 110 else INK
                axes.text(middle, bottom + height / 2, span.label, ha="center", va="center", color=ink)
    paced = any(span.paced for span in spans)
    _format(axes, list(rows), unit, paced)
    _add_legend(figure, colors, max(1, min(6, len(names))))
    ends = {name: max((span.end for span in row), default=0.0) * scale for name, row in rows.items()}
    times = ", ".join(f"{name} {end:.0f} {unit}" for name, end in ends.items())
    return Picture(figure, f"{'Paced timelines' if paced else 'Timelines'} of rank {rank} on one axis: {times}")


def _waits(spans: Sequence[Span]) -> list[Span]:
    """Return an idle span for each backward pass that only waits for messages after its last layer is done."""
    waits = []
    for whole in spans:
        ends = [part.end for part in spans if part.label and part.name == whole.name and whole.start <= part.start]
        done = max((end for end in ends if end <= whole.end), default=whole.end)
        sent = any(message.start < whole.end and message.end > done for message in spans if message.name in MESSAGES)
        if whole.name == "backward" and not whole.label and done < whole.end and sent:
            waits.append(replace(whole, name="idle", start=done))
    return waits


Pair = tuple[Span, Span]  # a send and its matching receive


def draw_messages(run: Run | Team | Sequence[Span] | Mapping[str, Run], ranks: int | None = None) -> Picture:
    """Draw each message of a run. If you give several runs by name, they are stacked on one time axis.

    The n-th `send` from a to b matches the n-th `receive` on b from a. Time starts at the first message of a run.
    """
    from matplotlib.figure import Figure

    shown = run.items() if isinstance(run, Mapping) else [("", run)]
    named = {}
    for name, one in shown:
        spans, count = _spans_of(one, ranks)
        pairs = matched(spans)
        start = min((send.start for send, _ in pairs), default=0.0)
        named[name] = [(send.since(start), receive.since(start)) for send, receive in pairs], count
    latest = max((receive.end for pairs, _ in named.values() for _, receive in pairs), default=0.0)
    unit, scale = _time_unit(latest)
    figure = Figure(figsize=(9, sum(0.7 + 0.45 * count for _, count in named.values()) + 0.4), layout="constrained")
    rows = figure.subplots(len(named), 1, sharex=True, squeeze=False)[:, 0]
    words = []
    look = {"arrowstyle": "-|>", "color": COLORS["communication"], "linewidth": 1.6, "shrinkB": 2}
    for axes, (name, (pairs, count)) in zip(rows, named.items(), strict=True):
        for send, receive in pairs:
            leaves, arrives = (send.start * scale, send.rank), (receive.end * scale, receive.rank)
            axes.annotate("", arrives, leaves, arrowprops=look)
        for rank in range(count):
            axes.axhline(rank, color=COLORS["idle"], linewidth=1, zorder=0)
        paced = any(span.paced for pair in pairs for span in pair)
        _format(axes, [f"rank {rank}" for rank in range(count)], unit, paced, sleeping="messages")
        axes.set_xlim(0, latest * scale * 1.02 or 1)
        title = f"{name}: {len(pairs)} messages" if name else f"{len(pairs)} messages"
        if pairs:
            counts = Counter(span.rank for pair in pairs for span in pair)
            busiest, times = max(counts.items(), key=lambda item: (item[1], -item[0]))
            title += f"; rank {busiest} takes part in {times}"
        axes.set_title(title, loc="left", color=INK)
        links = sorted({(send.rank, receive.rank) for send, receive in pairs})
        arrows = ", ".join(f"{a} to {b}" for a, b in links) or "none"
        kind = f"{name}: " * bool(name) + ("Paced messages" if paced else "Messages")
        words.append(f"{kind} between {count} ranks: {len(pairs)}, over the links {arrows}")
    for axes in rows[:-1]:
        axes.set_xlabel("")
    return Picture(figure, "; ".join(words))


def matched(spans: Sequence[Span]) -> list[Pair]:
    """Return every send with its matching receive, in the order of sending.

    A message leaves when both sides are ready, and the one that is ready first waits: the send begins then.
    """
    in_order = sorted(spans, key=lambda span: span.start)
    receives: dict[tuple[int | None, int | None], list[Span]] = defaultdict(list)  # by sender and receiver
    for span in in_order:
        if span.name == "receive":
            receives[span.peer, span.rank].append(span)
    pairs = []
    for send in in_order:
        if send.name == "send" and receives[send.rank, send.peer]:
            receive = receives[send.rank, send.peer].pop(0)
            pairs.append((replace(send, start=max(send.start, receive.start)), receive))
    return pairs
