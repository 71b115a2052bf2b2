"""The doctor says what is there, what to do about what is not, and fails only when the course cannot run."""

from __future__ import annotations

import pytest

from course_lib import command as cli
from course_lib.command import doctor
from course_lib.launcher.hangs import flight_recorder
from course_lib.runtime import machine


def test_a_healthy_machine_passes_with_a_real_launch(capsys):
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in ("Python", "PyTorch", "cores", "memory", "GPUs", "Jupyter", "ranks", "trial launch"):
        assert word in text
    assert "The course can run here." in text


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        (lambda name: None if name == "torch" else "9.9", "pip install"),
        (lambda name: "2.10.0" if name == "torch" else "9.9", "needs 2.11 or newer"),
    ],
)
def test_without_a_recent_torch_the_course_cannot_run(monkeypatch, missing, says):
    monkeypatch.setattr(doctor, "_version", missing)
    report = doctor.examine()
    assert not report.course_can_run
    assert says in str(report)


def test_without_jupyter_jobs_still_run(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: "2.13.0" if name == "torch" else None)
    report = doctor.examine()
    assert report.course_can_run
    assert "JupyterLab and the Python kernel missing" in str(report)


def test_ranks_that_cannot_talk_are_fatal(monkeypatch):
    def broken(*_, **__):
        raise doctor.LaunchError("no loopback")

    monkeypatch.setattr(doctor, "launch", broken)
    assert not doctor.examine().course_can_run


@pytest.mark.parametrize(("text", "expected"), [("max 100000", 8), ("350000 100000", 3), ("50000 100000", 1)])
def test_a_containers_quota_limits_the_cores(monkeypatch, tmp_path, text, expected):
    file = tmp_path / "cpu.max"
    file.write_text(text)
    monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert machine.cores() == expected


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_containers_limit_is_the_memory_there_is(monkeypatch, tmp_path, name):
    (tmp_path / "memory").mkdir()
    (tmp_path / name).write_text("268435456\n")
    monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path)
    assert machine.memory_bytes() == 256 << 20
    (tmp_path / name).write_text("max\n")
    assert (machine.memory_bytes() or 0) > 256 << 20


def test_without_a_sandbox_grading_is_not_called_ok(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    finding = doctor._grading()
    assert finding.mark == "note"
    assert "install bubblewrap" in finding.advice


def test_a_pytorch_whose_recorder_cannot_be_read_is_noted(monkeypatch):
    monkeypatch.setattr(flight_recorder, "can_be_read", lambda: False)
    finding = doctor._distributed()
    assert finding.mark == "note"
    assert "ranks that call different collectives go unnoticed" in finding.advice
