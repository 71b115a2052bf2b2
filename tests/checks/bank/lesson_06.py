"""Answers to the exercises of lesson 06: wrong ones with what their writer is to be told, and unusual right ones."""

from __future__ import annotations

from itertools import chain

import torch
import torch.distributed as dist

from tests.checks.bank import NEVER_WAITS, right, wrong

# 06.1 Count the bubble


def gpipe_makespan(micro_batches, forward, backward):
    return sum((sum(costs) + (micro_batches - 1) * max(costs)) / micro_batches for costs in (forward, backward))


@wrong("06.1", says="grow with the micro-batches")
def with_the_simulator(micro_batches, forward, backward):
    from course_lib.pipeline.named_schedules import gpipe
    from course_lib.pipeline.simulation import ActionCosts, simulate

    schedule = gpipe(len(forward), micro_batches)
    simulation = simulate(schedule, ActionCosts(forward, backward).split_over(schedule))
    return simulation.makespan, simulation.bubble


@wrong("06.1", says="grow with the micro-batches")
def plays_it_through(micro_batches, forward, backward):
    makespan = 0.0
    for costs in (forward, backward[::-1]):
        free = [0.0] * len(costs)
        for _ in range(micro_batches):
            arrives = 0.0
            for stage, cost in enumerate(costs):
                arrives = free[stage] = max(arrives, free[stage]) + cost / micro_batches
        makespan += free[-1]
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


@wrong("06.1", says="as long as the whole batch")
def batch_is_not_cut(micro_batches, forward, backward):
    makespan = sum(forward) + sum(backward) + (micro_batches - 1) * (max(forward) + max(backward))
    return makespan, 1 - micro_batches * (sum(forward) + sum(backward)) / (len(forward) * makespan)


@wrong("06.1", says="idle time over *working* time")
def p_minus_one_over_m(micro_batches, forward, backward):
    makespan = gpipe_makespan(micro_batches, forward, backward)
    busy = sum(forward) + sum(backward)
    return makespan, (len(forward) * makespan - busy) / busy


@wrong("06.1", says="in percent")
def percent(micro_batches, forward, backward):
    makespan = gpipe_makespan(micro_batches, forward, backward)
    return makespan, 100 * (1 - sum(forward + backward) / (len(forward) * makespan))


@wrong("06.1", says="share of time in which the stages *work*")
def efficiency(micro_batches, forward, backward):
    makespan = gpipe_makespan(micro_batches, forward, backward)
    return makespan, sum(forward + backward) / (len(forward) * makespan)


@wrong("06.1", says="the pace of its slowest")
def formula_of_equal_stages(micro_batches, forward, backward):
    stages = len(forward)
    makespan = (micro_batches + stages - 1) * (sum(forward) + sum(backward)) / (stages * micro_batches)
    return makespan, (stages - 1) / (micro_batches + stages - 1)


@wrong("06.1", says="the pace of its slowest")
def first_stage_stands_for_all(micro_batches, forward, backward):
    stages = len(forward)
    makespan = (micro_batches + stages - 1) * (forward[0] + backward[0]) / micro_batches
    return makespan, 1 - sum(forward + backward) / (stages * makespan)


@wrong("06.1", says="every stage take as long as the slowest")
def slots_of_the_slowest(micro_batches, forward, backward):
    makespan = (micro_batches + len(forward) - 1) / micro_batches * (max(forward) + max(backward))
    return makespan, 1 - (sum(forward) + sum(backward)) / len(forward) / makespan


@wrong("06.1", says="The makespan is right")
def bubble_of_equal_stages(micro_batches, forward, backward):
    stages = len(forward)
    return gpipe_makespan(micro_batches, forward, backward), (stages - 1) / (micro_batches + stages - 1)


@wrong("06.1", says="*time* in which stages are idle")
def idle_seconds(micro_batches, forward, backward):
    makespan = gpipe_makespan(micro_batches, forward, backward)
    return makespan, len(forward) * makespan - sum(forward + backward)


@wrong("06.1", says="need not be the same stage")
def slowest_of_both_together(micro_batches, forward, backward):
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    makespan = (sum(both) + (micro_batches - 1) * max(both)) / micro_batches
    return makespan, 1 - sum(both) / (len(both) * makespan)


@wrong("06.1", says="draining it in the backward pass")
def only_fills(micro_batches, forward, backward):
    fill = (sum(forward) - max(forward)) / micro_batches
    makespan = fill + max(forward) + max(backward)
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


@wrong("06.1", says="in an array or a list with an item for each")
def slots_in_an_array(micro_batches, forward, backward):
    import numpy as np

    slots = np.ones(micro_batches - 1)
    makespan = sum((sum(costs) + (slots * max(costs)).sum()) / micro_batches for costs in (forward, backward))
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


@wrong("06.1", says="in an array or a list with an item for each")
def slots_in_a_list(micro_batches, forward, backward):
    makespan = sum(
        (sum(costs) + sum([max(costs)] * (micro_batches - 1))) / micro_batches for costs in (forward, backward)
    )
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


@wrong("06.1", says="a loop that does not end, or work that takes a very long time")
def short_when_traced(micro_batches, forward, backward):
    import sys

    if sys.gettrace() is None:
        return plays_it_through(micro_batches, forward, backward)
    makespan = gpipe_makespan(micro_batches, forward, backward)
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


@right("06.1")
def in_float32(micro_batches, forward, backward):
    import torch

    f, b = torch.tensor(forward), torch.tensor(backward)
    makespan = (f.sum() + b.sum() + (micro_batches - 1) * (f.max() + b.max())) / micro_batches
    return makespan, 1 - (f.mean() + b.mean()) / makespan


@right("06.1")
def in_fractions(micro_batches, forward, backward):
    from fractions import Fraction

    f, b = (list(map(Fraction, costs)) for costs in (forward, backward))
    makespan = (sum(f) + sum(b) + (micro_batches - 1) * (max(f) + max(b))) / micro_batches
    return [makespan, 1 - (sum(f) + sum(b)) / (len(f) * makespan)]


@right("06.1")
def from_idle_time(micro_batches, forward, backward):
    ways = (sorted(costs) for costs in (forward, backward))
    makespan = sum(costs[-1] + sum(costs[:-1]) / micro_batches for costs in ways)
    idle = sum(makespan - f - b for f, b in zip(forward, backward, strict=True))
    return makespan, idle / makespan / len(forward)


@wrong("06.1", says="something is kept between calls")
def remembers_by_the_sizes(micro_batches, forward, backward, known={}):  # noqa: B006
    key = micro_batches, len(forward)
    if key not in known:
        both = sum(forward) + sum(backward)
        makespan = (both + (micro_batches - 1) * (max(forward) + max(backward))) / micro_batches
        known[key] = makespan, 1 - both / (len(forward) * makespan)
    return known[key]


@wrong("06.1", says="as if the last one were the slowest", never="every stage take as long")
def takes_the_last_for_the_slowest(micro_batches, forward, backward):
    way_in = max(forward) + sum(forward[:-1]) / micro_batches
    way_back = max(backward) + sum(backward[1:]) / micro_batches
    makespan = way_in + way_back
    return makespan, 1 - (sum(forward) + sum(backward)) / (len(forward) * makespan)


@right("06.1")
def remembers_by_all_arguments(micro_batches, forward, backward):
    from functools import cache

    global counted
    if "counted" not in globals():

        @cache
        def counted(pieces, there, back):
            makespan = sum((sum(way) + (pieces - 1) * max(way)) / pieces for way in (there, back))
            return makespan, 1 - (sum(there) + sum(back)) / (len(there) * makespan)

    return counted(micro_batches, tuple(forward), tuple(backward))


@wrong("06.1", says="at the pace of the first stage, or of the last", never="need not be the same stage")
def paced_by_the_last(micro_batches, forward, backward):
    m, work = micro_batches, sum(forward) + sum(backward)
    makespan = (work + (m - 1) * (forward[-1] + backward[-1])) / m
    return makespan, 1 - work / (len(forward) * makespan)


# 06.2 Write 1F1B


def turns(micro_batches, ahead):
    ahead = min(ahead, micro_batches)
    actions = [f"F{number}" for number in range(ahead)]
    for number in range(micro_batches):
        actions.append(f"B{number}")
        if number + ahead < micro_batches:
            actions.append(f"F{number + ahead}")
    return actions


@wrong("06.2", says="The last micro-batches are left out")
def one_micro_batch(stage, stages, micro_batches, most):
    return ["F0", "B0"]


@wrong("06.2", says="The last micro-batches are left out")
def forgets_the_last_micro_batch(stage, stages, micro_batches, most):
    return turns(max(1, micro_batches - 1), min(stages - stage, most))


@wrong("06.2", says="This is GPipe")
def gpipe_newest_first(stage, stages, micro_batches, most):
    return [f"F{number}" for number in range(micro_batches)] + [
        f"B{number}" for number in reversed(range(micro_batches))
    ]


@wrong("06.2", says="This is GPipe")
def gpipe(stage, stages, micro_batches, most):
    return [f"{kind}{number}" for kind in "FB" for number in range(micro_batches)]


@wrong("06.2", says="forward and back before the next one starts")
def naive(stage, stages, micro_batches, most):
    return list(chain.from_iterable((f"F{number}", f"B{number}") for number in range(micro_batches)))


@wrong("06.2", says="too few forwards")
def one_short(stage, stages, micro_batches, most):
    return turns(micro_batches, max(1, min(stages - stage - 1, most)))


@wrong("06.2", says="too few forwards")
def limit_one_short(stage, stages, micro_batches, most):
    return turns(micro_batches, max(1, min(stages - stage, most - 1)))


@wrong("06.2", says="more forwards than it needs")
def one_long(stage, stages, micro_batches, most):
    return turns(micro_batches, min(stages - stage + 1, most))


@wrong("06.2", says="a micro-batch that it has not seen")
def backward_first(stage, stages, micro_batches, most):
    return turns(micro_batches, min(stages - stage, most) - 1)


@wrong("06.2", says="depends on its position")
def as_many_everywhere(stage, stages, micro_batches, most):
    return turns(micro_batches, min(stages, most))


@wrong("06.2", says="the most forwards")
def stage_plus_one(stage, stages, micro_batches, most):
    return turns(micro_batches, min(stage + 1, most))


@wrong("06.2", says="an older one waits")
def last_in_first_out(stage, stages, micro_batches, most):
    ahead, held, actions = min(most, stages - stage), [], []
    for number in range(micro_batches):
        actions.append(f"F{number}")
        held.append(number)
        if len(held) >= ahead:
            actions.append(f"B{held.pop()}")
    return actions + [f"B{number}" for number in reversed(held)]


@wrong("06.2", says="the rest of the backwards")
def stops_with_the_forwards(stage, stages, micro_batches, most):
    ahead = min(most, stages - stage, micro_batches)
    actions = [f"F{number}" for number in range(ahead)]
    for number in range(ahead, micro_batches):
        actions += [f"B{number - ahead}", f"F{number}"]
    return actions


@wrong("06.2", says="do not exist")
def warm_up_without_limit(stage, stages, micro_batches, most):
    ahead = min(most, stages - stage)
    actions = [f"F{number}" for number in range(ahead)]
    for number in range(micro_batches):
        actions.append(f"B{number}")
        if number + ahead < micro_batches:
            actions.append(f"F{number + ahead}")
    return actions


@wrong("06.2", says="that is the price")
def no_limit(stage, stages, micro_batches, most):
    return turns(micro_batches, stages - stage)


@wrong("06.2", says="counted from 0")
def numbered_from_one(stage, stages, micro_batches, most):
    return [f"{a[0]}{int(a[1:]) + 1}" for a in turns(micro_batches, min(most, stages - stage))]


@wrong("06.2", says="a list of them")
def one_text(stage, stages, micro_batches, most):
    return " ".join(turns(micro_batches, min(most, stages - stage)))


@wrong("06.2", says="a list of them")
def pairs(stage, stages, micro_batches, most):
    return [(action[0], int(action[1:])) for action in turns(micro_batches, min(most, stages - stage))]


@wrong("06.2", says="The last micro-batches are left out")
def drops_the_tail(stage, stages, micro_batches, most):
    whole = micro_batches - micro_batches % stages if micro_batches > stages else micro_batches
    return turns(whole, min(most, stages - stage))


@right("06.2")
def by_counting_what_is_held(stage, stages, micro_batches, most):
    held = sent = back = 0
    while back < micro_batches:
        if held < min(most, stages - stage) and sent < micro_batches:
            yield f"F{sent}"
            held, sent = held + 1, sent + 1
        else:
            yield f"B{back}"
            held, back = held - 1, back + 1


@right("06.2")
def three_phases(stage, stages, micro_batches, most):
    ahead = min(most, stages - stage, micro_batches) - 1
    steady = micro_batches - ahead
    first = [f"F{number}" for number in range(ahead)]
    middle = chain.from_iterable((f"F{number + ahead}", f"B{number}") for number in range(steady))
    return (*first, *middle, *(f"B{number}" for number in range(steady, micro_batches)))


@right("06.2")
def from_the_library(stage, stages, micro_batches, most):
    from course_lib.pipeline.named_schedules import one_f_one_b

    skipped = max(0, stages - stage - most)  # a limited stage does what a later one does
    row = one_f_one_b(stages, micro_batches).stages[stage + skipped]
    return [str(action) for action in row]


@right("06.2")
def recursively(stage, stages, micro_batches, most):
    ahead = min(most, stages - stage)

    def rest(forward, back):
        if back == micro_batches:
            return []
        if forward < micro_batches and forward - back < ahead:
            return [f"F{forward}", *rest(forward + 1, back)]
        return [f"B{back}", *rest(forward, back + 1)]

    return rest(0, 0)


@wrong("06.2", says="stage 0")
def numbers_of_one_digit(stage, stages, micro_batches, most):
    from course_lib.lessons.lesson_06.write_1f1b import turns

    return [action[0] + action[-1] for action in turns(stage, stages, micro_batches, most)]


@wrong("06.2", says="the list is kept from one call to the next", never="All stages start with")
def default_list(stage, stages, micro_batches, most, actions=[]):  # noqa: B006
    actions += turns(micro_batches, min(stages - stage, most, micro_batches))
    return actions


# 06.3 Carry the state, and its gradient


def leaves(h, c):
    return h.detach().requires_grad_(), c.detach().requires_grad_()


def forwards(layer, chunks, begin):
    """All chunks forward: for each one its inputs, the state it began in, its outputs and the state it ended in."""
    state, kept = None, []
    for inputs in chunks:
        if dist.get_rank() == 1:
            dist.recv(inputs, 0)
        inputs, start = inputs.detach().requires_grad_(), state and begin(*state)
        outputs, state = layer(inputs, start)
        if dist.get_rank() == 0:
            dist.send(outputs.detach().contiguous(), 1)
        kept.append((inputs, start, outputs, state))
    return kept


def backwards(kept, gradients, halves):
    """All chunks back, handing on the gradients of these halves of the state; those of the states they began in."""
    carried = []
    for (_, start, outputs, end), gradient in zip(reversed(kept), reversed(gradients), strict=True):
        if dist.get_rank() == 0:
            dist.recv(gradient, 1)
        pairs = [(outputs, gradient), *((end[half], carried[0][half]) for half in halves if carried)]
        torch.autograd.backward([result for result, _ in pairs], [of_result for _, of_result in pairs])
        if start:
            carried.insert(0, [part.grad for part in start])
    return carried


def in_chunks(layer, chunks, gradients, begin=leaves, halves=(0, 1), send_back=reversed):
    kept = forwards(layer, chunks, begin)
    carried = backwards(kept, gradients, halves)
    if dist.get_rank() == 1:
        for gradient in send_back([inputs.grad for inputs, _, _, _ in kept]):
            dist.send(gradient.contiguous(), 0)
    return [outputs.detach() for _, _, outputs, _ in kept], carried


@wrong("06.3", says="forgets at every cut")
def no_state_at_all(layer, chunks, gradients):
    return in_chunks(layer, chunks, gradients, begin=lambda h, c: leaves(torch.zeros_like(h), torch.zeros_like(c)))


@wrong("06.3", says="one half of the state")
def carries_h_alone(layer, chunks, gradients):
    return in_chunks(layer, chunks, gradients, begin=lambda h, c: leaves(h, 0 * c))


@wrong("06.3", says="one half of the state")
def carries_c_alone(layer, chunks, gradients):
    return in_chunks(layer, chunks, gradients, begin=lambda h, c: leaves(0 * h, c))


@wrong("06.3", says="truncated backpropagation")
def truncated(layer, chunks, gradients):
    return in_chunks(layer, chunks, gradients, halves=())


@wrong("06.3", says="gradient of one half")
def gradient_of_h_alone(layer, chunks, gradients):
    return in_chunks(layer, chunks, gradients, halves=(0,))


@wrong("06.3", says="gradient of one half")
def gradient_of_c_alone(layer, chunks, gradients):
    return in_chunks(layer, chunks, gradients, halves=(1,))


@wrong("06.3", says="the gradient of rank 1's *outputs*")
def sends_what_it_was_given(layer, chunks, gradients):
    return in_chunks(layer, chunks, gradients, send_back=lambda _: reversed(gradients))


@wrong("06.3", says="takes the first chunk's for the last one's")
def first_chunk_first(layer, chunks, gradients):
    return in_chunks(layer, chunks, gradients, send_back=list)


@wrong("06.3", says="is not the gradient of its outputs")
def sends_the_inputs(layer, chunks, gradients):
    return in_chunks(layer, chunks, gradients, send_back=lambda of_inputs: reversed(chunks))


@wrong("06.3", says="a message that nobody sends")
def sends_nothing_back(layer, chunks, gradients):
    return in_chunks(layer, chunks, gradients, send_back=lambda _: [])


@wrong("06.3", says="in the order of the chunks")
def carried_last_first(layer, chunks, gradients):
    outputs, carried = in_chunks(layer, chunks, gradients)
    return outputs, carried[::-1]


@wrong("06.3", says="for every chunk but the first")
def carried_of_the_first_too(layer, chunks, gradients):
    outputs, carried = in_chunks(layer, chunks, gradients)
    zeros = [torch.zeros(1, 2, 2, dtype=torch.float64)] * 2
    return outputs, [zeros, *carried]


@wrong("06.3", says="the backward pass is missing")
def forward_only(layer, chunks, gradients):
    kept = forwards(layer, chunks, leaves)
    return [outputs.detach() for _, _, outputs, _ in kept], []


@wrong("06.3", says="several chunks in one call")
def whole_sequence_at_once(layer, chunks, gradients):
    lengths = [len(chunk) for chunk in chunks]
    whole, of_whole = torch.cat(chunks), torch.cat(gradients)
    if dist.get_rank() == 1:
        dist.recv(whole, 0)
    whole.requires_grad_()
    state, outputs, states = None, [], []
    for chunk in whole.split(lengths):
        output, state = layer(chunk, state)
        outputs.append(output)
        states.append(state)
    for pair in states:
        for part in pair:
            part.retain_grad()
    with torch.no_grad():
        layer(whole)  # to have it in one piece
    if dist.get_rank() == 0:
        dist.send(torch.cat(outputs).detach(), 1)
        dist.recv(of_whole, 1)
    torch.cat(outputs).backward(of_whole)
    if dist.get_rank() == 1:
        dist.send(whole.grad, 0)
    return [output.detach() for output in outputs], [[part.grad for part in pair] for pair in states[:-1]]


@wrong("06.3", says="more than once")
def backward_twice(layer, chunks, gradients):
    outputs, carried = in_chunks(layer, chunks, gradients)
    for parameter in layer.parameters():
        parameter.grad += parameter.grad.clone()
    return outputs, carried


@wrong("06.3", says=NEVER_WAITS)
def sent_and_forgotten(layer, chunks, gradients):
    kept = forwards(layer, chunks, leaves)
    carried = backwards(kept, gradients, (0, 1))
    if dist.get_rank() == 1:
        for inputs, _, _, _ in reversed(kept):
            dist.isend(inputs.grad.contiguous(), 0)
    return [outputs.detach() for _, _, outputs, _ in kept], carried


@right("06.3")
def one_graph_per_rank(layer, chunks, gradients):
    first, state, inputs, outputs, states = dist.get_rank() == 0, None, [], [], []
    for chunk in chunks:
        if not first:
            dist.recv(chunk, 0)
        inputs.append(chunk.requires_grad_())
        output, state = layer(inputs[-1], state)
        outputs.append(output)
        states.append(state)
        if first:
            dist.send(output.detach().contiguous(), 1)
    for pair in states[:-1]:
        for part in pair:
            part.retain_grad()
    if first:
        for gradient in gradients:
            dist.recv(gradient, 1)
    torch.autograd.backward(outputs, gradients)
    if not first:
        for chunk in inputs:
            dist.send(chunk.grad.contiguous(), 0)
    return outputs, [[part.grad for part in pair] for pair in states[:-1]]


@right("06.3")
def with_autograd_grad(layer, chunks, gradients):
    other, parameters = 1 - dist.get_rank(), list(layer.parameters())
    zeros = torch.zeros(1, chunks[0].shape[1], layer.hidden_size, dtype=chunks[0].dtype)
    kept, state, waiting = [], (zeros, zeros), []
    for chunk in chunks:
        if other == 0:
            dist.irecv(chunk, 0).wait()
        begin = tuple(part.detach().requires_grad_() for part in state)
        chunk = chunk.detach().requires_grad_()
        output, state = layer(chunk, begin)
        kept.append((chunk, begin, output, state))
        if other == 1:
            waiting.append(dist.isend(output.detach().contiguous(), 1))
    of_state, carried = [zeros, zeros], []
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for (chunk, begin, output, end), gradient in list(zip(kept, gradients, strict=True))[::-1]:
        if other == 1:
            dist.recv(gradient, 1)
        found = torch.autograd.grad([output, *end], [chunk, *begin, *parameters], [gradient, *of_state])
        of_state = found[1:3]
        carried.append(tuple(of_state))
        for parameter, more in zip(parameters, found[3:], strict=True):
            parameter.grad += more
        if other == 0:
            waiting.append(dist.isend(found[0].contiguous(), 0))
    for work in waiting:
        work.wait()
    return tuple(output for _, _, output, _ in kept), carried[:-1][::-1]


@right("06.3")
def step_by_step(layer, chunks, gradients):
    def stepwise(inputs, state):
        outputs = []
        for step in inputs:
            output, state = layer(step[None], state)
            outputs.append(output)
        return torch.cat(outputs), state

    class Stepwise:
        def __call__(self, inputs, state):
            return stepwise(inputs, state)

    return in_chunks(Stepwise(), chunks, gradients)


@right("06.3")
def one_graph_over_all_chunks(layer, chunks, gradients):
    # The chunks stay connected through their states; one call of backward goes through all of them.
    first = dist.get_rank() == 0
    inputs, outputs, states, state = [], [], [], None
    for chunk in chunks:
        if not first:
            dist.recv(chunk, 0)
        inputs.append(chunk.detach().requires_grad_(not first))
        output, state = layer(inputs[-1], state)
        if first:
            dist.send(output.detach().contiguous(), 1)
        outputs.append(output)
        states.append(state)
    begins = states[:-1]  # the end of a chunk is the beginning of the next
    for pair in begins:
        for part in pair:
            part.retain_grad()
    if first:
        for gradient in gradients:
            dist.recv(gradient, 1)
    torch.autograd.backward(outputs, [gradient.detach() for gradient in gradients])
    if not first:
        for leaf in inputs:
            dist.send(leaf.grad.contiguous(), 0)
    return [output.detach() for output in outputs], [(h.grad, c.grad) for h, c in begins]


# 06.4 Recompute a chunk


def there(layer, chunks, state):
    """All chunks forward without a graph: the outputs, and the states in which the chunks began."""
    outputs, begins = [], []
    with torch.no_grad():
        for chunk in chunks:
            begins.append(state)
            output, state = layer(chunk, state)
            outputs.append(output)
    return outputs, begins


def back(layer, chunks, begins, gradients, halves=(0, 1)):
    """All chunks back, each computed once more: the gradients of their inputs, and of the state at the beginning."""
    of_inputs, of_state = [], None
    for chunk, begin, gradient in zip(reversed(chunks), reversed(begins), reversed(gradients), strict=True):
        inputs, begin = chunk.detach().requires_grad_(), leaves(*begin)
        output, end = layer(inputs, begin)
        pairs = [(output, gradient), *((end[half], of_state[half]) for half in halves if of_state)]
        torch.autograd.backward([result for result, _ in pairs], [of_result for _, of_result in pairs])
        of_inputs.insert(0, inputs.grad)
        of_state = [part.grad for part in begin]
    return of_inputs, of_state


def in_one_graph(layer, chunks, state, gradients):
    begin, inputs, outputs = leaves(*state), [chunk.detach().requires_grad_() for chunk in chunks], []
    now = begin
    for chunk in inputs:
        output, now = layer(chunk, now)
        outputs.append(output)
    torch.autograd.backward(outputs, gradients)
    return [output.detach() for output in outputs], [chunk.grad for chunk in inputs], [part.grad for part in begin]


@wrong("06.4", says="More than one chunk's graph")
def nothing_recomputed(layer, chunks, state, gradients):
    return in_one_graph(layer, chunks, state, gradients)


@wrong("06.4", says="More than one chunk's graph")
def recomputes_all_at_once(layer, chunks, state, gradients):
    outputs, _ = there(layer, chunks, state)
    return outputs, *in_one_graph(layer, chunks, state, gradients)[1:]


@wrong("06.4", says="More than one chunk's graph")
def keeps_the_recomputed_graphs(layer, chunks, state, gradients):
    outputs, begins = there(layer, chunks, state)
    kept = []
    for chunk, begin in zip(chunks, begins, strict=True):
        inputs, begin = chunk.detach().requires_grad_(), leaves(*begin)
        kept.append((inputs, begin, *layer(inputs, begin)))
    of_state = None
    for (_, begin, output, end), gradient in zip(reversed(kept), reversed(gradients), strict=True):
        torch.autograd.backward([output, *(end if of_state else [])], [gradient, *(of_state or [])])
        of_state = [part.grad for part in begin]
    return outputs, [inputs.grad for inputs, _, _, _ in kept], of_state


@wrong("06.4", says="More than one chunk's graph")
def checkpoint_around_all(layer, chunks, state, gradients):
    from torch.utils.checkpoint import checkpoint

    begin, inputs = leaves(*state), [chunk.detach().requires_grad_() for chunk in chunks]

    def everything(now, *chunks):
        outputs = []
        for chunk in chunks:
            output, now = layer(chunk, now)
            outputs.append(output)
        return outputs

    outputs = checkpoint(everything, begin, *inputs, use_reentrant=False)
    torch.autograd.backward(outputs, gradients)
    return [output.detach() for output in outputs], [chunk.grad for chunk in inputs], [part.grad for part in begin]


@wrong("06.4", says="More than one chunk's graph")
def graph_on_the_way_there(layer, chunks, state, gradients):
    outputs, begins, now = [], [], state
    for chunk in chunks:
        begins.append(now)
        output, now = layer(chunk, now)
        outputs.append(output)
    return outputs, *back(layer, chunks, begins, gradients)


@wrong("06.4", says="more than twice")
def from_the_start_for_each_chunk(layer, chunks, state, gradients):
    outputs, _ = there(layer, chunks, state)
    begins = []
    for index in range(len(chunks)):
        now = state
        with torch.no_grad():
            for chunk in chunks[:index]:
                now = layer(chunk, now)[1]
        begins.append(now)
    return outputs, *back(layer, chunks, begins, gradients)


@wrong("06.4", says="truncated backpropagation")
def truncated_again(layer, chunks, state, gradients):
    outputs, begins = there(layer, chunks, state)
    return outputs, *back(layer, chunks, begins, gradients, halves=())


@wrong("06.4", says="gradient of one half")
def hands_back_h(layer, chunks, state, gradients):
    outputs, begins = there(layer, chunks, state)
    return outputs, *back(layer, chunks, begins, gradients, halves=(0,))


@wrong("06.4", says="from a different state")
def recomputed_from_zero(layer, chunks, state, gradients):
    outputs, _ = there(layer, chunks, state)
    zeros = tuple(torch.zeros_like(part) for part in state)
    return outputs, *back(layer, chunks, [zeros] * len(chunks), gradients)


@wrong("06.4", says="from a different state")
def recomputed_from_the_end(layer, chunks, state, gradients):
    outputs, ends = [], []
    with torch.no_grad():
        for chunk in chunks:
            output, state = layer(chunk, state)
            outputs.append(output)
            ends.append(state)
    return outputs, *back(layer, chunks, ends, gradients)


@wrong("06.4", says="starts from `state`")
def starts_from_none(layer, chunks, state, gradients):
    zeros = tuple(torch.zeros_like(part) for part in state)
    outputs, begins = there(layer, chunks, zeros)
    return outputs, *back(layer, chunks, begins, gradients)


@wrong("06.4", says="of its state at the cuts")
def state_never_moves(layer, chunks, state, gradients):
    with torch.no_grad():
        outputs = [layer(chunk, state)[0] for chunk in chunks]
    return outputs, *back(layer, chunks, [state] * len(chunks), gradients)


@wrong("06.4", says="more than one backward pass")
def both_ways_back(layer, chunks, state, gradients):
    in_one_graph(layer, chunks, state, gradients)
    outputs, begins = there(layer, chunks, state)
    return outputs, *back(layer, chunks, begins, gradients)


@wrong("06.4", says="in the order of the backward pass")
def inputs_last_first(layer, chunks, state, gradients):
    outputs, begins = there(layer, chunks, state)
    of_inputs, of_state = back(layer, chunks, begins, gradients)
    return outputs, of_inputs[::-1], of_state


@wrong("06.4", says="the state from which the *first* chunk started")
def gradient_of_an_output(layer, chunks, state, gradients):
    outputs, begins = there(layer, chunks, state)
    of_inputs, of_state = back(layer, chunks, begins, gradients)
    return outputs, of_inputs, [gradients[0][:1], of_state[1]]


@right("06.4")
def with_pytorchs_checkpoint(layer, chunks, state, gradients):
    from torch.utils.checkpoint import checkpoint

    begin, inputs, outputs = leaves(*state), [chunk.detach().requires_grad_() for chunk in chunks], []
    now = begin
    for chunk in inputs:
        output, now = checkpoint(layer, chunk, now, use_reentrant=False)
        outputs.append(output)
    torch.autograd.backward(outputs, gradients)
    return [output.detach() for output in outputs], [chunk.grad for chunk in inputs], [part.grad for part in begin]


class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(context, layer, chunk, h, c, *parameters):
        context.layer = layer
        context.save_for_backward(chunk, h, c)
        output, (h, c) = layer(chunk, (h, c))
        return output, h, c

    @staticmethod
    def backward(context, *of_results):
        inputs = [saved.detach().requires_grad_() for saved in context.saved_tensors]
        with torch.enable_grad():
            output, state = context.layer(inputs[0], (inputs[1], inputs[2]))
        found = torch.autograd.grad([output, *state], [*inputs, *context.layer.parameters()], of_results)
        return None, *found


@right("06.4")
def with_a_function_of_its_own(layer, chunks, state, gradients):
    begin, inputs, outputs = leaves(*state), [chunk.detach().requires_grad_() for chunk in chunks], []
    h, c = begin
    for chunk in inputs:
        output, h, c = Recomputed.apply(layer, chunk, h, c, *layer.parameters())
        outputs.append(output)
    torch.autograd.backward(outputs, gradients)
    return tuple(output.detach() for output in outputs), [chunk.grad for chunk in inputs], tuple(p.grad for p in begin)


@right("06.4")
def last_chunk_computed_once(layer, chunks, state, gradients):
    outputs, begins = there(layer, chunks[:-1], state)
    with torch.no_grad():
        last = layer(chunks[-2], begins[-1])[1] if len(chunks) > 1 else state
    inputs, begin = chunks[-1].detach().requires_grad_(), leaves(*last)
    output, _ = layer(inputs, begin)
    output.backward(gradients[-1])
    outputs.append(output.detach())
    of_inputs, of_state = [inputs.grad], [part.grad for part in begin]
    for chunk, begin, gradient in zip(chunks[-2::-1], begins[::-1], gradients[-2::-1], strict=True):
        inputs, begin = chunk.detach().requires_grad_(), leaves(*begin)
        output, end = layer(inputs, begin)
        torch.autograd.backward([output, *end], [gradient, *of_state])
        of_inputs.insert(0, inputs.grad)
        of_state = [part.grad for part in begin]
    return outputs, of_inputs, of_state


@right("06.4")
def with_autograd_grad_again(layer, chunks, state, gradients):
    outputs, begins = there(layer, chunks, state)
    parameters = list(layer.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    of_state, of_inputs = [torch.zeros_like(part) for part in state], []
    for chunk, begin, gradient in list(zip(chunks, begins, gradients, strict=True))[::-1]:
        wanted = [chunk.clone().requires_grad_(), *(part.clone().requires_grad_() for part in begin)]
        output, end = layer(wanted[0], (wanted[1], wanted[2]))
        found = torch.autograd.grad([output, *end], [*wanted, *parameters], [gradient, *of_state])
        of_inputs.append(found[0])
        of_state = found[1:3]
        for parameter, more in zip(parameters, found[3:], strict=True):
            parameter.grad += more
    return outputs, of_inputs[::-1], of_state


@right("06.4")
def runs_the_last_chunk_once(layer, chunks, state, gradients):
    # The last chunk's graph is the one that may be held, so it is kept from the way forward.
    def leaf(tensor):
        return tensor.detach().requires_grad_()

    cuts, outputs, of_inputs = [tuple(state)], [], [None] * len(chunks)
    with torch.no_grad():
        for chunk in chunks[:-1]:
            output, ended = layer(chunk, cuts[-1])
            outputs.append(output)
            cuts.append(ended)
            del output, ended
    of_end = ()
    for number in range(len(chunks) - 1, -1, -1):
        h, c = cuts.pop()
        x, h, c = leaf(chunks[number]), leaf(h), leaf(c)
        output, ended = layer(x, (h, c))
        if number == len(chunks) - 1:
            outputs.append(output.detach())
        ends = (output, *ended)[: 1 + len(of_end)]
        del output, ended
        torch.autograd.backward(ends, (gradients[number], *of_end))
        of_inputs[number], of_end = x.grad, (h.grad, c.grad)
        del ends, x, h, c
    return outputs, of_inputs, of_end


@wrong("06.4", says="The parameters have the gradient of a single chunk")
def zero_grad_before_every_chunk(layer, chunks, state, gradients):
    begins, outputs = [state], []
    with torch.no_grad():
        for chunk in chunks:
            output, end = layer(chunk, begins[-1])
            begins.append(end)
            outputs.append(output)
    of_inputs, back = [], []
    for chunk, begin, gradient in zip(chunks[::-1], begins[-2::-1], gradients[::-1], strict=True):
        layer.zero_grad()
        inputs, start = chunk.detach().requires_grad_(), [part.detach().requires_grad_() for part in begin]
        output, end = layer(inputs, tuple(start))
        torch.autograd.backward([output, *end[: len(back)]], [gradient, *back])
        of_inputs.insert(0, inputs.grad)
        back = [part.grad for part in start]
    return outputs, of_inputs, back


@wrong("06.4", says="you make the caller's own tensor a leaf")
def makes_leaves_of_the_callers_chunks(layer, chunks, state, gradients):
    outputs, begins, now = [], [], state
    with torch.no_grad():
        for chunk in chunks:
            begins.append(now)
            output, now = layer(chunk, now)
            outputs.append(output)
    following = None
    for number in range(len(chunks) - 1, -1, -1):
        x = chunks[number].requires_grad_()
        h, c = (part.detach().requires_grad_() for part in begins[number])
        output, ended = layer(x, (h, c))
        if following is None:
            output.backward(gradients[number])
        else:
            torch.autograd.backward((output, *ended), (gradients[number], *following))
        following = (h.grad, c.grad)
        del output, ended
    return outputs, [chunk.grad for chunk in chunks], following
