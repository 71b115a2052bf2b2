"""A workshop on a JupyterHub: who is in the class works, is seen by the instructor, and nobody else is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.hub import Person, need_a_hub, started_hub, wait

LAUNCH = """import torch.distributed as dist
from course_lib import launch
from course_lib.checks import check
print(sorted(launch(dist.get_rank, ranks=4)), "of 4 ranks")"""
RIGHT = """def average_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
check("02.1", average_gradients)"""
WRONG = RIGHT.replace("            parameter.grad /= dist.get_world_size()\n", "")
JOIN = """import os
from course_lib.classroom.learner import join_class
join_class(os.environ["COURSE_CLASS"])"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_a_hub()
    folder = tmp_path_factory.mktemp("hub")
    people = {"COURSE_INSTRUCTORS": "prof", "COURSE_LEARNERS": "ada grace"}
    with started_hub(folder, **people) as address:
        yield address


@pytest.fixture(scope="module")
def instructor(hub: str) -> Person:
    person = Person(hub, "prof")
    assert person.get("/services/class/").ok
    return person


def seen(instructor: Person) -> dict[str, Any]:
    """The class as the instructor's page has it."""
    return instructor.get("/services/class/view/state").json()


def test_the_instructor_logs_in_at_the_hub_and_has_the_page(hub: str):
    person = Person(hub, "prof")
    assert person.get("/services/class/view/state").status_code == 403
    page = person.get("/services/class/")
    assert (page.status_code, page.url) == (200, f"{hub}/services/class/")
    assert seen(person)["learners"] == 0


def test_two_learners_launch_check_and_are_seen(hub: str, instructor: Person):
    for name, answer in (("ada", RIGHT), ("grace", WRONG)):
        person = Person(hub, name)
        person.start_server()
        launched, _ = person.run(LAUNCH, answer)
        assert "[0, 1, 2, 3] of 4 ranks" in launched

    def both() -> bool:
        (exercise,) = (one for one in seen(instructor)["exercises"] if one["number"] == "02.1")
        return (exercise["passed"], exercise["trying"]) == (["ada"], ["grace"])

    wait(both)
    assert seen(instructor)["learners"] == 2


def test_who_is_not_in_the_class_is_told_so_and_not_seen(hub: str, instructor: Person):
    before = seen(instructor)["learners"]
    mallory = Person(hub, "mallory")
    mallory.start_server()
    launched, joined = mallory.run(LAUNCH, JOIN)
    assert "[0, 1, 2, 3] of 4 ranks" in launched
    assert "CannotJoin: mallory is not in this class: ask your instructor" in joined
    assert seen(instructor)["learners"] == before


def test_a_learner_does_not_get_the_instructors_page(hub: str):
    for name in ("ada", "mallory"):
        person = Person(hub, name)
        assert person.get("/services/class/").status_code == 403
        assert person.get("/services/class/view/state").status_code == 403


def test_without_the_hubs_token_nobody_joins(hub: str):
    import requests

    for header in ({}, {"Authorization": "token made-up"}, {"Authorization": "Bearer made-up"}):
        answer = requests.post(f"{hub}/services/class/join", json={"code": "", "name": "prof"}, headers=header)
        assert (answer.status_code, list(answer.json())) == (403, ["error"])
