"""A schedule of the bench on real ranks: every action takes a fixed time, the messages are real."""

from __future__ import annotations

from course_lib.planning.costs import ActionCosts
from course_lib.planning.schedules import Schedule, check
from course_lib.planning.simulation import TimedAction, measured

PACE = 0.02  # seconds that a forward action takes


def run_paced(schedule: Schedule, costs: ActionCosts) -> tuple[TimedAction, ...]:
    """What as many ranks as there are stages did when, in seconds. The link's cost is this machine's own."""
    from course_lib.launchers import launch

    check(schedule)
    run = launch(one_step, schedule, costs, ranks=len(schedule.stages))
    return measured(schedule, run.spans)


def one_step(schedule: Schedule, costs: ActionCosts) -> None:
    """On each rank: the second of two training steps, so that nothing is set up in it."""
    from functools import partial

    import torch
    import torch.distributed as dist

    from course_lib import trace
    from course_lib.data import AddingProblem
    from course_lib.lstm import lstm_model, squared_error
    from course_lib.strategies import Pipeline

    parts = schedule.places.positions
    model = lstm_model(features=2, hidden=8, layers=max(1, parts - 2), outputs=1)
    pace = ActionCosts(PACE * _number(costs.forward), PACE * _number(costs.backward))
    strategy = Pipeline(model, partial(torch.optim.SGD, lr=0.01), squared_error, schedule=schedule, pace=pace)
    steps = max(2, schedule.chunks)
    batch = AddingProblem(schedule.micro_batches, lengths=(steps, steps)).batch(range(schedule.micro_batches))
    for _ in range(2):
        dist.barrier()
        trace.recorder.spans.clear()
        strategy.step(batch)


def _number(cost: object) -> float:
    return float(cost)  # type: ignore[arg-type]  # the bench has one number for all stages
