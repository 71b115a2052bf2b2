"""The instructor's actions: what each needs, and what the record stores."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from course_lib.classroom.protocol import Event, Refused
from course_lib.classroom.server.members import Members
from course_lib.classroom.server.tally import ROUNDS, Tally

LONGEST_COUNTDOWN = 3600  # seconds


def action(kind: str, details: dict[str, Any], tally: Tally, members: Members) -> Event:
    """Return what the record stores about an action, besides its kind and time. Raises `Refused` with the reason."""
    return ACTIONS[kind](details, tally, members)


def _ask(details: dict[str, Any], tally: Tally, _: Members) -> Event:
    number, round_ = _text(details, "number"), _text(details, "round")
    if number not in tally.content.questions or round_ not in ROUNDS:
        raise Refused("ask a prediction by its number, like 06.2, in the round before or after")
    return {"asked": secrets.token_hex(16), "number": number, "round": round_, "ends": _ends(details)}


def _asking(details: dict[str, Any], tally: Tally, _: Members) -> Event:
    if _text(details, "asked") not in tally.askings:
        raise Refused("that was never asked")
    return {"asked": details["asked"]}


def _discuss(details: dict[str, Any], tally: Tally, members: Members) -> Event:
    return {**_asking(details, tally, members), "ends": _ends(details)}


def _lower(details: dict[str, Any], _: Tally, members: Members) -> Event:
    if _text(details, "learner") not in members:
        raise Refused("there is no such learner in the class")
    return {"learner": details["learner"]}


def _settle(details: dict[str, Any], tally: Tally, _: Members) -> Event:
    if _text(details, "question") not in tally.questions:
        raise Refused("nobody has asked that")
    return {"question": details["question"]}


def _show(details: dict[str, Any], tally: Tally, members: Members) -> Event:
    """Put a learner's cell or question on the projector, or clear the projector if neither is named."""
    if "question" in details:
        return _settle(details, tally, members)
    if "learner" not in details:
        return {}
    hand = tally.hands.get(_text(details, "learner"))
    if hand is None or not hand.source:
        raise Refused("this learner has not shown a cell")
    return {"source": hand.source}


def _go(details: dict[str, Any], tally: Tally, _: Members) -> Event:
    lesson, section = _text(details, "lesson"), _text(details, "section")
    if section not in tally.content.sections.get(lesson, ()):
        raise Refused("call everyone to a section of a lesson, by its heading")
    return {"lesson": lesson, "section": section}


def _nothing(_: dict[str, Any], __: Tally, ___: Members) -> Event:
    return {}


def _text(details: dict[str, Any], name: str) -> str:
    value = details.get(name)
    return value if isinstance(value, str) else ""


def _ends(details: dict[str, Any]) -> float:
    """Return when a countdown of `seconds` ends; 0.0 without one."""
    seconds = details.get("seconds") or 0
    if not isinstance(seconds, (int, float)) or not 0 <= seconds <= LONGEST_COUNTDOWN:
        raise Refused(f"a countdown has 0 to {LONGEST_COUNTDOWN} seconds")
    return time.time() + seconds if seconds else 0.0


ACTIONS: dict[str, Callable[[dict[str, Any], Tally, Members], Event]] = {
    "ask": _ask,
    "close": _asking,
    "discuss": _discuss,
    "reveal": _asking,
    "lower": _lower,
    "faster": _nothing,
    "fresh": _nothing,
    "settle": _settle,
    "show": _show,
    "go": _go,
}
