"""The capstone's jobs in one process: the reference for an answer."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import torch

from course_lib.checks.exercise import Case
from course_lib.lessons.lesson_11 import OTHER_WEIGHTS, adam, after, batches_of, loss_of, model_of


def stages_of(case: Case) -> int:
    return case.ranks // case.inputs["job"]["replicas"]


def block_of(name: str) -> int:
    return int(name.split(".")[1])


def seen_by(value: dict, update: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a whole-model update that the rank with these values holds."""
    return {
        **update,
        **{what: {name: update[what][name] for name in value["holds"]} for what in ("gradients", "state")},
    }


def blocks_on(value: dict) -> list[int]:
    return sorted({block_of(name) for name in value["holds"]})


def in_one_process(case: Case, **others: Any) -> dict[str, Any]:
    """Return the start and updates of a single process that runs this case's job, with the changes in `others`."""
    return _in_one_process(json.dumps({**case.inputs["job"], **others}))


@lru_cache(64)
def _in_one_process(text: str) -> dict[str, Any]:
    from course_lib.core.strategy import Single

    job = json.loads(text)
    with torch.random.fork_rng():
        twin = Single(model_of(job, 0), adam, loss_of(job), carry_state=job["carry_state"], clip=job["clip"])
        start, updates = twin.full_state(), []
        for number, batch in enumerate(batches_of(job)):
            if job.get("forgets") == "optimizer" and number == job["cut"]:
                twin.optimizer = adam(twin.model.parameters())
            if job.get("forgets") == "every optimizer":
                twin.optimizer = adam(twin.model.parameters())
            if job.get("forgets") == "weights" and number == job["cut"]:
                twin.model.load_state_dict(model_of(job, OTHER_WEIGHTS).state_dict())
            if job.get("forgets") == "state" and number == job["cut"]:
                twin.states = {}
            updates.append(after(twin, batch))
    return {"start": start, "updates": updates}
