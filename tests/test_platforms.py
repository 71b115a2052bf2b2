"""The library on a platform without POSIX: what works there imports, and what does not says so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Third-party packages are imported before POSIX goes: what they do without it is their business.
WITHOUT_POSIX = """
import asyncio, importlib, multiprocessing.forkserver, os, pkgutil, signal, ssl, sys
import IPython, jupyter_server.serverapp, matplotlib.pyplot, nbconvert, tornado.httpserver, tornado.ioloop
import torch.distributed.checkpoint, torch.distributed.elastic.multiprocessing

GONE = {"fcntl", "resource", "pwd", "grp", "termios", "pty"}
for name in GONE:
    sys.modules[name] = None
for name in ("fork", "getuid", "geteuid", "setsid", "killpg", "sched_getaffinity", "register_at_fork", "mkfifo"):
    delattr(os, name)
for name in ("SIGKILL", "SIGALRM", "SIGUSR1", "SIGCHLD", "SIGHUP", "SIGSTOP", "setitimer", "pthread_sigmask"):
    delattr(signal, name)
sys.platform = "win32"

import course_lib
from course_lib.command import main

for module in pkgutil.walk_packages(course_lib.__path__, "course_lib."):
    if not module.name.endswith(("__main__", "server.hub")):  # the Hub's library does not run on Windows
        importlib.import_module(module.name)
for words in (["grade", "submitted", "--out", "grades"], ["check", "missing.ipynb"], ["progress"], ["agenda"]):
    print("status", main(words))
"""


@pytest.mark.slow
def test_without_posix_everything_imports_and_what_cannot_work_says_so(tmp_path):
    shutil.copytree(Path(__file__).parent / "checks" / "example_class", tmp_path / "submitted")
    done = subprocess.run([sys.executable, "-c", WITHOUT_POSIX], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("status")] == [
        *("status 2", "status 2", "status 0", "status 0")
    ], done.stderr
    assert "Traceback" not in done.stderr
    assert "needs Linux" in done.stderr
