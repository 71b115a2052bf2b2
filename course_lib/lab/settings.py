"""JupyterLab settings for this course only; the learner's other notebooks are not affected."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

from course_lib.lab.desk import Desk, write_to_desk
from course_lib.runtime.course_files import PACKAGE

CONFIG = Path(__file__).resolve().parent / "jupyter"
# Plain JavaScript, without a build step.
EXTENSIONS = [PACKAGE / "lab" / "labextensions", PACKAGE / "classroom" / "learner" / "labextensions"]
FIRST_LESSON = "notebooks/00_start_here.ipynb"
WORKSPACE = "default"
CONTENTS = "@jupyterlab/toc:plugin"
LEFT = 0.23  # share of the window's width for file names and headings


def environment(desk: Desk) -> dict[str, str]:
    """Return the environment of the server and its kernels: the course's settings, and where to store progress."""
    settings = {
        "JUPYTER_CONFIG_PATH": str(CONFIG),
        "JUPYTER_CONFIG_DIR": str(desk.jupyter),
        "JUPYTERLAB_SETTINGS_DIR": str(desk.jupyter / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(desk.jupyter / "workspaces"),
        "COURSE_LIB_PROGRESS": str(desk.progress),
    }
    return {**os.environ, **settings}


def command(desk: Desk, port: int, browser: bool) -> list[str]:
    """Return the command that starts the server."""
    words = [
        sys.executable,
        "-m",
        "course_lib.lab.server",
        f"--ServerApp.root_dir={desk.folder}",
        f"--ServerApp.port={port}",
    ]
    words += [f"--LabApp.app_settings_dir={CONFIG}", "--LabApp.default_url=/lab"]
    words += [f"--LabApp.extra_labextensions_path={folder}" for folder in EXTENSIONS]
    if not browser:
        words.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        words.append("--allow-root")  # containers run as root; the address still carries a secret token
    return words


def prepare_first_screen(desk: Desk) -> None:
    """Before the first start, open the first lesson and its table of contents. Later, JupyterLab restores its tabs."""
    signature = hashlib.sha256(WORKSPACE.encode()).hexdigest()[:4]
    path = desk.jupyter / "workspaces" / f"{WORKSPACE}-{signature}.jupyterlab-workspace"
    if not path.exists():
        write_to_desk(path, json.dumps(_first_screen(), indent=1).encode())


def _first_screen() -> dict:
    """Return the first screen in JupyterLab's workspace format."""
    lesson = f"notebook:{FIRST_LESSON}"
    layout = {
        "main": {"dock": {"type": "tab-area", "currentIndex": 0, "widgets": [lesson]}, "current": lesson},
        "down": {"size": 0, "widgets": []},
        "left": {
            "collapsed": False,
            "visible": True,
            "current": CONTENTS,
            "widgets": ["filebrowser", "running-sessions", CONTENTS],
        },
        "right": {"collapsed": True, "visible": True, "widgets": []},
        "relativeSizes": [LEFT, 1 - LEFT, 0],
        "top": {"simpleVisibility": True},
    }
    data = {
        "layout-restorer:data": layout,
        lesson: {"data": {"path": FIRST_LESSON, "factory": "Notebook"}},
        "file-browser-filebrowser:cwd": {"path": str(Path(FIRST_LESSON).parent)},
    }
    return {"data": data, "metadata": {"id": WORKSPACE}}
