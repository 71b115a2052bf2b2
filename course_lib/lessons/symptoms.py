"""Explanations of mistakes that more than one exercise recognizes, so that each mistake has one wording.

@says(GRADIENT_STOPS)
def stops_at_the_cut(case, values):
    return parameters_are(case, values, lambda h, c: (h.detach(), c.detach()))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from course_lib.checks.exercise import Case, Cost

Symptom = Callable[[Case, list[Any]], bool | None]
Judge = Callable[[Case, list[Any]], str | None]
Costs = Callable[[Case, list[Any]], list[Cost]]

THE_SUM = (
    "This is the sum of the gradients. The loss is a mean over all examples, so its gradient is the mean over the "
    "ranks: divide by the number of ranks, or your learning rate is that many times too large."
)
DIVIDED_TWICE = (
    "This is the mean divided by the number of ranks a second time: divide before the sum or after it, not both."
)
NO_MEAN_OF_NOTHING = (
    "This is not a number (nan): a rank without examples divided by its count of 0. Such a rank has no mean, but it "
    "has a sum of 0 and a count of 0, and those can be added up."
)
COUNTED_ON_EVERY_STAGE = (
    "The gradient is too small by a factor of the number of stages. This is what you get if you add up the count once "
    "for each stage: every stage of a replica has the replica's count. Add it up over the replicas only."
)
GRADIENT_STOPS = (
    "The outputs are right, but the gradient stops at every cut: this is truncated backpropagation. The gradient of a "
    "chunk's *initial* state must enter at the end of the previous chunk, together with the gradient of its outputs."
)
GRADIENT_OF_ONE_HALF = (
    "You pass back the gradient of one half of the state but not of the other. Both h and c were carried forward, so "
    "both have a gradient."
)
CHANGES_WHAT_IT_WAS_GIVEN = (
    "You change what you were given: `sort`, `pop`, `+=` or an in-place copy changes the caller's object, and "
    "whoever uses it next finds different values. Work on a copy, or make a new object."
)
STRETCHED = "A gradient below the limit is scaled up to it. Clipping only ever shrinks: the factor is never above 1."
CLIPPED_EACH_NUMBER = (
    "The gradient is clipped number by number, as `clip_grad_value_` does: every single number above the limit is cut "
    "down to it and the others stay, so the gradient changes direction. Clipping by the norm multiplies all numbers by "
    "the same factor."
)
CLIPPED_BY_ITS_OWN_NORM = (
    "Each stage is clipped by its own norm, so the stages shrink by different factors and the gradient changes "
    "direction. Use the norm of the whole model: the stages of a replica add up the squares of their norms."
)

A_BARRIER = (
    "The result is right, but the ranks wait for each other at a barrier, which is a collective, too. Waiting for a "
    "message is enough: the rank that receives one knows that it was sent."
)
A_SHORTER_DTYPE = (
    "The inputs are float64, but the result has only the digits of float32: one of your tensors has a lower-precision "
    "dtype, as `torch.zeros(n)` does by default. Create your tensors with the dtype of the inputs, as "
    "`torch.zeros_like` does."
)


def a_mean_of_means(what: str, where: str, how: str = "") -> str:
    """Return the explanation of a mean of means: `what` is averaged ("an example"), on each `where` alone ("rank")."""
    return (
        f"This is the mean of the {where}s' means{how}: {what} on a {where} with few of them weighs more than one on a "
        f"{where} with many. Add up sums and counts, and divide once."
    )


def only_barriers(of_ranks: Iterable[Mapping[str, int]]) -> bool:
    """Return whether the ranks called barriers, and no other collective."""
    return {name for calls in of_ranks for name in calls} == {"barrier"}


def says(words: str) -> Callable[[Symptom], Symptom]:
    """Return a decorator that sets the explanation of a symptom, for explanations that several symptoms share."""

    def with_words(symptom: Symptom) -> Symptom:
        symptom.__doc__ = words
        return symptom

    return with_words


def observed(symptom: Symptom) -> Symptom:
    """Mark a symptom that describes what happened, not a likely cause of it: a single case is enough to prove it."""
    symptom.observed = True  # pyright: ignore[reportFunctionMemberAccess]
    return symptom


def ahead_of_waits(symptom: Symptom) -> Symptom:
    """Mark an observed symptom that explains why calls were never waited for. The report shows only the symptom."""
    symptom.ahead_of_waits = True  # pyright: ignore[reportFunctionMemberAccess]
    return observed(symptom)


def over_budget(judge: Judge, costs: Costs, case: Case, values: list[Any], *places: int) -> bool:
    """Return whether an answer is right but over budget in the costs at these indices (`places`; default: any)."""
    if judge(case, values):
        return False
    spent = costs(case, values)
    return any(cost.spent > cost.budget for cost in ([spent[place] for place in places] if places else spent))
