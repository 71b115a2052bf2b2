"""The mistakes that the capstone recognizes, from the values that the ranks return."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.exercise import Case, differs
from course_lib.lessons.lesson_11 import adam, after, batches_of, loss_of, model_of
from course_lib.lessons.lesson_11._twin import blocks_on, in_one_process, seen_by, stages_of
from course_lib.lessons.symptoms import CLIPPED_BY_ITS_OWN_NORM, COUNTED_ON_EVERY_STAGE, observed, says

# The effect of a wrong answer on the gradient of the first update, measured by the weight of each sequence. The
# gradient is a weighted sum of the sequences' gradients, so the weights can be recovered. A weight of 1 is right: the
# sequence's losses were summed and divided by the global count.


def weights_of_sequences(case: Case, ranks: list[dict]) -> list[float] | None:
    """Return each sequence's weight in these ranks' gradient, or None if it is not a weighted sum of the sequences'."""
    gradients = {name: gradient for rank in ranks for name, gradient in rank["updates"][0]["gradients"].items()}
    right = gradients_of_sequences(json.dumps(case.inputs["job"]))
    own = torch.cat([right[name] for name in gradients])
    whole = torch.cat([gradient.reshape(-1, 1) for gradient in gradients.values()])
    found = torch.linalg.lstsq(own, whole, driver="gelsd").solution
    fits = len(own) >= own.shape[1] and (own @ found - whole).norm() <= 1e-6 * whole.norm()
    return found.flatten().tolist() if fits else None


@lru_cache(64)
def gradients_of_sequences(text: str) -> dict[str, Tensor]:
    """Return each parameter's gradient, with one column for each sequence that has steps that count."""
    from course_lib.core.strategy import Single

    job = {**json.loads(text), "clip": None}
    with torch.random.fork_rng():
        batch, columns = batches_of(job)[0], []
        for sequence in range(batch.sequences):
            one = batch.rows([sequence])
            if one.count:
                seen = after(Single(model_of(job, 0), adam, loss_of(job)), one)["gradients"]
                columns.append({name: own.flatten() * one.count / batch.count for name, own in seen.items()})
    return {name: torch.stack([column[name] for column in columns], dim=1) for name in columns[0]}


def first_weights(case: Case, values: list[Any]) -> list[list[float]]:
    """Return the sequences' weights in the first update, for each replica; empty if they are unknown or right."""
    if case.inputs["job"]["clip"] or not starts_right(case, values):
        return []
    stages = stages_of(case)
    found = [weights_of_sequences(case, values[first : first + stages]) for first in range(0, case.ranks, stages)]
    known = [weights for weights in found if weights is not None]
    right = all(near(weight, 1) for weights in known for weight in weights)
    return [] if len(known) < len(found) or right else known


def starts_right(case: Case, values: list[Any]) -> bool:
    return all(differs(value["start"], in_one_process(case)["start"]) is None for value in values)


def near(value: float, right: float) -> bool:
    return abs(value - right) <= 1e-5 * max(1.0, abs(right))


def factor(case: Case, values: list[Any]) -> float:
    """Return the factor by which all sequences weigh too much or too little in all replicas; 0 if there is none."""
    weights = [weight for of_replica in first_weights(case, values) for weight in of_replica]
    alike = weights and all(near(weight, weights[0]) for weight in weights)
    return weights[0] if alike else 0.0


@observed
def no_model_group(case: Case, values: list[Any]) -> bool:
    """Each rank reports only its own stage. `self.model_group` is the group of ranks that hold one model together, the
    stages of a replica: the base class uses it to assemble the whole model, compute its norm, and save it.
    """
    own = [value["holds"] and value["start"].keys() == set(value["holds"]) for value in values]
    return any(own) and stages_of(case) > 1


@observed
def whole_model_everywhere(case: Case, values: list[Any]) -> bool:
    """Ranks have the whole model: that is data parallelism. A rank should hold, and give to the optimizer, only the
    blocks of its stage: `model.part(start, stop)`.
    """
    return stages_of(case) > 1 and any(set(value["holds"]) == {*in_one_process(case)["start"]} for value in values)


@observed
def column_by_column(case: Case, values: list[Any]) -> bool:
    """The table of ranks is numbered column by column: the stages of a replica are far apart, although they communicate
    at every micro-batch. Number it row by row: `replica, stage = divmod(rank, stages)`.
    """
    stages, replicas = stages_of(case), case.inputs["job"]["replicas"]
    first = [blocks_on(values[stage * replicas]) for stage in range(stages)]
    rows = all(blocks_on(values[rank]) == first[rank // replicas] for rank in range(case.ranks))
    return min(stages, replicas) > 1 and rows and first == sorted(first)


@observed
def weights_not_agreed(case: Case, values: list[Any]) -> bool:
    """The ranks do not begin with rank 0's weights: each created its model from a different seed. Broadcast the weights
    over *all* ranks before you cut the model: `broadcast_weights(model)`.
    """
    return not starts_right(case, values)


@observed
def replicas_not_summed(case: Case, values: list[Any]) -> bool:
    """A replica's gradients contain only its own sequences: they are not summed over the replicas, or are summed over
    the wrong ranks. The ranks that hold the same stage form a column of the table.
    """
    ranks = first_weights(case, values)
    return any(any(near(w, 0) for w in each) and not all(near(w, 0) for w in each) for each in zip(*ranks, strict=True))


@observed
def sequences_left_out(case: Case, values: list[Any]) -> bool:
    """Some sequences do not count at all, on any rank: the last micro-batch is dropped, or no replica gets the tail.
    Every sequence of the batch belongs to one replica and to one of its micro-batches.
    """
    ranks = first_weights(case, values)
    lost = [all(near(weight, 0) for weight in each) for each in zip(*ranks, strict=True)]
    return any(lost) and not all(lost)


@observed
def gradients_not_added_up(case: Case, values: list[Any]) -> bool:
    """The stages' gradients do not contain the same sequences: a stage loses a micro-batch's contribution, or gets the
    gradient of a different micro-batch. Each stage must sum the gradients of all micro-batches.
    """
    if case.inputs["job"]["clip"] or first_weights(case, values) or not starts_right(case, values):
        return False
    found = [weights_of_sequences(case, [value]) or [] for value in values]
    return any(near(weight, 0) for weights in found for weight in weights)


@says(COUNTED_ON_EVERY_STAGE)
def counted_on_every_stage(case: Case, values: list[Any]) -> bool:
    return stages_of(case) > 1 and near(factor(case, values) * stages_of(case), 1)


def averaged_over_replicas(case: Case, values: list[Any]) -> bool:
    """The gradient is too small by a factor of the number of replicas: you take their mean. The loss is already divided
    by the global count, so the replicas' gradients are parts of one sum: add them up.
    """
    replicas = case.inputs["job"]["replicas"]
    return replicas > 1 and near(factor(case, values) * replicas, 1)


def divided_by_micro_batches(case: Case, values: list[Any]) -> bool:
    """The gradient is too small by a factor of the number of micro-batches. If the loss is divided by the global count,
    the micro-batches' gradients are parts of one sum: add them up.
    """
    micro_batches = case.inputs["job"]["micro_batches"]
    return micro_batches > 1 and near(factor(case, values) * micro_batches, 1)


@observed
def divided_by_another_number(case: Case, values: list[Any]) -> bool:
    """The gradient points in the right direction, but is too long or too short: the sum of losses is not divided by the
    count of the global batch. That is `mask.sum()`, summed over the replicas; divide once.
    """
    return factor(case, values) != 0


@observed
def mean_of_means(case: Case, values: list[Any]) -> bool:
    """Not every step weighs the same. This is what you get from a mean of means, if the loss is divided per replica or
    per micro-batch: these do not all count the same number of steps. Add up sums and counts, and divide once, by the
    count of the global batch.
    """
    return bool(first_weights(case, values))


@observed
def last_stage_alone(case: Case, values: list[Any]) -> bool:
    """The last stage's gradients are right, but those of an earlier stage are not: look at what it receives in the
    backward pass. It should be the gradient of the activations that it sent, for the same micro-batch, and already
    divided.
    """
    stages, job = stages_of(case), case.inputs["job"]
    if stages == 1 or job["clip"] or not starts_right(case, values):
        return False
    right = in_one_process(case)["updates"][0]["gradients"]
    first = [(value["holds"], value["updates"][0]["gradients"]) for value in values[:stages]]
    fits = [all(differs(gradients[name], right[name]) is None for name in holds) for holds, gradients in first]
    return fits[-1] and not all(fits)


@observed
def wrong_loss(case: Case, values: list[Any]) -> bool:
    """The gradients are right, but `step` reports the wrong loss: it should be that of the global batch, on every rank.
    Only last stages have a sum of losses; add these up over all ranks, and the base class divides by the count.
    """
    right = in_one_process(case)["updates"][0]
    return any(
        differs(value["updates"][0]["gradients"], seen_by(value, right)["gradients"]) is None
        and differs(value["updates"][0], seen_by(value, right)) is not None
        for value in values
    )


# Clipping: the factor on each stage's gradient, if its direction is right.


def factors_of_stages(case: Case, values: list[Any]) -> list[float]:
    """Return each stage's scale in the first update, where 1 is right; empty if a direction is wrong."""
    if case.inputs["job"]["clip"] is None or not starts_right(case, values):
        return []
    right, found = in_one_process(case)["updates"][0]["gradients"], []
    for value in values:
        ours = torch.cat([value["updates"][0]["gradients"][name].flatten() for name in value["holds"]])
        whole = torch.cat([right[name].flatten() for name in value["holds"]])
        found.append((ours @ whole / (whole @ whole)).item())
        if (ours - found[-1] * whole).norm() > 1e-6 * ours.norm():
            return []
    return found


@says(CLIPPED_BY_ITS_OWN_NORM)
def clipped_by_own_norm(case: Case, values: list[Any]) -> bool:
    found = factors_of_stages(case, values)
    return any(not near(each / found[0], 1) for each in found)


def not_clipped(case: Case, values: list[Any]) -> bool:
    """The gradient is not clipped at all: `clip` is the largest norm that it may have."""
    found = factors_of_stages(case, values)
    whole = in_one_process(case, clip=None)["updates"][0]["gradients"].values()
    norm = torch.cat([gradient.flatten() for gradient in whole]).norm().item()
    return bool(found) and norm > case.inputs["job"]["clip"] and near(found[0] * case.inputs["job"]["clip"] / norm, 1)


@observed
def wrong_norm(case: Case, values: list[Any]) -> bool:
    """All stages shrink by the same factor, but it is the wrong one: the norm is not that of the whole gradient.
    Compute it after the sum over the replicas, and count every parameter once, not once for each replica. Squares add
    up, norms do not. A gradient below the limit stays unchanged.
    """
    found = factors_of_stages(case, values)
    return bool(found) and not near(found[0], 1)


@observed
def clipped_too_early(case: Case, values: list[Any]) -> bool:
    """With `clip`, the gradient has the wrong direction. This is what you get if each replica or micro-batch is clipped
    separately: clip once, after everything has been summed.
    """
    started = case.inputs["job"]["clip"] is not None and starts_right(case, values)
    return started and case.inputs["job"]["cut"] is None and not factors_of_stages(case, values)


# Carried states and checkpoints: the answer behaves like a single process that forgets something.


def follows(case: Case, values: list[Any], **others: Any) -> bool:
    """Return whether all updates equal those of a single process with the changes in `others`."""
    twin = in_one_process(case, **others)["updates"]
    return all(differs(value["updates"], [seen_by(value, update) for update in twin]) is None for value in values)


def state_not_carried(case: Case, values: list[Any]) -> bool:
    """Every update begins at a state of zeros. With `carry_state`, a micro-batch starts where the same micro-batch of
    the previous batch ended: return the states by micro-batch from `forward_backward`, and read them from
    `self.states`.
    """
    return case.inputs["job"]["carry_state"] and follows(case, values, carry_state=False)


def weights_not_resumed(case: Case, values: list[Any]) -> bool:
    """The new object does not continue from the saved weights. A checkpoint is loaded into the parameters that
    `shards()` names: these must be the ones that the model computes with, and nothing may overwrite them.
    """
    cut = case.inputs["job"]["cut"]
    saved, other = in_one_process(case)["updates"][cut - 1], in_one_process(case, forgets="weights")["updates"][cut]
    if any(differs(value["updates"][cut - 1]["state"], seen_by(value, saved)["state"]) for value in values):
        return False
    if any(differs(value["resumed"], seen_by(value, saved)["state"]) for value in values):
        return True
    return not any(differs(value["updates"][cut]["gradients"], seen_by(value, other)["gradients"]) for value in values)


def optimizer_forgotten(case: Case, values: list[Any]) -> bool:
    """After the checkpoint, the optimizer starts from scratch: its state from earlier gradients is lost. The checkpoint
    saves and loads `self.optimizer`: that must be the optimizer that does the updates, created once, with this rank's
    parameters.
    """
    return case.inputs["job"]["cut"] is not None and follows(case, values, forgets="optimizer")


def optimizer_made_anew(case: Case, values: list[Any]) -> bool:
    """The first update is right, but later ones ignore what came before: the optimizer is created anew in every update,
    and has lost its state. Create it once, in `__init__`.
    """
    return follows(case, values, forgets="every optimizer") and not follows(case, values)


def state_forgotten(case: Case, values: list[Any]) -> bool:
    """After the checkpoint, the carried state starts at zeros. The checkpoint saves and loads `self.states`, by
    micro-batch, so the carried state must be there, and `self.micro_batches` must be the number of micro-batches.
    """
    return case.inputs["job"]["cut"] is not None and follows(case, values, forgets="state")


def everything_held(case: Case, values: list[Any]) -> bool:
    """The more micro-batches there are, the more is held for the backward pass: all forwards come before the first
    backward. In 1F1B, a stage does a backward as soon as it can, and holds no more micro-batches than there are stages.
    """
    return any(value["many"]["saved_bytes"] > 2 * value["few"]["saved_bytes"] for value in values)


def whole_model_kept(case: Case, values: list[Any]) -> bool:
    """A rank still has the whole model: an attribute, a list or a stored function refers to it. Keep only
    `model.part(start, stop)`.
    """
    whole = sum(weight.numel() for weight in in_one_process(case)["start"].values())
    return stages_of(case) > 1 and any(value["many"]["kept"] >= whole for value in values)


SYMPTOMS = (
    whole_model_everywhere,
    no_model_group,
    column_by_column,
    weights_not_agreed,
    weights_not_resumed,
    optimizer_forgotten,
    optimizer_made_anew,
    state_forgotten,
    state_not_carried,
    sequences_left_out,
    replicas_not_summed,
    gradients_not_added_up,
    counted_on_every_stage,
    averaged_over_replicas,
    divided_by_micro_batches,
    divided_by_another_number,
    mean_of_means,
    last_stage_alone,
    wrong_loss,
    clipped_by_own_norm,
    not_clipped,
    wrong_norm,
    clipped_too_early,
    everything_held,
    whole_model_kept,
)
