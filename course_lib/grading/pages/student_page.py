"""One student's page: what was right, which mistake was made, what to read again, and what is tried again."""

from __future__ import annotations

from course_lib.checks import exercises
from course_lib.checks.markup import plain, with_code
from course_lib.grading.pages.markup import anchor, document, hidden, name, points
from course_lib.grading.pages.summary import lost_parts
from course_lib.grading.records import Mark, Record

TRIED_AGAIN = "the clock stopped it twice; it is tried again the next time this class is graded."


def page(student: str, records: list[Record]) -> str:
    """The whole page. It shows neither inputs nor answers, and no other student."""
    earned, most = sum(record.points for record in records), sum(record.most for record in records)
    total = f"{earned} of {most} points" if most else "no points"
    parts = [f"<header><h1>{name(student)}: {total}</h1>"]
    if len(records) > 1:
        parts.append(_contents(records))
    parts.append('</header>\n<main id="main">')
    parts += [_notebook(place, record) for place, record in enumerate(records)]
    parts.append("</main>")
    return document(f"{student}: {total}", "To the marks", "\n".join(parts))


def _contents(records: list[Record]) -> str:
    items = [
        f'<li><a href="#notebook-{place}">{plain(_title(record))}</a> {points(record.points, record.most)}</li>'
        for place, record in enumerate(records)
    ]
    return f'<nav aria-label="Notebooks"><ul>{"".join(items)}</ul></nav>'


def _notebook(place: int, record: Record) -> str:
    earned = points(record.points, record.most) if record.marks else ""
    parts = [f'<section><h2 id="notebook-{place}">{name(_title(record))} {earned}</h2>']
    if record.problem:
        parts.append(f'<p class="notice">{with_code(record.problem)}</p>')
    if record.stopped_by_clock:
        parts.append(f'<p class="notice">Flagged: {TRIED_AGAIN} These points may still rise.</p>')
    parts += [_exercise(mark) for mark in record.marks]
    return "\n".join([*parts, "</section>"])


def _title(record: Record) -> str:
    return record.notebook or "Nothing was handed in"


def _exercise(mark: Mark) -> str:
    exercise = exercises()[mark.number]
    title = f"{exercise.number} {plain(exercise.title)} {points(mark.points, exercise.points)}"
    head = f'<h3 id="{anchor(mark.number)}">{title}</h3>'
    if not mark.attempted:
        return f"{head}\n<p>Not attempted.</p>"
    items = "\n".join(_part(mark, part) for part in mark.parts)
    flagged = f'\n<p class="notice">Flagged: {_flagged(mark)}</p>' if mark.by_clock else ""
    again = f'\n<p class="read">Read again: {plain(exercise.where_to_read)}.</p>' if lost_parts(mark) else ""
    return f'{head}\n<ul class="parts">\n{items}\n</ul>{flagged}{again}'


def _part(mark: Mark, part: str) -> str:
    wrong = part in lost_parts(mark)
    told = f": {_remark(mark, part)}" if part in mark.remarks else ""
    sign = f'<span class="sign" aria-hidden="true">{"✗" if wrong else "✓"}</span>'
    spoken = hidden("Wrong: " if wrong else "Right: ")
    most = exercises()[mark.number].parts.get(part, mark.parts[part])
    return (
        f'<li class="{"wrong" if wrong else "right"}">{sign}<span>{spoken}{plain(part)}{told}</span>'
        f"{points(mark.parts[part], most)}</li>"
    )


def _remark(mark: Mark, part: str) -> str:
    """What the student is told of a part; what was said before is not said again."""
    before = list(mark.remarks.values())[: list(mark.remarks).index(part)]
    return "the same." if mark.remarks[part] in before else with_code(mark.remarks[part])


def _flagged(mark: Mark) -> str:
    return f"{plain(', '.join(mark.by_clock))}: {TRIED_AGAIN} These points may still rise."
