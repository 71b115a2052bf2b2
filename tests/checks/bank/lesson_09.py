"""Answers to the exercises of lesson 09, real clusters."""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict
from itertools import chain, islice

from tests.checks.bank import right, wrong

# 09.1 Who reads which file


def reader_of(rank, ranks, worker, workers):
    return rank * max(1, workers) + (worker or 0), ranks * max(1, workers)


@wrong("09.1", says="the workers of a rank all read the same files")
def sharded_by_rank(sizes, rank, ranks, worker, workers):
    return [file for file in range(len(sizes)) if file % ranks == rank]


@wrong("09.1", says="the workers of a rank all read the same files")
def planned_by_rank(sizes, rank, ranks, worker, workers):
    plan, loads = defaultdict(list), [0] * ranks
    for file in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        least = min(range(ranks), key=loads.__getitem__)
        plan[least].append(file)
        loads[least] += sizes[file]
    return plan[rank]


@wrong("09.1", says="each file is read once by every rank")
def sharded_by_worker(sizes, rank, ranks, worker, workers):
    return range(len(sizes))[worker or 0 :: workers or 1]


@wrong("09.1", says="two readers get the same number")
def rank_plus_worker(sizes, rank, ranks, worker, workers):
    return [file for file in range(len(sizes)) if file % (ranks * max(1, workers)) == rank + (worker or 0)]


@wrong("09.1", says="two readers get the same number")
def rank_times_ranks(sizes, rank, ranks, worker, workers):
    return list(range(len(sizes)))[rank * ranks + (worker or 0) :: ranks * max(1, workers)]


@wrong("09.1", says="the remainder of a division is left over")
def without_the_rest(sizes, rank, ranks, worker, workers):
    reader, readers = reader_of(rank, ranks, worker, workers)
    each = len(sizes) // readers
    return range(reader * each, (reader + 1) * each)


@wrong("09.1", says="some by more than one reader")
def rounded_up(sizes, rank, ranks, worker, workers):
    reader, readers = reader_of(rank, ranks, worker, workers)
    each = -(-len(sizes) // readers)
    start = min(reader * each, max(0, len(sizes) - each))
    return list(range(start, min(start + each, len(sizes))))


@wrong("09.1", says="`workers` is 0, but the rank is still one reader")
def no_workers_no_readers(sizes, rank, ranks, worker, workers):
    readers = ranks * workers
    return [file for file in range(len(sizes)) if file % readers == rank * workers + (worker or 0)]


@wrong("09.1", says="`worker` is None, not a number")
def none_is_no_number(sizes, rank, ranks, worker, workers):
    reader = rank * workers + worker
    return list(range(len(sizes)))[reader :: ranks * workers]


@wrong("09.1", says="the plan ignores file sizes")
def dealt_by_number(sizes, rank, ranks, worker, workers):
    reader, readers = reader_of(rank, ranks, worker, workers)
    return list(islice(range(len(sizes)), reader, None, readers))


@wrong("09.1", says="the plan ignores file sizes")
def neighbors_together(sizes, rank, ranks, worker, workers):
    reader, readers = reader_of(rank, ranks, worker, workers)
    return [file for file in range(len(sizes)) if file * readers // len(sizes) == reader]


@wrong("09.1", says="the same number of files")
def largest_by_turns(sizes, rank, ranks, worker, workers):
    reader, readers = reader_of(rank, ranks, worker, workers)
    return sorted(range(len(sizes)), key=lambda file: -sizes[file])[reader::readers]


@wrong("09.1", says="the same number of files")
def there_and_back(sizes, rank, ranks, worker, workers):
    reader, readers = reader_of(rank, ranks, worker, workers)
    order = sorted(range(len(sizes)), key=lambda file: -sizes[file])
    rounds = [order[start : start + readers] for start in range(0, len(order), readers)]
    places = [reader if number % 2 == 0 else readers - 1 - reader for number in range(len(rounds))]
    return [each[place] for each, place in zip(rounds, places, strict=True) if place < len(each)]


@wrong("09.1", says="Which file is best placed first?")
def smallest_first(sizes, rank, ranks, worker, workers):
    reader, readers = reader_of(rank, ranks, worker, workers)
    loads, mine = [0] * readers, []
    for file in sorted(range(len(sizes)), key=sizes.__getitem__):
        least = loads.index(min(loads))
        loads[least] += sizes[file]
        mine += [file] * (least == reader)
    return mine


@wrong("09.1", says="a large file that comes late")
def as_they_come(sizes, rank, ranks, worker, workers):
    reader, readers = reader_of(rank, ranks, worker, workers)
    loads, mine = [0] * readers, []
    for file, size in enumerate(sizes):
        least = loads.index(min(loads))
        loads[least] += size
        mine += [file] * (least == reader)
    return mine


@wrong("09.1", says="every reader has files with consecutive numbers")
def stretches_of_equal_bytes(sizes, rank, ranks, worker, workers):
    reader, readers = reader_of(rank, ranks, worker, workers)
    total, before, mine = sum(sizes), 0, []
    for file, size in enumerate(sizes):
        mine += [file] * (before * readers // total == reader)
        before += size
    return mine


@wrong("09.1", says="times in an epoch, by all readers together The same reader, asked twice")
def another_plan_each_time(sizes, rank, ranks, worker, workers):
    reader, readers = reader_of(rank, ranks, worker, workers)
    order = random.sample(range(len(sizes)), len(sizes))
    return order[reader::readers]


def planned_by_chance(sizes, reader, readers, seed):
    """A right plan of readers that are numbered by chance: it is right if all of them have the same seed."""
    numbers = random.Random(seed).sample(range(readers), readers)
    heap = [(0, number, []) for number in range(readers)]
    for size, file in sorted(zip(sizes, range(len(sizes)), strict=True), reverse=True):
        load, number, files = heapq.heappop(heap)
        heapq.heappush(heap, (load + size, number, [*files, file]))
    return next(files for _, number, files in heap if number == numbers[reader])


@wrong("09.1", says="The plan depends on the process that makes it")
def by_the_hash_of_a_text(sizes, rank, ranks, worker, workers):
    return planned_by_chance(sizes, *reader_of(rank, ranks, worker, workers), hash(f"epoch of {len(sizes)} files"))


@wrong("09.1", says="The plan depends on the process that makes it")
def by_the_parent(sizes, rank, ranks, worker, workers):
    import os

    return planned_by_chance(sizes, *reader_of(rank, ranks, worker, workers), os.getppid())


@wrong("09.1", says="The plan depends on the process that makes it")
def by_the_hour(sizes, rank, ranks, worker, workers):
    import time

    return planned_by_chance(sizes, *reader_of(rank, ranks, worker, workers), time.time() // 3600)


@right("09.1")
def with_a_heap(sizes, rank, ranks, worker, workers):
    reader, readers = reader_of(rank, ranks, worker, workers)
    heap = [(0, number, []) for number in range(readers)]
    for size, file in sorted(zip(sizes, range(len(sizes)), strict=True), reverse=True):
        load, number, files = heapq.heappop(heap)
        heapq.heappush(heap, (load + size, number, [*files, file]))
    return next(files for _, number, files in heap if number == reader)


@right("09.1")
def first_ranks_then_workers(sizes, rank, ranks, worker, workers):
    """Readers may be numbered in any way, as long as all do it alike."""
    worker, workers = (0, 1) if worker is None else (worker, workers)
    loads = [[0] * ranks for _ in range(workers)]
    for file in sorted(range(len(sizes)), key=lambda file: (-sizes[file], -file)):
        _, who = min((load, (w, r)) for w, row in enumerate(loads) for r, load in enumerate(row))
        loads[who[0]][who[1]] += sizes[file]
        if who == (worker, rank):
            yield file


@right("09.1")
def plan_as_a_dict(sizes, rank, ranks, worker, workers):
    everybody = [(r, w) for r in range(ranks) for w in (range(workers) if workers else [None])]
    loads, owner = Counter(dict.fromkeys(everybody, 0)), {}
    while len(owner) < len(sizes):
        file = max((file for file in range(len(sizes)) if file not in owner), key=lambda file: sizes[file])
        owner[file] = min(everybody, key=loads.get)
        loads[owner[file]] += sizes[file]
    return {file for file, who in owner.items() if who == (rank, worker)}


@wrong("09.1", says="You change what you were given")
def sorts_what_it_was_given(sizes, rank, ranks, worker, workers):
    from course_lib.lessons.lesson_09._plans import to_whoever_has_least

    order = sorted(range(len(sizes)), key=lambda file: -sizes[file])
    plan = to_whoever_has_least(sizes, ranks * max(1, workers), order)
    sizes.sort()
    return plan[rank * max(1, workers) + (worker or 0)]


@wrong("09.1", says="Does each rank have a number of its own?")
def rank_times_no_workers(sizes, rank, ranks, worker, workers):
    return list(range(len(sizes)))[rank * workers + (worker or 0) :: ranks * max(1, workers)]


@wrong("09.1", says="Every file is read, but some by more than one reader", never="The classic")
def too_few_files_go_round(sizes, rank, ranks, worker, workers):
    readers, number = ranks * max(1, workers), rank * max(1, workers) + (worker or 0)
    if readers > len(sizes):
        return [number % len(sizes)]
    return list(range(len(sizes)))[number::readers]


@right("09.1")
def ranks_first_then_workers(sizes, rank, ranks, worker, workers):
    def deal(files, readers):
        piles = [[] for _ in range(readers)]
        for file in sorted(files, key=lambda file: -sizes[file]):
            min(piles, key=lambda pile: sum(sizes[each] for each in pile)).append(file)
        return piles

    own = deal(range(len(sizes)), ranks)[rank]
    return own if worker is None else deal(own, workers)[worker]


@wrong("09.1", says="or if you count more readers than there are")
def main_processes_read_too(sizes, rank, ranks, worker, workers):
    reader = rank * (workers + 1) + (worker or 0)
    return range(len(sizes))[reader :: ranks * (workers + 1)]


@wrong("09.1", says="if a file is looked up by its size")
def looked_up_by_size(sizes, rank, ranks, worker, workers):
    reader, readers = reader_of(rank, ranks, worker, workers)
    return [sizes.index(size) for size in sorted(sizes, reverse=True)[reader::readers]]


# 09.2 What comes next


def place(orders, batch, updates):
    return divmod(updates, -(-len(orders[0]) // batch))


def batch_at(orders, batch, updates):
    epoch, number = place(orders, batch, updates)
    return orders[epoch][number * batch : (number + 1) * batch]


@wrong("09.2", says="The position *within* the epoch")
def from_the_start_of_the_epoch(orders, batch, saved, rank, ranks):
    epoch, _ = place(orders, batch, saved["updates"])
    return orders[epoch][:batch][rank::ranks]


@wrong("09.2", says="the order is that of epoch 0")
def one_order_for_all(orders, batch, saved, rank, ranks):
    _, number = place(orders, batch, saved["updates"])
    return orders[0][number * batch :][:batch][rank::ranks]


@wrong("09.2", says="it would be trained on twice")
def the_last_one_again(orders, batch, saved, rank, ranks):
    return batch_at(orders, batch, max(0, saved["updates"] - 1))[rank::ranks]


@wrong("09.2", says="One batch is left out")
def the_one_after(orders, batch, saved, rank, ranks):
    return batch_at(orders, batch, saved["updates"] + 1)[rank::ranks]


@wrong("09.2", says="over the old number of ranks")
def to_the_old_ranks(orders, batch, saved, rank, ranks):
    return batch_at(orders, batch, saved["updates"])[rank :: saved["ranks"]]


@wrong("09.2", says="A different number of ranks makes a different batch")
def the_old_share(orders, batch, saved, rank, ranks):
    epoch, number = place(orders, batch, saved["updates"])
    return orders[epoch][number * batch :][: batch * ranks // saved["ranks"]][rank::ranks]


@wrong("09.2", says="split into contiguous pieces")
def a_stretch_for_each(orders, batch, saved, rank, ranks):
    mine = batch_at(orders, batch, saved["updates"])
    bounds = [len(mine) * number // ranks for number in range(ranks + 1)]
    return mine[bounds[rank] : bounds[rank + 1]]


@wrong("09.2", says="is an update like any other")
def full_ones_only(orders, batch, saved, rank, ranks):
    each = max(1, len(orders[0]) // batch)
    epoch, number = divmod(saved["updates"], each)
    return orders[min(epoch, len(orders) - 1)][number * batch :][:batch][rank::ranks]


@wrong("09.2", says="filled up with examples of the next epoch")
def one_long_list(orders, batch, saved, rank, ranks):
    done = saved["updates"] * batch
    return list(chain(*orders))[done : done + batch][rank::ranks]


@wrong("09.2", says="as if all batches were full")
def examples_counted(orders, batch, saved, rank, ranks):
    epoch, start = divmod(saved["updates"] * batch, len(orders[0]))
    return orders[epoch % len(orders)][start : start + batch][rank::ranks]


@wrong("09.2", says="left out of the batch")
def equal_shares(orders, batch, saved, rank, ranks):
    mine = batch_at(orders, batch, saved["updates"])
    return mine[: len(mine) // ranks * ranks][rank::ranks]


@wrong("09.2", says="A rank trains on the whole batch")
def rank_0_gets_all(orders, batch, saved, rank, ranks):
    return batch_at(orders, batch, saved["updates"]) if rank == 0 else []


@wrong("09.2", says="are on no rank")
def only_one_each(orders, batch, saved, rank, ranks):
    return batch_at(orders, batch, saved["updates"])[rank : rank + 1]


@wrong("09.2", says="You count one update too many in an epoch that `batch` divides")
def one_more_update(orders, batch, saved, rank, ranks):
    epoch, number = divmod(saved["updates"], len(orders[0]) // batch + 1)
    return orders[epoch][number * batch : (number + 1) * batch][rank::ranks]


@right("09.2")
def all_batches_listed(orders, batch, saved, rank, ranks):
    every = [order[start : start + batch] for order in orders for start in range(0, len(order), batch)]
    return tuple(every[saved["updates"]][rank::ranks])


@right("09.2")
def counted_down(orders, batch, saved, rank, ranks):
    left = saved["updates"]
    for order in orders:
        rest = order
        while rest:
            if left == 0:
                return (example for place, example in enumerate(rest[:batch]) if place % ranks == rank)
            rest, left = rest[batch:], left - 1
    return []


@right("09.2")
def with_indices(orders, batch, saved, rank, ranks):
    each = (len(orders[0]) + batch - 1) // batch
    start = saved["updates"] % each * batch
    return [orders[saved["updates"] // each][i] for i in range(start + rank, min(start + batch, len(orders[0])), ranks)]


@wrong("09.2", says="A different number of ranks makes a different batch")
def as_many_per_rank_as_before(orders, batch, saved, rank, ranks):
    size = max(1, batch * ranks // saved["ranks"])
    batches = [order[start : start + size] for order in orders for start in range(0, len(order), size)]
    return batches[saved["updates"]][rank::ranks] if saved["updates"] < len(batches) else []


@wrong("09.2", says="You change what you were given")
def takes_out_what_is_done(orders, batch, saved, rank, ranks):
    for _ in range(saved["updates"]):
        del orders[0][:batch]
        if not orders[0]:
            orders.pop(0)
    return orders[0][:batch][rank::ranks]


@wrong("09.2", says="You convert the number of updates")
def converts_the_updates(orders, batch, saved, rank, ranks):
    epoch, number = divmod(saved["updates"] * saved["ranks"] // ranks, -(-len(orders[0]) // batch))
    return orders[epoch][number * batch : (number + 1) * batch][rank::ranks]


@wrong("09.2", says="You deal the whole epoch out to the ranks")
def epoch_shared_out_first(orders, batch, saved, rank, ranks):
    epoch, number = place(orders, batch, saved["updates"])
    each = batch // ranks
    return orders[epoch][rank::ranks][number * each : (number + 1) * each]


# 09.3 How old is a gradient


@wrong("09.3", says="One too many each time")
def with_itself(log):
    version, seen, ages = 0, {}, []
    for what, worker in log:
        if what == "push":
            version += 1
            ages.append(version - seen[worker])
        else:
            seen[worker] = version
    return ages


@wrong("09.3", says="since the start of the job")
def versions(log):
    return list(range(sum(what == "push" for what, _ in log)))


@wrong("09.3", says="from the worker's last push")
def from_push_to_push(log):
    version, seen, ages = 0, defaultdict(int), []
    for what, worker in log:
        if what == "push":
            ages.append(version - seen[worker])
            version += 1
            seen[worker] = version
    return ages


@wrong("09.3", says="from the worker's first pull")
def first_pull_only(log):
    version, seen, ages = 0, {}, []
    for what, worker in log:
        if what == "pull" and worker not in seen:
            seen[worker] = version
        elif what == "push":
            ages.append(version - seen[worker])
            version += 1
    return ages


@wrong("09.3", says="A pull changes no weights")
def any_event(log):
    seen, ages = {}, []
    for time, (what, worker) in enumerate(log):
        if what == "pull":
            seen[worker] = time
        else:
            ages.append(time - seen[worker] - 1)
    return ages


@wrong("09.3", says="A pull changes no weights")
def pulls_counted(log):
    pulls, seen, ages = 0, {}, []
    for what, worker in log:
        if what == "pull":
            pulls += 1
            seen[worker] = pulls
        else:
            ages.append(pulls - seen[worker])
    return ages


@wrong("09.3", says="Workers - 1")
def rule_of_thumb(log):
    workers = {worker for _, worker in log}
    return [len(workers) - 1 for what, _ in log if what == "push"]


@wrong("09.3", says="pushes again without a pull")
def popped(log):
    version, seen, ages = 0, {}, []
    for what, worker in log:
        if what == "pull":
            seen[worker] = version
        else:
            ages.append(version - seen.pop(worker))
            version += 1
    return ages


@wrong("09.3", says="the other workers' updates only")
def others_only(log):
    since, ages = defaultdict(int), []
    for what, worker in log:
        if what == "pull":
            since[worker] = 0
        else:
            ages.append(since[worker])
            for other in {name for _, name in log} - {worker}:
                since[other] += 1
    return ages


@wrong("09.3", says="one number for each *push*")
def with_pulls_in_it(log):
    version, seen, ages = 0, {}, []
    for what, worker in log:
        if what == "pull":
            seen[worker] = version
        ages.append(version - seen[worker])
        version += what == "push"
    return ages


@right("09.3")
def counters(log):
    age, ages = Counter(), []
    for what, worker in log:
        if what == "pull":
            age[worker] = 0
        else:
            ages.append(age[worker])
            age.update({name for _, name in log})
    return ages


@right("09.3")
def looked_up_backwards(log):
    ages = []
    for now, (what, worker) in enumerate(log):
        if what == "push":
            then = max(time for time in range(now) if log[time] == ("pull", worker))
            ages.append(sum(event == "push" for event, _ in log[then:now]))
    return ages


@right("09.3")
def log_overwritten(log):
    pushes, seen = [0], {}
    for what, _ in log:
        pushes.append(pushes[-1] + (what == "push"))
    for time, (what, worker) in enumerate(log):
        if what == "pull":
            seen[worker] = pushes[time]
        log[time] = pushes[time] - seen[worker] if what == "push" else None
    return tuple(float(age) for age in log if age is not None)


@wrong("09.3", says="A push brings a gradient, and fetches nothing")
def a_push_is_a_pull(log):
    version, at, ages = 0, {}, []
    for what, worker in log:
        if what == "push":
            ages.append(version - at[worker])
            version += 1
        at[worker] = version
    return ages


@wrong("09.3", says="You count from a line other than the worker's last pull")
def first_pull_after_its_last_push(log):
    version, pulled, ages = 0, {}, []
    for what, worker in log:
        if what == "pull":
            pulled.setdefault(worker, version)
        else:
            ages.append(version - pulled.pop(worker, version))
            version += 1
    return ages
