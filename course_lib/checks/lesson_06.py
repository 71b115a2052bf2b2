"""Exercises of lesson 06, pipeline parallelism: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

from itertools import chain, zip_longest

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.exercise import Case, Exercise, differs, same_as, seeded
from course_lib.schedules import IllegalSchedule, Schedule, gpipe
from course_lib.simulation import Costs, simulate

# 06.1 -----------------------------------------------------------------------------------------------------------------


def bubble_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def seconds(least: int) -> float:
        return (least + torch.randint(8, (), generator=generator).item()) / 4

    def case(part: str, micro_batches: int, forward: list[float], backward: list[float]) -> Case:
        inputs = {"micro_batches": micro_batches, "forward": forward, "backward": backward}
        says = f"{micro_batches} micro-batches; seconds for the whole batch, forward {forward}, backward {backward}"
        return Case(part, 1, inputs, says)

    one, another = seconds(4), seconds(8)
    slow = [seconds(4), seconds(30), seconds(4)]
    return [
        case("equal stages", 4, [one] * 2, [another] * 2),
        case("equal stages", 8, [another] * 4, [another] * 4),
        case("a slow stage", 4, slow, [2 * time for time in slow]),
        case("a slow stage", 5, [*slow, slow[0]], [seconds(4), seconds(4), seconds(4), seconds(40)]),
    ]


def drive_bubble(answer, micro_batches: int, forward: list[float], backward: list[float]):
    makespan, bubble = answer(micro_batches, forward, backward)
    return {"makespan": float(makespan), "bubble": float(bubble)}


def right_bubble(case: Case) -> list:
    forward, backward = case.inputs["forward"], case.inputs["backward"]
    schedule = gpipe(len(forward), case.inputs["micro_batches"])
    simulation = simulate(schedule, Costs(forward, backward).split_over(schedule))
    return [{"makespan": simulation.makespan, "bubble": simulation.bubble}]


def pieces_as_long_as_the_batch(micro_batches, forward, backward):
    """You let every micro-batch take as long as the whole batch. The batch is cut: each piece takes its part of the
    time. (The share that is idle is not changed by this, the makespan is.)
    """
    makespan = sum(sum(costs) + (micro_batches - 1) * max(costs) for costs in (forward, backward))
    return makespan, 1 - micro_batches * sum(forward + backward) / (len(forward) * makespan)


def no_way_back(micro_batches, forward, backward):
    """You count the filling of the pipeline on the way forward, and not its emptying on the way back. The last
    micro-batch's gradient must come up through all stages, too.
    """
    makespan = (sum(forward) + (micro_batches - 1) * max(forward)) / micro_batches + max(backward)
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


def one_slot_too_many(micro_batches, forward, backward):
    """One slot too many in each direction: while the last stage works on the first micro-batch, only *stages - 1*
    slots have passed. Draw two stages and two micro-batches on paper, and count.
    """
    slots = micro_batches + len(forward)
    makespan = slots * (max(forward) + max(backward)) / micro_batches
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


def no_overlap(micro_batches, forward, backward):
    """This is the time of model parallelism, in which one stage works while the others wait. In a pipeline the next
    micro-batch enters a stage as soon as the one before has left it.
    """
    makespan = sum(forward + backward)
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


def idle_per_work(micro_batches, forward, backward):
    """The makespan is right. Your share is idle time over *working* time, (p-1)/m, which some papers call the bubble
    as well. Here it is the share of all the time, so that it can never pass 1.
    """
    pieces = ((sum(costs) + (micro_batches - 1) * max(costs)) / micro_batches for costs in (forward, backward))
    makespan = sum(pieces)
    return makespan, len(forward) * makespan / sum(forward + backward) - 1


def average_stage(micro_batches, forward, backward):
    """You calculate with the mean stage. A pipeline moves at the pace of its slowest one: the others wait for it at
    every micro-batch.
    """
    slots = micro_batches + len(forward) - 1
    makespan = slots * sum(forward + backward) / len(forward) / micro_batches
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


def all_as_slow_as_the_slowest(micro_batches, forward, backward):
    """Too long: you let every stage take as long as the slowest. One micro-batch passes each stage once, at that
    stage's own pace; only the other *micro_batches - 1* queue at the slowest.
    """
    slots = micro_batches + len(forward) - 1
    makespan = slots * (max(forward) + max(backward)) / micro_batches
    return makespan, 1 - sum(forward + backward) / (len(forward) * makespan)


BUBBLE = Exercise(
    number="06.1",
    title="Count the bubble",
    answer="step_time",
    level="warm-up",
    minutes=10,
    parts={"equal stages": 2, "a slow stage": 1},
    read="1 · The bubble",
    hints=(
        "How long does one micro-batch take on a stage, if the whole batch takes `forward[stage]`?",
        "Follow the first micro-batch through all stages: that is a sum over the stages. When is the last one through, "
        "if each comes one slot behind the one before? What is a slot, where one stage is slower than the others?",
        "All backward passes come after all forward passes, so that the two makespans add up. Each stage works for "
        "`forward[stage] + backward[stage]`; all of them together have `stages * makespan`.",
    ),
    cases=bubble_cases,
    drive=drive_bubble,
    judge=same_as(right_bubble),
    mistakes=(
        pieces_as_long_as_the_batch,
        no_way_back,
        one_slot_too_many,
        no_overlap,
        idle_per_work,
        average_stage,
        all_as_slow_as_the_slowest,
    ),
)

# 06.2 -----------------------------------------------------------------------------------------------------------------


def order_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, stages: int, micro_batches: int, most: int) -> Case:
        inputs = {"stages": stages, "micro_batches": micro_batches, "most": most}
        return Case(part, 1, inputs, f"{stages} stages, {micro_batches} micro-batches, most={most}")

    more = torch.randint(3, (4,), generator=generator).tolist()
    return [
        case("it can run", 2, 3 + more[0], 2),
        case("it can run", 4 + more[1], 2, 4 + more[1]),
        case("as fast as GPipe", 3, 5 + more[2], 3),
        case("less memory than GPipe", 4, 6 + more[2], 4),
        case("a limit on memory", 5, 6 + more[3], 2),
    ]


def drive_order(answer, stages: int, micro_batches: int, most: int):
    return [list(answer(stage, stages, micro_batches, most)) for stage in range(stages)]


def judge_order(case: Case, values: list) -> str | None:
    stages, micro_batches, most = case.inputs.values()
    try:
        schedule = Schedule.of(values[0])
    except (IllegalSchedule, ValueError) as error:
        return str(error)
    if schedule.chunks > 1 or schedule.micro_batches != micro_batches:
        return f"it has {schedule.micro_batches} micro-batches of {schedule.chunks} chunks; asked for: {micro_batches}"
    if case.part == "it can run":
        return None
    makespan = simulate(schedule).makespan
    quickest = simulate(Schedule.of([turns(s, stages, micro_batches, most) for s in range(stages)])).makespan
    if makespan > quickest:
        shown = " | ".join(map(" ".join, values[0]))
        return f"it takes {makespan:g} slots where {quickest:g} are enough: {shown}"
    if case.part == "as fast as GPipe":
        return None
    for stage, held in enumerate(schedule.peak):
        if held > min(most, stages - stage):
            return f"stage {stage} holds {held} micro-batches at once, {min(most, stages - stage)} are enough"
    return None


def turns(stage: int, stages: int, micro_batches: int, most: int) -> list[str]:
    """The first forwards, as many as are needed and allowed; then a backward and a forward in turn."""
    return taking_turns(micro_batches, min(most, stages - stage))


def taking_turns(micro_batches: int, ahead: int) -> list[str]:
    forwards = [f"F{number}" for number in range(micro_batches)]
    backwards = [f"B{number}" for number in range(micro_batches)]
    pairs = zip_longest(backwards, forwards[ahead:], fillvalue="")
    return [action for action in chain(forwards[:ahead], *pairs) if action]


def all_forwards_first(stage, stages, micro_batches, most):
    """This is GPipe: legal, as fast as 1F1B, and every stage holds every micro-batch. Go back as soon as a micro-batch
    can: its activations are then free.
    """
    return taking_turns(micro_batches, micro_batches)


def one_at_a_time(stage, stages, micro_batches, most):
    """Each micro-batch goes forward and back before the next one starts: while it is away, the stage has nothing to do.
    Let a stage begin with as many forwards as it takes for the first one to come back.
    """
    return taking_turns(micro_batches, 1)


def warm_up_one_short(stage, stages, micro_batches, most):
    """The stages start with one forward too few: stage s waits a slot or two at its first backward, and at every one
    after it. The first micro-batch has stages - s stages to visit, this one included.
    """
    return taking_turns(micro_batches, max(1, min(most, stages - stage - 1)))


def backward_before_forward(stage, stages, micro_batches, most):
    """The last stage begins with a backward, of a micro-batch that it has not seen. If a stage starts with
    stages - s - 1 forwards, its turns are a *forward* and a backward, in this order.
    """
    return taking_turns(micro_batches, min(most, stages - stage) - 1)


def warm_up_one_long(stage, stages, micro_batches, most):
    """Legal and fast, but the stages start with one forward more than they need, and hold its activations to the end.
    The last stage can go back at once: it needs one.
    """
    return taking_turns(micro_batches, stages - stage + 1)


def the_same_everywhere(stage, stages, micro_batches, most):
    """All stages start with as many forwards as stage 0. The later a stage comes, the sooner it can go back, and
    the stages before it wait for that: how far ahead a stage must go depends on its place.
    """
    return taking_turns(micro_batches, stages)


def the_wrong_way_round(stage, stages, micro_batches, most):
    """The last stage goes furthest ahead, and the first waits with its first backward: each waits for the other. The
    *first* stage's micro-batches have the longest way to go, so that it starts with the most forwards.
    """
    return taking_turns(micro_batches, stage + 1)


def newest_first(stage, stages, micro_batches, most):
    """After the first forwards you go back with the *newest* micro-batch. The oldest is back first; the newest must
    first pass all the stages behind, and everybody waits for it.
    """
    ahead, held, actions = min(most, stages - stage), [], []
    for number in range(micro_batches):
        actions.append(f"F{number}")
        held.append(number)
        if len(held) >= ahead:
            actions.append(f"B{held.pop()}")
    return actions + [f"B{number}" for number in reversed(held)]


def never_empties(stage, stages, micro_batches, most):
    """The forwards are all there, and the last backwards are missing: when no forward is left to take turns with, the
    rest of the backwards must still be done. Their gradients would be lost.
    """
    ahead = min(most, stages - stage)
    return taking_turns(micro_batches, ahead)[: 2 * micro_batches - ahead]


def more_than_there_are(stage, stages, micro_batches, most):
    """With fewer micro-batches than stages, you start with forwards of micro-batches that do not exist. There are only
    so many to start with.
    """
    ahead = min(most, stages - stage)
    rest = taking_turns(micro_batches, ahead)[min(ahead, micro_batches) :]
    return [f"F{number}" for number in range(ahead)] + rest


def ignores_the_limit(stage, stages, micro_batches, most):
    """This is 1F1B as it should be where there is memory enough. With `most` below the number of stages, the first
    stages must start with fewer forwards, and the pipeline gets slower: that is the price.
    """
    return taking_turns(micro_batches, stages - stage)


ORDER = Exercise(
    number="06.2",
    title="Write 1F1B",
    answer="my_actions",
    level="build",
    minutes=30,
    parts={"it can run": 2, "as fast as GPipe": 2, "less memory than GPipe": 2, "a limit on memory": 2},
    read="2 · 1F1B: the same time, less memory",
    hints=(
        "Begin on paper with 2 stages and 3 micro-batches. What does the last stage do? What does the first one do "
        "until the first gradient is back?",
        "A stage has three phases: some forwards; a backward and a forward in turn; the backwards that are left. Only "
        "the length of the first phase depends on the stage.",
        "The last stage can go back after one forward, the one before it after two. With a limit, no more than `most`; "
        "and there may be fewer micro-batches than that.",
        "`Schedule.of([...]).picture()`, from `course_lib.schedules`, draws what all your stages do together, or says "
        "why they cannot.",
    ),
    cases=order_cases,
    drive=drive_order,
    judge=judge_order,
    mistakes=(
        all_forwards_first,
        one_at_a_time,
        warm_up_one_short,
        backward_before_forward,
        warm_up_one_long,
        the_same_everywhere,
        the_wrong_way_round,
        newest_first,
        never_empties,
        more_than_there_are,
        ignores_the_limit,
    ),
)

# 06.3 -----------------------------------------------------------------------------------------------------------------

HIDDEN, SEQUENCES = 2, 2


def carry_cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, steps: list[int]) -> Case:
        def numbers(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        weights = [[numbers(*parameter.shape) for parameter in layer().parameters()] for _ in range(2)]
        inputs = {
            "weights": weights,
            "chunks": [numbers(length, SEQUENCES, HIDDEN) for length in steps],
            "gradients": [numbers(length, SEQUENCES, HIDDEN) for length in steps],
        }
        return Case(part, 2, inputs, f"{len(steps)} chunks of {', '.join(map(str, steps))} steps")

    return [
        case("the state goes forward", [2, 2]),
        case("its gradient comes back", [2, 2]),
        case("its gradient comes back", [1, 3, 2]),
    ]


def layer(weights: list[Tensor] | None = None) -> nn.LSTM:
    made = nn.LSTM(HIDDEN, HIDDEN).double()
    with torch.no_grad():
        for parameter, weight in zip(made.parameters(), weights or [], strict=False):
            parameter.copy_(weight)
    return made


def drive_carry(answer, weights: list[list[Tensor]], chunks: list[Tensor], gradients: list[Tensor]):
    rank = dist.get_rank()
    stage = layer(weights[rank])
    empty = [torch.zeros_like(chunk) for chunk in chunks]
    outputs, carried = answer(stage, chunks if rank == 0 else empty, gradients if rank == 1 else empty)
    own = [parameter.grad for parameter in stage.parameters()]
    return {"outputs": list(outputs), "carried": [list(pair) for pair in carried], "parameters": own}


def judge_carry(case: Case, values: list) -> str | None:
    for rank, (value, right) in enumerate(zip(values, right_carry(case), strict=True)):
        names = ["outputs"] if case.part == "the state goes forward" else list(right)
        for name in names:
            difference = differs(value[name], right[name], name=name)
            if difference:
                return f"rank {rank}: {difference}"
    return None


def right_carry(case: Case) -> list[dict]:
    """One process, one graph: all chunks through both layers, and autograd alone on the way back."""
    values, seen = case.inputs["chunks"], []
    for weights in case.inputs["weights"]:
        stage, states = layer(weights), [None]
        outputs = []
        for chunk in values:
            output, state = stage(chunk, states[-1])
            outputs.append(output)
            states.append(state)
        values = outputs
        seen.append((stage, outputs, states[1:-1]))
    loss = sum((output * by).sum() for output, by in zip(values, case.inputs["gradients"], strict=True))
    carried = [[list(torch.autograd.grad(loss, pair, retain_graph=True)) for pair in states] for _, _, states in seen]
    loss.backward()
    return [
        {"outputs": outputs, "carried": pairs, "parameters": [parameter.grad for parameter in stage.parameters()]}
        for (stage, outputs, _), pairs in zip(seen, carried, strict=True)
    ]


def in_chunks(stage, chunks, gradients, begin=None, hand_back=None, send_back=None):
    """A right answer; each mistake below does one of the last three things in another way."""
    kept = forwards(stage, chunks, begin or as_leaves)
    carried = backwards(kept, gradients, hand_back or both)
    if dist.get_rank() == 1:
        of_inputs = [inputs.grad for inputs, _, _, _ in kept]
        for gradient in (send_back or last_first)(of_inputs, gradients):
            dist.send(gradient, 0)
    return [outputs for _, _, outputs, _ in kept], carried


def forwards(stage, chunks, begin):
    state, kept = None, []
    for inputs in chunks:
        if dist.get_rank() == 1:
            dist.recv(inputs, 0)
        inputs, start = inputs.detach().requires_grad_(), state and begin(*state)
        outputs, state = stage(inputs, start)
        if dist.get_rank() == 0:
            dist.send(outputs.detach(), 1)
        kept.append((inputs, start, outputs, state))
    return kept


def backwards(kept, gradients, hand_back):
    carried: list = []
    for (_, start, outputs, end), gradient in zip(reversed(kept), reversed(gradients), strict=True):
        if dist.get_rank() == 0:
            dist.recv(gradient, 1)
        pairs = [(outputs, gradient), *(hand_back(end, carried[0]) if carried else [])]
        torch.autograd.backward(*map(list, zip(*pairs, strict=True)))
        carried = [[part.grad for part in start], *carried] if start else carried
    return carried


def as_leaves(h, c):
    return h.detach().requires_grad_(), c.detach().requires_grad_()


def both(end, gradients):
    return list(zip(end, gradients, strict=True))


def last_first(of_inputs, of_outputs):
    return reversed(of_inputs)


def every_chunk_from_zero(stage, chunks, gradients):
    """Every chunk begins in the zero state, as if it were a sequence of its own: the LSTM forgets at every cut. The
    state in which a chunk ends is the one in which the next begins, on the same stage.
    """
    return in_chunks(stage, chunks, gradients, begin=lambda h, c: as_leaves(0 * h, 0 * c))


def carries_h_alone(stage, chunks, gradients):
    """You carry h and begin with c at zero. An LSTM's memory is c: the state is the pair."""
    return in_chunks(stage, chunks, gradients, begin=lambda h, c: as_leaves(h, 0 * c))


def stops_at_the_cut(stage, chunks, gradients):
    """The outputs are right, and the gradient stops at every cut: this is truncated backpropagation. The gradient of
    the state in which a chunk *began* must come in at the end of the chunk before it, beside the one of its outputs.
    """
    return in_chunks(stage, chunks, gradients, hand_back=lambda end, of_state: [])


def gradient_of_h_alone(stage, chunks, gradients):
    """You hand back the gradient of h and not that of c. Both were carried forward, so both have a gradient."""
    return in_chunks(stage, chunks, gradients, hand_back=lambda end, of_state: [(end[0], of_state[0])])


def sends_back_what_it_got(stage, chunks, gradients):
    """Rank 1's own gradients are right, rank 0's are not: what you send back is the gradient of rank 1's *outputs*.
    Rank 0 needs that of rank 1's inputs, which are its outputs.
    """
    return in_chunks(stage, chunks, gradients, send_back=lambda of_inputs, of_outputs: reversed(of_outputs))


def sends_the_first_chunk_first(stage, chunks, gradients):
    """Rank 0 receives gradients in the order in which you send them, and takes the first chunk's for the last one's:
    they look alike. It needs the *last* chunk's first.
    """
    return in_chunks(stage, chunks, gradients, send_back=lambda of_inputs, of_outputs: of_inputs)


def waits_for_nothing(stage, chunks, gradients):
    """Rank 0 waits for a gradient that rank 1 never sends. After a chunk's backward pass, send back the gradient of
    what you received for it.
    """
    return in_chunks(stage, chunks, gradients, send_back=lambda of_inputs, of_outputs: [])


CARRY = Exercise(
    number="06.3",
    title="Carry the state, and its gradient",
    answer="run_stage",
    level="build",
    minutes=35,
    parts={"the state goes forward": 2, "its gradient comes back": 4},
    read="3 · Wavefront: a pipeline over time",
    hints=(
        "Write the way forward first, for both ranks: receive (on rank 1), run the layer from the state in which the "
        "last chunk ended, send (on rank 0). Keep of each chunk what its backward pass will need.",
        "A chunk is a graph of its own: what it begins with, its inputs and its state, are leaves. Detach them and let "
        "them require a gradient; after the backward pass it is in their `.grad`.",
        "A chunk has two kinds of results: its outputs, and the state in which it ended. Both have a gradient, except "
        "for the last chunk's state. `torch.autograd.backward([a, b, c], [grad_a, grad_b, grad_c])` takes several.",
        "Last chunk first, on both ranks: the gradient of the state comes from the chunk *after*.",
    ),
    cases=carry_cases,
    drive=drive_carry,
    judge=judge_carry,
    mistakes=(
        every_chunk_from_zero,
        carries_h_alone,
        stops_at_the_cut,
        gradient_of_h_alone,
        sends_back_what_it_got,
        sends_the_first_chunk_first,
    ),
    hanging=waits_for_nothing,
)

EXERCISES = (BUBBLE, ORDER, CARRY)
