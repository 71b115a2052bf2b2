"""The messages between a learner and the class: kinds of events, limits on size and number, and what is refused.

A learner posts `{"code", "name"}` to /join and gets `{"learner", "secret", "class", "name"}`. On /channel, with that
secret, the learner sends `{"events": [...]}` and the class answers with any of `kept` (ids), `refused` (reasons by id),
`slowed` (a sentence) and `state` (the current question, learners' questions, where the class is, whether this learner's
hand is up). While `state` has a `trouble`, the class cannot save anything: it accepts no events, and the learner sends
them again later. A phone's browser does the same with a cookie instead of a secret that its page could read.

Events are untrusted: we remove control characters, cut long texts, and accept only numbers and headings that the course
has. The record stores the cleaned event.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_lib.classroom.content import Content

Event = dict[str, Any]

LONGEST_NAME = 60  # characters
LONGEST_TEXT = 600  # characters of a part or a mistake
LONGEST_SOURCE = 20_000  # characters of a shown cell
LONGEST_QUESTION = 280  # characters of a learner's question
MOST_IN_A_MESSAGE = 500  # events
LARGEST_MESSAGE = 1 << 20  # bytes

# Limits per learner and in total. In a two-day class, each learner sends a few hundred events.
EVENTS_A_SECOND, BURST = 40, 1000  # after the burst, events are accepted at this rate
BYTES_A_SECOND, BURST_OF_BYTES = 64 << 10, 2 << 20  # and so are the bytes of their messages
MOST_EVENTS = 10_000  # per learner
MOST_BYTES = 4 << 20  # per learner, while the record is less than half full
MOST_BYTES_IN_ALL = 1 << 30  # in the record; its second half is divided equally among `MOST_LEARNERS`
MOST_LEARNERS = 2000  # who can come back; beyond that, the absent learner who did the least has to join again
MOST_CHANNELS = 8  # per learner: a desk, a phone, and tabs that were left open
MOST_QUESTIONS = 5  # unanswered questions per learner
MOST_CHANNELS_IN_ALL = 1900  # fewer than learners, so that someone can always make room

UNKNOWN_SECRET = 4401  # close code after which a learner must join again
ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


class Refused(ValueError):
    """The event is rejected, and resending will not help; the message says why."""


def clean_text(text: Any, longest: int = LONGEST_TEXT, *, lines: bool = False) -> str:
    """Return user text on one line, without control characters and bidirectional overrides."""
    if not isinstance(text, str):
        return ""
    text = text[: longest if lines else 4 * longest]
    allowed = "\n\t" if lines else ""
    if not text.translate(dict.fromkeys(map(ord, allowed))).isprintable():  # most texts are
        text = "".join(letter if _is_written(letter) or letter in allowed else " " for letter in text)
    return text if lines else " ".join(text.split())[:longest]


def _is_written(letter: str) -> bool:
    return unicodedata.category(letter)[0] != "C" and letter not in "\u2028\u2029"


def event_id(event: Any) -> str:
    """Return an event's id. Raises `Refused` if it has none."""
    found = event.get("id") if isinstance(event, dict) else None
    if not isinstance(found, str) or not ID.fullmatch(found):
        raise Refused("an event needs an id, a string of 32 hexadecimal digits")
    return found


def clean(event: Any, content: Content) -> Event:
    """Return the cleaned event. Raises `Refused` with the reason if it is not valid."""
    identity = event_id(event)
    kind = event.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise Refused(f"an event is one of {', '.join(KINDS)}")
    return {"id": identity, "kind": kind, "at": _time(event.get("at")), **KINDS[kind](event, content)}


def _time(value: Any) -> float:
    seconds = _number(value)
    return seconds if 0 <= seconds < 1e11 else 0.0


def _number(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, (int, float)) else 0.0
    except OverflowError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _predicted(event: Event, content: Content) -> Event:
    number = _question(event, content)
    return {"number": number, "said": answer(number, event.get("said"), content)}


def _revealed(event: Event, content: Content) -> Event:
    number, said = _question(event, content), event.get("said")
    kept = None if said is None else answer(number, said, content)
    return {"number": number, "said": kept, "right": event.get("right") is True}


def _checked(event: Event, content: Content) -> Event:
    number = event.get("number")
    exercise = content.exercises.get(number) if isinstance(number, str) else None
    if exercise is None:
        raise Refused(f"there is no exercise {clean_text(number, 20)!r}")
    part = event.get("part")
    return {
        "number": exercise.number,
        "passed": event.get("passed") is True,
        "points": min(max(_number(event.get("points")), 0.0), float(exercise.points)),
        "part": part if isinstance(part, str) and part in exercise.parts else "",
        "mistake": clean_text(event.get("mistake")),
    }


def _reached(event: Event, content: Content) -> Event:
    lesson = event.get("lesson")
    if not isinstance(lesson, str) or lesson not in content.sections:
        return {"lesson": "", "section": ""}
    return {"lesson": lesson, "section": content.section(lesson, clean_text(event.get("section")))}


def _answered(event: Event, _: Content) -> Event:
    """Leave `said` unchecked: the caller knows the question and checks with `answer`."""
    asked = event.get("asked")
    if not isinstance(asked, str) or not ID.fullmatch(asked):
        raise Refused("an answer must name its question")
    return {"asked": asked, "said": event.get("said")}


def _stuck(event: Event, content: Content) -> Event:
    return {"on": event.get("on") is True, **_reached(event, content)}


def _slower(_: Event, __: Content) -> Event:
    return {}


def _done(event: Event, _: Content) -> Event:
    return {"on": event.get("on") is True}


def _wondered(event: Event, content: Content) -> Event:
    text = clean_text(event.get("text"), LONGEST_QUESTION)
    if not text:
        raise Refused("write a question first")
    return {"text": text, **_reached(event, content)}


def _seconded(event: Event, _: Content) -> Event:
    question = event.get("question")
    if not isinstance(question, str) or not ID.fullmatch(question):
        raise Refused("a vote must name its question")
    return {"question": question, "on": event.get("on") is True}


def _showed(event: Event, content: Content) -> Event:
    source = clean_text(event.get("source"), LONGEST_SOURCE, lines=True)
    if not source.strip():
        raise Refused("there is nothing in the cell to show")
    return {"source": source, **_reached(event, content)}


def _question(event: Event, content: Content) -> str:
    number = event.get("number")
    if not isinstance(number, str) or number not in content.questions:
        raise Refused(f"there is no prediction {clean_text(number, 20)!r}")
    return number


def answer(number: str, said: Any, content: Content) -> Any:
    """Return the answer as the record stores it: a letter or a number. Raises `Refused` for anything else."""
    try:
        return content.questions[number].answer_of(said[:40] if isinstance(said, str) else said)
    except (ValueError, OverflowError) as error:
        raise Refused(clean_text(str(error), 200)) from None


KINDS: dict[str, Callable[[Event, Content], Event]] = {
    "predicted": _predicted,
    "revealed": _revealed,
    "checked": _checked,
    "reached": _reached,
    "answered": _answered,
    "stuck": _stuck,
    "slower": _slower,
    "done": _done,
    "wondered": _wondered,
    "seconded": _seconded,
    "showed": _showed,
}
