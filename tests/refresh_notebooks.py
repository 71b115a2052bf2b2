"""Run lessons from top to bottom and store what they print and draw: `make notebooks`.

Progress bars are left out of what is stored: a bar that is done shows nothing, and a stored one only an error.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def refresh(path: Path) -> None:
    """Run one notebook in a fresh kernel. The file changes only if every cell ran."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources, record_timing=False).execute()
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


if __name__ == "__main__":
    with learned_by_nobody():
        for name in tqdm(sys.argv[1:], desc="notebooks"):
            refresh(Path(name))
