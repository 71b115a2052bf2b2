"""Spans are kept while somebody records, and never without end."""

from __future__ import annotations

import time

import pytest

from course_lib import trace


def count_spans() -> int:
    for _ in range(5):
        with trace.span("forward"):
            pass
    return len(trace.recorder.spans)


def test_nobody_records_and_nothing_is_kept():
    before = list(trace.recorder.spans)
    count_spans()
    assert trace.recorder.spans == before


def test_a_block_that_is_recorded_hands_its_spans_over():
    with trace.recording() as spans:
        count_spans()
    assert [span.name for span in spans] == ["forward"] * 5


def test_a_paused_recorder_keeps_nothing_and_goes_on_afterwards():
    with trace.recording() as spans:
        with trace.paused():
            count_spans()
        count_spans()
    assert len(spans) == 5


def test_the_first_spans_stay_and_the_rest_is_not_kept(monkeypatch):
    monkeypatch.setattr(trace, "MAX_SPANS", 3)
    with trace.recording() as spans:
        for name in ("a", "b", "c", "d"):
            with trace.span(name):
                pass
    assert [span.name for span in spans] == ["a", "b", "c"]


def test_a_span_is_paced_also_where_nobody_records():
    began = time.monotonic()
    with trace.span("forward", at_least=0.05):
        pass
    assert time.monotonic() - began >= 0.05


def test_a_negative_pace_is_refused():
    with pytest.raises(ValueError, match="at_least=-1: a span lasts a number of seconds, 0 or more"):
        trace.span("forward", at_least=-1)


def test_a_span_bears_the_label_of_the_block_around_it_or_its_own():
    with trace.recording() as spans:
        with trace.labelled(3), trace.span("send"):
            pass
        with trace.labelled("outer"), trace.span("send", label="own"):
            pass
        with trace.span("send"):
            pass
    assert [span.label for span in spans] == ["3", "own", ""]


def test_only_the_fastest_of_several_calls_is_kept():
    lengths = [3.0, 1.0, 2.0]

    def work() -> None:
        trace.recorder.add(trace.Span(0, "forward", 10.0, 10.0 + lengths.pop(0)))

    with trace.recording():
        trace.keep_fastest(work, times=3)
        assert [span.seconds for span in trace.recorder.spans] == [1.0]
