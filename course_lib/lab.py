"""`course lab`: the lessons in JupyterLab."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

FIRST_LESSON = "00_start_here.ipynb"


class LabMissing(RuntimeError):
    """The lab cannot open: the sentence says what to install or where to look."""


def open_lab(port: int = 8888, browser: bool = True) -> int:
    """Serve the course's folder and open the first lesson. Returns JupyterLab's exit status."""
    root = course_folder()
    if importlib.util.find_spec("jupyterlab") is None:
        raise LabMissing("JupyterLab is not installed here: run `pip install -e .` in the course's folder")
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}", f"--ServerApp.port={port}"]
    command += [f"--LabApp.default_url=/lab/tree/notebooks/{FIRST_LESSON}"]
    command += ["--ServerApp.log_level=WARN", "--LabApp.log_level=WARN"]
    if not browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # containers run as root; the address still carries a secret token
    os.chdir(root)
    if sys.platform != "win32":
        os.execv(sys.executable, command)  # become JupyterLab: a signal to us is a signal to it
    return subprocess.call(command)


def course_folder() -> Path:
    """The folder that holds `notebooks/`: beside this package, as an editable install has it."""
    root = Path(__file__).resolve().parent.parent
    if not (root / "notebooks" / FIRST_LESSON).is_file():
        raise LabMissing(f"no notebooks beside {root.name}/: clone the course and run `pip install -e .` in its folder")
    return root
