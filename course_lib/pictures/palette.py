"""One colour per meaning, in the whole course. The colours are Okabe and Ito's: safe for colour-blind readers."""

from __future__ import annotations

COLOURS = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "weight gradients": "#D55E00",  # of a backward pass that is split
    "recompute": "#56B4E9",  # a forward pass made again
    "communication": "#009E73",
    "send": "#009E73",
    "receive": "#7FCEB9",  # communication too, seen from the other end
    "exposed communication": "#004D38",  # what no computation hides
    "input wait": "#882255",
    "update": "#CC79A7",
    "idle": "#D9D9D9",
}
OTHERS = ("#332288", "#F0E442", "#8C6BB1", "#7F7F7F", "#B2DF8A", "#999933")
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # curves, in order
MEMORY = {"parameters": "#0072B2", "gradients": "#E69F00", "optimizer": "#CC79A7", "activations": "#56B4E9"}
BLOCKS = {"way-in": "#B2DF8A", "layer": "#56B4E9", "way-out": "#F0E442"}
INK = "#333333"


def colours_for(names: list[str]) -> dict[str, str]:
    """A colour for each name: the course's own where the name has a meaning, else the next free one."""
    strangers = [name for name in names if name not in COLOURS]
    return {name: COLOURS[name] if name in COLOURS else OTHERS[strangers.index(name) % len(OTHERS)] for name in names}
