"""The same function as a job: `course run` and torchrun."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from torch.distributed import HashStore

from course_lib.launcher.jobs.target import BadJob, find_function, parse
from course_lib.launcher.jobs.torchrun import TaggedStream, _gather

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
PROGRAM = """
import torch
import torch.distributed as dist

from course_lib import trace

SCALE = 10


def total(power=1, name="none"):
    x = torch.tensor([float(dist.get_rank() ** power)])
    with trace.span("communication"):
        dist.all_reduce(x)
    print(f"{name}: rank {dist.get_rank()} of {dist.get_world_size()}")
    return x.item() * SCALE


def broken():
    if dist.get_rank() == 1:
        raise ValueError("no data")
    dist.barrier()
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def course(*arguments: str, cwd, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    command = [sys.executable, *launcher, "-m", "course_lib", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=400)


def test_course_run_runs_a_function_from_a_file(program):
    done = course("run", "train.py:total", "--ranks", "3", "power=2", "name=adam", cwd=program)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sorted(lines[:3]) == [f"[rank {rank}] adam: rank {rank} of 3" for rank in range(3)]
    assert lines[3:6] == [f"rank {rank} returned 50.0" for rank in range(3)]


@pytest.mark.slow
def test_torchrun_runs_the_same_function_with_the_same_result(program):
    done = course("run", "train.py:total", "power=2", cwd=program, launcher=TORCHRUN)
    assert done.returncode == 0, done.stderr
    assert {"[rank 0] none: rank 0 of 2", "[rank 1] none: rank 1 of 2"} <= set(done.stdout.splitlines())
    assert "rank 1 returned 10.0" in done.stdout


@pytest.mark.slow
def test_a_timeline_is_drawn_into_a_file(program):
    done = course("run", "train.py:total", "--timeline", "out.png", cwd=program)
    assert done.returncode == 0, done.stderr
    assert (program / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_failing_rank_ends_the_command_with_its_story(program):
    done = course("run", "train.py:broken", cwd=program)
    assert done.returncode == 1
    assert "course: RankFailed: rank 1 raised ValueError: no data" in done.stderr
    assert 'raise ValueError("no data")' in done.stderr


@pytest.mark.slow
def test_a_failing_rank_ends_a_torchrun_job(program):
    done = course("run", "train.py:broken", cwd=program, launcher=TORCHRUN)
    assert done.returncode != 0
    assert "[rank 1] course: RankFailed: rank 1 raised ValueError: no data" in done.stderr
    assert '[rank 1]     raise ValueError("no data")' in done.stderr


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("train.py", "name a file and a function in it"),
        ("missing.py:f", "missing.py: there is no such file or module"),
        ("train.py:missing", "train.py has no function 'missing'; it defines total, broken"),
        ("notes.txt:main", r"must end in \.py"),
    ],
)
def test_a_function_that_is_not_there_gets_a_sentence(program, monkeypatch, target, says):
    monkeypatch.chdir(program)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (program / "notes.txt").write_text("hello")
    with pytest.raises(BadJob, match=says):
        find_function(target)


def test_a_function_can_be_named_by_its_module():
    assert find_function("course_lib.runtime.machine:cores")() >= 1


def test_arguments_are_literals_where_they_can_be():
    assert parse(["a=1", "b=[2, 3]", "c=adam", "d=1e-3"]) == {"a": 1, "b": [2, 3], "c": "adam", "d": 1e-3}


SCRIPT = """
import torch.distributed as dist
from course_lib import launch
print("this line runs once")
print(launch(lambda: dist.get_rank() * 2, ranks=2))
"""


@pytest.mark.parametrize("from_pipe", [False, True])
@pytest.mark.slow
def test_a_script_can_launch_without_a_main_guard(tmp_path, from_pipe):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-"] if from_pipe else [sys.executable, "script.py"]
    done = subprocess.run(
        command, input=SCRIPT if from_pipe else None, cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert done.stdout.splitlines() == ["this line runs once", "Run of 2 ranks: [0, 2]"], done.stderr


def test_results_come_back_in_the_order_of_ranks():
    store = HashStore()
    for rank in (3, 1, 2):
        assert _gather(f"of rank {rank}", store, rank, 4, timeout=None) is None
    assert _gather("of rank 0", store, 0, 4, timeout=None) == [f"of rank {rank}" for rank in range(4)]


def test_the_last_line_needs_no_newline():
    stream = io.StringIO()
    tagged = TaggedStream(stream, 3)
    tagged.write("one\ntw")
    tagged.write("o")
    assert stream.getvalue() == "[rank 3] one\n"
    tagged.finish()
    tagged.finish()
    assert stream.getvalue() == "[rank 3] one\n[rank 3] two\n"


LEAVING = """
import atexit, threading
from course_lib.launcher.jobs.torchrun import leave

class Kept:
    def __del__(self):
        print("torn down")

kept = Kept()
atexit.register(print, "atexit")
threading.Timer(0.1, print, ["thread"]).start()
leave(3)
"""


def test_a_command_ends_as_a_program_does_but_without_the_interpreters_teardown():
    done = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "thread\natexit\n"), done.stderr
