"""What the flight recorders kept of a hang: one row per rank, one column per collective, and which call is odd."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.launchers.diagnosis.flight_recorder import COALESCED, is_nccl, op_of
from course_lib.pictures.picture import COLOURS, INK, LETTERS, Picture

DONE, WAITING, NEVER, NOT_KEPT, NO_DUMP = "done", "waiting", "never called", "not kept", "no dump"
FACES = {DONE: COLOURS["communication"], WAITING: COLOURS["idle"]}
WIDE, TALL = 0.9, 0.8  # the size of a box, in units of the distance between two


class Cell(NamedTuple):
    """What a rank's record says about one number. Without a call, `op` and `size` are empty."""

    state: str
    op: str = ""
    size: str = ""


Column = dict[int, Cell]  # by rank


def collectives(dumps: Mapping[int, Mapping[str, Any]], *, group: str = "0", most: int = 6) -> Picture:
    """Draw the last `most` collectives of a process group. `dumps[rank]` is what NCCL's recorder wrote, unpickled.

    At the first number where the ranks differ, a thick frame marks each rank that did not do what most ranks did. If
    there is no majority, it marks all of them.
    """
    members = _members(dumps, group)
    calls = {rank: _calls(dumps[rank], group) for rank in members & dumps.keys()}
    last = max((number for own in calls.values() for number in own), default=0)
    if last == 0:
        raise ValueError(f"group={group!r}: the dumps hold no collective of that group")
    columns = {
        number: {rank: _cell(calls.get(rank), number) for rank in sorted(members)}
        for number in range(max(1, last - most + 1), last + 1)
    }
    odd_at, odd = next(((number, ranks) for number, column in columns.items() if (ranks := _odd_in(column))), (0, []))
    figure = Figure(figsize=(1.0 + 1.45 * len(columns), 0.8 + 0.62 * len(members)), layout="constrained")
    axes = figure.subplots()
    for number, column in columns.items():
        _draw_column(axes, number, column, odd if number == odd_at else [])
    _dress(axes, columns)
    return Picture(figure, _describe(columns, odd_at, odd))


def _members(dumps: Mapping[int, Mapping[str, Any]], group: str) -> set[int]:
    """Return the ranks of a group, as the dumps name them: a rank without a dump is one, too."""
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
                f"{entry['profiling_name']}: gloo doesn't record what is done; give dumps of a job over NCCL"
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
    """Return the ranks whose call is not the one of most ranks, or all of them if most ranks have none in common."""
    known = {rank: (cell.op, cell.size) for rank, cell in column.items() if cell.state not in (NO_DUMP, NOT_KEPT)}
    (usual, count), *others = Counter(known.values()).most_common() or [(None, 0)]
    if not others:
        return []
    return [rank for rank, call in known.items() if 2 * count <= len(known) or call != usual]


def _draw_column(axes: Axes, number: int, column: Column, odd: list[int]) -> None:
    sizes = {cell.size for cell in column.values() if cell.op}
    for row, (rank, cell) in enumerate(column.items()):
        edge, weight, width = (INK, "bold", 3.5) if rank in odd else (COLOURS["idle"], "normal", 1.0)
        corner = (number - WIDE / 2, row - TALL / 2)
        face = FACES.get(cell.state, "white")
        axes.add_patch(Rectangle(corner, WIDE, TALL, facecolor=face, edgecolor=edge, linewidth=width))
        words = [cell.op, *([cell.size] if len(sizes) > 1 else []), cell.state] if cell.op else [cell.state]
        axes.text(number, row, "\n".join(words), ha="center", va="center", fontsize=11, color="black", weight=weight)


def _dress(axes: Axes, columns: Mapping[int, Column]) -> None:
    ranks = list(next(iter(columns.values())))
    axes.set_xlim(min(columns) - 0.55, max(columns) + 0.55)
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_xticks(list(columns))
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("number of the collective", color=INK, fontsize=LETTERS)
    axes.tick_params(length=0, colors=INK, labelsize=LETTERS)
    axes.spines[:].set_visible(False)


def _describe(columns: Mapping[int, Column], odd_at: int, odd: list[int]) -> str:
    first, last = min(columns), max(columns)
    words = f"Collectives {first} to {last} of {len(columns[last])} ranks"
    if not odd:
        return f"{words}: no rank differs from the others"
    cells = [f"rank {rank} {' '.join(filter(None, (*cell[1:], cell.state)))}" for rank, cell in columns[odd_at].items()]
    framed = f"{'rank' if len(odd) == 1 else 'ranks'} {', '.join(map(str, odd))}"
    return f"{words}. They first differ at number {odd_at}: {'; '.join(cells)}. Framed: {framed}"
