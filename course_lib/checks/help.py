"""Hints and solutions, as a box in a notebook and as text elsewhere, and the buttons for them below a report."""

from __future__ import annotations

from typing import Any

from course_lib.checks import progress_file
from course_lib.checks.exercise import Exercise
from course_lib.checks.report import Report
from course_lib.checks.showing import Controls, box, plain, show, with_code


def show_hints(exercise: Exercise) -> None:
    """Show the hints taken so far, and one more."""
    show(*hint_box(exercise))


def show_solution(exercise: Exercise) -> None:
    """Show our answer, once the learner has tried the exercise."""
    show(*solution_box(exercise))


def hint_box(exercise: Exercise) -> tuple[str, str]:
    """Take one more hint, and return the HTML and the text of all hints taken so far."""
    taken = progress_file.take_hint(exercise.number, len(exercise.hints))
    hints = exercise.hints[:taken]
    lines = [f"{index}. {text}" for index, text in enumerate(hints, 1)]
    items = "".join(f"<li>{with_code(text)}</li>" for text in hints)
    last = ""
    if taken == len(exercise.hints):
        call = f"solution({exercise.number!r})"
        lines.append(f"That was the last hint. Once you have tried it yourself, {call} shows our answer.")
        last = f"<p>That was the last hint. Once you have tried it yourself, <code>{call}</code> shows our answer.</p>"
    head = f"Hint {taken} of {len(exercise.hints)} for {exercise.number}"
    html = box("neutral", head, f"<ol>{items}</ol>{last}", f"Hints for exercise {exercise.number}")
    return html, "\n".join(lines)


def solution_box(exercise: Exercise) -> tuple[str, str]:
    """Return the HTML and the text of our answer, or of a request to try the exercise first."""
    from course_lib.checks.notebooks import answer_cell

    number = exercise.number
    if not progress_file.tries(number):
        words = f"Try it first: write {exercise.answer}, and run check({number!r}, {exercise.answer})."
        html = (
            f"<p>Write <code>{exercise.answer}</code>, and run <code>check({number!r}, {exercise.answer})</code>.</p>"
        )
        return box("neutral", f"{number}: try it first", html, f"Solution of exercise {number}"), words
    code = answer_cell(exercise)
    head = f"Our answer to {number} {plain(exercise.title)}"
    return box("neutral", head, highlighted(code), f"Solution of exercise {number}"), code


def highlighted(code: str) -> str:
    """Return Python as HTML in the notebook's own colors, light or dark, or as plain text without pygments."""
    try:
        from jupyterlab_pygments import JupyterStyle
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ImportError:
        return f"<pre>{plain(code)}</pre>"
    return highlight(code, PythonLexer(), HtmlFormatter(style=JupyterStyle, noclasses=True, nobackground=True))


def show_after_the_cell(report: Report) -> None:
    """Show a report after its cell, even if it isn't the cell's last expression, and offer help below it."""
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
    """Show the help buttons, with space for their output above, and return them; None without ipywidgets."""
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
    hint.add_class("course-help")  # the desk hides these and has its own
    answer.add_class("course-help")
    return Controls(hint, answer)
