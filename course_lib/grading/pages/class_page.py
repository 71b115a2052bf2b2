"""The page of a class: whom to look at, all marks, how each exercise went, and which mistakes were made by whom."""

from __future__ import annotations

import statistics

from course_lib.checks import exercises
from course_lib.checks.markup import plain, with_code
from course_lib.grading.pages.attention import to_look_at
from course_lib.grading.pages.drawing import bars
from course_lib.grading.pages.looks import SORT
from course_lib.grading.pages.markup import anchor, count_of, document, hidden, in_a_list, link
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
LEGEND = (
    "An exercise that was not tried has a dash, one without a notebook nothing; "
    "a star means that a clock decided a part of it."
)


def class_page(records: list[Record]) -> str:
    """The whole page, with a link to each student's."""
    students, numbers = by_student(records), exercises_of(records)
    contents = "".join(f'<li><a href="#{place}">{title}</a></li>' for place, title in SECTIONS.items())
    contents += '<li><a href="grades.csv">grades.csv</a></li>'
    body = [
        f"<header><h1>Grades of the class</h1>\n<p>{_in_short(students, numbers)}</p>",
        f'<nav aria-label="On this page"><ul>{contents}</ul></nav></header>',
        '<main id="main">',
        _section("look-at", to_look_at(students)),
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
    most = count_of(points_in_all(numbers), "point")
    told = f"{count_of(len(students), 'student')}, {count_of(len(numbers), 'exercise')}, {most} to earn."
    if not handed:
        return f"{told} Nobody has handed in anything that could be graded."
    spread = f"median {statistics.median(handed):g}, from {min(handed)} to {max(handed)}"
    return f"{told} Of those who handed in: mean {mean(handed):.1f}, {spread}."


def _marks(students: list[Student], numbers: list[str]) -> str:
    """The table, in the order of the names; a script lets it be sorted by any column."""
    if not students:
        return "<p>There are no students.</p>"
    most = points_in_all(numbers)
    first = '<th scope="col" aria-sort="ascending">student</th>'
    others = (f"total of {most}", "%", *numbers, "flagged")
    heads = first + "".join(f'<th scope="col">{word}</th>' for word in others)
    rows = "\n".join(_row(student, numbers, most) for student in students)
    return (
        f'<p class="quiet" id="legend">{LEGEND}</p>\n'
        '<div class="scroll" role="region" aria-label="Table of marks" aria-describedby="legend" tabindex="0">\n'
        '<table class="sortable"><caption class="hidden">Points of each student</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n{_means(students, numbers)}</table></div>"
    )


def _row(student: Student, numbers: list[str], most: int) -> str:
    share = f"{100 * student.points / most:.0f}" if most else ""
    cells = [f"<td><b>{student.points}</b></td><td>{share}</td>"]
    for number in numbers:
        mark = student.marks.get(number)
        earned = "" if mark is None else str(mark.points) if mark.attempted else LEFT_OUT
        cells.append(f"<td>{earned}{'*' if mark and mark.by_clock else ''}</td>")
    flags = ", ".join(flag.where for flag in student.flags)
    cells.append(f'<td class="words">{in_a_list(flags)}</td>')
    return f'<tr><th scope="row">{link(student.name)}</th>{"".join(cells)}</tr>'


def _means(students: list[Student], numbers: list[str]) -> str:
    """Of those who have tried an exercise, and of those who have handed in."""
    tried = [[student.marks[number].points for student in students if student.tried(number)] for number in numbers]
    totals = [student.points for student in students if student.handed_in]
    means = [f"{mean(earned):.1f}" if earned else "" for earned in (totals, *tried)]
    cells = "".join(f"<td>{words}</td>" for words in (means[0], "", *means[1:], ""))
    return f'<tfoot><tr><th scope="row">mean of those who tried</th>{cells}</tr></tfoot>'


def _exercises(students: list[Student], numbers: list[str]) -> str:
    if not numbers:
        return "<p>Nothing was graded.</p>"
    said = '<p class="quiet">Students by percent of all points; with a dash, those without a notebook.</p>'
    totals = bars(totals_distribution(students, points_in_all(numbers)))
    cards = [f"<section><h3>All exercises</h3>\n{totals}\n{said}</section>"]
    cards += [_card(students, number) for number in numbers]
    return '<div class="cards">\n' + "\n".join(cards) + "\n</div>"


def _card(students: list[Student], number: str) -> str:
    exercise = exercises()[number]
    marks = [student.marks[number] for student in students if student.tried(number)]
    earned = f"Mean {mean([mark.points for mark in marks]):.1f} of {exercise.points}; " if marks else ""
    right = {part: sum(part not in lost_parts(mark) for mark in marks) for part in exercise.parts}
    parts = "".join(f"<li>{plain(part)}: {count} of {len(marks)}</li>" for part, count in right.items())
    return (
        f'<section id="{anchor(number)}"><h3>{number} {plain(exercise.title)}</h3>\n'
        f"{bars(points_distribution(students, number))}\n"
        f'<p class="quiet">{earned}{len(marks)} of {len(students)} tried it.</p>\n'
        f"<details><summary>Part by part{hidden(f' in {number}')}</summary><ul>{parts}</ul></details></section>"
    )


def _mistakes(students: list[Student]) -> str:
    made = mistakes(students)
    known = "\n".join(_mistake(each) for each in made if each.cause)
    others = "\n".join(_mistake(each) for each in made if not each.cause)
    text = known or "<p>Nobody made a mistake that is known.</p>"
    return f"{text}\n<h3>Points lost, and no known mistake fits</h3>\n{others}" if others else text


def _mistake(mistake: Mistake) -> str:
    """How often, in which exercise, what it is; and who made it. Without a cause, what each was told."""
    count = f'<span class="count">{count_of(len(mistake.students), "student")}</span>'
    title = f"{count} · {mistake.number} {plain(exercises()[mistake.number].title)}"
    links = {student: link(student, mistake.number) for student in mistake.students}
    if mistake.cause:
        title += f' <span class="cause">{with_code(mistake.cause)}</span>'
        names = "\n".join(f"<li>{links[student]}</li>" for student in links)
        return f'<details><summary>{title}</summary>\n<ul class="names">{names}</ul></details>'
    told = "\n".join(f"<li>{links[student]}: {in_a_list(words)}</li>" for student, words in mistake.students.items())
    return f"<details><summary>{title}</summary>\n<ul>{told}</ul></details>"
