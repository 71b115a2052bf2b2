"""All-reduce algorithms, message by message: who sends which piece to whom, round after round.

Nothing is sent here. The list of messages determines what each rank holds after a round, and how many bytes it sends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """One piece of the tensor in flight. The receiver adds it to its own piece, or replaces its own piece by it."""

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
        """Return, for each rank and piece, the set of ranks whose values are in the rank's sum by then."""
        held = [[frozenset([rank])] * self.pieces for rank in range(self.ranks)]
        for messages in self.rounds[:rounds]:
            before = [list(row) for row in held]  # all messages of a round leave before any arrives
            for one in messages:
                arriving = before[one.source][one.piece]
                own = before[one.target][one.piece] if one.adds else frozenset()
                held[one.target][one.piece] = own | arriving
        return held

    def sent_after(self, rounds: int, size: float = 1.0) -> list[float]:
        """Return how many bytes of a `size`-byte tensor each rank has sent by then."""
        sent = [0.0] * self.ranks
        for one in (message for messages in self.rounds[:rounds] for message in messages):
            sent[one.source] += size / self.pieces
        return sent

    def in_turn(self, rounds: int | None = None, size: float = 1.0) -> float:
        """Return how many bytes are sent in sequence, one piece per round; the time of a large tensor depends on it."""
        return len(self.rounds[:rounds]) * size / self.pieces


def ring(ranks: int) -> AllReduce:
    """In every round, every rank sends a piece to its right neighbor: first to be added, then as the final sum."""
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
    """All ranks send to rank 0, which sends the sum back: one message at a time, because it has one network card."""
    _check(ranks)
    others = range(1, ranks)
    reduce = tuple((Message(rank, 0, 0, adds=True),) for rank in others)
    broadcast = tuple((Message(0, rank, 0, adds=False),) for rank in others)
    return AllReduce("through rank 0", ranks, 1, reduce + broadcast)


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
    return {"ring": ring, "through rank 0": through_root, "recursive doubling": doubling}


def _check(ranks: int) -> None:
    if ranks < 2:
        raise ValueError(f"ranks={ranks}: an all-reduce needs at least two")
