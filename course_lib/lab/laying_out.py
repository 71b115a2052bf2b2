"""Put the course on a desk, and later update it, without touching what a learner wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.course_files import BadNotebook, Notebook, course_folder, parse, read
from course_lib.lab.desk import Desk, Memory, recall, remember, write_to_desk
from course_lib.lab.merge import LaidOut, Merged, is_changed, laid_out, merge, only_answers, without_outputs

FOLDERS = ("notebooks", "exercises")


@dataclass
class Done:
    """What was done to a desk."""

    first: bool  # whether the desk is new
    added: list[str] = field(default_factory=list)  # notebooks that were missing
    renewed: dict[str, int] = field(default_factory=dict)  # updated notebooks, with the number of the learner's cells
    kept_beside: dict[str, str] = field(default_factory=dict)  # updated notebooks, with the new name of the learner's
    waiting: list[str] = field(default_factory=list)  # newer in the course, but changed by the learner
    left: list[str] = field(default_factory=list)  # no longer in the course, but changed by the learner

    def __str__(self) -> str:
        return "\n".join(self._lines()) or "The desk is up to date."

    def _lines(self) -> Iterator[str]:
        if self.first:
            lessons = sum(path.startswith("notebooks/") for path in self.added)
            yield f"A new desk, with {lessons} lessons and {len(self.added) - lessons} notebooks of exercises."
        elif self.added:
            yield f"New: {', '.join(self.added)}"
        quiet = [path for path, kept in self.renewed.items() if not kept and path not in self.kept_beside]
        if quiet:
            yield f"Renewed: {', '.join(quiet)}"
        for path, kept in self.renewed.items():
            if path in self.kept_beside:
                yield f"Renewed: {path}; what you had is kept in {self.kept_beside[path]}{_and_cells(kept)}"
            elif kept:
                yield f"Renewed: {path}, with your {_cells(kept)} in it"
        for path in self.left:
            yield f"No longer in the course: {path}; it stays, because you have changed it"
        if self.waiting:
            yield f"Newer in the course, but changed by you: {', '.join(self.waiting)}"
            yield "`course update` brings them in and keeps your cells."


def lay_out(desk: Desk, *, update: bool = False, course: Path | None = None) -> Done:
    """Create the desk, or add what is new. Notebooks that the learner has changed are left alone, unless this is an
    update: then the learner's cells are merged into the new notebook. Raises `BadDesk`, with the reason, on failure.
    """
    source, memory = course or course_folder(), recall(desk)
    done = Done(first=not desk.exists)
    remember(desk, memory)  # from now on the folder is a desk, even if we are interrupted
    paths = [path for folder in FOLDERS for path in sorted((source / folder).glob("*.ipynb"))]
    names = {f"{path.parent.name}/{path.name}": path for path in paths}
    for name, path in names.items():
        _bring(desk, memory, name, without_outputs(read(path)), update, done)
    for name in [name for name in memory.notebooks if name not in names]:
        _retire(desk, memory, name, done)
    remember(desk, memory)
    return done


def _bring(desk: Desk, memory: Memory, name: str, ours: Notebook, update: bool, done: Done) -> None:
    """Put one notebook of the course on the desk."""
    place, before, new = desk.folder / name, memory.notebooks.get(name), laid_out(ours)
    if not place.exists():
        write_to_desk(place, _packed(ours))
        done.added.append(name)
    elif before == new:
        return
    else:
        yours = _yours(place)
        if yours is not None and not is_changed(yours, new):
            pass  # already up to date, although our record says otherwise
        elif yours is not None and before is not None and not is_changed(yours, before):
            write_to_desk(place, _packed(merge(yours, before, ours).notebook))
            done.renewed[name] = 0
        elif update:
            _update(desk, name, yours, before, ours, done)
        else:
            done.waiting.append(name)
            return
    memory.notebooks[name] = new


def _update(
    desk: Desk, name: str, yours: Notebook | None, before: list[LaidOut] | None, ours: Notebook, done: Done
) -> None:
    """Update a notebook that the learner has changed. If the merge leaves cells undecided, keep the old file, too."""
    place = desk.folder / name
    merged = _merged(yours, before, ours)
    if merged.undecided:
        beside = _free_name(place)
        write_to_desk(beside, place.read_bytes())
        done.kept_beside[name] = f"{beside.parent.name}/{beside.name}"
    write_to_desk(place, _packed(merged.notebook))
    done.renewed[name] = merged.kept


def _merged(yours: Notebook | None, before: list[LaidOut] | None, ours: Notebook) -> Merged:
    if yours is None:
        return Merged(ours, 0, 1)
    return merge(yours, before, ours) if before is not None else only_answers(yours, ours)


def _retire(desk: Desk, memory: Memory, name: str, done: Done) -> None:
    """Delete a notebook that is no longer in the course, unless the learner has changed it."""
    place, before = desk.folder / name, memory.notebooks.pop(name)
    yours = _yours(place) if place.exists() else None
    if yours is not None and not is_changed(yours, before):
        place.unlink()
    elif place.exists():
        done.left.append(name)


def _yours(place: Path) -> Notebook | None:
    """Return the learner's notebook at this path; None if it is not a notebook."""
    try:
        return parse(place.read_bytes())
    except BadNotebook:
        return None


def _free_name(place: Path) -> Path:
    """Return the first unused name of: 02_ddp (yours).ipynb, 02_ddp (yours 2).ipynb, ..."""
    number, path = 1, place.with_name(f"{place.stem} (yours){place.suffix}")
    while path.exists():
        number += 1
        path = place.with_name(f"{place.stem} (yours {number}){place.suffix}")
    return path


def _packed(notebook: Notebook) -> bytes:
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode(errors="surrogatepass")


def _cells(count: int) -> str:
    return "cell" if count == 1 else f"{count} cells"


def _and_cells(kept: int) -> str:
    return f", and {kept} of its cells {'is' if kept == 1 else 'are'} in the new one" if kept else ""
