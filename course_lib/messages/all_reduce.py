"""Three ways to sum a tensor over ranks, as lists of messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PieceMessage:
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
    rounds: tuple[tuple[PieceMessage, ...], ...]
    formula: str  # the bytes that are sent one after another, for a tensor of M bytes on n ranks
    halves: tuple[str, str] | None = None  # the names of the first and the second half of the rounds

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(f"ranks={self.ranks}: an all-reduce needs at least two")

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
        senders = [message.source for messages in self.rounds[:rounds] for message in messages]
        return [senders.count(rank) * size / self.pieces for rank in range(self.ranks)]

    def in_turn(self, rounds: int | None = None, size: float = 1.0) -> float:
        """Return how many bytes are sent in sequence, one piece per round. This decides the time of a large tensor."""
        return len(self.rounds[:rounds]) * size / self.pieces


def ring(ranks: int) -> AllReduce:
    """In every round, every rank sends a piece to its right neighbor: first partial sums to add to, then final sums."""
    rounds = tuple(
        tuple(PieceMessage(rank, (rank + 1) % ranks, (rank + done - number) % ranks, not done) for rank in range(ranks))
        for done in (False, True)
        for number in range(ranks - 1)
    )
    return AllReduce("ring", ranks, ranks, rounds, "2(n-1)/n x M", ("reduce-scatter", "all-gather"))


def through_root(ranks: int) -> AllReduce:
    """All ranks send to rank 0, which sends the sum back. It has one network card, so messages take turns."""
    reduce = tuple((PieceMessage(rank, 0, 0, adds=True),) for rank in range(1, ranks))
    broadcast = tuple((PieceMessage(0, rank, 0, adds=False),) for rank in range(1, ranks))
    return AllReduce("naive", ranks, 1, reduce + broadcast, "2(n-1) x M", ("reduce", "broadcast"))


def doubling(ranks: int) -> AllReduce:
    """Pairs of ranks at distance 1, 2, 4, ... exchange whole tensors: few rounds, large messages."""
    if ranks & (ranks - 1):
        raise ValueError(f"ranks={ranks}: recursive doubling pairs the ranks off, so it needs 2, 4, 8, ... of them")
    distances = [2**power for power in range(ranks.bit_length() - 1)]
    rounds = tuple(tuple(PieceMessage(rank, rank ^ far, 0, adds=True) for rank in range(ranks)) for far in distances)
    return AllReduce("recursive doubling", ranks, 1, rounds, "log2(n) x M")


WAYS = {"ring": ring, "naive": through_root, "recursive doubling": doubling}
