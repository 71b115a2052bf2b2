"""Messages are posted so that no wait can stop a pipeline: not even one for the whole GPU, after every action."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from course_lib.pipeline.message_order import Transfer, postings_of
from course_lib.pipeline.named_schedules import SCHEDULES, make_schedule
from course_lib.pipeline.schedule import Schedule
from tests.pipeline.legal_schedules import any_legal_schedules


class SpinningGpu:
    """Stages whose messages are kernels that spin, and whose host waits for the whole device after every action.

    A message is through when both sides have posted it, and, in each channel, all that its sides had posted before.
    """

    def __init__(self, schedule: Schedule, postings) -> None:
        self.stages, self.postings = schedule.stages, postings
        self.done = [0] * len(schedule.stages)
        self.queues = {place: list(posted[0]) for place, posted in enumerate(postings)}  # not yet through
        self.through: set[Transfer] = set()

    def run(self) -> bool:
        """Whether all stages come to their end."""
        while self._pass_messages() or self._do_actions():
            pass
        return self.done == [len(row) for row in self.stages]

    def _pass_messages(self) -> bool:
        for queue in self.queues.values():
            for message in queue:
                if all(self._is_first(message, place) for place in (message.source, message.to)):
                    self.through.add(message)
                    for place in (message.source, message.to):
                        self.queues[place].remove(message)
                    return True
        return False

    def _is_first(self, message: Transfer, place: int) -> bool:
        same = [
            m
            for m in self.queues[place]
            if (m.made_by.kind, m.source % 2) == (message.made_by.kind, message.source % 2)
        ]
        return bool(same) and same[0] == message

    def _do_actions(self) -> bool:
        for place, row in enumerate(self.stages):
            if not self.queues[place] and self.done[place] < len(row):
                action = row[self.done[place]]
                needed = [m for posted in self.postings[place] for m in posted if m.needed_by == action]
                assert all(m in self.through for m in needed if m.to == place), f"{action} was not posted in time"
                self.done[place] += 1
                self.queues[place] += self.postings[place][self.done[place]]
                return True
        return False


def receives_posted_ahead(schedule: Schedule):
    """The tempting way: all receives are posted at once, before the first action."""
    return tuple(
        (
            tuple(m for posted in row for m in posted if m.to == place),
            *(tuple(m for m in posted if m.source == place) for posted in row[1:]),
        )
        for place, row in enumerate(postings_of(schedule))
    )


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_no_schedule_stops_though_every_action_waits_for_the_whole_gpu(name, stages):
    for micro_batches in (1, 2, 5, 8):
        for chunks in (1, 3):
            schedule = make_schedule(name, stages, micro_batches, chunks)
            assert SpinningGpu(schedule, postings_of(schedule)).run(), schedule


@settings(max_examples=200, deadline=None)
@given(any_legal_schedules())
def test_no_legal_schedule_stops_either(schedule):
    assert SpinningGpu(schedule, postings_of(schedule)).run(), schedule


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-v"])
def test_receives_that_are_posted_ahead_stop_a_pipeline(name):
    schedule = make_schedule(name, 2, 1)
    assert not SpinningGpu(schedule, receives_posted_ahead(schedule)).run()


def test_every_message_is_posted_once_by_both_sides_in_one_order():
    schedule = make_schedule("interleaved", 4, 8)
    postings = postings_of(schedule)
    sent = {m for place, row in enumerate(postings) for posted in row for m in posted if m.source == place}
    received = {m for place, row in enumerate(postings) for posted in row for m in posted if m.to == place}
    assert sent == received
    assert len(sent) == 2 * 8 * (2 * 4 - 1)  # micro-batches over the edges between 8 parts, forward and back
