"""Mistakes that more than one exercise recognizes, each explained in the same words wherever it is made.

@says(GRADIENT_STOPS)
def stops_at_the_cut(case, values):
    return parameters_are(case, values, lambda h, c: (h.detach(), c.detach()))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course_lib.checks.exercise import Case, Cost

Symptom = Callable[[Case, list[Any]], bool]
Judge = Callable[[Case, list[Any]], str | None]
Costs = Callable[[Case, list[Any]], list[Cost]]

THE_SUM = (
    "This is the sum of the gradients. The loss is a mean over all examples, so its gradient is the mean over the "
    "ranks: divide by their number, or your learning rate is as many times too large."
)
DIVIDED_TWICE = (
    "This is the mean divided by the number of ranks once more: divide before the sum or after it, not both."
)
NO_MEAN_OF_NOTHING = (
    "This is not a number (nan): a rank that has no examples has divided by its count of 0. It has no mean; it has a "
    "sum of 0 and a count of 0, and those can be added up."
)
COUNTED_ON_EVERY_STAGE = (
    "The count is too large, and the gradient too small by the number of stages: every stage of a replica knows the "
    "replica's count, and you have added it up once for each stage. Add it up over the replicas alone."
)
GRADIENT_STOPS = (
    "The outputs are right, and the gradient stops at every cut: this is truncated backpropagation. The gradient of "
    "the state in which a chunk *began* must come in at the end of the chunk before it, beside the one of its outputs."
)
GRADIENT_OF_ONE_HALF = (
    "You hand back the gradient of one half of the state, and not that of the other. Both h and c were carried "
    "forward, so both have a gradient."
)
STRETCHED = (
    "A gradient shorter than the limit is stretched to it. Clipping only ever shortens: the factor is never above 1."
)
CLIPPED_EACH_NUMBER = (
    "The gradient is clipped number by number, as `clip_grad_value_` does: every single number above the limit is cut "
    "off, the others stay, and the gradient turns to another direction. Clipping by the norm multiplies all numbers "
    "by the same factor."
)
CLIPPED_BY_ITS_OWN_NORM = (
    "Each stage is clipped by its own norm, so that the stages shrink by different factors, and the gradient turns to "
    "another direction. The norm is that of the whole model: the stages of a replica add up their squares."
)


def a_mean_of_means(what: str, where: str, how: str = "") -> str:
    """Return the sentences for a mean of means: `what` counts, and each `where` has its own number of them."""
    return (
        f"This is the mean of the {where}s' means{how}: {what} on a {where} with few of them weighs more than one on a "
        f"{where} with many. Add up sums and counts, and divide once."
    )


def says(words: str) -> Callable[[Symptom], Symptom]:
    """Give a symptom its sentences, where these are not a docstring of its own."""

    def with_words(symptom: Symptom) -> Symptom:
        symptom.__doc__ = words
        return symptom

    return with_words


def over_budget(judge: Judge, costs: Costs, case: Case, values: list[Any], *places: int) -> bool:
    """Return whether an answer is right and costs too much: by the costs at these places, or by any of them."""
    if judge(case, values):
        return False
    spent = costs(case, values)
    return any(cost.spent > cost.budget for cost in ([spent[place] for place in places] if places else spent))
