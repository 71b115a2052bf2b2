"""`course lab` opens the course in JupyterLab, on the learner's own desk; `course update` updates the desk."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from course_lib.lab.desk import BadDesk, choose_desk, lay_out
from course_lib.lab.settings import command, environment, prepare_first_screen

__all__ = ["BadDesk", "LabMissing", "open_lab", "update_desk"]


class LabMissing(RuntimeError):
    """The lab cannot open; the message says what to install."""


def open_lab(
    port: int = 8888, browser: bool = True, desk: str | None = None, join: Callable[[Path], str] | None = None
) -> int:
    """Add missing notebooks to the desk, and open it in JupyterLab at the home page. Returns JupyterLab's exit status.

    `join` is called with the desk's folder before it opens, and returns a message about the class to print.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise LabMissing("JupyterLab is not installed here: pip install jupyterlab")
    place = choose_desk(desk)
    joined = "" if join is None else f"\n{join(place.folder)}"
    report = lay_out(place)
    prepare_first_screen(place)
    print(f"Your desk is {place.folder}: what you write there is yours.\n{report}{joined}", flush=True)
    words, variables = command(place, port, browser), environment(place)
    os.chdir(place.folder)
    if sys.platform != "win32":
        os.execve(sys.executable, words, variables)  # become JupyterLab, so that signals reach it
    return subprocess.call(words, env=variables)


def update_desk(desk: str | None = None) -> str:
    """Update a desk to the installed version of the course, and return what was done. It keeps the learner's cells."""
    place = choose_desk(desk)
    if not place.exists:
        raise BadDesk(f"there is no desk at {place.folder}: `course lab` creates one, or give your folder with --desk")
    return str(lay_out(place, update=True))
