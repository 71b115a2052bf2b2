"""A mistake is stated as a fact only if a second case shows it."""

from __future__ import annotations

from course_lib.checks.exercise import Case, Exercise
from course_lib.checks.inside.observe import Outcome
from course_lib.checks.inside.transport import CHANGED, NEVER
from course_lib.checks.judging import IN_FLIGHT, IN_OTHERS, IN_SOME, UNPROVEN, assess, explain_hang
from course_lib.lessons.lesson_07 import sum_over_the_replicas
from course_lib.lessons.symptoms import observed


def doubled(case, values):
    """This is twice the number."""
    return values == [2 * case.inputs["number"]]


def squared(case, values):
    """This is the square of the number."""
    return values == [case.inputs["number"] ** 2]


@observed
def nothing(case, values):
    """Nothing is returned."""
    return values == [None]


def told(answer, numbers, in_flight=(), more=()):
    """The cause that is told of an answer, if the numbers of one part, or of several, should come back as they are."""
    parts = numbers if isinstance(numbers, dict) else {"a part": numbers}
    cases = [Case(part, 1, {"number": number}, "") for part, of_part in parts.items() for number in of_part]
    exercise = Exercise(
        number="99.1",
        title="",
        answer="",
        level="",
        minutes=1,
        parts=dict.fromkeys(parts, 1),
        read="",
        hints=(),
        cases=lambda seed: cases,
        drive=answer,
        judge=lambda case, values: None if values == [case.inputs["number"]] else "wrong",
        symptoms=(nothing, doubled, squared, *more),
    )
    outcomes = [Outcome("returned", (answer(case.inputs["number"]),), in_flight=in_flight) for case in cases]
    report = assess(exercise, cases, outcomes.__getitem__)
    return report.findings[next(iter(parts))].cause


def test_a_mistake_that_two_cases_show_is_a_fact():
    assert told(lambda number: 2 * number, [3, 5]) == "This is twice the number."
    assert told(lambda number: 2 * number, {"one": [3], "two": [5]}) == "This is twice the number."


def test_a_neighbor_that_fits_the_first_case_alone_is_not_told():
    assert told(lambda number: number**2, [2, 5]) == "This is the square of the number."
    assert told(lambda number: number**2, {"one": [2], "two": [5]}) == "This is the square of the number."


def test_a_mistake_that_one_case_shows_is_only_possible():
    assert told(lambda number: 2 * number, [3]) == UNPROVEN + "This is twice the number."
    assert told(lambda number: 2 * number if number == 3 else 9, [3, 5]) == UNPROVEN + "This is twice the number."


def test_what_only_later_cases_show_is_not_said_of_the_first_one():
    theirs = IN_OTHERS + "This is twice the number."
    assert told(lambda number: 2 * number if number > 3 else 1, [3, 5, 7]) == theirs


def test_what_some_later_cases_contradict_is_only_possible():
    text = told(lambda number: 2 * number if number > 3 else 1, [2, 3, 5, 7])
    assert text == IN_SOME + "This is twice the number."


def test_a_case_that_cannot_tell_contradicts_nothing():
    def thrice(case, values):
        """This is three times the number."""
        return values == [3 * case.inputs["number"]] if case.inputs["number"] > 3 else None

    assert (
        told(lambda number: 3 * number, [1, 3, 5, 7], more=(thrice,)) == IN_OTHERS + "This is three times the number."
    )


def test_what_was_seen_needs_no_second_case():
    assert told(lambda number: None, [3]) == "Nothing is returned."


def test_a_wait_that_is_missing_is_told_before_anything_else():
    assert told(lambda number: 2 * number, [3, 5], ((NEVER, "isend"), (CHANGED, "isend"))) == IN_FLIGHT[NEVER]
    assert told(lambda number: number, [3, 5], ((CHANGED, "isend"),)) == IN_FLIGHT[CHANGED], "though the value is right"


def test_where_ranks_wait_in_several_groups_new_group_is_mentioned():
    gone = ("returned", "", "")
    one, another = ("waiting", "all_reduce", "ranks 0 and 2"), ("waiting", "all_reduce", "ranks 1 and 3")
    assert "every rank calls `new_group` for every group" in explain_hang(Outcome("stuck", states=(one, another, gone)))
    assert "new_group" not in explain_hang(Outcome("stuck", states=(one, one, gone)))


def test_where_a_whole_group_waits_for_itself_nobody_is_said_to_be_missing():
    gone, whole = ("returned", "", ""), ("waiting", "all_reduce", "with ranks 0 and 2")
    text = explain_hang(Outcome("stuck", states=(whole, gone, whole, gone)))
    assert "no rank of their group is missing" in text
    assert "every rank calls `new_group`, for every group" in text
    assert "a call that will not come" in explain_hang(Outcome("stuck", states=(whole, gone, gone, gone)))


def test_ranks_that_make_different_groups_are_told_so():
    case = sum_over_the_replicas.cases(1)[0]
    right = sum_over_the_replicas.expected(case)
    values = [{**value, "groups": [[rank % 2, rank % 2 + 2]]} for rank, value in enumerate(right)]
    assert "rank 1 for [[1, 3]]" in (sum_over_the_replicas.judge(case, values) or "")
    assert sum_over_the_replicas.groups_of_their_own(case, values)
    assert sum_over_the_replicas.judge(case, [{**value, "groups": [[0, 2], [1, 3]]} for value in right]) is None
