"""The page of a class: whom to look at, all marks, how each exercise went, and which mistakes were made by whom."""

from __future__ import annotations

import statistics

from course_lib.checks import exercises
from course_lib.grading.pages.drawing import bars
from course_lib.grading.pages.looks import SORT
from course_lib.grading.pages.markup import anchor, document, hidden, link, name, plain, with_code
from course_lib.grading.pages.summary import (
    LEFT_OUT,
    Mistake,
    Student,
    by_student,
    exercises_of,
    lost_parts,
    mean,
    mistakes,
    points_distribution,
    points_in_all,
    totals_distribution,
)
from course_lib.grading.records import Record

SECTIONS = {"look-at": "To look at", "marks": "Marks", "exercises": "Exercises", "mistakes": "Mistakes"}


def class_page(records: list[Record]) -> str:
    """The whole page, with a link to each student's."""
    students, numbers = by_student(records), exercises_of(records)
    contents = "".join(f'<li><a href="#{place}">{title}</a></li>' for place, title in SECTIONS.items())
    body = [
        f"<header><h1>Grades of the class</h1>\n<p>{_in_short(students, numbers)}</p>\n"
        f'<nav aria-label="On this page"><ul>{contents}</ul></nav></header>',
        '<main id="main">',
        _section("look-at", _to_look_at(students)),
        _section("marks", _marks(students, numbers)),
        _section("exercises", _exercises(students, numbers)),
        _section("mistakes", _mistakes(students)),
        "</main>",
    ]
    return document("Grades of the class", "To the results", "\n".join(body), SORT, wide=True)


def _section(place: str, content: str) -> str:
    return f'<section aria-labelledby="{place}"><h2 id="{place}">{SECTIONS[place]}</h2>\n{content}\n</section>'


def _in_short(students: list[Student], numbers: list[str]) -> str:
    handed = [student.points for student in students if student.handed_in]
    most = points_in_all(numbers)
    told = f"{_count(len(students), 'student')}, {_count(len(numbers), 'exercise')}, {most} points to earn."
    if not handed:
        return f"{told} Nobody has handed in anything that could be graded."
    spread = f"median {statistics.median(handed):g}, from {min(handed)} to {max(handed)}"
    return f"{told} Of those who handed in: mean {mean(handed):.1f}, {spread}."


def _to_look_at(students: list[Student]) -> str:
    """What a person should decide or ask about."""
    flagged = [
        f"<li>{link(student.name)}: {name(flag.where)}, {plain(flag.what)}</li>"
        for student in students
        for flag in student.flags
    ]
    problems = [
        f"<li>{link(student.name)}: {name(record.notebook)}: {with_code(record.problem)}</li>"
        for student in students
        if student.handed_in
        for record in student.records
        if record.problem
    ]
    nothing = [f"<li>{link(student.name)}{_why_nothing(student)}</li>" for student in students if not student.handed_in]
    untried = [
        f"<li>{link(student.name)}</li>"
        for student in students
        if student.handed_in and not any(map(student.tried, student.marks)) and not _problems(student)
    ]
    found = [
        _list(
            "Flagged", "The clock stopped these twice; they are tried again the next time, and may earn more.", flagged
        ),
        _list("Problems with a whole notebook", "", problems),
        _list("Nothing handed in", "", nothing),
        _list("Handed in as it was given out", "No exercise was tried.", untried),
    ]
    return "\n".join(filter(None, found)) or "<p>Nothing: no flags, no problems, and everybody has handed in.</p>"


def _list(title: str, why: str, items: list[str]) -> str:
    if not items:
        return ""
    said = f'<p class="quiet">{why}</p>' if why else ""
    return f"<details open><summary><b>{title}</b>: {len(items)}</summary>{said}\n<ul>{''.join(items)}</ul></details>"


def _problems(student: Student) -> str:
    return " ".join(record.problem for record in student.records if record.problem)


def _why_nothing(student: Student) -> str:
    return f": {with_code(_problems(student))}" if _problems(student) else ""


def _marks(students: list[Student], numbers: list[str]) -> str:
    if not students:
        return "<p>There are no students.</p>"
    most = points_in_all(numbers)
    heads = [f'<th scope="col">{word}</th>' for word in (*numbers, f"total of {most}", "%")]
    heads.append('<th scope="col" class="words">flagged</th>')
    rows = "\n".join(_row(student, numbers, most) for student in students)
    return (
        '<p class="quiet" id="marks-legend">An exercise that was not tried has a dash, one without a notebook '
        "nothing; a star means that a clock decided a part of it.</p>\n"
        '<div class="scroll" role="region" aria-label="Table of marks" aria-describedby="marks-legend" tabindex="0">\n'
        f'<table class="sortable"><caption class="hidden">Points of each student</caption>\n'
        f'<thead><tr><th scope="col" aria-sort="ascending">student</th>{"".join(heads)}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n{_means(students, numbers)}</table></div>"
    )


def _row(student: Student, numbers: list[str], most: int) -> str:
    cells = []
    for number in numbers:
        mark = student.marks.get(number)
        earned = "" if mark is None else LEFT_OUT if not mark.attempted else str(mark.points)
        cells.append(f"<td>{earned}{'*' if mark and mark.by_clock else ''}</td>")
    share = f"{100 * student.points // most}" if most else ""
    flags = "; ".join(f"{flag.where}: {flag.what}" for flag in student.flags)
    cells += [f"<td><b>{student.points}</b></td>", f"<td>{share}</td>", f'<td class="words">{plain(flags)}</td>']
    return f'<tr><th scope="row">{link(student.name)}</th>{"".join(cells)}</tr>'


def _means(students: list[Student], numbers: list[str]) -> str:
    """Of those who have tried an exercise, and of those who have handed in."""
    tried = [[student.marks[number].points for student in students if student.tried(number)] for number in numbers]
    totals = [student.points for student in students if student.handed_in]
    cells = [f"<td>{mean(earned):.1f}</td>" if earned else "<td></td>" for earned in (*tried, totals)]
    return f'<tfoot><tr><th scope="row">mean of those who tried</th>{"".join(cells)}<td></td><td></td></tr></tfoot>'


def _exercises(students: list[Student], numbers: list[str]) -> str:
    if not numbers:
        return "<p>Nothing was graded.</p>"
    totals = bars(totals_distribution(students, points_in_all(numbers)), "percent of all points", "no notebook")
    said = '<p class="quiet">Students by percent of all points; with a dash, those without a notebook.</p>'
    cards = [f"<section><h3>All of it</h3>{totals}{said}</section>"]
    cards += [_card(students, number) for number in numbers]
    return f'<div class="cards">\n{"".join(cards)}\n</div>'


def _card(students: list[Student], number: str) -> str:
    exercise = exercises()[number]
    marks = [student.marks[number] for student in students if student.tried(number)]
    drawn = bars(points_distribution(students, number), "points", "not tried")
    parts = "".join(
        f"<li>{plain(part)}: {sum(part not in lost_parts(mark) for mark in marks)}</li>" for part in exercise.parts
    )
    return (
        f'<section id="{anchor(number)}"><h3>{number} {plain(exercise.title)}</h3>\n{drawn}\n'
        f'<p class="quiet">Mean {mean([mark.points for mark in marks]):.1f} of {exercise.points}; '
        f"{len(marks)} of {len(students)} tried it.</p>\n"
        f"<details><summary>Who got which part{hidden(f' of {number}')}</summary><ul>{parts}</ul></details></section>"
    )


def _mistakes(students: list[Student]) -> str:
    made = mistakes(students)
    named = "\n".join(_mistake(each) for each in made if each.cause)
    others = "\n".join(_mistake(each) for each in made if not each.cause)
    text = named or "<p>No mistake was made that has a name.</p>"
    return f"{text}\n<h3>Without a name</h3>\n{others}" if others else text


def _mistake(mistake: Mistake) -> str:
    title = plain(exercises()[mistake.number].title)
    said = f"<br>{with_code(mistake.cause)}" if mistake.cause else ""
    students = "".join(f"<li>{link(student, mistake.number)}</li>" for student in mistake.students)
    return (
        f'<details><summary><span class="count">{_count(len(mistake.students), "student")}</span> · '
        f'{mistake.number} {title}{said}</summary>\n<ul class="names">{students}</ul></details>'
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
