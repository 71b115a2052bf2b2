"""12.3 The rescaled sum of a ring: the check, and the common mistakes it recognizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.exercise import Case, Cost, Exercise, same_as, seeded
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import observed

Scored = tuple[Tensor, Tensor]  # scores and values of one visit


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(
        part: str, visits: int, queries: int, keys: int, width: int, *, large: float = 1, masked: str = ""
    ) -> Case:
        query = torch.randn(queries, width, generator=generator, dtype=torch.float64)
        key, value = torch.randn(2, visits, keys, width, generator=generator, dtype=torch.float64)
        mask = torch.ones(visits, queries, keys, dtype=torch.bool)
        if masked == "causal":  # the queries are steps of the last visit, from its first one on
            mask[-1] = torch.ones(queries, keys).tril().bool()
        if masked == "first":
            mask[0] = False
        if masked == "some":
            mask = torch.rand(mask.shape, generator=generator) < 0.5
            mask[:, 0] = False
            mask[-1, :, 0] = True
            key[-1, 0] = -query[0]  # the first query sees a single key, whose score is far below zero
        inputs = {"query": large * query, "key": key, "value": value, "mask": mask}
        size = (
            f", scores up to {(large * query @ key.flatten(0, 1).T).abs().max() / width**0.5:.0f}" if large > 1 else ""
        )
        hidden = {"": "", "causal": ", causal", "first": ", the first hidden", "some": ", some keys hidden"}[masked]
        who = "1 query" if queries == 1 else f"{queries} queries"
        return Case(part, 1, inputs, f"{who}, {visits} visit{'s' * (visits > 1)} of {keys} keys{hidden}{size}")

    return [
        case("the sum", 1, 1, 2, 1),
        case("the sum", 2, 2, 2, 2),
        case("the sum", 3, 4, 4, 3),
        case("the sum", 24, 8, 16, 8),
        case("large scores", 3, 3, 3, 2, large=2000),
        case("large scores", 4, 4, 2, 4, large=4000),
        case("hidden keys", 2, 4, 4, 3, masked="causal"),
        case("hidden keys", 3, 2, 3, 2, masked="first"),
        case("hidden keys", 4, 3, 4, 4, masked="some"),
        case("hidden keys", 3, 3, 4, 8, large=4000, masked="some"),
    ]


def drive(answer, query: Tensor, key: Tensor, value: Tensor, mask: Tensor):
    """Let the visitors come and go: what a visitor brought is overwritten when the answer asks for the next one."""
    from course_lib.core.metering import most_alive

    asked = []

    def visitors() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for place in range(len(key)):
            asked.append(place)
            here = key[place].clone(), value[place].clone(), mask[place].clone()
            yield here
            for tensor in here[:2]:
                tensor.fill_(float("nan"))

    coming = visitors()
    with torch.no_grad():
        outputs, alive = most_alive(answer, query.clone(), coming)
    return {"outputs": outputs, "alive": alive, "visits": len(asked)}


def scored(case: Case, *, scale: float = 0.5, masked: str = "hidden", hidden: float = float("-inf")) -> list[Scored]:
    query, key, value, mask = (case.inputs[name] for name in ("query", "key", "value", "mask"))
    factor = query.shape[-1] ** -scale
    nothing = torch.zeros_like(mask)
    visits = []
    for place in range(len(key)):
        scores = query @ key[place].T * factor
        hide = {"hidden": ~mask, "turned": mask, "nothing": nothing}[masked][place]
        visits.append((scores.masked_fill(hide, hidden), value[place]))
    return visits


def together(visits: list[Scored]) -> Tensor:
    """Return attention over all visits at once."""
    return torch.cat([scores for scores, _ in visits], dim=-1).softmax(-1) @ torch.cat([value for _, value in visits])


def expected(case: Case) -> list[Tensor]:
    return [together(scored(case))]


def judge(case: Case, values: list) -> str | None:
    return same_as(expected, name="the output")(case, [value["outputs"] for value in values])


def costs(case: Case, values: list) -> list[Cost]:
    queries, keys, width = *case.inputs["mask"].shape[1:], case.inputs["query"].shape[-1]
    visit = 8 * (2 * keys * width + queries * keys)  # keys, values, scores
    result = 8 * queries * (width + 2)
    return [Cost("bytes alive at once", values[0]["alive"], 6 * (visit + result) + 4096)]


def _is(case: Case, values: list, wrong: Tensor) -> bool:
    """Return whether the outputs equal `wrong`, which is not right and not all nan: many mistakes give only nan."""

    def same(other: Tensor) -> bool:
        return same_as(lambda _: [other])(case, [values[0]["outputs"]]) is None

    return not wrong.isnan().all() and not torch.allclose(wrong, expected(case)[0], equal_nan=True) and same(wrong)


def _summed(case: Case, weigh: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of values and the sum of weights over all visits; `weigh` turns scores into weights."""
    weights = [(weigh(scores), value) for scores, value in scored(case)]
    nothing = torch.zeros(())
    return sum((w @ value for w, value in weights), nothing), sum((w.sum(-1, True) for w, _ in weights), nothing)


@observed
def keeps_the_visitors(case: Case, values: list) -> bool:
    """You use keys or values after their visitor has left: what it brought is overwritten (nan) when you ask for the
    next one. Take what you need from a visitor before that, in a form that doesn't grow with the number of visits.
    """
    outputs = values[0]["outputs"]
    finite = all(torch.isfinite(case.inputs[name]).all() for name in ("query", "key", "value"))
    small = case.part == "the sum" and case.inputs["mask"].all()
    return (
        small and finite and isinstance(outputs, Tensor) and bool(outputs.isnan().all()) and len(case.inputs["key"]) > 1
    )


@observed
def overflows(case: Case, values: list) -> bool:
    """The output is not finite where scores are large: exp(1000) is infinite. Subtract the largest score so far before
    the exponential.
    """
    outputs = values[0]["outputs"]
    return case.part == "large scores" and isinstance(outputs, Tensor) and not bool(torch.isfinite(outputs).all())


@observed
def nothing_to_see_is_nan(case: Case, values: list) -> bool:
    """The output is nan in a case where a query may see none of the keys that a visit brings. Minus infinity minus
    minus infinity is nan, and so is 0 divided by 0. Such a visit must add 0, and leave sum and maximum as they are; the
    next one may bring a key.
    """
    outputs = values[0]["outputs"]
    small = case.part == "hidden keys" and case.inputs["query"].abs().max() < 100
    return small and isinstance(outputs, Tensor) and bool(outputs.isnan().any())


def one_maximum_for_all(case: Case, values: list) -> bool:
    """You subtract one maximum for all queries. A query whose scores are all far below it has only weights of 0, and 0
    divided by 0 is nan: keep a maximum for each query.
    """
    return _is(case, values, _running(case, for_all=True))


def turns_the_mask_around(case: Case, values: list) -> bool:
    """You hide the keys that the mask shows, and show those that it hides. It is True where a query *may* see a key."""
    wrong = together(scored(case, masked="turned"))
    alone = len(case.inputs["key"]) == 1  # nan everywhere has other causes if there are several visits
    outputs = values[0]["outputs"]
    return _is(case, values, wrong) or (alone and bool(wrong.isnan().all()) and bool(outputs.isnan().all()))


def hides_too_little(case: Case, values: list) -> bool:
    """You hide a key with a score that isn't low enough: scores may be in the thousands, and below zero as well. Hide
    it with minus infinity, or give it a weight of 0.
    """
    return any(_is(case, values, together(scored(case, hidden=score))) for score in (0.0, -1e2, -1e3, -1e4))


def ignores_the_mask(case: Case, values: list) -> bool:
    """These are the outputs over all keys, even those that the mask hides. A hidden key's weight is 0."""
    return _is(case, values, together(scored(case, masked="nothing")))


def does_not_scale(case: Case, values: list) -> bool:
    """The scores are not divided by the square root of the width: not at all, or by the width itself."""
    return any(_is(case, values, together(scored(case, scale=scale))) for scale in (0, 1))


def does_not_divide(case: Case, values: list) -> bool:
    """This is the weighted sum of the values. Divide it, at the end, by the sum of the weights."""
    wrong = _running(case, divide=False)
    return bool(wrong.isfinite().all()) and _is(case, values, wrong)


def averages_the_visits(case: Case, values: list) -> bool:
    """This is the mean of the visits' results: a visit with small scores counts as much as one with large ones. Weight
    each by its share of the whole sum of exponentials.
    """
    results = [scores.softmax(-1) @ value for scores, value in scored(case)]
    return _is(case, values, torch.stack(results).mean(0))


def adds_up_the_visits(case: Case, values: list) -> bool:
    """This is the sum of the visits' results, each with its own softmax: their weights add up to more than 1. Add
    numerators and denominators separately, and divide once, at the end.
    """
    results = [scores.softmax(-1) @ value for scores, value in scored(case)]
    return _is(case, values, torch.stack(results).sum(0))


def takes_each_visits_own_maximum(case: Case, values: list) -> bool:
    """Each visit subtracts its own largest score, and the sums are added as they are, but they are in different units:
    when the maximum changes, multiply what you have so far by exp(old maximum - new maximum).
    """
    over, under = _summed(case, lambda scores: (scores - scores.amax(-1, True)).exp())
    return _is(case, values, over / under)


def _running(
    case: Case, *, rescale: tuple[bool, bool] = (True, True), for_all: bool = False, divide: bool = True
) -> Tensor:
    """Return what a running sum gives; each keyword introduces one mistake."""
    over, under, most = torch.zeros(()), torch.zeros(()), None
    for scores, value in scored(case):
        largest = scores.max() if for_all else scores.amax(-1, True)
        new = largest if most is None else torch.maximum(most, largest)
        factor = 1.0 if most is None else (most - new).exp()
        weights = (scores - new).exp()
        over = (factor if rescale[0] else 1.0) * over + weights @ value
        under = (factor if rescale[1] else 1.0) * under + weights.sum(-1, True)
        most = new
    return over / under if divide else over


def does_not_rescale(case: Case, values: list) -> bool:
    """You keep the largest score so far, but what you have summed so far still has the old one in it. Whenever the
    maximum grows, multiply *both* sums by exp(old maximum - new maximum).
    """
    return any(
        _is(case, values, _running(case, rescale=each)) for each in ((False, False), (True, False), (False, True))
    )


def only_the_last_visit(case: Case, values: list) -> bool:
    """The output is that of a single visit: what the others brought is lost."""
    results = [scores.softmax(-1) @ value for scores, value in scored(case)]
    return len(results) > 1 and any(_is(case, values, each) for each in results)


def holds_everything(case: Case, values: list) -> bool:
    """The numbers are right, but you keep something of every visit until the end. Then the ring saves nothing: keep one
    sum of values, one sum of weights and one maximum per query.
    """
    spent = costs(case, values)[0]
    return judge(case, values) is None and spent.spent > spent.budget


SYMPTOMS: tuple[Any, ...] = (
    ignores_the_mask,
    turns_the_mask_around,
    hides_too_little,
    does_not_scale,
    does_not_divide,
    averages_the_visits,
    adds_up_the_visits,
    takes_each_visits_own_maximum,
    does_not_rescale,
    only_the_last_visit,
    keeps_the_visitors,
    one_maximum_for_all,
    overflows,
    nothing_to_see_is_nan,
    holds_everything,
)

EXERCISE = Exercise(
    **texts("12.3"),
    cases=cases,
    drive=drive,
    judge=judge,
    costs=costs,
    symptoms=SYMPTOMS,
)
