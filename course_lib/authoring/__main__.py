"""The command line of the authoring tools: `python -m course_lib.authoring refresh notebooks/03*.ipynb`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from course_lib.authoring.refresh import NotStored, make_exercise, refresh
from course_lib.runtime.course_files import BadNotebook, read

COMMANDS = {
    "refresh": "run notebooks and store their outputs, unless the machine is busy",
    "exercises": "run solutions, and create the exercises from them",
    "slides": "mark which cells of each lesson begin a slide",
    "read": "read lessons as a critical reader does, and report what is missing or wrong; nothing is run",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the tools and return the exit status.

    The status is 0 on success, 1 if a notebook was not stored or `read` found a fault in it, 2 if a file cannot be
    used, and 130 after Ctrl-C.
    """
    options = make_parser().parse_args(arguments)
    try:
        for path in options.files:
            require_notebook(path)
    except BadNotebook as error:
        print(error, file=sys.stderr)
        return 2
    try:
        return run(options)
    except ModuleNotFoundError as error:
        if error.name not in {"nbclient", "nbformat"}:
            raise
        print(f"This needs {error.name}, which comes with JupyterLab: pip install jupyterlab", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130


def make_parser() -> argparse.ArgumentParser:
    """Return the parser, with one subcommand for each tool."""
    parser = argparse.ArgumentParser(
        prog="python -m course_lib.authoring", description="Tools for people who write or adapt lessons."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        command = commands.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        command.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a notebook (.ipynb)")
        if name == "refresh":
            command.add_argument("--anyway", action="store_true", help="store the outputs even if the machine is busy")
    return parser


def require_notebook(path: Path) -> None:
    """Raise `BadNotebook`, with a sentence that names the file, if it does not exist or is not a notebook."""
    if not path.exists():
        raise BadNotebook(f"{path}: this file does not exist.")
    try:
        notebook = read(path)
    except BadNotebook as error:
        raise BadNotebook(f"{path}: this is not a notebook.") from error
    if notebook.get("nbformat") != 4:
        raise BadNotebook(f"{path}: this is not a notebook in format 4, the format that JupyterLab saves.")
    cells = notebook["cells"]
    if not cells or not all("cell_type" in cell and isinstance(cell.get("metadata"), dict) for cell in cells):
        raise BadNotebook(f"{path}: this notebook has no cells, or a cell without a type or metadata.")


def run(options: argparse.Namespace) -> int:
    """Run the chosen tool on every file and return the exit status."""
    if options.command == "refresh":
        return for_each(options.files, lambda path: refresh(path, anyway=options.anyway))
    if options.command == "exercises":
        return for_each(options.files, make_exercise)
    if options.command == "slides":
        from course_lib.authoring.outline import mark_file

        return for_each(options.files, mark_file)
    from course_lib.authoring.reading import findings

    all_findings = [finding for path in options.files for finding in findings(path)]
    print(*all_findings, sep="\n", end="\n" if all_findings else "")
    return 1 if all_findings else 0


def for_each(files: list[Path], work: Callable[[Path], object]) -> int:
    """Do the work on every file, report the files that it failed on at the end, and return the exit status."""
    failures = []
    for path in tqdm(files, desc="notebooks"):
        try:
            work(path)
        except (NotStored, BadNotebook) as error:
            failures.append(f"{path}: {error}")
    print(*failures, sep="\n", end="\n" if failures else "", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
