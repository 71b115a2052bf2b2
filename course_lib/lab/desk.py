"""The desk: a learner's own folder with exercises and lessons without outputs, separate from the course's files."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from course_lib.course_files import write_whole
from course_lib.lab.merge import LaidOut
from course_lib.version import __version__

NAME = "work"
OURS = ".course"  # holds the desk's state; a folder that contains it is a desk
FORMAT = 1  # the version of the state file's format


class BadDesk(RuntimeError):
    """A folder cannot be the desk. The sentence says why, and what to do."""


@dataclass(frozen=True)
class Desk:
    """A folder, and the paths of the files in it."""

    folder: Path

    @property
    def memory(self) -> Path:
        return self.folder / OURS / "laid_out.json"

    @property
    def jupyter(self) -> Path:
        """The folder for JupyterLab's state: the learner's settings, and which files are open."""
        return self.folder / OURS / "jupyter"

    @property
    def progress(self) -> Path:
        return self.folder / "progress.json"

    @property
    def exists(self) -> bool:
        return (self.folder / OURS).is_dir()


@dataclass
class Memory:
    """What was laid out on a desk, and by which version of the course."""

    version: str = __version__
    notebooks: dict[str, list[LaidOut]] = field(default_factory=dict)  # by path, like exercises/02_ddp.ipynb


def choose_desk(given: str | None) -> Desk:
    """Return the desk in the given folder. By default, it is the desk that contains the current folder, or `work` in
    the clone that does, or `work` here. Raises `BadDesk` if the folder cannot be a desk.
    """
    folder = Path(os.path.normpath(Path(given).expanduser().absolute())) if given is not None else _default(Path.cwd())
    shown = given if given is not None else folder
    if folder.exists() and not folder.is_dir():
        raise BadDesk(f"{shown} is a file: give the name of a folder, new or empty")
    clone = _clone_around(folder.resolve())
    if clone and not folder.resolve().is_relative_to(clone / NAME):
        raise BadDesk(f"{shown} lies among the course's own files: give a folder elsewhere, or take {clone / NAME}")
    desk = Desk(folder)
    if folder.is_dir() and not desk.exists and any(folder.iterdir()):
        raise BadDesk(f"{shown} has other things in it: give --desk a folder that is new or empty")
    return desk


def _default(here: Path) -> Path:
    around = next((folder for folder in (here, *here.parents) if Desk(folder).memory.is_file()), None)
    return around or (_clone_around(here) or here) / NAME


def _clone_around(place: Path) -> Path | None:
    """Return the clone of the course that contains this path; None if there is none."""
    for folder in (place, *place.parents):
        if (folder / "course_lib" / "lab").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    return None


def recall(desk: Desk) -> Memory:
    """Return what was laid out, or an empty `Memory` if it is unreadable. Raises `BadDesk` if a newer course did it."""
    try:
        known = json.loads(desk.memory.read_bytes())
        version, form = str(known["version"]), int(known["format"])
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError):
        return Memory()
    if form > FORMAT or _numbers(version) > _numbers(__version__):
        raise BadDesk(
            f"{desk.folder} was laid out by version {version} of the course, and this is {__version__}: install the "
            "newer one, or give --desk a different folder"
        )
    try:
        notebooks = {str(path): [LaidOut(**cell) for cell in cells] for path, cells in known["notebooks"].items()}
    except (TypeError, KeyError, AttributeError):
        return Memory()
    return Memory(version, notebooks)


def remember(desk: Desk, memory: Memory) -> None:
    """Save what is on the desk now."""
    notebooks = {path: [asdict(cell) for cell in cells] for path, cells in sorted(memory.notebooks.items())}
    known = {"format": FORMAT, "version": __version__, "notebooks": notebooks}
    write_to_desk(desk.memory, json.dumps(known, indent=1).encode())


def write_to_desk(path: Path, content: bytes) -> None:
    """Write a file atomically. Raises `BadDesk` if it cannot be written."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise BadDesk(f"{path} cannot be written: {error.strerror}; what you wrote is as it was") from error


def _numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers to compare: 0.10.0 comes after 0.9.1."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")[:3])
