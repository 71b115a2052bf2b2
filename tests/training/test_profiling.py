"""`course train --profile FILE`: a few updates of every rank, in one trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_lib.cli import main
from course_lib.launchers.tracing.trace_file import read_trace
from course_lib.training.profiling import PROFILED
from tests.launchers.test_tracing import check_format, slices


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
        assert len(slices(mine, "update")) == PROFILED
        assert any(event["name"] == "aten::lstm" for event in slices(mine, "cpu_op"))
        assert len(slices(mine, "collective")) >= 12
    assert main(["stragglers", str(path)]) == 0
    assert "last in" in capsys.readouterr().out
