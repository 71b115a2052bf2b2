"""Sphinx extension: the still picture of a widget gets a button that runs the widget in the page itself.

Without Sphinx, `python docs/_extensions/widgets.py FOLDER` makes a page with all of these widgets.
"""

from __future__ import annotations

import ast
import inspect
import json
import shutil
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "_widgets"), str(HERE.parent.parent)]

from in_page import EXPLORERS  # noqa: E402
from page_modules import WIDGETS, write_modules  # noqa: E402
from pyodide_files import FILES, NoPyodide, pyodide_folder  # noqa: E402

from course_lib.drawing import explorer  # noqa: E402

SHELL = Path(explorer.__file__).parent
FOLDER = "_static/widgets"
STILL = 'class="course-still"'
NOT_HERE = '<p class="course-run-note">This one shows what the lesson has computed: run the lesson to use it.</p>'


def setup(app: Any) -> dict[str, bool]:
    """Where there is Pyodide, widgets run; where not, their still pictures stay, and a line says why."""
    from sphinx.util import logging

    try:
        pyodide_folder()
    except NoPyodide as reason:
        logging.getLogger(__name__).info(str(reason))
        return {"parallel_read_safe": True}
    app.connect("doctree-resolved", lambda app, doctree, name: add_buttons(doctree))
    app.connect("html-page-context", _link_files)
    app.connect("build-finished", _write_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def add_buttons(doctree: Any) -> None:
    """In a lesson's page, to each still picture whose cell calls an explorer with arguments that are written out."""
    from docutils import nodes

    for still in [node for node in doctree.findall(nodes.raw) if STILL in node.astext()]:
        cell = still.parent
        while cell is not None and "cell" not in cell.get("classes", ()):
            cell = cell.parent
        code = next(cell.findall(nodes.literal_block), None) if cell is not None else None
        call = explorer_call(code.astext()) if code is not None else None
        html = runnable(still.astext(), *call) if call else still.astext() + NOT_HERE
        still.replace_self(nodes.raw("", html, format="html"))


def explorer_call(source: str) -> tuple[str, dict[str, Any]] | None:
    """The name and arguments of the explorer that a cell makes; None if there is none, or it must be run to know."""
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in EXPLORERS:
            try:
                given = [ast.literal_eval(each) for each in call.args]
                named = {each.arg or "": ast.literal_eval(each.value) for each in call.keywords}
            except ValueError:
                return None
            return name, dict(inspect.signature(EXPLORERS[name]).bind(*given, **named).arguments)
    return None


def runnable(still: str, explorer: str, arguments: dict[str, Any]) -> str:
    """A still picture with a button above it; `run.js` wakes the button up."""
    facts = {"explorer": explorer, "arguments": json.dumps(arguments), "bytes": sum(_sizes())}
    data = "".join(f' data-{name}="{escape(str(value))}"' for name, value in facts.items())
    size = f"{sum(_sizes()) / 1e6:.0f} MB"
    words = f"The first time, this loads Python into the page: {size}, or half of it where the server compresses."
    bar = f'<button type="button">Run it here</button> <span role="status">{words}</span>'
    return f'<div class="course-run"{data}><div class="course-run-bar" hidden>{bar}</div>{still}</div>'


def _sizes() -> Iterator[int]:
    return ((pyodide_folder() / name).stat().st_size for name in FILES)


def copy_files(folder: Path) -> None:
    """All that a page needs to run widgets."""
    (folder / "pyodide").mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(pyodide_folder() / name, folder / "pyodide" / name)
    for file in (SHELL / "shell.js", WIDGETS / "run.js", WIDGETS / "worker.js"):
        shutil.copyfile(file, folder / file.name)
    styles = (SHELL / "shell.css").read_text(), explorer.PAGE_STYLE, (WIDGETS / "page.css").read_text()
    (folder / "widgets.css").write_text("\n".join(styles))
    write_modules(folder / "modules.zip")


def _link_files(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if 'class="course-run"' in context.get("body", ""):
        app.add_css_file("widgets/widgets.css")
        app.add_js_file("widgets/run.js", type="module")


def _write_files(app: Any, failed: Exception | None) -> None:
    if not failed and app.builder.format == "html":
        copy_files(Path(app.outdir) / FOLDER)


def write_page(folder: Path) -> None:
    """A page with all widgets, one below the other."""
    copy_files(folder / FOLDER)
    widgets = [runnable(make().still()["text/html"], name, {}) for name, make in EXPLORERS.items()]
    links = f'<link rel="stylesheet" href="{FOLDER}/widgets.css"><script type="module" src="{FOLDER}/run.js"></script>'
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Widgets</title>{links}'
    body = f"<main><h1>Widgets</h1>{''.join(widgets)}</main>"
    (folder / "index.html").write_text(f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>')


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Say where to: python docs/_extensions/widgets.py FOLDER")
    write_page(Path(sys.argv[1]))
