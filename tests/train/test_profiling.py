"""`course train --profile FILE`: a few updates of every rank, in one trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_lib import trace
from course_lib.command import main
from course_lib.launcher.tracing.trace_file import read_trace
from course_lib.train.updates import PROFILED, with_input_waits
from tests.clusters.test_tracing import check_format, slices


def test_a_profile_has_some_updates_of_every_rank_and_all_collectives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    assert main(["train", "ddp", "--ranks", "2", "--updates", "12", "--hidden", "8", "--profile", str(path)]) == 0
    assert f"the trace is in {path}" in capsys.readouterr().out
    events = read_trace(path)
    check_format(events)
    for rank in range(2):
        mine = [event for event in events if event["pid"] == rank]
        assert len(slices(mine, "update")) == len(slices(mine, "input wait")) == PROFILED
        assert slices(mine, "exposed communication")
        assert any(event["name"] == "aten::lstm" for event in slices(mine, "cpu_op"))
        assert len(slices(mine, "collective")) >= 12
    assert main(["stragglers", str(path)]) == 0
    assert "last in" in capsys.readouterr().out


def test_the_loops_wait_for_its_batches_is_a_span_where_spans_are_recorded() -> None:
    with trace.recording() as spans:
        assert list(with_input_waits([1, 2])) == [1, 2]  # pyright: ignore[reportArgumentType]
    assert [span.name for span in spans] == ["input wait"] * 3  # the last one finds that there are no more
