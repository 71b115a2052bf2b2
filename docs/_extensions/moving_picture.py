"""The front page's moving picture: four ranks sum a tensor in a ring, drawn from the rounds of lesson 00.

It is SVG that moves by CSS alone. On paper, and for those who have asked for less motion, it rests half way; a box
pauses it.
"""

from __future__ import annotations

from itertools import pairwise

from course_lib.drawing.svg import CONTRIBUTORS, box, element, line, text
from course_lib.messages.all_reduce import AllReduce, PieceMessage, ring

SIZE = (640, 310)
CELL, TALL = 44, 56  # a piece of the tensor on one rank
WIDE = 4 * CELL + 16
CORNERS = ((10, 14), (SIZE[0] - WIDE - 10, 14), (SIZE[0] - WIDE - 10, 194), (10, 194))  # of the ranks' boxes, clockwise
BETWEEN = (((202, 76), (438, 76)), ((534, 116), (534, 194)), ((438, 234), (202, 234)), ((106, 194), (106, 116)))
ROUND, REST = 1.6, 3.0  # seconds: a round, and the end
WORDS = (
    "Four ranks in a ring, each with its own numbers in four pieces. In each of six rounds every rank sends one piece "
    "to the next: three rounds add up, three pass the sums on. Then every rank has the sum of all."
)
PAUSE = '<p><input type="checkbox" id="pause-picture"> <label for="pause-picture">Pause the animation</label></p>'


def moving_picture() -> str:
    """The picture, as HTML for the page: its style, the box that pauses it, and the drawing."""
    way = ring(4)
    drawn = [line(*start, *end, "link") for start, end in BETWEEN]
    drawn += [_rank(rank, way) for rank in range(way.ranks)]
    drawn += [_travelling(one, number, way) for number, messages in enumerate(way.rounds) for one in messages]
    drawn += [_lines(words, name) for name, words in _captions(way)]
    svg = element("svg", *drawn, viewBox=f"0 0 {SIZE[0]} {SIZE[1]}", role="img", aria_label=WORDS)
    return f'<figure class="moving-picture"><style>{_style(way)}</style>{svg}{PAUSE}</figure>'


def _captions(way: AllReduce) -> list[tuple[str, str]]:
    rounds = len(way.rounds)
    kinds = ["each adds what it receives" if messages[0].adds else "the sum is passed on" for messages in way.rounds]
    during = [(f"during{number}", f"round {number + 1} of {rounds}:\n{kind}") for number, kind in enumerate(kinds)]
    return [*during, ("at-the-end", "every rank has\nthe sum of all")]


def _lines(words: str, name: str) -> str:
    """Words in the middle, in lines so short that no message passes over them."""
    lines = enumerate(words.split("\n"))
    return "".join(text(SIZE[0] / 2, 149 + 26 * place, line, f"words {name}", "middle") for place, line in lines)


def _cell(rank: int, piece: int) -> tuple[float, float]:
    left, top = CORNERS[rank]
    return left + 8 + CELL * piece, top + (34 if rank < 2 else 12)


def _rank(rank: int, way: AllReduce) -> str:
    """A rank's box: a stripe in a piece for each rank whose numbers have come into its sum."""
    left, top = CORNERS[rank]
    name = 22 if rank < 2 else 90  # where no message passes over it
    drawn = [
        box(left, top, WIDE, TALL + 46, "box", rx=6),
        text(left + WIDE / 2, top + name, f"rank {rank}", "name", "middle"),
    ]
    for piece in range(way.pieces):
        x, y = _cell(rank, piece)
        for who in range(way.ranks):
            since = next(done for done in range(len(way.rounds) + 1) if who in way.held_after(done)[rank][piece])
            drawn.append(_stripe(x, y, who, f"since{since}"))
        drawn.append(box(x + 2, y, CELL - 4, TALL, "frame"))
    return element("g", *drawn)


def _stripe(x: float, y: float, who: int, class_: str = "") -> str:
    return box(x + 2, y + TALL / 4 * who, CELL - 4, TALL / 4, class_, fill=CONTRIBUTORS[who])


def _travelling(one: PieceMessage, number: int, way: AllReduce) -> str:
    """A message: the piece as its sender has it, on its way to the same piece of the receiver."""
    (x, y), (to_x, to_y) = _cell(one.source, one.piece), _cell(one.target, one.piece)
    stripes = [_stripe(x, y, who) for who in sorted(way.held_after(number)[one.source][one.piece])]
    frame = box(x + 2, y, CELL - 4, TALL, "sent")
    way_to_go = f"--x:{to_x - x:.0f}px;--y:{to_y - y:.0f}px"
    return element("g", *stripes, frame, class_=f"message during{number}", style=way_to_go)


def _style(way: AllReduce) -> str:
    """Which stripe appears after which round, and when a message travels: percentages of the whole."""
    rounds = len(way.rounds)
    whole = rounds * ROUND + REST
    ends = [100 * ROUND * number / whole for number in range(rounds + 1)]
    rules = [f".moving-picture svg * {{ animation: {whole:.1f}s linear infinite; }}", STILL]
    for number, (begin, end) in enumerate(pairwise(ends)):
        rules.append(_appears(f"since{number + 1}", end))
        rules.append(f".moving-picture .during{number} {{ animation-name: during{number}; opacity: 0; }}")
        shown, moved = begin + 0.01, begin + 0.75 * (end - begin)
        rules.append(
            f"@keyframes during{number} {{ 0%, {begin:.2f}% {{ opacity: 0; transform: none; }}"
            f" {shown:.2f}% {{ opacity: 1; transform: none; animation-timing-function: ease-in-out; }}"
            f" {moved:.2f}%, {end:.2f}% {{ opacity: 1; transform: translate(var(--x, 0), var(--y, 0)); }}"
            f" {end + 0.01:.2f}%, 100% {{ opacity: 0; transform: translate(var(--x, 0), var(--y, 0)); }} }}"
        )
    return " ".join([*rules, _appears("at-the-end", ends[-1]), LESS_MOTION])


def _appears(name: str, at: float) -> str:
    frames = f"0%, {at:.2f}% {{ opacity: 0; }} {at + 0.01:.2f}%, 100% {{ opacity: 1; }}"
    return f".moving-picture .{name} {{ animation-name: {name}; }} @keyframes {name} {{ {frames} }}"


STILL = """
.moving-picture text { fill: currentColor; font: 15px var(--pst-font-family-base, sans-serif); }
@media (max-width: 600px) { .moving-picture text { font-size: 23px; } }
.moving-picture .name { font-weight: 600; }
.moving-picture .box { fill: var(--pst-color-surface, #f5f5f5); stroke: var(--pst-color-border, #999); }
.moving-picture .frame { fill: none; stroke: var(--pst-color-text-muted, #555); }
.moving-picture .sent { fill: none; stroke: currentColor; stroke-width: 3; }
.moving-picture .link { stroke: var(--pst-color-border, #999); stroke-width: 3; stroke-dasharray: 6 5; }
.moving-picture:has(#pause-picture:checked) svg * { animation-play-state: paused; }
"""
LESS_MOTION = """
@media print, (prefers-reduced-motion: reduce) {
  .moving-picture svg * { animation: none !important; }
  .moving-picture .since4, .moving-picture .since5, .moving-picture .since6, .moving-picture .at-the-end { opacity: 0; }
  .moving-picture .words.during2 { opacity: 1; }
  .moving-picture p { display: none; }
}
"""
