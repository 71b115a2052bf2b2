"""Three all-reduces as rounds of messages, and a widget that shows what each round sends, sums and costs."""

from __future__ import annotations

from math import cos, hypot, pi, sin

from course_lib.drawing.explorer import Explorer, choice, slider, whole_number
from course_lib.drawing.svg import Drawing, box, element, line, text
from course_lib.messages.all_reduce import WAYS, AllReduce, PieceMessage, ring, through_root
from course_lib.runtime.words import size_in_words

WIDTH = 740
TALL = 44  # the height of a piece of the tensor on one rank
TYPESET = str.maketrans({"-": "\N{MINUS SIGN}", "x": "\N{MULTIPLICATION SIGN}", " ": "\N{NO-BREAK SPACE}"})
SIZES = {4e3: "4 kB", 4e6: "4 MB", 1e8: "100 MB", 4e9: "4 GB"}


class AllReduceExplorer(Explorer):
    """Step through an all-reduce: the ring piece by piece, and two other algorithms for comparison.

    Each rank starts with one number per piece; a stripe per rank shows whose numbers are in a sum.
    """

    title = "All-reduce, round by round"
    help = (
        "Each box is a rank, and each cell in it a numbered piece of the tensor. A stripe shows whose numbers are in "
        "the sum so far; a cell with a bold frame is complete."
    )

    def __init__(self, ranks: int = 4) -> None:
        ranks = whole_number(ranks, "ranks", 2, 8)
        way, size = choice("way", "how", list(WAYS), "ring"), choice("size", "tensor", SIZES, 4e6)
        super().__init__([way, slider("ranks", "ranks", range(2, 9), ranks), size])

    def changed(self, names: set[str]) -> None:
        """Start over when the algorithm or the number of ranks changes."""
        if names & {"way", "ranks"}:
            ranks = self.values["ranks"]
            if self.values["way"] == "recursive doubling":
                self.values["ranks"] = ranks = 2 ** (ranks.bit_length() - 1)  # it needs a power of two
            self.scheme = WAYS[self.values["way"]](ranks)
            rounds = range(len(self.scheme.rounds) + 1)
            self.controls["round"] = slider("round", "rounds done", rounds, 0, plays=True)
            self.values["round"] = 0

    def showcase(self) -> Drawing:
        """Return the picture halfway through: before the first round, there is little to see."""
        return self.drawing if self.values["round"] else self.draw(len(self.scheme.rounds) // 2)

    def draw(self, after: int | None = None) -> Drawing:
        """Draw the picture after `after` rounds, or after the number on the slider."""
        scheme, size, ranks = self.scheme, self.values["size"], self.scheme.ranks
        done = self.values["round"] if after is None else after
        tall = 330 if ranks < 5 else 400 if ranks < 6 else 520  # more ranks need more room
        outlines, sent, held = _outlines(scheme, tall), scheme.sent_after(done, size), scheme.held_after(done)
        shapes = [_arrow(message, outlines, scheme) for message in scheme.rounds[done - 1]] if done else []
        for rank, pieces in enumerate(held):
            shapes.append(_rank(rank, pieces, outlines[rank], ranks, size_in_words(sent[rank]) if sent[rank] else "0"))
        possible = [ring, through_root] if ranks & (ranks - 1) else [*WAYS.values()]
        shapes.append(_bars([make(ranks) for make in possible], scheme, done, size, tall + 20))
        words = self._words(done, max(sent), sum(len(who) == ranks for row in held for who in row))
        return Drawing("".join(shapes), WIDTH, tall + 50 + 26 * len(possible), words)

    def _words(self, done: int, most_sent: float, complete: int) -> str:
        scheme, size = self.scheme, self.values["size"]
        total = f"{scheme.formula.translate(TYPESET)} = {size_in_words(scheme.in_turn(size=size))}"
        if not done:
            cut = f", cut into {scheme.pieces} pieces" if scheme.pieces > 1 else ""
            return (
                f"Before the first of {len(scheme.rounds)} rounds: each of {scheme.ranks} ranks has its own numbers, "
                f"{size_in_words(size)}{cut}. One after another, {total} will have to pass."
            )
        messages = scheme.rounds[done - 1]
        message = messages[0]
        verb = "adds it to its own" if message.adds else "replaces its own with it"
        senders = "every rank sends" if len(messages) == scheme.ranks else f"rank {message.source} sends"
        receiver = "its partner" if len(messages) > 1 else f"rank {message.target}"
        receiver = "its right-hand neighbor" if scheme.name == "ring" else receiver
        content = "one piece" if scheme.pieces > 1 else "the whole tensor"
        half = f", {scheme.halves[done > len(scheme.rounds) // 2]}" if scheme.halves else ""
        return (
            f"Round {done} of {len(scheme.rounds)}{half}: {senders} {content} to {receiver}, "
            f"which {verb}. Complete: {complete} of {scheme.ranks * scheme.pieces} pieces. "
            f"The busiest sender has sent {size_in_words(most_sent)}. One after another, "
            f"{size_in_words(scheme.in_turn(done, size))} of {total} have passed."
        )


explore_all_reduce = AllReduceExplorer
Outline = tuple[float, float, float, float]  # the left edge, top, width and height of a rank's box


def _outlines(scheme: AllReduce, height: float) -> list[Outline]:
    """Place rank 0's box on top, and the others clockwise."""
    wide, tall = min(30.0, 112 / scheme.pieces) * scheme.pieces + 12 if scheme.pieces > 1 else 76.0, TALL + 56
    angles = [2 * pi * rank / scheme.ranks - pi / 2 for rank in range(scheme.ranks)]
    places = [(WIDTH / 2 + 285 * cos(angle), height / 2 + (height / 2 - 54) * sin(angle)) for angle in angles]
    return [(x - wide / 2, y - tall / 2, wide, tall) for x, y in places]


def _rank(rank: int, pieces: list[frozenset[int]], outline: Outline, ranks: int, sent: str) -> str:
    """Draw a box with a cell per piece, and in each cell a stripe for each rank whose numbers are in its sum."""
    middle, left, top = outline[0] + outline[2] / 2, outline[0] + 6, outline[1] + 35
    cell, stripe = (outline[2] - 12) / len(pieces), TALL / ranks
    drawn = [box(*outline, "paper", rx=5), box(*outline, "frame", rx=5)]
    drawn.append(box(middle - 36, top - 28, 10, 10, f"rank{rank}"))  # the color of this rank's stripes
    drawn.append(text(middle + 4, top - 19, f"rank {rank}", "ink strong", "middle"))
    for piece, contributors in enumerate(pieces):
        x = left + cell * piece
        drawn += [box(x + 2, top + stripe * other, cell - 4, stripe, f"rank{other}") for other in sorted(contributors)]
        drawn.append(box(x + 2, top, cell - 4, TALL, "whole" if len(contributors) == ranks else "frame"))
        if len(pieces) > 1:
            drawn.append(text(x + cell / 2, top - 4, str(piece), "faint small", "middle"))
    return element("g", *drawn, text(middle, top + TALL + 15, f"sent {sent}", "faint small", "middle"))


def _arrow(message: PieceMessage, outlines: list[Outline], scheme: AllReduce) -> str:
    """Draw an arrow from the edge of one box to the edge of the other, and beside it the number of the piece."""
    ends = outlines[message.source], outlines[message.target]
    (x1, y1), (x2, y2) = ((left + width / 2, top + height / 2) for left, top, width, height in ends)
    length = hypot(x2 - x1, y2 - y1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    label = _label(message.piece, (x1 + x2) / 2, (y1 + y2) / 2, dx, dy, outlines) if scheme.pieces > 1 else ""
    _, _, width, height = outlines[0]
    inside = min(width / 2 / abs(dx) if abs(dx) > 1e-9 else length, height / 2 / abs(dy) if abs(dy) > 1e-9 else length)
    to_and_fro = scheme.name == "recursive doubling" or scheme.ranks == 2
    aside = 7 if to_and_fro and len(scheme.rounds[0]) > 1 else 0  # two messages share this line, in opposite directions
    x1, y1, x2, y2 = x1 - dy * aside, y1 + dx * aside, x2 - dy * aside, y2 + dx * aside
    tail = (x1 + dx * (inside + 3), y1 + dy * (inside + 3))
    tip = (x2 - dx * (inside + 3), y2 - dy * (inside + 3))
    neck = (tip[0] - dx * 12, tip[1] - dy * 12)
    corners = [tip, (neck[0] - dy * 6, neck[1] + dx * 6), (neck[0] + dy * 6, neck[1] - dx * 6)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    origin = f"--from: {tail[0] - neck[0]:.1f}px {tail[1] - neck[1]:.1f}px"  # a page moves the head from here
    head = element("polygon", points=points, class_="head", style=origin)
    return element("g", line(*tail, *neck, "message"), head, label, class_="travelling")


def _label(piece: int, x: float, y: float, dx: float, dy: float, outlines: list[Outline]) -> str:
    """Draw the piece's number beside the middle of its arrow, which points to (dx, dy), where no box hides it."""
    # The first number is half of the label, as seen from the arrow; between two ranks, there are two arrows.
    away = 9 + 28 * abs(dy) + 8 * abs(dx) + (7 if len(outlines) == 2 else 0)
    spots = [(x + side * dy * away, y - side * dx * away) for side in (-1, 1)]
    spots += [(x + side * away, y) for side in ((-1, 1) if x > WIDTH / 2 else (1, -1))]

    def is_hidden(x: float, y: float) -> bool:
        return any(-28 < x - left < width + 28 and -9 < y - top < height + 9 for left, top, width, height in outlines)

    x, y = next((spot for spot in spots if not is_hidden(*spot)), spots[-2])
    return text(x, y + 5, f"piece {piece}", "ink small", "middle")


def _bars(schemes: list[AllReduce], chosen: AllReduce, rounds: int, size: float, top: float) -> str:
    """Draw the bytes that each algorithm sends one after another, and how many the chosen one has sent so far."""
    longest = max(scheme.in_turn(size=size) for scheme in schemes)
    title = f"bytes that pass one after another, n = {chosen.ranks} ranks, M = {size_in_words(size)}"
    shapes = [text(0, top, title, "ink strong")]
    for number, scheme in enumerate(schemes):
        y, total = top + 12 + 26 * number, scheme.in_turn(size=size)
        full, left = 330 * total / longest, 140
        so_far = scheme.in_turn(rounds, size) / total * full if scheme.name == chosen.name else 0.0
        formula = scheme.formula.translate(TYPESET)
        shapes += [
            text(0, y + 14, scheme.name, "ink strong" if scheme.name == chosen.name else "ink"),
            box(left, y, full, 18, "idle"),
            box(left, y, so_far, 18, "communication"),
            text(left + full + 8, y + 14, f"{formula} = {size_in_words(total)}"),
        ]
    return "".join(shapes)
