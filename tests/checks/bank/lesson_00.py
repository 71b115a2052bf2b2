"""Answers to the exercises of lesson 00."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course_lib.lessons.lesson_00 import exchange, neighbors
from tests.checks.bank import CHANGES_IN_FLIGHT, NEVER_WAITS, right, wrong

# 00.1 Pass it on


@wrong("00.1", says="the rank's own number")
def returns_its_own(number):
    left, right = neighbors()
    mine, theirs = torch.tensor([number]), torch.tensor([0])
    exchange(mine, right, theirs, left)
    return mine


@wrong("00.1", says="it should be", never="the other way")
def sends_two_ahead(number):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    step = 2 if ranks > 2 else 1
    theirs = torch.zeros(1, dtype=torch.int64)
    exchange(torch.tensor([number]), (rank + step) % ranks, theirs, (rank - step) % ranks)
    return theirs


@wrong("00.1", says="comes all the way around the ring")
def passes_on_until_its_own_comes_back(number):
    left, right = neighbors()
    mine = torch.tensor([number])
    for _ in range(dist.get_world_size()):
        theirs = torch.zeros_like(mine)
        exchange(mine, right, theirs, left)
        mine = theirs
    return mine


@wrong("00.1", says=NEVER_WAITS)
def drops_its_send(number):
    left, right = neighbors()
    theirs = torch.zeros(1)
    dist.isend(torch.tensor([float(number)]), right)
    dist.recv(theirs, left)
    return theirs.item()


@wrong("00.1", says=NEVER_WAITS)
def never_waits_for_its_receive(number):
    left, right = neighbors()
    theirs = torch.tensor([-1.0])
    receiving = dist.irecv(theirs, left)
    dist.send(torch.tensor([float(number)]), right)
    return theirs if receiving else None


@wrong("00.1", says=CHANGES_IN_FLIGHT)
def receives_into_what_it_sends(number):
    left, right = neighbors()
    both = torch.tensor([number])
    sending = dist.isend(both, right)
    dist.recv(both, left)
    sending.wait()
    return both


@wrong("00.1", says="that is a chain")
def leaves_the_ring_open(number):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    theirs = torch.tensor([-1])
    sending = dist.isend(torch.tensor([number]), rank + 1) if rank + 1 < ranks else None
    if rank > 0:
        dist.recv(theirs, rank - 1)
    if sending:
        sending.wait()
    return theirs.item()


@wrong("00.1", says="nothing came to rank 0", never="All ranks have the same")
def a_chain_that_keeps_rank_0s(number):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    theirs = torch.tensor([number])
    if rank > 0:
        dist.recv(theirs, rank - 1)
    if rank + 1 < ranks:
        dist.send(torch.tensor([number]), rank + 1)
    return theirs.item()


@wrong("00.1", says="a broadcast")
def all_get_rank_0s(number):
    theirs = torch.tensor([number])
    dist.broadcast(theirs, src=0)
    return theirs


@wrong("00.1", says="several of them were added on the way")
def adds_on_the_way(number):
    left, right = neighbors()
    token = torch.zeros(1)
    if dist.get_rank() == 0:
        dist.send(torch.tensor([float(number)]), right)
        dist.recv(token, left)
    else:
        dist.recv(token, left)
        dist.send(token + number, right)
    return token


@wrong("00.1", says="The numbers go around the other way")
def wrong_way_round(number):
    left, right = neighbors()
    theirs = torch.empty(1)
    exchange(torch.tensor([float(number)]), left, theirs, right)
    return theirs


@wrong("00.1", says="that is a collective")
def gathers_all(number):
    numbers = [None] * dist.get_world_size()
    dist.all_gather_object(numbers, number)
    return numbers[dist.get_rank() - 1]


@wrong("00.1", says="that is a collective")
def adds_up_a_row(number):
    row = torch.zeros(dist.get_world_size())
    row[(dist.get_rank() + 1) % len(row)] = number
    dist.all_reduce(row)
    return row[dist.get_rank()].item()


@wrong("00.1", says="A rank sends to the next one only")
def by_way_of_rank_0(number):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = torch.tensor([number])
    if rank == 0:
        numbers = [mine] + [torch.empty_like(mine) for _ in range(ranks - 1)]
        for source in range(1, ranks):
            dist.recv(numbers[source], source)
        for to in range(1, ranks):
            dist.send(numbers[to - 1], to)
        return numbers[-1].item()
    dist.send(mine, 0)
    dist.recv(mine, 0)
    return mine.item()


@wrong("00.1", says="A rank returns nothing")
def forgets_to_return(number):
    left, right = neighbors()
    theirs = torch.empty(1)
    exchange(torch.tensor([float(number)]), right, theirs, left)


@wrong("00.1", says="Every rank waits in its send")
def all_send_first(number):
    left, right = neighbors()
    theirs = torch.empty(1)
    dist.send(torch.tensor([float(number)]), right)
    dist.recv(theirs, left)
    return theirs.item()


@wrong("00.1", says="Every rank waits for a message")
def all_receive_first(number):
    left, right = neighbors()
    theirs = torch.empty(1)
    dist.recv(theirs, left)
    dist.send(torch.tensor([float(number)]), right)
    return theirs.item()


@wrong("00.1", says="A rank returns nothing")
def only_rank_0_receives(number):
    left, right = neighbors()
    sending = dist.isend(torch.tensor([float(number)]), right)
    theirs = torch.empty(1)
    dist.recv(theirs, left)
    sending.wait()
    return theirs.item() if dist.get_rank() == 0 else None


@wrong("00.1", says="the rank before them sent what it had received", never="nothing came to rank 0")
def sends_on_what_it_has_received(number):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    following, before = (rank + 1) % ranks, (rank - 1) % ranks
    token = torch.tensor([number])
    if rank % 2 == 0:
        sent = token.clone()
        sending = dist.isend(sent, following)
        dist.recv(token, before)
        sending.wait()
    else:
        dist.recv(token, before)
        dist.send(token, following)
    return token.item()


@wrong("00.1", says="at a barrier", never="received all of them")
def begins_at_a_barrier(number):
    dist.barrier()
    return both_in_a_batch(number)


@right("00.1")
def even_ranks_send_first(number):
    left, right = neighbors()
    theirs = torch.tensor([0])
    if dist.get_rank() % 2 == 0:
        dist.send(torch.tensor([number]), right)
        dist.recv(theirs, left)
    else:
        dist.recv(theirs, left)
        dist.send(torch.tensor([number]), right)
    return theirs


@right("00.1")
def both_in_a_batch(number):
    left, right = neighbors()
    theirs = torch.empty((), dtype=torch.float64)
    mine = torch.tensor(float(number), dtype=torch.float64)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, theirs, left), dist.P2POp(dist.isend, mine, right)]):
        work.wait()
    return theirs


@right("00.1")
def rank_0_begins(number):
    left, right = neighbors()
    theirs = torch.zeros(1, dtype=torch.int32)
    if dist.get_rank() == 0:
        dist.send(torch.tensor([number], dtype=torch.int32), right)
    dist.recv(theirs, left)
    if dist.get_rank() != 0:
        dist.send(torch.tensor([number], dtype=torch.int32), right)
    return int(theirs)


@right("00.1")
def as_an_object(number):
    left, right = neighbors()
    theirs = [None]
    if dist.get_rank() == 0:
        dist.send_object_list([number], right)
        dist.recv_object_list(theirs, left)
    else:
        dist.recv_object_list(theirs, left)
        dist.send_object_list([number], right)
    return theirs[0]


@right("00.1")
def in_a_byte(number):
    left, right = neighbors()
    theirs = torch.zeros(1, dtype=torch.uint8)
    exchange(torch.tensor([number], dtype=torch.uint8), right, theirs, left)
    return theirs


# 00.2 All-reduce by halves


def swap(outgoing, arriving, partner):
    sending = dist.isend(outgoing.contiguous(), partner)
    dist.recv(arriving, partner)
    sending.wait()


def halves(vector, back=True, add_back=False, distances=None):
    """The answer as it should be; each keyword bends one thing."""
    rank, walk, begin, end = dist.get_rank(), [], 0, len(vector)
    for distance in distances or _distances():
        middle = (begin + end) // 2
        mine, theirs = (slice(begin, middle), slice(middle, end))[:: -1 if rank & distance else 1]
        arriving = torch.empty_like(vector[mine])
        swap(vector[theirs], arriving, rank ^ distance)
        vector[mine] += arriving
        walk.append((mine, theirs, rank ^ distance))
        begin, end = mine.start, mine.stop
    for mine, theirs, partner in reversed(walk) if back else ():
        arriving = torch.empty_like(vector[theirs])
        swap(vector[mine], arriving, partner)
        vector[theirs] = vector[theirs] + arriving if add_back else arriving
    return vector, slice(begin, end)


def _distances():
    return [2**power for power in reversed(range(dist.get_world_size().bit_length() - 1))]


@wrong("00.2", says="a message does not match its receive")
def receives_into_too_little(vector):
    partner = dist.get_rank() ^ 1
    begun = dist.isend(vector, partner)
    half = torch.empty(max(1, len(vector) // 2), dtype=vector.dtype)
    dist.recv(half, partner)
    begun.wait()
    return vector


@wrong("00.2", says="recv of float32")
def receives_into_the_default_dtype(vector):
    rank, walk, begin, end = dist.get_rank(), [], 0, len(vector)
    for distance in _distances():
        middle = (begin + end) // 2
        mine, theirs = (slice(begin, middle), slice(middle, end))[:: -1 if rank & distance else 1]
        arriving = torch.empty(mine.stop - mine.start)
        swap(vector[theirs], arriving, rank ^ distance)
        vector[mine] += arriving
        walk.append((mine, theirs, rank ^ distance))
        begin, end = mine.start, mine.stop
    for mine, theirs, partner in reversed(walk):
        swap(vector[mine], vector[theirs], partner)
    return vector


@wrong("00.2", says=NEVER_WAITS)
def waits_for_no_send(vector):
    for distance in _distances():
        arriving = torch.empty_like(vector)
        dist.isend(vector, dist.get_rank() ^ distance)
        dist.recv(arriving, dist.get_rank() ^ distance)
        vector = vector + arriving
    return vector


@wrong("00.2", says=CHANGES_IN_FLIGHT)
def adds_to_what_it_sends(vector):
    for distance in _distances():
        arriving = torch.empty_like(vector)
        sending = dist.isend(vector, dist.get_rank() ^ distance)
        dist.recv(arriving, dist.get_rank() ^ distance)
        vector += arriving
        sending.wait()
    return vector


@wrong("00.2", says="a collective of the library")
def the_librarys(vector):
    dist.all_reduce(vector)
    return vector


@wrong("00.2", says="a collective of the library")
def gathers_and_adds(vector):
    vectors = [torch.empty_like(vector) for _ in range(dist.get_world_size())]
    dist.all_gather(vectors, vector)
    return sum(vectors)


@wrong("00.2", says="Whole vectors are too much")
def whole_vectors(vector):
    for distance in _distances():
        arriving = torch.empty_like(vector)
        swap(vector, arriving, dist.get_rank() ^ distance)
        vector = vector + arriving
    return vector


@wrong("00.2", says="Whole vectors are too much")
def over_rank_0(vector):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank:
        dist.send(vector, 0)
        dist.recv(vector, 0)
        return vector
    for source in range(1, ranks):
        arriving = torch.empty_like(vector)
        dist.recv(arriving, source)
        vector += arriving
    for to in range(1, ranks):
        dist.send(vector, to)
    return vector


@wrong("00.2", says="Whole vectors are too much")
def up_and_down_a_tree(vector):
    rank, ranks, distance = dist.get_rank(), dist.get_world_size(), 1
    while distance < ranks and not rank & distance:
        arriving = torch.empty_like(vector)
        dist.recv(arriving, rank + distance)
        vector += arriving
        distance *= 2
    if rank:
        dist.send(vector, rank - distance)
        dist.recv(vector, rank - distance)
    while distance > 1:
        distance //= 2
        dist.send(vector, rank + distance)
    return vector


@wrong("00.2", says="as around a ring")
def round_the_ring(vector):
    (left, right), rank, ranks = neighbors(), dist.get_rank(), dist.get_world_size()
    pieces = list(vector.tensor_split(ranks))
    for step in range(2 * (ranks - 1)):
        place = (rank - step - 1) % ranks
        arriving = torch.empty_like(pieces[place])
        exchange(pieces[(rank - step) % ranks].contiguous(), right, arriving, left)
        pieces[place] = pieces[place] + arriving if step < ranks - 1 else arriving
    return torch.cat(pieces)


@wrong("00.2", says="that is where the first half ends")
def stops_half_way(vector):
    return halves(vector, back=False)[0]


@wrong("00.2", says="that is where the first half ends")
def returns_its_piece(vector):
    vector, mine = halves(vector, back=False)
    return vector[mine].clone()


@wrong("00.2", says="finished pieces were added")
def adds_on_the_way_back(vector):
    return halves(vector, add_back=True)[0]


@wrong("00.2", says="sums of two ranks' vectors")
def only_the_neighbor(vector):
    return halves(vector, distances=[1])[0]


@wrong("00.2", says="This is the mean")
def the_mean(vector):
    return halves(vector)[0] / dist.get_world_size()


@wrong("00.2", says="are still each rank's own")
def drops_the_rest(vector):
    whole = len(vector) // dist.get_world_size() * dist.get_world_size()
    return torch.cat([halves(vector[:whole].clone())[0], vector[whole:]])


@wrong("00.2", says="put together wrongly")
def puts_its_own_first(vector):
    rank, walk = dist.get_rank(), []
    for distance in _distances():
        low, high = vector[: len(vector) // 2], vector[len(vector) // 2 :]
        mine, theirs = (high, low) if rank & distance else (low, high)
        arriving = torch.empty_like(mine)
        swap(theirs, arriving, rank ^ distance)
        vector = mine + arriving
        walk.append((torch.empty_like(theirs), rank ^ distance))
    for arriving, partner in reversed(walk):
        swap(vector, arriving, partner)
        vector = torch.cat([vector, arriving])
    return vector


@wrong("00.2", says="Nothing is returned")
def returns_nothing(vector):
    halves(vector)


@wrong("00.2", says="Every rank waits in its send")
def all_send_a_half_first(vector):
    half = len(vector) // 2
    dist.send(vector[:half].clone(), dist.get_rank() ^ 1)
    dist.recv(vector[half:], dist.get_rank() ^ 1)
    return vector


@wrong("00.2", says="at a barrier", never="did the work")
def begins_with_a_barrier(vector):
    dist.barrier()
    return recursively(vector)


@wrong("00.2", says="only the digits of float32")
def adds_in_float32(vector):
    return recursively(vector.float())


@right("00.2")
def near_ones_first(vector):
    return halves(vector, distances=_distances()[::-1])[0]


@right("00.2")
def recursively(vector):
    def of(ranks, part):
        """The sum of `part` over these ranks, in as many halves as there are."""
        if len(ranks) == 1:
            return part
        place, half = ranks.index(dist.get_rank()), len(ranks) // 2
        cut = len(part) // 2
        low = place < half
        mine, theirs = (part[:cut], part[cut:]) if low else (part[cut:], part[:cut])
        partner = ranks[place + half if low else place - half]
        arriving = torch.empty_like(mine)
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, theirs.clone(), partner), dist.P2POp(dist.irecv, arriving, partner)]
        ):
            work.wait()
        done = of(ranks[:half] if low else ranks[half:], mine + arriving).contiguous()
        other = torch.empty_like(theirs)
        swap(done, other, partner)
        return torch.cat([done, other] if low else [other, done])

    return of(list(range(dist.get_world_size())), vector)


@right("00.2")
def padded_to_equal_pieces(vector):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pieces = torch.nn.functional.pad(vector, (0, -len(vector) % ranks)).view(ranks, -1)
    mine = list(range(ranks))
    walk = []
    for distance in _distances():
        keep = [piece for piece in mine if piece & distance == rank & distance]
        give = [piece for piece in mine if piece not in keep]
        arriving = torch.empty_like(pieces[keep])
        swap(pieces[give], arriving, rank ^ distance)
        pieces[keep] += arriving
        walk.append((keep, give, rank ^ distance))
        mine = keep
    for keep, give, partner in walk[::-1]:
        arriving = torch.empty_like(pieces[give])
        swap(pieces[keep], arriving, partner)
        pieces[give] = arriving
    return pieces.flatten()[: len(vector)]
