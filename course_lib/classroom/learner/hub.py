"""A learner's single-user server on a JupyterHub: JupyterLab with the course, on a desk in the learner's home.

The Hub starts `python -m course_lib.classroom.learner.hub` (`docs/deploy/jupyterhub`). If `COURSE_CLASS` is the address
of a class on that Hub, the desk joins it with this server's Hub token.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from course_lib.classroom.learner import join
from course_lib.classroom.learner.class_file import CannotJoin
from course_lib.classroom.learner.joining import HUB_CLASS
from course_lib.lab.desk import Desk, choose_desk, lay_out
from course_lib.lab.settings import command, environment, prepare_first_screen

DESK = "COURSE_DESK"  # default: `course` in the folder where the Hub starts the server, the learner's home


def main() -> None:
    """Lay out the desk, join the class, and exec the Hub's single-user JupyterLab."""
    desk = choose_desk(os.environ.get(DESK) or str(Path.cwd() / "course"))
    print(lay_out(desk), flush=True)
    prepare_first_screen(desk)
    if address := os.environ.get(HUB_CLASS):
        _join(desk, address)
    words = [*command(desk, port=0, browser=False), *sys.argv[1:]]
    words[1:3] = ["-m", "jupyterhub.singleuser"]
    words = [word for word in words if not word.startswith("--ServerApp.port")]  # the Hub sets the port
    os.chdir(desk.folder)
    os.execve(sys.executable, words, environment(desk))


def _join(desk: Desk, address: str) -> None:
    """Join the class. A failure goes to the server's log and does not keep the lab from starting."""
    try:
        print(f"In the class {join(address, folder=desk.folder).title}.", flush=True)
    except CannotJoin as error:
        print(f"Not in a class: {error}", flush=True)


if __name__ == "__main__":
    main()
