"""What to say in a section, and what goes wrong there: written once, in docs/teaching/notes, by lesson and heading."""

from __future__ import annotations

import re

from course_lib.course_files import course_folder

OPENING = "Before you begin"  # the heading of what concerns the whole lesson


def read_notes(lesson: str) -> dict[str, str]:
    """The notes of a lesson by the heading of their section; none if nobody has written any."""
    path = course_folder() / "docs" / "teaching" / "notes" / f"{lesson}.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    pieces = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return {heading.strip(): body.strip() for heading, body in zip(pieces[::2], pieces[1::2], strict=True)}
