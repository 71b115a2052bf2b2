"""An all-reduce, round by round: what is sent, whose numbers are in each sum, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi, sin

from course_lib.pictures.svg import Drawing, box, element, line, text
from course_lib.pictures.widgets.explorer import Explorer, choice, slider, whole_number
from course_lib.words import size_in_words

WIDTH = 740
TALL = 44  # the height of a piece of the tensor on one rank
TYPESET = str.maketrans({"-": "\N{MINUS SIGN}", "x": "\N{MULTIPLICATION SIGN}", " ": "\N{NO-BREAK SPACE}"})
SIZES = {4e3: "4 kB", 4e6: "4 MB", 1e8: "100 MB", 4e9: "4 GB"}


def explore_all_reduce(ranks: int = 4) -> AllReduceExplorer:
    """Step through an all-reduce: the ring piece by piece, and two other algorithms for comparison."""
    return AllReduceExplorer(ranks)


class AllReduceExplorer(Explorer):
    """Each rank starts with one number per piece; a stripe per rank shows whose numbers are in a sum."""

    title = "All-reduce, round by round"
    help = (
        "Each box is a rank, and each cell in it a numbered piece of the tensor. A stripe shows whose numbers are in "
        "the sum so far; a cell with a bold frame is complete."
    )

    def __init__(self, ranks: int = 4) -> None:
        self.scheme = ring(whole_number(ranks, "ranks", 2, 8))
        super().__init__(
            [
                choice("way", "how", list(ways_to_all_reduce()), "ring"),
                slider("ranks", "ranks", range(2, 9), ranks),
                choice("size", "tensor", SIZES, 4e6),
                slider("round", "rounds done", range(len(self.scheme.rounds) + 1), 0, plays=True),
            ]
        )

    def changed(self, names: set[str]) -> None:
        """Start over when the algorithm or the number of ranks changes."""
        if not names & {"way", "ranks"}:
            return
        ranks = self.values["ranks"]
        if self.values["way"] == "recursive doubling" and ranks & (ranks - 1):
            self.values["ranks"] = ranks = 2 ** (ranks.bit_length() - 1)  # recursive doubling needs a power of two
        self.scheme = ways_to_all_reduce()[self.values["way"]](ranks)
        self.values["round"] = 0
        self.offer("round", range(len(self.scheme.rounds) + 1))

    def showcase(self) -> Drawing:
        """Return the picture halfway through: before the first round, there is little to see."""
        return self.drawing if self.values["round"] else self.draw(len(self.scheme.rounds) // 2)

    def draw(self, after: int | None = None) -> Drawing:
        """Draw the picture after `after` rounds, or after the number on the slider."""
        scheme, done = self.scheme, self.values["round"] if after is None else after
        messages = scheme.rounds[done - 1] if done else ()
        places = [_place(rank, scheme.ranks) for rank in range(scheme.ranks)]
        shapes = [_arrow(message, places, scheme) for message in messages]
        sent = scheme.sent_after(done, self.values["size"])
        for rank, pieces in enumerate(scheme.held_after(done)):
            words = size_in_words(sent[rank]) if sent[rank] else "0"
            shapes.append(_rank(rank, pieces, places[rank], scheme.ranks, words))
        possible = [make for make in ways_to_all_reduce().values() if make is not doubling or _pairs(scheme.ranks)]
        schemes = [make(scheme.ranks) for make in possible]
        bars = _bars(schemes, scheme, done, self.values["size"], _height(scheme.ranks) + 20)
        height = _height(scheme.ranks) + 50 + 26 * len(schemes)
        return Drawing("".join([*shapes, bars]), WIDTH, height, self._words(messages, sent, done))

    def _words(self, messages: tuple[Message, ...], sent: list[float], done: int) -> str:
        scheme, size = self.scheme, self.values["size"]
        total = scheme.in_turn(size=size)
        if not done:
            cut = f", cut into {scheme.pieces} pieces" if scheme.pieces > 1 else ""
            return (
                f"Before the first of {len(scheme.rounds)} rounds: each of {scheme.ranks} ranks has its own numbers, "
                f"{size_in_words(size)}{cut}. One after another, {_formula(scheme)} = {size_in_words(total)} "
                "will have to pass."
            )
        complete = sum(len(ranks) == scheme.ranks for row in scheme.held_after(done) for ranks in row)
        message = messages[0]
        verb = "adds it to its own" if message.adds else "replaces its own with it"
        senders = "every rank sends" if len(messages) == scheme.ranks else f"rank {message.source} sends"
        receiver = "its partner" if len(messages) > 1 else f"rank {message.target}"
        receiver = "its right-hand neighbor" if scheme.name == "ring" else receiver
        content = "one piece" if scheme.pieces > 1 else "the whole tensor"
        return (
            f"Round {done} of {len(scheme.rounds)}{_phase(scheme, done)}: {senders} {content} to {receiver}, "
            f"which {verb}. Complete: {complete} of {scheme.ranks * scheme.pieces} pieces. "
            f"The busiest sender has sent {size_in_words(max(sent))}. One after another, "
            f"{size_in_words(scheme.in_turn(done, size))} of {_formula(scheme)} = {size_in_words(total)} have passed."
        )


def _pairs(ranks: int) -> bool:
    return not ranks & (ranks - 1)


def _formula(scheme: AllReduce) -> str:
    """Return the formula for the bytes that are sent one after another, for a tensor of M bytes on n ranks."""
    formulas = {"ring": "2(n-1)/n x M", "naive": "2(n-1) x M", "recursive doubling": "log2(n) x M"}
    return formulas[scheme.name].translate(TYPESET)


def _phase(scheme: AllReduce, rounds: int) -> str:
    phases = {"ring": ("reduce-scatter", "all-gather"), "naive": ("reduce", "broadcast")}
    return f", {phases[scheme.name][rounds > len(scheme.rounds) // 2]}" if scheme.name in phases else ""


def _height(ranks: int) -> float:
    """Return the height of the ring: more ranks need more room."""
    return 330 if ranks < 5 else 400 if ranks < 6 else 520


def _place(rank: int, ranks: int) -> tuple[float, float]:
    """Return the center of a rank's box: rank 0 on top, the others clockwise."""
    angle, height = 2 * pi * rank / ranks - pi / 2, _height(ranks)
    return WIDTH / 2 + 285 * cos(angle), height / 2 + (height / 2 - 54) * sin(angle)


def _cell(pieces: int) -> float:
    return min(30.0, 112 / pieces) if pieces > 1 else 64.0


def _outline(place: tuple[float, float], pieces: int) -> tuple[float, float, float, float]:
    """Return left, top, width and height of a rank's box."""
    width, height = _cell(pieces) * pieces + 12, TALL + 56
    return place[0] - width / 2, place[1] - height / 2, width, height


def _rank(rank: int, pieces: list[frozenset[int]], place: tuple[float, float], ranks: int, sent: str) -> str:
    """Draw a box with a cell per piece, and in each cell a stripe for each rank whose numbers are in its sum."""
    outline, cell = _outline(place, len(pieces)), _cell(len(pieces))
    left, top = outline[0] + 6, outline[1] + 35
    drawn = [box(*outline, "paper", rx=5), box(*outline, "frame", rx=5)]
    drawn.append(box(place[0] - 36, top - 28, 10, 10, f"rank{rank}"))  # the color of this rank's stripes
    drawn.append(text(place[0] + 4, top - 19, f"rank {rank}", "ink strong", "middle"))
    stripe = TALL / ranks
    for piece, contributors in enumerate(pieces):
        x = left + cell * piece
        drawn += [box(x + 2, top + stripe * other, cell - 4, stripe, f"rank{other}") for other in sorted(contributors)]
        drawn.append(box(x + 2, top, cell - 4, TALL, "whole" if len(contributors) == ranks else "frame"))
        if len(pieces) > 1:
            drawn.append(text(x + cell / 2, top - 4, str(piece), "faint small", "middle"))
    return element("g", *drawn, text(place[0], top + TALL + 15, f"sent {sent}", "faint small", "middle"))


def _arrow(message: Message, places: list[tuple[float, float]], scheme: AllReduce) -> str:
    """Draw an arrow from the edge of one box to the edge of the other."""
    (x1, y1), (x2, y2) = places[message.source], places[message.target]
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    _, _, width, height = _outline((0, 0), scheme.pieces)
    inside = min(width / 2 / abs(dx) if abs(dx) > 1e-9 else length, height / 2 / abs(dy) if abs(dy) > 1e-9 else length)
    to_and_fro = scheme.name == "recursive doubling" or scheme.ranks == 2
    aside = 7 if to_and_fro and len(scheme.rounds[0]) > 1 else 0  # two messages share this line, in opposite directions
    x1, y1, x2, y2 = x1 - dy * aside, y1 + dx * aside, x2 - dy * aside, y2 + dx * aside
    tail = (x1 + dx * (inside + 3), y1 + dy * (inside + 3))
    tip = (x2 - dx * (inside + 3), y2 - dy * (inside + 3))
    neck = (tip[0] - dx * 12, tip[1] - dy * 12)
    corners = [tip, (neck[0] - dy * 6, neck[1] + dx * 6), (neck[0] + dy * 6, neck[1] - dx * 6)]
    outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    origin = f"--from: {tail[0] - neck[0]:.1f}px {tail[1] - neck[1]:.1f}px"  # a page moves the head from here
    head = element("polygon", points=outline, class_="head", style=origin)
    return element(
        "g", line(*tail, *neck, "message"), head, _label(message, places, scheme, dx, dy), class_="travelling"
    )


def _label(message: Message, places: list[tuple[float, float]], scheme: AllReduce, dx: float, dy: float) -> str:
    """Draw the piece's label beside its arrow, which points to (dx, dy), where no box hides it."""
    if scheme.pieces == 1:
        return ""
    (x1, y1), (x2, y2) = places[message.source], places[message.target]
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    away = 9 + 28 * abs(dy) + 8 * abs(dx) + (7 if scheme.ranks == 2 else 0)  # half of the label, as seen from the arrow
    spots = [(x + side * dy * away, y - side * dx * away) for side in (-1, 1)]
    spots += [(x + side * away, y) for side in ((-1, 1) if x > WIDTH / 2 else (1, -1))]
    boxes = [_outline(place, scheme.pieces) for place in places]

    def is_hidden(x: float, y: float) -> bool:
        return any(-28 < x - left < width + 28 and -9 < y - top < height + 9 for left, top, width, height in boxes)

    x, y = next((spot for spot in spots if not is_hidden(*spot)), spots[-2])
    return text(x, y + 5, f"piece {message.piece}", "ink small", "middle")


def _bars(schemes: list[AllReduce], chosen: AllReduce, rounds: int, size: float, top: float) -> str:
    """Draw the bytes that each algorithm sends one after another, and how many the chosen one has sent so far."""
    longest = max(scheme.in_turn(size=size) for scheme in schemes)
    title = f"bytes that pass one after another, n = {chosen.ranks} ranks, M = {size_in_words(size)}"
    shapes = [text(0, top, title, "ink strong")]
    for number, scheme in enumerate(schemes):
        y, total = top + 12 + 26 * number, scheme.in_turn(size=size)
        full, left = 330 * total / longest, 140
        so_far = scheme.in_turn(rounds, size) / total * full if scheme.name == chosen.name else 0.0
        shapes += [
            text(0, y + 14, scheme.name, "ink strong" if scheme.name == chosen.name else "ink"),
            box(left, y, full, 18, "idle"),
            box(left, y, so_far, 18, "communication"),
            text(left + full + 8, y + 14, f"{_formula(scheme)} = {size_in_words(total)}"),
        ]
    return "".join(shapes)


@dataclass(frozen=True)
class Message:
    """One piece of the tensor in flight. The receiver adds it to its own piece, or replaces its own piece with it."""

    source: int
    target: int
    piece: int
    adds: bool


@dataclass(frozen=True)
class AllReduce:
    """An all-reduce algorithm. The tensor is cut into `pieces`, and all messages of a round travel at the same time."""

    name: str
    ranks: int
    pieces: int
    rounds: tuple[tuple[Message, ...], ...]

    def held_after(self, rounds: int) -> list[list[frozenset[int]]]:
        """Return, for each rank and piece, the set of ranks whose values are in the rank's sum after `rounds`."""
        held = [[frozenset([rank])] * self.pieces for rank in range(self.ranks)]
        for messages in self.rounds[:rounds]:
            before = [list(row) for row in held]  # all messages of a round leave before any arrives
            for message in messages:
                arriving = before[message.source][message.piece]
                addend = before[message.target][message.piece] if message.adds else frozenset()
                held[message.target][message.piece] = addend | arriving
        return held

    def sent_after(self, rounds: int, size: float = 1.0) -> list[float]:
        """Return how many bytes of a `size`-byte tensor each rank has sent after `rounds`."""
        sent = [0.0] * self.ranks
        for message in (message for messages in self.rounds[:rounds] for message in messages):
            sent[message.source] += size / self.pieces
        return sent

    def in_turn(self, rounds: int | None = None, size: float = 1.0) -> float:
        """Return how many bytes are sent in sequence, one piece per round. This decides the time of a large tensor."""
        return len(self.rounds[:rounds]) * size / self.pieces


def ring(ranks: int) -> AllReduce:
    """In every round, every rank sends a piece to its right neighbor: first partial sums to add to, then final sums."""
    _check(ranks)
    reduce_scatter = tuple(
        tuple(Message(rank, (rank + 1) % ranks, (rank - number) % ranks, adds=True) for rank in range(ranks))
        for number in range(ranks - 1)
    )
    all_gather = tuple(
        tuple(Message(rank, (rank + 1) % ranks, (rank + 1 - number) % ranks, adds=False) for rank in range(ranks))
        for number in range(ranks - 1)
    )
    return AllReduce("ring", ranks, ranks, reduce_scatter + all_gather)


def through_root(ranks: int) -> AllReduce:
    """All ranks send to rank 0, which sends the sum back. It has one network card, so messages take turns."""
    _check(ranks)
    others = range(1, ranks)
    reduce = tuple((Message(rank, 0, 0, adds=True),) for rank in others)
    broadcast = tuple((Message(0, rank, 0, adds=False),) for rank in others)
    return AllReduce("naive", ranks, 1, reduce + broadcast)


def doubling(ranks: int) -> AllReduce:
    """Pairs of ranks at distance 1, 2, 4, ... exchange whole tensors: few rounds, large messages."""
    _check(ranks)
    if ranks & (ranks - 1):
        raise ValueError(f"ranks={ranks}: recursive doubling pairs the ranks off, so it needs 2, 4, 8, ... of them")
    distances = [2**power for power in range(ranks.bit_length() - 1)]
    rounds = tuple(tuple(Message(rank, rank ^ far, 0, adds=True) for rank in range(ranks)) for far in distances)
    return AllReduce("recursive doubling", ranks, 1, rounds)


def ways_to_all_reduce() -> dict[str, Callable[[int], AllReduce]]:
    """Return the function that makes each algorithm, by name."""
    return {"ring": ring, "naive": through_root, "recursive doubling": doubling}


def _check(ranks: int) -> None:
    if ranks < 2:
        raise ValueError(f"ranks={ranks}: an all-reduce needs at least two")
