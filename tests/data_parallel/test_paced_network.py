"""A network of a known pace: the numbers are real, and a message takes its time, beside the computation."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from course_lib import launch, trace
from course_lib.data_parallel.network import paced_network
from course_lib.messages.link import Link

LINK = Link(latency=0.01, bandwidth=1e6)  # between two ranks, 2 x 10 ms and a second for a megabyte


def a_message_in_the_background() -> tuple[float, float, float]:
    numbers = torch.full((5_000,), float(dist.get_rank() + 1))
    dist.barrier()
    began = time.monotonic()
    with paced_network(LINK):
        with trace.labelled("layer 3"):
            work = dist.all_reduce(numbers, async_op=True)
        begun = time.monotonic() - began
        work.wait()
        waited = time.monotonic() - began
    return numbers[0].item(), begun, waited


def test_an_all_reduce_takes_as_long_as_a_ring_over_the_link_while_the_caller_goes_on():
    run = launch(a_message_in_the_background, ranks=2)
    expected = LINK.all_reduce_seconds(20_000, 2)
    for total, begun, waited in run:
        assert total == 3
        assert waited >= expected
        assert begun < waited
    spans = [span for span in run.spans if span.name == "communication"]
    assert [(span.label, span.paced) for span in spans] == [("layer 3", True)] * 2


def messages_in_order() -> list[float]:
    one, two = torch.ones(1), torch.ones(1)
    with paced_network(LINK):
        first = dist.all_reduce(one, async_op=True)
        dist.all_reduce(two)
        return [float(first.is_completed()), one.item(), two.item(), len(first.get_future().value())]


def test_a_message_waits_for_those_before_it():
    assert list(launch(messages_in_order, ranks=2)) == [[1.0, 2.0, 2.0, 1]] * 2


def a_failure() -> str:
    real = dist.all_reduce
    try:
        with paced_network(LINK):
            dist.all_reduce(torch.ones(2), op="no such operation")
    except Exception:
        return "raised" if dist.all_reduce is real else "still paced"
    return "nothing happened"


def test_an_error_of_the_real_call_reaches_the_caller_and_the_pace_is_taken_off():
    assert launch(a_failure, ranks=1)[0] == "raised"
