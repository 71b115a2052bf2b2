"""Run lessons from top to bottom and store what they print and draw: `make notebooks`.

A run is stored only if the machine was quiet before it and after it: what a lesson measures beside others' work is
not what its text says. `--anyway` stores it nevertheless.

Progress bars are left out of what is stored: a bar that is done shows nothing, and a stored one only an error.
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # it is run as a file, too

import nbformat  # noqa: E402
from nbclient import NotebookClient  # noqa: E402
from tqdm import tqdm  # noqa: E402

from tests.quiet import MOST, lateness  # noqa: E402

WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class Busy(RuntimeError):
    """The machine had something else to do."""


def refresh(path: Path) -> None:
    """Run one notebook in a fresh kernel. The file changes only if every cell ran."""
    store(executed(path), path)


def refresh_if_quiet(path: Path, lateness: Callable[[], float] = lateness) -> None:
    """The same, but the file changes only if the machine was quiet before and after the run; else it raises `Busy`."""
    be_quiet(path, "before", lateness())
    notebook = executed(path)
    be_quiet(path, "after", lateness())
    store(notebook, path)


def be_quiet(path: Path, when: str, late: float) -> None:
    if late > MOST:
        raise Busy(
            f"{path.name} was not stored: {when} its run, paced work took {late:.2f} times what it was paced to "
            f"(at most {MOST}). This machine is busy: wait until it is not, or say --anyway."
        )


def executed(path: Path) -> nbformat.NotebookNode:
    """A notebook with what its cells print and draw now, in a fresh kernel."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources, record_timing=False).execute()
    return notebook


def store(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook that was run, without what only its own machine can use."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if shows_something(output)]
            for output in cell.outputs:
                if output.output_type == "error":
                    output.traceback = [without_machine_paths(line) for line in output.traceback]
    notebook.metadata = nbformat.from_dict(METADATA)
    aside = path.with_suffix(".tmp")
    nbformat.write(notebook, aside)
    aside.replace(path)


def shows_something(output: dict) -> bool:
    """Whether an output is more than a widget, the place of one that was put away, or the profiler's own log."""
    if output.get("name") == "stderr":
        return any(line and not line.startswith("USDT:") for line in output["text"].splitlines())
    data = output.get("data")
    return data is None or (WIDGET not in data and any(data.values()))


def without_machine_paths(text: str) -> str:
    """A traceback as anybody's machine would show it: packages by name, not by where they are installed."""
    for folder in (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), str(ROOT)):
        text = text.replace(f"{folder}/", "")
    return text


@contextmanager
def learned_by_nobody() -> Iterator[None]:
    """Kernels started here find no tries and no predictions, and show nothing that does not stay."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"COURSE_LIB_PROGRESS": str(Path(folder, "progress.json")), "COURSE_LIB_LIVE": "0"}
        yield


def main(arguments: list[str]) -> int:
    """Refresh the notebooks that are named; 1 if one was not stored."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--anyway", action="store_true", help="store what was measured on a busy machine, too")
    chosen = parser.parse_args(arguments)
    refused = []
    with learned_by_nobody():
        for path in tqdm(chosen.notebooks, desc="notebooks"):
            try:
                refresh(path) if chosen.anyway else refresh_if_quiet(path)
            except Busy as busy:
                refused.append(str(busy))
    print(*refused, sep="\n", end="\n" if refused else "")
    return bool(refused)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
