"""The desk: a learner's own folder with exercises and lessons without outputs, separate from the course's files.

`lay_out` puts the course on a desk, and later updates it, without touching what the learner wrote.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from course_lib.lab.merge import LaidOut, Merged, is_changed, laid_out, merge, only_answers, without_outputs
from course_lib.runtime.course_files import BadNotebook, Notebook, course_folder, parse, read, write_whole
from course_lib.runtime.version import __version__

NAME = "work"
STATE_FOLDER = ".course"  # holds the desk's state; a folder that contains it is a desk
FORMAT = 1  # the version of the state file's format


class BadDesk(ValueError):
    """The folder cannot be a desk; the message says why, and what to do."""


@dataclass(frozen=True)
class Desk:
    """A folder, and the paths of the files in it."""

    folder: Path

    @property
    def memory(self) -> Path:
        return self.folder / STATE_FOLDER / "laid_out.json"

    @property
    def jupyter(self) -> Path:
        """The folder for JupyterLab's state: the learner's settings, and which files are open."""
        return self.folder / STATE_FOLDER / "jupyter"

    @property
    def progress(self) -> Path:
        return self.folder / "progress.json"

    @property
    def exists(self) -> bool:
        return (self.folder / STATE_FOLDER).is_dir()


@dataclass
class Memory:
    """What was laid out on a desk, and by which version of the course."""

    version: str = __version__
    notebooks: dict[str, list[LaidOut]] = field(default_factory=dict)  # by path, like exercises/02_ddp.ipynb


def choose_desk(requested: str | None) -> Desk:
    """Return the desk in the given folder. By default, it is the desk that contains the current folder, or `work` in
    the clone that contains it, or `work` here. Raises `BadDesk` if the folder cannot be a desk.
    """
    folder = _default(Path.cwd()) if requested is None else Path(requested).expanduser().absolute()
    folder = Path(os.path.normpath(folder))
    shown = folder if requested is None else requested
    if folder.exists() and not folder.is_dir():
        raise BadDesk(f"{shown} is a file: give the name of a folder, new or empty")
    clone = _clone_around(folder.resolve())
    if clone and not folder.resolve().is_relative_to(clone / NAME):
        raise BadDesk(f"{shown} is inside the course's own files: give a folder elsewhere, or use {clone / NAME}")
    desk = Desk(folder)
    if folder.is_dir() and not desk.exists and any(folder.iterdir()):
        raise BadDesk(f"{shown} has other files in it: give --desk a folder that is new or empty")
    return desk


def _default(current: Path) -> Path:
    around = next((folder for folder in (current, *current.parents) if Desk(folder).memory.is_file()), None)
    return around or (_clone_around(current) or current) / NAME


def _clone_around(place: Path) -> Path | None:
    """Return the clone of the course that contains this path; None if there is none."""
    for folder in (place, *place.parents):
        if (folder / "course_lib" / "lab").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    return None


def recall(desk: Desk) -> Memory:
    """Return what was laid out, or an empty `Memory` if unreadable. Raises `BadDesk` if a newer course laid it out."""
    try:
        state = json.loads(desk.memory.read_bytes())
        version, form = str(state["version"]), int(state["format"])
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError):
        return Memory()
    if form > FORMAT or _numbers(version) > _numbers(__version__):
        raise BadDesk(
            f"{desk.folder} was laid out by version {version} of the course, and this is {__version__}: install the "
            "newer one, or give --desk a different folder"
        )
    try:
        notebooks = {str(path): [LaidOut(**cell) for cell in cells] for path, cells in state["notebooks"].items()}
    except (TypeError, KeyError, AttributeError):
        return Memory()
    return Memory(version, notebooks)


def remember(desk: Desk, memory: Memory) -> None:
    """Save what is on the desk now."""
    notebooks = {path: [asdict(cell) for cell in cells] for path, cells in sorted(memory.notebooks.items())}
    state = {"format": FORMAT, "version": __version__, "notebooks": notebooks}
    write_to_desk(desk.memory, json.dumps(state, indent=1).encode())


def write_to_desk(path: Path, content: bytes) -> None:
    """Write a file atomically. Raises `BadDesk` if it cannot be written."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise BadDesk(f"{path} cannot be written: {error.strerror}; your work is unchanged") from error


def _numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers to compare: 0.10.0 comes after 0.9.1."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")[:3])


FOLDERS = ("notebooks", "exercises")


@dataclass
class Report:
    """What was done to a desk."""

    is_new: bool  # whether the desk is new
    added: list[str] = field(default_factory=list)  # notebooks that were missing
    renewed: dict[str, int] = field(default_factory=dict)  # updated notebooks -> number of the learner's cells
    kept_beside: dict[str, str] = field(default_factory=dict)  # updated notebooks -> new name of the learner's copy
    waiting: list[str] = field(default_factory=list)  # newer in the course, but changed by the learner
    retained: list[str] = field(default_factory=list)  # no longer in the course, but changed by the learner

    def __str__(self) -> str:
        return "\n".join(self._lines()) or "The desk is up to date."

    def _lines(self) -> Iterator[str]:
        if self.is_new:
            lessons = sum(path.startswith("notebooks/") for path in self.added)
            yield f"A new desk, with {lessons} lessons and {len(self.added) - lessons} notebooks of exercises."
        elif self.added:
            yield f"New: {', '.join(self.added)}"
        quiet = [path for path, count in self.renewed.items() if not count and path not in self.kept_beside]
        if quiet:
            yield f"Updated: {', '.join(quiet)}"
        for path, count in self.renewed.items():
            if path in self.kept_beside:
                yield f"Updated: {path}; your old version is kept in {self.kept_beside[path]}{_and_cells(count)}"
            elif count:
                yield f"Updated: {path}, with your {_cells(count)} in it"
        for path in self.retained:
            yield f"No longer in the course: {path}; it stays, because you have changed it"
        if self.waiting:
            yield f"Newer in the course, but changed by you: {', '.join(self.waiting)}"
            yield "`course update` brings them in and keeps your cells."


def lay_out(desk: Desk, *, update: bool = False, course: Path | None = None) -> Report:
    """Create the desk, or add what is new. Notebooks that the learner has changed are left alone, unless this is an
    update: then the learner's cells are merged into the new notebook. Raises `BadDesk`, with the reason, on failure.
    """
    source, memory = course or course_folder(), recall(desk)
    report = Report(is_new=not desk.exists)
    remember(desk, memory)  # from now on the folder is a desk, even if we are interrupted
    paths = [path for folder in FOLDERS for path in sorted((source / folder).glob("*.ipynb"))]
    names = {f"{path.parent.name}/{path.name}": path for path in paths}
    for name, path in names.items():
        _bring(desk, memory, name, without_outputs(read(path)), update, report)
    for name in [name for name in memory.notebooks if name not in names]:
        _retire(desk, memory, name, report)
    remember(desk, memory)
    return report


def _bring(desk: Desk, memory: Memory, name: str, course: Notebook, update: bool, report: Report) -> None:
    """Put one notebook of the course on the desk."""
    place, before, new = desk.folder / name, memory.notebooks.get(name), laid_out(course)
    if not place.exists():
        write_to_desk(place, _packed(course))
        report.added.append(name)
    elif before == new:
        return
    else:
        yours = _yours(place)
        if yours is not None and not is_changed(yours, new):
            pass  # already up to date, although our record differs
        elif yours is not None and before is not None and not is_changed(yours, before):
            write_to_desk(place, _packed(merge(yours, before, course).notebook))
            report.renewed[name] = 0
        elif update:
            _update(desk, name, yours, before, course, report)
        else:
            report.waiting.append(name)
            return
    memory.notebooks[name] = new


def _update(
    desk: Desk, name: str, yours: Notebook | None, before: list[LaidOut] | None, course: Notebook, report: Report
) -> None:
    """Update a notebook that the learner has changed. If the merge leaves cells undecided, keep the old file, too."""
    place = desk.folder / name
    merged = _merged(yours, before, course)
    if merged.conflicts:
        beside = _free_name(place)
        write_to_desk(beside, place.read_bytes())
        report.kept_beside[name] = f"{beside.parent.name}/{beside.name}"
    write_to_desk(place, _packed(merged.notebook))
    report.renewed[name] = merged.learner_cells


def _merged(yours: Notebook | None, before: list[LaidOut] | None, course: Notebook) -> Merged:
    if yours is None:
        return Merged(course, 0, 1)
    return merge(yours, before, course) if before is not None else only_answers(yours, course)


def _retire(desk: Desk, memory: Memory, name: str, report: Report) -> None:
    """Delete a notebook that is no longer in the course, unless the learner has changed it."""
    place, before = desk.folder / name, memory.notebooks.pop(name)
    yours = _yours(place) if place.exists() else None
    if yours is not None and not is_changed(yours, before):
        place.unlink()
    elif place.exists():
        report.retained.append(name)


def _yours(place: Path) -> Notebook | None:
    """Return the learner's notebook at this path; None if it is not a notebook."""
    try:
        return parse(place.read_bytes())
    except BadNotebook:
        return None


def _free_name(place: Path) -> Path:
    """Return the first unused name among 02_ddp (yours).ipynb, 02_ddp (yours 2).ipynb, ..."""
    number, path = 1, place.with_name(f"{place.stem} (yours){place.suffix}")
    while path.exists():
        number += 1
        path = place.with_name(f"{place.stem} (yours {number}){place.suffix}")
    return path


def _packed(notebook: Notebook) -> bytes:
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode(errors="surrogatepass")


def _cells(count: int) -> str:
    return "cell" if count == 1 else f"{count} cells"


def _and_cells(count: int) -> str:
    return f", and {count} of its cells {'is' if count == 1 else 'are'} in the new one" if count else ""
