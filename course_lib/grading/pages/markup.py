"""HTML that is safe to open: every text from a student is only text, and a page can ask for nothing."""

from __future__ import annotations

import base64
import hashlib
from urllib.parse import quote

from course_lib.checks.markup import plain, with_code
from course_lib.grading.pages.looks import style
from course_lib.grading.submissions import file_name


def name(words: str) -> str:
    """A name that somebody chose: its writing direction ends with it."""
    return f"<bdi>{plain(words)}</bdi>"


def points(earned: int, most: int) -> str:
    return f'<span class="points">{earned} of {most}</span>'


def hidden(words: str) -> str:
    """What the eye sees by a sign or by its place, for those who hear the page."""
    return f'<span class="hidden">{words}</span>'


def count_of(number: int, what: str) -> str:
    """1 student, 2 students."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def in_a_list(words: str) -> str:
    """No more of a sentence than a list has room for; all of it is on the student's own page."""
    return with_code(_shortened(words, 300))


def _shortened(words: str, longest: int) -> str:
    return words if len(words) <= longest else f"{words[:longest]}…"


def page_name(student: str) -> str:
    """The file name of a student's page."""
    return f"{file_name(student)}.html"


def link(student: str, exercise: str = "") -> str:
    """From the page of the class to a student's, or to an exercise on it."""
    place = f"#{anchor(exercise)}" if exercise else ""
    return f'<a href="pages/{quote(page_name(student), safe="~")}{place}">{name(_shortened(student, 60))}</a>'


def anchor(exercise: str) -> str:
    """Where an exercise is on a page."""
    return f"exercise-{exercise.replace('.', '-')}"


def document(title: str, skip_to: str, body: str, script: str = "", *, wide: bool = False) -> str:
    """A whole page. It may use its own style and script, which it knows by their digests, and nothing else."""
    look = style(wide=wide)
    allowed = ["default-src 'none'", f"style-src {_digest(look)}", "base-uri 'none'", "form-action 'none'"]
    allowed += [f"script-src {_digest(script)}"] if script else []
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(allowed)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{plain(title)}</title>",
        f"<style>{look}</style>",
    ]
    kind = ' class="wide"' if wide else ""
    skip = f'<a class="skip" href="#main">{skip_to}</a>'
    end = f"<script>{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n'
        + "\n".join(head)
        + f"\n</head>\n<body{kind}>\n{skip}\n{body}\n{end}"
        "</body>\n</html>\n"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
