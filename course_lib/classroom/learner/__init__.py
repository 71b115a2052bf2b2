"""The learner's side of a class: join it, send it events from this desk, and leave it.

Events wait in the desk's outbox until the class has saved them. Without a class, nothing is written and nothing is
started.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path
from typing import Any

from course_lib.classroom.learner.class_file import CannotJoin, Membership, forget, read
from course_lib.runtime.course_files import desk_folder

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
    """Join the class at this address with this code and name, and print what will be sent."""
    print(welcome(join(url, code, name)))


def leave_class() -> None:
    """Leave the class. Nothing is sent from now on."""
    left = leave()
    print(f"You have left {left.title}: nothing more is sent." if left else "You are not in a class.")


def class_question(answer: Any = None) -> None:
    """Show the current question; answer it below, or with `class_question("b")`. Later, show the class's answers."""
    from course_lib.classroom.learner.question import show_question

    show_question(answer)


def join(url: str, code: str = "", name: str = "", *, folder: Path | None = None, stay: bool = True) -> Membership:
    """Join a class from a desk and, with `stay`, start sending events. A desk that is already a member stays one.

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
            raise CannotJoin(f"the membership cannot be saved in {folder}: {error.strerror}") from error
    if stay:
        from course_lib.classroom.learner.channel import start_channel

        start_channel(folder)
    return known


def is_member(url: str, folder: Path) -> bool:
    """Whether this desk is in the class at this address, as far as we know. Raises `CannotJoin` for a bad address."""
    from course_lib.classroom.learner.joining import tidy_address

    known = read(folder)
    return known is not None and known.url == tidy_address(url)[0] and not news(folder).get("unknown")


def leave(folder: Path | None = None) -> Membership | None:
    """Leave this desk's class and drop unsent events. Returns the former membership."""
    folder = folder or desk_folder()
    left = read(folder)
    forget(folder)
    if left is not None:
        from course_lib.classroom.learner.outbox import Outbox

        with contextlib.suppress(Exception), Outbox.of(folder) as outbox:  # nothing will be sent even if this fails
            outbox.clear()
    return left


def membership(folder: Path | None = None) -> Membership | None:
    """Return this desk's membership, or None."""
    return read(folder or desk_folder())


def news(folder: Path | None = None) -> dict[str, Any]:
    """Return the latest news from the class: its `state`, and whether it is `reached`; empty without a class."""
    folder = folder or desk_folder()
    member = read(folder)
    if member is not None:
        from course_lib.classroom.learner.outbox import Outbox

        with contextlib.suppress(Exception), Outbox.of(folder) as outbox:
            return outbox.news(member.learner)
    return {}


def tell(kind: str, folder: Path | None = None, **facts: Any) -> str:
    """Put an event into the desk's outbox and return its id, or "" without a class. Never raises, and never waits for
    the class.
    """
    if any(name in os.environ for name in NOT_A_LEARNER):
        return ""
    with contextlib.suppress(Exception):  # a problem with the class must not stop a lesson
        folder = folder or desk_folder()
        member = read(folder)
        if member is not None:
            return _put(folder, member, {"id": uuid.uuid4().hex, "kind": kind, "at": time.time(), **facts})
    return ""


def welcome(joined: Membership) -> str:
    """Return the message for a learner who has just joined."""
    return f"You are in {joined.title}. {SENT} {NEVER_SENT} {joined.warning}".rstrip()


def _put(folder: Path, member: Membership, event: dict[str, Any]) -> str:
    from course_lib.classroom.learner.channel import start_channel
    from course_lib.classroom.learner.outbox import Outbox

    with Outbox.of(folder) as outbox:
        outbox.put(member.learner, event)
    start_channel(folder)
    return event["id"]
