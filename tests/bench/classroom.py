"""A class of 200 learners who each send 20 events a second, and one of 200 desks and 100 phones that send 10: what is
lost, and how long an acknowledgement takes.

The server is `course class` itself; the learners are real WebSockets in another process; the instructor's page follows
all the while. The second class has 20 learners more who send and never read, and 20 who vanish without a word.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.classroom.content import content
from course_lib.classroom.server.record import read_events
from tests.bench.table import describe_machine, write_section
from tests.bench.wire import Wire, wire
from tests.classroom.serving import Served, ask, class_in_a_process, event_of

SECONDS = 60
SILENT, VANISHING = 20, 20
SETTLE = 30.0  # seconds for what is still on the way


@dataclass(frozen=True)
class Load:
    """Who is in a class, and how many events each of the good ones sends a second."""

    desks: int
    rate: int
    phones: int = 0
    silent: int = 0
    vanishing: int = 0


@dataclass
class Seen:
    """What came out of a class."""

    sent: dict[str, float] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)  # from sending to the acknowledgement
    kept: set[str] = field(default_factory=set)
    snapshots: int = 0
    dropped: int = 0  # good learners who were cut off
    late: float = 0.0  # the most that a sender was behind its own plan: of the load, not of the server

    def hear(self, message: bytes) -> None:
        """What the class says to one of the good ones."""
        now = time.monotonic()
        for event in json.loads(message).get("kept", ()):
            self.kept.add(event)
            self.waits.append(now - self.sent[event])


def main() -> None:
    """Both classes, and the table."""
    rows = [
        row("200 desks, 20 a second", *hold(Load(200, 20))),
        row("and 40 bad ones", *hold(Load(200, 20, silent=SILENT, vanishing=VANISHING))),
        row("200 desks and 100 phones, 10 a second", *hold(Load(200, 10, phones=100))),
    ]
    write_section(
        "Class",
        f"Learners on real WebSockets, each sending so many events a second for {SECONDS} s, one in a message, from a "
        "second process on the same machine; the instructor's page follows. From sending an event to the "
        f"acknowledgement, which comes when it is on the disk. Bad ones: {SILENT} that send and never read, "
        f"{VANISHING} that vanish without a word. Phones join by the page, with a cookie, and vote for questions that "
        "everyone sees. Lost: sent, and not acknowledged or not in the record.\n\n"
        f"On {describe_machine()}.\n\n"
        "| class | sent | lost | median, ms | p99, ms | longest, ms | snapshots | server's work for an event, µs |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|\n" + "\n".join(rows),
    )


def hold(load: Load) -> tuple[Seen, int, float]:
    """Hold a class: what its good learners saw, how many events were lost, and the server's seconds of work."""
    with tempfile.TemporaryDirectory() as folder, class_in_a_process(Path(folder, "class.db")) as served:
        assert served.process is not None
        worked = cpu_seconds(served.process.pid)
        seen = asyncio.run(play(served, load))
        worked = cpu_seconds(served.process.pid) - worked
        recorded = {event["id"] for learner, event in read_events(Path(folder, "class.db")) if learner}
    return seen, len(seen.sent.keys() - (recorded & seen.kept)), worked


async def play(served: Served, load: Load) -> Seen:
    seen = Seen()
    gc.freeze()  # the pauses of the load are not the server's
    await served.log_in()
    desks = [await enter(served, f"learner {place} of the load", seen.hear) for place in range(load.desks)]
    phones = [await enter(served, f"phone {place}", seen.hear, by_page=True) for place in range(load.phones)]
    bad = [await enter(served, "", lambda _: None) for _ in range(load.silent + load.vanishing)]
    tasks = [asyncio.ensure_future(follow(served, seen))]
    tasks += [asyncio.ensure_future(trouble(one, place < load.silent, load)) for place, one in enumerate(bad)]
    until, learners = time.monotonic() + SECONDS, desks + phones
    wanted = [ask_aloud(phone, seen) for phone in phones[:5]]
    sending = [send(desk, seen, until, load, samples()) for desk in desks]
    sending += [send(phone, seen, until, load, from_a_phone(wanted)) for phone in phones]
    await asyncio.gather(*sending)
    settled = time.monotonic() + SETTLE
    while len(seen.kept) < len(seen.sent) and time.monotonic() < settled:
        await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    seen.dropped = sum(learner.closed for learner in learners)
    return seen


async def enter(served: Served, name: str, heard: Callable[[bytes], None], *, by_page: bool = False) -> Wire:
    if by_page:
        body = json.dumps({"code": served.code, "name": name})
        answer = await ask(f"{served.url}/join?page=1", method="POST", body=body)
        return await wire(served.url, f"Cookie: {answer.headers['Set-Cookie'].split(';')[0]}", heard)
    status, joined = await served.join(name)
    assert status == 200, joined
    return await wire(served.url, f"Authorization: Bearer {joined['secret']}", heard)


def ask_aloud(phone: Wire, seen: Seen) -> str:
    """A question that others vote for; its id."""
    event = event_of(kind="wondered", text="Why is the bubble the same?")
    seen.sent[event["id"]] = time.monotonic()
    phone.send(json.dumps({"events": [event]}).encode())
    return event["id"]


def from_a_phone(wanted: list[str]) -> Iterator[dict[str, Any]]:
    """What phones send."""
    while True:
        yield {"kind": "done", "on": random.random() < 0.5}
        yield {"kind": "stuck", "on": random.random() < 0.1}
        yield {"kind": "slower"}
        yield {"kind": "seconded", "question": random.choice(wanted), "on": random.random() < 0.5}


async def send(learner: Wire, seen: Seen, until: float, load: Load, events: Iterator[dict[str, Any]]) -> None:
    """Events at an even pace, from a moment of one's own."""
    pause = 1 / load.rate
    due = time.monotonic() + random.random() * pause
    while due < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        event = event_of(**next(events))
        seen.sent[event["id"]] = time.monotonic()
        seen.late = max(seen.late, time.monotonic() - due)
        learner.send(json.dumps({"events": [event]}).encode())
        due += pause


async def trouble(learner: Wire, silent: bool, load: Load) -> None:
    """Send and never read; or break off without a word, the connection left as it is."""
    if silent:
        learner.transport.pause_reading()
    for _ in range(SECONDS * load.rate if silent else random.randrange(SECONDS * load.rate)):
        if learner.closed:
            return
        learner.send(json.dumps({"events": [event_of(kind="slower")]}).encode())
        await asyncio.sleep(1 / load.rate)
    learner.transport.pause_reading()


async def follow(served: Served, seen: Seen) -> None:
    """The instructor's page."""

    def count(chunk: bytes) -> None:
        seen.snapshots += chunk.count(b"data: {")

    headers = {"Cookie": served.cookie}
    await ask(f"{served.url}/view/changes", headers=headers, streaming_callback=count, request_timeout=0)


def samples() -> Iterator[dict[str, Any]]:
    """What learners send, at random."""
    known = content()
    questions = [number for number, question in known.questions.items() if not question.typed]
    exercises, lessons = list(known.exercises.values()), [lesson for lesson, found in known.sections.items() if found]
    while True:
        exercise, lesson = random.choice(exercises), random.choice(lessons)
        place = {"lesson": lesson, "section": random.choice(known.sections[lesson])}
        mistake = {"part": random.choice(list(exercise.parts)), "mistake": f"mistake {random.randrange(5)}"}
        yield {"kind": "predicted", "number": random.choice(questions), "said": random.choice("ab")}
        yield {"kind": "reached", **place}
        yield {"kind": "checked", "number": exercise.number, "passed": random.random() < 0.3, "points": 1, **mistake}
        yield {"kind": "stuck", "on": random.random() < 0.1, **place}


def cpu_seconds(process: int) -> float:
    """What a process has worked so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def row(name: str, seen: Seen, lost: int, worked: float) -> str:
    waits = sorted(seen.waits)
    middle, p99, longest = (1000 * waits[round(part * (len(waits) - 1))] for part in (0.5, 0.99, 1.0))
    print(f"{name}: the load was at most {1000 * seen.late:.0f} ms behind its plan", file=sys.stderr)
    times = f"{middle:.0f} | {p99:.0f} | {longest:.0f}"
    cells = f"{len(seen.sent):,} | {lost} | {times} | {seen.snapshots} | {1e6 * worked / len(seen.sent):.0f}"
    return f"| {name} | {cells} |"


if __name__ == "__main__":
    main()
