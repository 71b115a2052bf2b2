"""09.3 How old is a gradient: the check, and the common mistakes it recognizes."""

from __future__ import annotations

import random

from course_lib.checks.exercise import Case, Exercise, differs, same_as
from course_lib.checks.texts import texts
from course_lib.lessons.symptoms import observed


def cases(seed: int) -> list[Case]:
    dice = random.Random(seed)
    names = dice.sample(["a", "b", "c", "d", "e", "f"], 4)

    def case(part: str, log: list[tuple[str, str]]) -> Case:
        return Case(part, 1, {"log": [list(line) for line in log]}, f"log {log}")

    def by_turns(workers: list[str], rounds: int) -> list[tuple[str, str]]:
        pulls = [("pull", worker) for worker in workers]
        there_and_back = [*workers, *reversed(workers)] * rounds
        return pulls + [(what, worker) for worker in there_and_back for what in ("push", "pull")]

    def at_random(workers: int, events: int) -> list[tuple[str, str]]:
        """Return a random log: some workers pull twice, some push twice, and one is slow."""
        ours = names[:workers]
        log = [("pull", worker) for worker in ours]
        while len(log) < events:
            log.append((dice.choice(("pull", "push", "push")), dice.choice(ours[:-1])))
        return [*log, ("push", ours[-1])]

    first, second, third, _ = names
    slow = [("pull", third), *by_turns([first, second], 1), ("push", third), ("pull", third), ("push", first)]
    late = [*by_turns([first, second], 1), ("push", second), ("push", first), ("pull", second), ("push", second)]
    twice = [("pull", first), ("pull", second), ("push", second), ("pull", first)]
    twice += [("push", second), ("push", first), ("push", first)]
    return [
        case(
            "equal workers", [(what, worker) for worker in (first, first, second, third) for what in ("pull", "push")]
        ),
        case("equal workers", by_turns([first, second], 1)),
        case("equal workers", by_turns([first, second, third], 1)),
        case("equal workers", by_turns(names, 2)),
        case("a slow worker", [("pull", first), ("pull", second)]),
        case("a slow worker", twice),
        case("a slow worker", slow),
        case("a slow worker", late),
        *(case("a slow worker", at_random(workers, events)) for workers, events in ((2, 9), (3, 16), (4, 30))),
    ]


def drive(answer, log: list[list[str]]):
    return {"staleness": answer([(what, worker) for what, worker in log])}


def expected(case: Case) -> list:
    return [{"staleness": _ages(case)}]


def _ages(case: Case, since: tuple = ("pull",), counted: tuple = ("push",), others_only: bool = False) -> list[int]:
    """Return, for each push, how many `counted` events came before it since the worker's last `since` event."""
    done, seen, ages = [], {}, []
    for what, worker in case.inputs["log"]:
        if what == "push":
            ages.append(sum(not others_only or other != worker for other in done[seen.get(worker, 0) :]))
        if what in counted:
            done.append(worker)
        if what in since:
            seen[worker] = len(done)
    return ages


def _is(values: list, right: list[int]) -> bool:
    return differs(values[0]["staleness"], right) is None


@observed
def one_for_each_event(case: Case, values: list) -> bool:
    """The list's length is not the number of pushes: return one number for each *push*, and none for a pull."""
    return len(values[0]["staleness"]) != len(_ages(case))


def counts_its_own(case: Case, values: list) -> bool:
    """One too many each time: you also count the update that this gradient makes. A gradient computed on the newest
    weights has staleness 0.
    """
    return _is(values, [age + 1 for age in _ages(case)])


def since_the_start(case: Case, values: list) -> bool:
    """These are the updates since the start of the job: count only those since this worker pulled its weights."""
    return _is(values, _ages(case, since=()))


def since_its_last_push(case: Case, values: list) -> bool:
    """You count from a line other than the worker's last pull. This is what you get if you count from the worker's last
    push, or from the start if it has none. Count from the *pull*: the worker got everything that was pushed before it.
    """
    return _is(values, _ages(case, since=("push",)))


def a_push_is_a_pull(case: Case, values: list) -> bool:
    """You count from the worker's last line, even if that is a push. A push brings a gradient, and fetches nothing: the
    weights are still those of the worker's last *pull*.
    """
    return _is(values, _ages(case, since=("pull", "push")))


def since_its_first_pull(case: Case, values: list) -> bool:
    """You count from the worker's first pull. It has pulled newer weights since: count from its *last* pull."""
    first, version, ages = {}, 0, []
    for what, worker in case.inputs["log"]:
        if what == "pull":
            first.setdefault(worker, version)
        else:
            ages.append(version - first[worker])
            version += 1
    return _is(values, ages)


def counts_pulls(case: Case, values: list) -> bool:
    """You count what other workers pulled. A pull changes no weights: only a push makes a new version."""
    pulls, all_events = _ages(case, counted=("pull",)), _ages(case, counted=("pull", "push"))
    others = _ages(case, counted=("pull",), others_only=True), _ages(case, counted=("pull", "push"), others_only=True)
    return any(_is(values, ages) for ages in (pulls, all_events, *others))


def leaves_its_own_out(case: Case, values: list) -> bool:
    """You count the other workers' updates only. A worker that pushes twice without a pull has itself made an update in
    between, which its weights do not include.
    """
    return _is(values, _ages(case, others_only=True))


def workers_less_one(case: Case, values: list) -> bool:
    """Workers - 1 is the steady state of equal workers that all compute at the same time. Count what the log says: the
    pushes between a worker's last pull and its own push.
    """
    return _is(values, [len({worker for _, worker in case.inputs["log"]}) - 1] * len(_ages(case)))


EXERCISE = Exercise(
    **texts("09.3"),
    cases=cases,
    drive=drive,
    judge=same_as(expected),
    symptoms=(
        one_for_each_event,
        counts_its_own,
        a_push_is_a_pull,
        leaves_its_own_out,
        since_its_first_pull,
        since_the_start,
        since_its_last_push,
        counts_pulls,
        workers_less_one,
    ),
)
