"""Buttons below a report, for a hint and for our answer. They are there until the next cell is run.

What a notebook keeps of a widget is an error when it is opened again: so they go away, and what they have shown stays.
"""

from __future__ import annotations

from typing import Any

from course_lib.checks.help import hint_box, solution_box
from course_lib.checks.report import Report

WIDGET = "application/vnd.jupyter.widget-view+json"


def show_after_the_cell(report: Report) -> None:
    """See to it that a report is shown, also if its cell does not end with it, and offer help below it."""
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    shell: Any = get_ipython()

    def after_the_cell(cell: Any) -> None:
        shell.events.unregister("post_run_cell", after_the_cell)
        if cell.result is not report:
            display(report)
        buttons = None if report.passed or not report.attempted else _show_buttons(report)
        if buttons is not None:
            _close_before_the_next_cell(shell, buttons)

    shell.events.register("post_run_cell", after_the_cell)


def _close_before_the_next_cell(shell: Any, buttons: Any) -> None:
    def before_the_next(_: Any) -> None:
        shell.events.unregister("pre_run_cell", before_the_next)
        for each in (*buttons.children, buttons):
            each.close()

    shell.events.register("pre_run_cell", before_the_next)


def _show_buttons(report: Report) -> Any:
    """The buttons, and above them the place for what they show; None where there are no widgets."""
    try:
        import ipywidgets
    except ImportError:
        return None
    from IPython.display import display

    exercise = report.exercise
    place = display({"text/html": "", "text/plain": ""}, raw=True, display_id=True)
    hint = ipywidgets.Button(description="A hint", layout={"width": "auto"})
    answer = ipywidgets.Button(description="Our answer", layout={"width": "auto"})

    def put(html: str) -> None:
        if place is not None:
            place.update({"text/html": html, "text/plain": ""}, raw=True)

    hint.on_click(lambda _: put(hint_box(exercise)[0]))
    answer.on_click(lambda _: put(solution_box(exercise)[0]))
    row = ipywidgets.HBox([hint, answer])
    display({WIDGET: {"version_major": 2, "version_minor": 0, "model_id": row.model_id}}, raw=True)
    return row
