"""Machines that lack something: the launch works all the same, or a sentence says what to do.

Each program runs in a process of its own, inside a shell that takes something away first.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib import LaunchError
from course_lib.launcher.notebook.listener import Listener
from course_lib.launcher.supervisor import supervisor
from course_lib.launcher.wire import messages, pickling

pytestmark = pytest.mark.slow

PROGRAM = """
import torch, torch.distributed as dist
from course_lib import launch, LaunchError

def work():
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()

try:
    print(launch(work, ranks={ranks}, timeout=300))
except LaunchError as error:
    print(type(error).__name__, error)
"""
WORKS = "Run of {ranks} ranks: [{ranks}.0"


def run(shell: str, folder: Path, *, ranks: int = 2, program: str = PROGRAM, **environment: str) -> str:
    """What the program prints in a shell that first does something; it is `PYTHON program.py` there."""
    (folder / "program.py").write_text(program.format(ranks=ranks))
    root = str(Path(__file__).parents[2])
    known = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **environment}
    known.pop("PYTEST_CURRENT_TEST", None)
    command = shell.replace("PYTHON", sys.executable)
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=known, capture_output=True, text=True, timeout=500)
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_too_few_open_files_are_named_with_the_limit(tmp_path):
    said = run("ulimit -n 64; PYTHON program.py", tmp_path, ranks=16)
    assert "too many open files" in said
    assert "launch fewer ranks" in said


@pytest.mark.parametrize("files", [36, 48])
def test_still_fewer_files_are_a_sentence_too(tmp_path, files):
    said = run(f"ulimit -n {files}; PYTHON program.py", tmp_path)
    assert WORKS.format(ranks=2) in said or "oo many open files" in said or "files or bytes" in said, said
    assert "EOFError" not in said


def _supervise_where_processes_run_out(spec, notebook):
    """A supervisor on a machine that allows two processes: the third cannot be forked."""
    start = supervisor.RankHandle.__init__

    def start_or_not(handle, rank, *rest):
        if rank == 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        start(handle, rank, *rest)

    supervisor.RankHandle.__init__ = start_or_not
    supervisor.supervise(spec, notebook, "fork")


def test_too_few_processes_are_named():
    spec = messages.LaunchSpec(pickling.pack_call(print, (), {}), 4, dict(os.environ), os.getcwd(), {}, range(4))
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    process = context.Process(target=_supervise_where_processes_run_out, args=(spec, there))
    process.start()
    there.close()
    with pytest.raises(LaunchError) as caught:
        Listener(here, ranks=4, timeout=300).result()
    process.join()
    assert "rank 2 of 4 could not be started: no more processes are allowed" in str(caught.value)
    assert "launch fewer ranks" in str(caught.value)


IN_A_NAMESPACE = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare"
)


@IN_A_NAMESPACE
def test_no_room_for_temporary_files_is_told(tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    shell = (
        f"unshare -m bash -c 'mount -t tmpfs -o size=4k,nr_inodes=3 none {full}; touch {full}/a {full}/b; "
        "exec PYTHON program.py'"
    )
    said = run(shell, tmp_path, TMPDIR=str(full))
    assert WORKS.format(ranks=2) in said or "temporary files" in said, said


def in_a_namespace(take_away: str) -> str:
    return f"unshare -m bash -c '{{ {take_away}; }} 2>/dev/null; exec PYTHON program.py'"


MISSING = {
    "the folder for temporary files": "TMPDIR=$PWD/nowhere PYTHON program.py",
    "a home": "HOME=$PWD/gone PYTHON program.py",
    "a keyboard": "PYTHON program.py <&-",
    "a short path": f"mkdir -p {'x' * 100}/{'y' * 100}; TMPDIR=$PWD/{'x' * 100}/{'y' * 100} PYTHON program.py",
    "a plain path": "mkdir 'äöü 文'; cp program.py 'äöü 文'; cd 'äöü 文'; TMPDIR=$PWD PYTHON program.py",
    "shared memory": in_a_namespace("umount /dev/shm || mount -t tmpfs -o ro none /dev/shm"),
    "a name for loopback": in_a_namespace("echo > hosts; mount --bind hosts /etc/hosts"),
    "a home to write to": in_a_namespace("mkdir h; mount -t tmpfs -o ro none h; export HOME=$PWD/h"),
}


@pytest.mark.parametrize(
    "shell",
    [pytest.param(shell, marks=IN_A_NAMESPACE if "unshare" in shell else ()) for shell in MISSING.values()],
    ids=MISSING,
)
def test_what_a_launch_does_not_need_may_be_missing(tmp_path, shell):
    said = run(shell, tmp_path)
    assert WORKS.format(ranks=2) in said, said


def test_a_closed_output_does_not_stop_a_launch(tmp_path):
    assert "Error" not in run("PYTHON program.py >&-", tmp_path)


def test_a_working_folder_that_is_gone_is_told(tmp_path):
    leave = "import os, torch._dynamo; text = open('program.py').read(); os.mkdir('gone'); os.chdir('gone')"
    said = run(f'PYTHON -c "{leave}; os.rmdir(os.getcwd()); exec(text)"', tmp_path)
    assert "no longer exists" in said, said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sixty_four_ranks_run_on_two_cores(tmp_path):
    assert WORKS.format(ranks=64) in run("PYTHON program.py", tmp_path, ranks=64)


def test_memory_that_is_short_ends_a_rank_and_not_the_supervisor(tmp_path):
    program = PROGRAM.replace("total = torch.ones(1)", "total = torch.ones(1); hog = bytearray(8 << 30)")
    said = run("ulimit -v $((6 << 20)); exec PYTHON program.py", tmp_path, program=program)
    assert "rank 0 raised MemoryError" in said
