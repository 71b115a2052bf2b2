"""09.3 How old is a gradient: what an answer must show, and the wrong ones that are known."""

from __future__ import annotations

import torch

from course_lib.checks.exercise import Case, Exercise, same_as, seeded


def cases(seed: int) -> list[Case]:
    generator = seeded(seed)

    def case(part: str, log: list[tuple[str, int]]) -> Case:
        lines = [f"{what} {worker}" for what, worker in log]
        return Case(part, 1, {"log": lines}, f"log {lines}")

    def to_and_fro(workers: list[int]) -> list[tuple[str, int]]:
        there_and_back = [*workers, *reversed(workers)]
        pulls = [("pull", worker) for worker in workers]
        return pulls + [(what, worker) for worker in there_and_back for what in ("push", "pull")]

    first, second, third = (1 + torch.randperm(3, generator=generator)).tolist()
    slow = [("pull", third), *to_and_fro([first, second]), ("push", third), ("pull", third), ("push", first)]
    late = [*to_and_fro([first, second]), ("push", second), ("push", first), ("pull", second), ("push", second)]
    return [
        case("equal workers", to_and_fro([first, second, third])),
        case("a slow worker", slow),
        case("a slow worker", late),
    ]


def drive(answer, log: list[str]):
    return list(map(int, answer([tuple(line.split()) for line in log])))


def expected(case: Case) -> list:
    version, seen, stale = 0, {}, []
    for what, worker in (line.split() for line in case.inputs["log"]):
        if what == "pull":
            seen[worker] = version
        else:
            stale.append(version - seen[worker])
            version += 1
    return [stale]


def counts_its_own(log):
    """One too many each time: the update that this gradient makes is counted as well. A gradient of the newest weights
    has staleness 0.
    """
    return [age + 1 for age in right_of(log)]


def right_of(log, since=("pull",), counted=("push",)) -> list[int]:
    """How many of `counted` happened before each push, since the worker's last of `since`."""
    done, seen, stale = 0, {}, []
    for what, worker in log:
        if what == "push":
            stale.append(done - seen.get(worker, 0))
        done += what in counted
        if what in since:
            seen[worker] = done
    return stale


def since_the_start(log):
    """These are the updates since the start of the job: what counts are those since this worker fetched its weights."""
    return right_of(log, since=())


def since_its_last_push(log):
    """You count from the worker's last push. Between it and the pull that follows, others may have pushed, and the
    worker has fetched what they did: count from the *pull*.
    """
    return right_of(log, since=("push",))


def counts_pulls(log):
    """You count what other workers fetched. Fetching changes no weights: only a push makes a new version."""
    return right_of(log, counted=("pull",))


def workers_less_one(log):
    """Workers - 1 is what equal workers have once they are under way. The log says what each gradient had: the first
    ones are fresher, and a slow worker's much staler.
    """
    return [len({worker for _, worker in log}) - 1] * sum(what == "push" for what, _ in log)


EXERCISE = Exercise(
    number="09.3",
    title="How old is a gradient",
    answer="staleness",
    level="warm-up",
    minutes=10,
    parts={"equal workers": 1, "a slow worker": 1},
    read="5 · Synchronous against asynchronous",
    hints=(
        "The server's version goes up by one with every push. What must be remembered at a pull?",
        "A dict from the worker to the version that it fetched. At its push: the version now, less that one.",
    ),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    mistakes=(
        counts_its_own,
        since_the_start,
        since_its_last_push,
        counts_pulls,
        workers_less_one,
    ),
)
