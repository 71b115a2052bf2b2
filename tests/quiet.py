"""Whether a machine is quiet enough to keep what a lesson measured on it."""

from __future__ import annotations

import time

from course_lib import launch, trace
from course_lib.machine import cores

SPANS, SECONDS = 20, 0.02
OF_WHICH_WORK = 0.75  # of every span a rank needs its core: with anybody else on it, the span takes longer
MOST = 1.10  # times what they were paced to: sleeping and waking up take a little, too


def paced_work() -> float:
    """Spans that work and then sleep; how many times as long they took as they were paced to."""
    for _ in range(SPANS):
        with trace.span("work", at_least=SECONDS):
            began = time.thread_time()
            while time.thread_time() - began < OF_WHICH_WORK * SECONDS:
                pass
    return sum(span.seconds for span in trace.recorder.spans) / (SPANS * SECONDS)


def lateness() -> float:
    """How many times as long as they were paced to spans take on the slowest of as many ranks as there are cores.

    1.0 on a quiet machine. Four spinning processes beside two cores make it 2 or more.
    """
    return max(launch(paced_work, ranks=cores()))
