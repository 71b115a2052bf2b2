"""A picture of the last collectives before a hang, from the dumps of NCCL's flight recorder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from course_lib.drawing.picture import COLORS, INK, Picture
from course_lib.launcher.hangs.flight_recorder import COALESCED, is_nccl, op_of
from course_lib.runtime.course_files import course_folder

DONE, WAITING, NEVER, NOT_KEPT, NO_DUMP = "done", "waiting", "never called", "not kept", "no dump"
FACES = {DONE: COLORS["communication"], WAITING: COLORS["idle"]}
WIDE, TALL = 0.9, 0.8  # the size of a box; the distance between two boxes is 1


class RecordedCall(NamedTuple):
    """One rank's call with a given sequence number, from its recorder. Without a call, `op` and `size` are empty."""

    state: str
    op: str = ""
    size: str = ""


def draw_collectives(dumps: Mapping[int, Mapping[str, Any]], *, group: str = "0", most: int = 6) -> Picture:
    """Draw the last `most` collectives of a process group. `dumps[rank]` is the unpickled dump of NCCL's recorder.

    In the first column where the ranks differ, a thick frame marks each rank whose call differs from the majority's, or
    all ranks if there is no majority.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

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
        sizes = {call.size for call in column.values() if call.op}
        for row, (rank, call) in enumerate(column.items()):
            framed = number == odd_at and rank in odd
            edge, weight, width = (INK, "bold", 3.5) if framed else (COLORS["idle"], "normal", 1.0)
            corner, face = (number - WIDE / 2, row - TALL / 2), FACES.get(call.state, "white")
            axes.add_patch(Rectangle(corner, WIDE, TALL, facecolor=face, edgecolor=edge, linewidth=width))
            said = [call.op, *([call.size] if len(sizes) > 1 else []), call.state] if call.op else [call.state]
            axes.text(number, row, "\n".join(said), ha="center", va="center", color="black", weight=weight)
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


def evidence(name: str) -> Path:
    """Return a file of the real NCCL hang in docs/nccl/hang: four ranks; rank 2 skips an all-reduce."""
    return course_folder() / "docs" / "nccl" / "hang" / name
