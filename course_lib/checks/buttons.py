"""Buttons below a report, for a hint and for our answer: until the next cell is run. What they have shown stays."""

from __future__ import annotations

from typing import Any

from course_lib.checks.help import hint_box, solution_box
from course_lib.checks.report import Report
from course_lib.checks.showing import Controls


def show_after_the_cell(report: Report) -> None:
    """See to it that a report is shown, also if its cell does not end with it, and offer help below it."""
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    shell: Any = get_ipython()

    def after_the_cell(cell: Any) -> None:
        shell.events.unregister("post_run_cell", after_the_cell)
        if cell.result is not report:
            display(report)
        if report.attempted and not report.passed:
            _put_away_before_the_next_cell(shell, _show_buttons(report))

    shell.events.register("post_run_cell", after_the_cell)


def _put_away_before_the_next_cell(shell: Any, buttons: Controls | None) -> None:
    def before_the_next(_: Any) -> None:
        shell.events.unregister("pre_run_cell", before_the_next)
        if buttons is not None:
            buttons.put_away()

    shell.events.register("pre_run_cell", before_the_next)


def _show_buttons(report: Report) -> Controls | None:
    """The buttons, and above them the place for what they show; None where there are no widgets."""
    try:
        import ipywidgets
    except ImportError:
        return None
    from IPython.display import display

    exercise = report.exercise
    place = display({}, raw=True, display_id=True)
    hint = ipywidgets.Button(description="A hint", layout={"width": "auto"})
    answer = ipywidgets.Button(description="Our answer", layout={"width": "auto"})

    def put(html: str, text: str) -> None:
        if place is not None:
            place.update({"text/html": html, "text/plain": text}, raw=True)

    hint.on_click(lambda _: put(*hint_box(exercise)))
    answer.on_click(lambda _: put(*solution_box(exercise)))
    return Controls(hint, answer)
