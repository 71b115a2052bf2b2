"""11.1 Replicas of a pipeline: the check, and the kinds of mistakes it recognizes."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

from course_lib.checks.exercise import Case, Cost, Exercise, differs
from course_lib.checks.texts import texts
from course_lib.lessons.lesson_11 import (
    HIDDEN,
    OTHER_WEIGHTS,
    Job,
    adam,
    after,
    batches_of,
    copies_of_ours,
    counting_parameters,
    derives_from_ours,
    loss_of,
    model_of,
    new_job,
    state_of,
    watching_for_ours,
)
from course_lib.lessons.lesson_11._symptoms import SYMPTOMS
from course_lib.lessons.lesson_11._twin import block_of, blocks_on, in_one_process, seen_by, stages_of

MANY = 4  # the factor on micro-batches and sequences, to see whether memory grows with them
FLOAT64 = 8  # bytes
HEADER, SMALL = 64, 256  # bytes allowed: per message, and in collectives for counts, losses and norms
SOME_MORE = 1.5


def cases(seed: int) -> list[Case]:
    chance = random.Random(seed)

    def case(part: str, ranks: int, lengths: list[list[int]], says: str, **others: Any) -> Case:
        made = new_job(lengths, chance.randrange(10**6), **others)
        counts = {"replica": made["replicas"], "stage": ranks // made["replicas"], "micro-batch": made["micro_batches"]}
        shape = [f"{count} {name}{plural(name, count)}" for name, count in counts.items()]
        return Case(part, ranks, {"job": made}, ", ".join([*shape, says]))

    def equal(sequences: int, steps: int = 3) -> list[list[int]]:
        return [[steps] * sequences] * 2

    def uneven(sequences: int) -> list[list[int]]:
        """Return the lengths of two batches: a long one, a short one, and random ones."""
        return [[6, 1, *(chance.randint(1, 5) for _ in range(sequences - 2))] for _ in range(2)]

    five = 5 + 2 * chance.randrange(2)
    return [
        case("two stages", 2, equal(2), "2 sequences of 3 steps"),
        case("two stages", 3, equal(2), "2 sequences of tokens, 3 steps each", tokens=True),
        case("micro-batches", 2, equal(6), "6 sequences of 3 steps", micro_batches=3),
        case("micro-batches", 2, equal(five), f"{five} sequences of 3 steps", micro_batches=3),
        case("micro-batches", 2, equal(2), "2 sequences: one micro-batch is empty", micro_batches=3),
        case("micro-batches", 2, equal(5), "the state is carried over", micro_batches=3, carry_state=True, tokens=True),
        case("micro-batches", 3, equal(7), "7 sequences of 3 steps", micro_batches=5, layers=3),
        case("replicas", 2, equal(4), "4 sequences of 3 steps", replicas=2),
        case("replicas", 4, equal(4), "4 sequences of 3 steps", replicas=2),
        case("replicas", 4, equal(five), f"{five} sequences of 3 steps", replicas=2, micro_batches=3),
        case("replicas", 4, equal(1), "1 sequence: one replica has none", replicas=2),
        case("replicas", 4, equal(6), "the state is carried over", replicas=2, micro_batches=3, carry_state=True),
        case("replicas", 3, equal(5), "5 sequences of tokens", replicas=3, micro_batches=2, tokens=True),
        case("uneven lengths", 2, uneven(4), "lengths from 1 to 6", micro_batches=2),
        case("uneven lengths", 2, uneven(3), "lengths from 1 to 6", replicas=2),
        case("uneven lengths", 4, uneven(five), "lengths from 1 to 6", replicas=2, micro_batches=3),
        case("uneven lengths", 4, uneven(6), "not every step counts", replicas=2, micro_batches=2, sparse=True),
        case("clipping", 3, equal(3), "clip=0.01", clip=0.01),
        case("clipping", 4, uneven(5), "clip=0.01", replicas=2, micro_batches=3, clip=0.01),
        case("clipping", 4, equal(4), "clip=1000", replicas=2, clip=1000.0),
        case("cut off and resumed", 2, equal(4) * 2, "cut off in update 3", micro_batches=2, cut=2),
        case(
            "cut off and resumed",
            4,
            equal(6) * 2,
            "the state is carried over, cut off in update 3",
            replicas=2,
            micro_batches=3,
            cut=2,
            carry_state=True,
            tokens=True,
            clip=0.5,
        ),
        case("budget", 4, equal(8, 4), f"then {2 * MANY}", replicas=2, micro_batches=2, measured=True),
    ]


def plural(name: str, count: int) -> str:
    return "" if count == 1 else "es" if name.endswith("ch") else "s"


def drive(answer, job: Job):
    import torch.distributed as dist

    from course_lib.core.shards import check_outlines, gather_outlines
    from course_lib.core.strategy import Strategy

    with watching_for_ours() as ours:
        trained = made(answer, job, dist.get_rank())
        if not isinstance(trained, Strategy):
            return {"ours": "no strategy"}
        ours += derives_from_ours(type(trained)) or [f"a copy of {name}" for name in copies_of_ours(trained)]
        check_outlines(gather_outlines(trained.checked_shards()))
        seen: dict[str, Any] = {
            "holds": list(trained.shards()),
            "start": Strategy.full_state(trained),
            "updates": [],
        }
        for number, batch in enumerate(batches_of(job)):
            if number == job["cut"]:
                trained = resumed(trained, answer, job, batch, number)
                seen["resumed"] = state_of(trained)
            seen["updates"].append(after(trained, batch))
        if job["measured"]:
            del trained
            few = {**job, "lengths": job["lengths"][:1]}
            many = {**few, "micro_batches": MANY * job["micro_batches"], "lengths": [MANY * job["lengths"][0]]}
            seen["few"], seen["many"] = (spent_on(answer, each) for each in (few, many))
    return {"ours": ", ".join(dict.fromkeys(ours)), **seen}


def made(answer, job: Job, seed: int):
    options = {name: job[name] for name in ("replicas", "micro_batches", "carry_state", "clip")}
    return answer(model_of(job, seed), adam, loss_of(job), **options)


def resumed(trained, answer, job: Job, batch, updates: int):
    """Save, interrupt the next update, and return a new object with different weights that loaded the checkpoint."""
    import contextlib
    import shutil
    import tempfile

    import torch.distributed as dist

    from course_lib.core.strategy import on_rank_0
    from course_lib.train.checkpoint.files import Position
    from course_lib.train.checkpoint.save_and_load import load_checkpoint, save_checkpoint

    class CutOff(Exception):
        pass

    def cut_off(*_):
        raise CutOff

    folder = on_rank_0(tempfile.mkdtemp)
    save_checkpoint(trained, folder, Position(updates=updates))
    trained.optimizer.register_step_pre_hook(cut_off)
    with contextlib.suppress(CutOff):
        trained.step(trained.share(batch))
    anew = made(answer, job, OTHER_WEIGHTS + dist.get_rank())
    load_checkpoint(anew, folder)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    return anew


def spent_on(answer, job: Job) -> dict[str, Any]:
    """Return the cost of the second update: the first one may do any setup."""
    import torch.distributed as dist

    from course_lib.core.metering import meter

    (batch,) = batches_of(job)
    with counting_parameters() as numbers:
        trained = made(answer, job, dist.get_rank())
        trained.step(trained.share(batch))
        kept = [numbers()]
        with meter() as spent:
            trained.step(trained.share(batch))
        kept.append(numbers())
    # The launcher may be inspecting this rank's frames, which keeps their objects alive for a moment: use the minimum.
    return {"kept": min(kept), **spent.as_data()}


def judge(case: Case, values: list[Any]) -> str | None:
    if ours := next((value["ours"] for value in values if value["ours"]), ""):
        if ours == "no strategy":
            return "MyHybrid(...) is not a Strategy: derive MyHybrid from course_lib.core.strategy.Strategy"
        return f"it is, or creates, one of the course's own classes: {ours}. Write those parts yourself"
    right = in_one_process(case)
    for rank, value in enumerate(values):
        if missing := [name for name in right["start"] if name not in value["start"]]:
            return f"rank {rank}: {missing[0]} is missing from full_state(), but is in the whole model"
    if wrong := not_in_stages(case, values):
        return wrong
    for rank, value in enumerate(values):
        if difference := differs(value["start"], right["start"]):
            return f"before the first update, rank {rank}: {difference}"
    for number, update in enumerate(right["updates"]):
        for rank, value in enumerate(values):
            if difference := differs(value["updates"][number], seen_by(value, update)):
                return f"after update {number + 1}, rank {rank}: {difference}"
    return None


def not_in_stages(case: Case, values: list[Any]) -> str | None:
    """Return which rank has which blocks, unless every row has the whole model once, in consecutive blocks."""
    stages, whole = stages_of(case), sorted({block_of(name) for name in in_one_process(case)["start"]})
    for first in range(0, case.ranks, stages):
        blocks = [blocks_on(values[first + stage]) for stage in range(stages)]
        if list(chain(*blocks)) != whole or not all(blocks):
            texts = [
                f"rank {first + stage} has {', '.join(map(str, own)) or 'none'}" for stage, own in enumerate(blocks)
            ]
            return (
                f"a replica should have the blocks {', '.join(map(str, whole))} once, in order, on {stages} "
                f"neighboring rank{'s' if stages > 1 else ''}, but {'; '.join(texts)}"
            )
    return None


def costs(case: Case, values: list[Any]) -> list[Cost]:
    if not case.inputs["job"]["measured"]:
        return []
    return [max(of_ranks, key=lambda cost: cost.spent - cost.budget) for of_ranks in _costs_of_ranks(case, values)]


def _costs_of_ranks(case: Case, values: list[Any]) -> list[list[Cost]]:
    """Return, for each kind of cost, what every rank spent."""
    stages, start = stages_of(case), in_one_process(case)["start"]
    lengths, micro_batches = case.inputs["job"]["lengths"][0], case.inputs["job"]["micro_batches"]
    activations = MANY * sum(lengths) // case.inputs["job"]["replicas"] * HIDDEN * FLOAT64
    found: list[list[Cost]] = [[], [], [], [], []]
    for rank, value in enumerate(values):
        own, stage = sum(start[name].numel() for name in value["holds"]), rank % stages
        few, many = value["few"], value["many"]
        links = (stage > 0) + (stage < stages - 1)
        near = [peer for peer in (rank - 1, rank + 1) if peer // stages == rank // stages]
        far = sum(size for peer, size in many["sent_to"].items() if peer not in near)
        near_bytes = sum(size for peer, size in many["sent_to"].items() if peer in near)
        allowed = links * (activations + HEADER * MANY * micro_batches)
        found[0].append(Cost(f"numbers in parameters, rank {rank}", many["kept"], own))
        found[1].append(Cost("bytes to ranks other than neighboring stages", far, 0))
        found[2].append(Cost("bytes to neighboring stages", near_bytes, allowed))
        found[3].append(Cost("bytes put into collectives", sum(many["payload"].values()), own * FLOAT64 + SMALL))
        saved = f"bytes kept for backward, {MANY * micro_batches} micro-batches"
        found[4].append(Cost(saved, many["saved_bytes"], int(SOME_MORE * few["saved_bytes"])))
    return found


EXERCISE = Exercise(
    **texts("11.1"),
    shares_files=True,
    cases=cases,
    drive=drive,
    judge=judge,
    symptoms=SYMPTOMS,
    costs=costs,
    timeout=20.0,
    modules=(
        "torch._dynamo",
        "torch.distributed.checkpoint",
        "course_lib.sharding.hybrid",
        "course_lib.train.checkpoint",
    ),
)
