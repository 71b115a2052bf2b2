"""A rank that keeps to its own folder can write and read there, and leaves nothing where another rank can find it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from course_lib.checks.inside import own_folder

INSIDE = """
import os, pathlib, socket, subprocess, sys, tempfile, threading
from course_lib.checks.inside.own_folder import keep_to_own_folder
shared = pathlib.Path(sys.argv[1])
kept = open(shared / "opened before", "w")
(shared / "of another rank").write_text("7")
assert keep_to_own_folder()
kept.write("still")
kept.close()

def refused(do, *arguments):
    try:
        do(*arguments)
    except PermissionError:
        return True
    return False

def attempt():
    shm, here = pathlib.Path("/dev/shm"), pathlib.Path("mine")
    here.write_text("works")
    tempfile.NamedTemporaryFile().close()
    print(*[
        here.read_text() == "works",
        refused((shared / "new").write_text, "x"),
        refused((shared / "of another rank").read_text),
        refused(os.listdir, shared),
        refused((shm / "new").write_text, "x"),
        refused(os.mkfifo, shared / "pipe"),
        refused(os.symlink, "/etc", shared / "link"),
        refused(os.unlink, shared / "of another rank"),
        refused(os.rename, here, shared / "moved"),
        refused(os.truncate, shared / "of another rank", 0),
        subprocess.run(["sh", "-c", f"echo x > {shared}/new"], stderr=subprocess.DEVNULL).returncode != 0,
        open(os.devnull, "w").write("x") == 1,
    ])

attempt()
thread = threading.Thread(target=attempt)
thread.start()
thread.join()
"""


def test_a_rank_in_its_own_folder_reaches_no_other(tmp_path_factory):
    if not own_folder.version():
        pytest.skip("this kernel has no Landlock")
    shared = tmp_path_factory.mktemp("shared")
    done = subprocess.run([sys.executable, "-c", INSIDE, str(shared)], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["True"] * 24, done
    assert (shared / "opened before").read_text() == "still"
    assert (shared / "of another rank").read_text() == "7"
