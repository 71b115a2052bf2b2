"""The learner's side of a class: to join one, to tell it what happens on this desk, and to leave it.

What is told lies in the desk's outbox until the class has kept it. Where no class was joined, nothing is written and
nothing is started.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path
from typing import Any

from course_lib.classroom.learner.class_file import CannotJoin, Membership, forget, read
from course_lib.course_files import desk_folder

__all__ = [
    "CannotJoin",
    "Membership",
    "class_question",
    "is_member",
    "join",
    "join_class",
    "leave",
    "leave_class",
    "membership",
    "news",
    "tell",
    "welcome",
]

SENT = "Sent to the class: predictions, results of checks, the section you are in, and the buttons you press."
NEVER_SENT = "Never your code, unless you press “Show my cell”."
NOT_A_LEARNER = ("PYTEST_CURRENT_TEST", "NBGRADER_EXECUTION")  # nbval and nbgrader run notebooks, too


def join_class(url: str, code: str = "", name: str = "") -> None:
    """Join the class at this address, with the code and the name that you give, and say what will be sent."""
    print(welcome(join(url, code, name)))


def leave_class() -> None:
    """Leave the class: from now on, nothing is sent."""
    left = leave()
    print(f"You have left {left.title}: nothing is sent any more." if left else "You are in no class.")


def class_question(answer: Any = None) -> None:
    """Show what the class is asked, and answer it: below, or with `class_question("b")`; later, what the class said."""
    from course_lib.classroom.learner.question import show_question

    show_question(answer)


def join(url: str, code: str = "", name: str = "", *, folder: Path | None = None, stay: bool = True) -> Membership:
    """Join a class from a desk and, if we `stay`, begin to send what is told. Whoever is in it already stays the same.

    Raises `CannotJoin` with the reason.
    """
    folder = folder or desk_folder()
    known = read(folder)
    if known is None or not is_member(url, folder):
        from course_lib.classroom.learner.joining import ask_to_join

        known = ask_to_join(url, code, name)
        try:
            known.write(folder)
        except OSError as error:
            raise CannotJoin(f"the class cannot be noted down in {folder}: {error.strerror}") from error
    if stay:
        from course_lib.classroom.learner.channel import start_channel

        start_channel(folder)
    return known


def is_member(url: str, folder: Path) -> bool:
    """Whether this desk is in the class at this address, as far as is known. Raises `CannotJoin` if that is none."""
    from course_lib.classroom.learner.joining import tidy_address

    known = read(folder)
    return known is not None and known.url == tidy_address(url)[0] and not news(folder).get("unknown")


def leave(folder: Path | None = None) -> Membership | None:
    """Leave the class that this desk is in, and drop what was not yet sent. Returns what was left."""
    folder = folder or desk_folder()
    left = read(folder)
    forget(folder)
    if left is not None:
        from course_lib.classroom.learner.outbox import Outbox

        with contextlib.suppress(Exception), Outbox.of(folder) as outbox:  # it is not sent in any case
            outbox.clear()
    return left


def membership(folder: Path | None = None) -> Membership | None:
    """The class that this desk is in, if it is in one."""
    return read(folder or desk_folder())


def news(folder: Path | None = None) -> dict[str, Any]:
    """What the class has last said: its `state`, whether it is `reached`; nothing if there is no class."""
    folder = folder or desk_folder()
    member = read(folder)
    if member is not None:
        from course_lib.classroom.learner.outbox import Outbox

        with contextlib.suppress(Exception), Outbox.of(folder) as outbox:
            return outbox.news(member.learner)
    return {}


def tell(kind: str, folder: Path | None = None, **facts: Any) -> str:
    """Put an event into the desk's outbox; returns its id, or "" where there is no class. Never fails, never waits for
    the class.
    """
    if any(name in os.environ for name in NOT_A_LEARNER):
        return ""
    with contextlib.suppress(Exception):  # a lesson goes on, whatever has become of the class
        folder = folder or desk_folder()
        member = read(folder)
        if member is not None:
            return _put(folder, member, {"id": uuid.uuid4().hex, "kind": kind, "at": time.time(), **facts})
    return ""


def welcome(joined: Membership) -> str:
    """What somebody is told who has joined."""
    return f"You are in {joined.title}. {SENT} {NEVER_SENT} {joined.warning}".rstrip()


def _put(folder: Path, member: Membership, event: dict[str, Any]) -> str:
    from course_lib.classroom.learner.channel import start_channel
    from course_lib.classroom.learner.outbox import Outbox

    with Outbox.of(folder) as outbox:
        outbox.put(member.learner, event)
    start_channel(folder)
    return event["id"]
