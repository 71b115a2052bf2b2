"""Choosing between NCCL and gloo, and what may not happen while a message is on its way over NCCL."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from course_lib import RankFailed, launch
from course_lib.launcher.jobs import shared_gpu
from course_lib.runtime import machine

LIBRARY = Path(machine.__file__).parents[1]
no_gpu = pytest.mark.skipif(bool(machine.gpus()), reason="there is a GPU on this machine")


def test_no_strategy_and_no_span_waits_for_the_whole_gpu():
    """A receive that was posted ahead spins there: whoever waits for the device waits for a message, too.

    Before the first step it may be: `connect` makes the communicators.
    """
    folders = ("core", "data_parallel", "model_parallel", "pipeline", "sharding", "transformer")
    files = [LIBRARY / "runtime" / "trace.py", *(path for name in folders for path in (LIBRARY / name).glob("*.py"))]
    assert len(files) > 20
    found = {
        f"{path.stem}:{function}"
        for path in files
        for function, body in re.findall(
            r"^ *def (\w+)\((.*?)(?=^ *def |\Z)", path.read_text(), re.MULTILINE | re.DOTALL
        )
        if re.search(r"cuda\.synchronize\(", body)
    }
    assert found == {"point_to_point:connect"}


@no_gpu
def test_without_a_gpu_ranks_talk_over_gloo_and_a_wish_for_nccl_is_refused(monkeypatch):
    assert machine.backend(2) == "gloo"
    monkeypatch.setenv(machine.BACKEND, "nccl")
    with pytest.raises(RankFailed, match="COURSE_LIB_BACKEND=nccl: there is no GPU on this machine"):
        launch(lambda: None, ranks=2)


def test_a_backend_that_there_is_not_gets_a_sentence(monkeypatch):
    monkeypatch.setenv(machine.BACKEND, "mpi")
    with pytest.raises(ValueError, match="COURSE_LIB_BACKEND=mpi: choose nccl or gloo, or unset it"):
        machine.backend(2)


@pytest.mark.parametrize(
    ("gpus", "version", "allowed", "says"),
    [
        (2, (2, 28, 9), "", ""),
        (1, (2, 28, 9), "", r"2 ranks would share 1 GPU, which NCCL 2\.28\.9 refuses and 2\.30 allows"),
        (1, (2, 31, 2), "", "if NCCL_MULTI_RANK_GPU_ENABLE=1: start this with python -m course_lib"),
        (1, (2, 31, 2), "1", ""),
    ],
)
def test_ranks_share_a_gpu_over_nccl_only_where_it_lets_them(monkeypatch, gpus, version, allowed, says):
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    monkeypatch.setattr(machine, "nccl_version", lambda: version)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", allowed)
    assert re.search(says, machine.why_not_nccl(2)) if says else not machine.why_not_nccl(2)


def test_without_a_command_there_is_nothing_to_run(capsys):
    assert shared_gpu.main([]) == 2
    assert "usage: python -m course_lib.launcher.jobs.shared_gpu COMMAND" in capsys.readouterr().err


def test_a_library_that_is_not_there_gets_a_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(shared_gpu.LIBRARY, str(tmp_path / "libnccl.so.2"))
    assert shared_gpu.main(["true"]) == 2
    assert "there is no such file; give the path of a libnccl.so.2" in capsys.readouterr().err


def test_a_command_runs_with_the_library_and_may_share_a_gpu(monkeypatch, tmp_path):
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"")
    monkeypatch.setenv(shared_gpu.LIBRARY, str(library))
    monkeypatch.setattr(shared_gpu.shutil, "which", lambda name: None)
    seen = tmp_path / "seen"
    words = ["sh", "-c", f"echo $LD_PRELOAD $NCCL_MULTI_RANK_GPU_ENABLE $NCCL_MAX_NCHANNELS > {seen}; exit 7"]
    assert shared_gpu.main(words) == 7
    assert seen.read_text() == f"{library} 1 2\n"
