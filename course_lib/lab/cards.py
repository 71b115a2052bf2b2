"""A small picture for each lesson, drawn from blocks in the course's colors: for the desk's home and the website."""

from __future__ import annotations

BLOCK, GAP = 10, 2
# The course's colors, as in `course_lib.drawing.picture`, which takes seconds to import.
COLORS = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "weight gradients": "#D55E00",
    "recompute": "#56B4E9",
    "communication": "#009E73",
    "update": "#CC79A7",
    "x, a rank that waits": "#882255",
    "idle": "#D9D9D9",
}
# One letter is one block, in the color whose name begins with it; a space is empty.
ROWS = {
    "00": ("f c i i c f", "b c c c c b", "r i c c i r", "u c i i c u"),
    "01": ("  ffffbbbbbu", "  ffff      ", "  ff  bbbb  ", "      bb    "),
    "02": ("fffbbbbccu", "fffbbbbccu", "fffbbbbccu", "fffbbbbccu"),
    "03": ("ffffffffff", "fffffffiii", "ffffffiiii", "fffiiiiiii"),
    "04": ("fb fb fb fb ", "          cc", "fb fb fb fb ", "          cc"),
    "05": ("fiiiiiib", "ifiiiibi", "iifiibii", "iiifbiii"),
    "06": ("ffffiibibibb", "ifffibfbibib", "iiffbfbfbibi", "iiifbfbfbfbi"),
    "07": ("ffibbc ffibbc", "iffbib iffbib", "             ", "ffibbc ffibbc", "iffbib iffbib"),
    "08": ("fffbbciiiiii", "fffbbciiiiii", "fffbbx      ", "fffbbciiiiii"),
    "09": ("ffbb c   ffbb", "ffbb ccc ffbb", "ffbb ccc ffbb", "ffbb   c ffbb"),
    "10": ("fffbbbu", "       ", "rrrbbbu", "       ", "fffwwwu"),
    "11": ("ffibbcu", "iffbbcu", "ffibbcu", "iffbbcu"),
    "12": ("fiiiii", "ffiiii", "fffiii", "ffffii", "fffffi"),
}


def card_picture(lesson: str) -> str:
    """Return a lesson's picture as SVG. It is decoration: it has no words, and screen readers skip it."""
    rows = ROWS[lesson]
    step = BLOCK + GAP
    fills = {name[0]: color for name, color in COLORS.items()}
    blocks = [
        f'<rect x="{step * column}" y="{step * row}" width="{BLOCK}" height="{BLOCK}" rx="1.5" fill="{fills[letter]}"/>'
        for row, letters in enumerate(rows)
        for column, letter in enumerate(letters)
        if letter != " "
    ]
    size = f"0 0 {step * max(map(len, rows)) - GAP} {step * len(rows) - GAP}"
    return f'<svg viewBox="{size}" aria-hidden="true" xmlns="http://www.w3.org/2000/svg">{"".join(blocks)}</svg>'
