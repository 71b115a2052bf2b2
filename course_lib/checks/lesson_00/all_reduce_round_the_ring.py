"""00.2 All-reduce round the ring: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.exercise import Case, Exercise, same_as, seeded
from course_lib.checks.lesson_00 import exchange, neighbours


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, ranks: int, length: int) -> Case:
        vectors = [torch.randn(length, generator=generator, dtype=torch.float64) for _ in range(ranks)]
        return Case(part, ranks, {"vectors": vectors}, f"vectors of {length} numbers")

    return [
        case("two ranks", 2, 2),
        case("more ranks", 3, 6),
        case("pieces of unequal length", 4, 6),
    ]


def drive(answer, vectors: list[Tensor]):
    total, received = answer(vectors[dist.get_rank()].clone())
    return {"the sum": total, "received": list(received)}


def expected(case: Case) -> list:
    ranks = case.ranks
    pieces = [list(vector.clone().tensor_split(ranks)) for vector in case.inputs["vectors"]]
    received = [[] for _ in range(ranks)]
    for step in range(2 * (ranks - 1)):
        sent = [mine[(rank - step) % ranks].clone() for rank, mine in enumerate(pieces)]
        for rank in range(ranks):
            place, arriving = (rank - 1 - step) % ranks, sent[rank - 1]
            pieces[rank][place] = pieces[rank][place] + arriving if step < ranks - 1 else arriving
            received[rank].append(arriving)
    return [{"the sum": torch.cat(pieces[rank]), "received": received[rank]} for rank in range(ranks)]


def _pass_piece(outgoing, like):
    left, right = neighbours()
    arriving = torch.empty_like(like)
    exchange(outgoing.contiguous(), right, arriving, left)
    return arriving


def _ring(vector, *, cut=torch.tensor_split, gather=None, first=1, own=False, rounds=None):
    """The ring as it should be; each keyword bends one thing."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pieces, received = list(cut(vector, ranks)), []
    originals = [piece.clone() for piece in pieces]
    for step in range(ranks - 1):
        place = (rank - step - 1) % ranks
        outgoing = (originals if own else pieces)[(rank - step) % ranks]
        received.append(_pass_piece(outgoing, pieces[place]))
        pieces[place] = pieces[place] + received[-1]
    for step in range(ranks - 1 if rounds is None else rounds):
        place = (rank - step - 1 + first) % ranks
        received.append(_pass_piece(pieces[(rank - step + first) % ranks], pieces[place]))
        pieces[place] = pieces[place] + received[-1] if gather == "add" else received[-1]
    return torch.cat(pieces), received


def stops_half_way(vector):
    """After the first half each rank has the full sum of *one* piece, and parts of sums elsewhere. The finished pieces
    have to go round once more: all-gather, as many rounds again.
    """
    return _ring(vector, rounds=0)


def adds_in_both_halves(vector):
    """In the second half you still add what arrives. It is finished there: it *replaces* your own piece, which is part
    of that sum already.
    """
    return _ring(vector, gather="add")


def hands_on_the_wrong_piece(vector):
    """The second half begins with a piece that is not finished. After the first half, of which piece do you hold the
    full sum? The one that arrived last: begin with that.
    """
    return _ring(vector, first=0)


def sends_whole_vectors(vector):
    """The sum is right, but every round carries the whole vector: each rank sends n - 1 times all of it, instead of
    hardly more than twice. Cut it into as many pieces as there are ranks, and send one piece per round.
    """
    total, passing, received = vector.clone(), vector, []
    for _ in range(dist.get_world_size() - 1):
        passing = _pass_piece(passing, passing)
        received.append(passing)
        total += passing
    return total, received


def keeps_one_buffer(vector):
    """All entries of your list are the same tensor, which every round overwrites. Receive into a new one each time, or
    keep a copy.
    """
    total, received = _ring(vector)
    for arriving in received:
        arriving.resize_(received[-1].shape).copy_(received[-1])
    return total, received


def sends_its_own_pieces(vector):
    """In the first half you send your own pieces as they were. With two ranks that is enough; with more, the piece must
    take along what it has collected on its way: send what you have just added up.
    """
    return _ring(vector, own=True)


def cuts_with_chunk(vector):
    """`chunk(n)` makes pieces of equal length and may give fewer than n: 6 numbers for 4 ranks are 2 + 2 + 2. There
    must be one piece for each rank: `tensor_split` always makes n.
    """
    return _ring(vector, cut=torch.chunk)


def all_send_first(vector):
    """All ranks wait in the same round: a send may wait until it is received, and nobody receives yet. Begin the send
    without waiting (`dist.isend`), receive, then wait for it.
    """
    left, right = neighbours()
    pieces = list(vector.tensor_split(dist.get_world_size()))
    dist.send(pieces[dist.get_rank()], right)
    dist.recv(torch.empty_like(pieces[left]), left)


EXERCISE = Exercise(
    number="00.2",
    title="All-reduce round the ring",
    answer="ring_all_reduce",
    level="build",
    minutes=30,
    parts={"two ranks": 1, "more ranks": 2, "pieces of unequal length": 1},
    read="5 · All-reduce, round the ring",
    hints=(
        "Write one round first: begin to send a piece to the right, receive another from the left, wait for the send.",
        "In round s of the first half, rank r sends piece r - s and receives piece r - s - 1, counted modulo n. Follow "
        "one piece round a ring of three, on paper.",
        "In the second half the piece that you received last is the one you send next: from the first round on.",
        "`torch.tensor_split(vector, n)` makes n pieces of any length; `torch.cat` joins them again.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        stops_half_way,
        adds_in_both_halves,
        hands_on_the_wrong_piece,
        sends_whole_vectors,
        keeps_one_buffer,
        sends_its_own_pieces,
        cuts_with_chunk,
    ),
    hanging=all_send_first,
)
