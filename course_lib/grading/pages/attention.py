"""What the page of a class asks a person to look at: flags, problems, and who handed in nothing."""

from __future__ import annotations

from course_lib.grading.pages.markup import in_a_list, link, name
from course_lib.grading.pages.summary import Student

SHORT = 12  # a list that may stand open
FLAGGED = "The clock stopped these twice. They are tried again the next time the class is graded, and may earn more."


def to_look_at(students: list[Student]) -> str:
    """A list for each kind, or that there is nothing."""
    handed_in = [student for student in students if student.handed_in]
    nothing = [f"{link(each.name)}{_why_nothing(each)}" for each in students if not each.handed_in]
    untried = [link(each.name) for each in handed_in if not each.problems and not any(map(each.tried, each.marks))]
    found = [
        _list("Flagged", [f"{link(each.name)}: {_why_flagged(each)}" for each in students if each.flags], FLAGGED),
        _list("Problems with a whole notebook", [line for each in handed_in for line in _problems(each)]),
        _list("Nothing handed in", nothing),
        _list("Handed in as it was given out", untried, "No exercise was tried."),
    ]
    return "\n".join(filter(None, found)) or "<p>Nothing: no flags, no problems.</p>"


def _list(title: str, lines: list[str], why: str = "") -> str:
    if not lines:
        return ""
    begin = "<details open>" if len(lines) <= SHORT else "<details>"
    said = f'<p class="quiet">{why}</p>' if why else ""
    items = "\n".join(f"<li>{line}</li>" for line in lines)
    return f"{begin}<summary><b>{title}</b>: {len(lines)}</summary>{said}\n<ul>{items}</ul></details>"


def _why_flagged(student: Student) -> str:
    return in_a_list("; ".join(f"{flag.where} ({flag.what})" for flag in student.flags))


def _problems(student: Student) -> list[str]:
    troubled = [record for record in student.records if record.problem]
    return [f"{link(student.name)}, {name(record.notebook)}: {in_a_list(record.problem)}" for record in troubled]


def _why_nothing(student: Student) -> str:
    return f": {in_a_list(' '.join(student.problems))}" if student.problems else ""
