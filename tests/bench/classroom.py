"""A class of 200 desks and 100 phones that each send 10 events a second: what is lost, and how long an acknowledgement
takes. Under two minutes.

The server is `course class` itself; the learners are real WebSockets in another process; the instructor's page follows
all the while. The second class has 20 learners more who send and never read, and 20 who vanish without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.classroom.content import content
from course_lib.classroom.server.record_file import read_events
from tests.bench.table import describe_machine, write_section
from tests.bench.wire import Wire, wire
from tests.classroom.serving import Served, ask, class_in_a_process, end, event_of

DESKS, PHONES, RATE = 200, 100, 10
SILENT, VANISHING = 20, 20
SETTLE = 30.0  # seconds for what is still on the way


@dataclass(frozen=True)
class Load:
    """Who is in a class, and for how many seconds; each of the good ones sends `rate` events a second."""

    seconds: int
    desks: int = DESKS
    phones: int = PHONES
    rate: int = RATE
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
        row(f"{DESKS} desks and {PHONES} phones, 60 s", *hold(Load(60))),
        row("and 40 bad ones, 20 s", *hold(Load(20, silent=SILENT, vanishing=VANISHING))),
    ]
    write_section(
        "Class",
        f"Learners on real WebSockets, each sending {RATE} events a second, one per message, from a second process on "
        "the same machine, with the instructor's page open. Times run from sending an event to its acknowledgement, "
        "which comes once it is on disk; in the server alone, from reading the event to acknowledging it. "
        f"Bad ones: {SILENT} that send and never read, "
        f"{VANISHING} that vanish without a word. Phones join by the page, with a cookie, and vote for questions that "
        "everyone sees. Lost: sent, and not acknowledged or not in the record.\n\n"
        f"On {describe_machine()}.\n\n"
        "| class | sent | lost | median, ms | p99, ms | longest, ms | in the server: median | p99 | snapshots | "
        "server's work for an event, µs |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n" + "\n".join(rows),
    )


def hold(load: Load) -> tuple[Seen, list[float], int, float]:
    """Hold a class: what its good learners saw, the server's own times, how many were lost, and its seconds of work."""
    with tempfile.TemporaryDirectory() as folder, timed_class(Path(folder, "class.db")) as served:
        assert served.process is not None
        worked = cpu_seconds(served.process.pid)
        seen = asyncio.run(play(served, load))
        worked = cpu_seconds(served.process.pid) - worked
        assert end(served, signal.SIGTERM) == 0
        times = json.loads(Path(folder, "times.json").read_text())
        recorded = {event["id"] for learner, event in read_events(Path(folder, "class.db")) if learner}
    return seen, times, len(seen.sent.keys() - (recorded & seen.kept)), worked


def timed_class(record: Path) -> contextlib.AbstractContextManager[Served]:
    """`course class` in a process that writes down its own times."""
    return class_in_a_process(record, module="tests.bench.timed_class")


async def play(served: Served, load: Load) -> Seen:
    seen = Seen()
    gc.freeze()  # the pauses of the load are not the server's
    await served.log_in()
    desks = await everyone(enter(served, f"learner {place} of the load", seen.hear) for place in range(load.desks))
    phones = await everyone(enter(served, f"phone {place}", seen.hear, by_page=True) for place in range(load.phones))
    bad = await everyone(enter(served, "", lambda _: None) for _ in range(load.silent + load.vanishing))
    tasks = [asyncio.ensure_future(follow(served, seen))]
    tasks += [asyncio.ensure_future(trouble(one, place < load.silent, load)) for place, one in enumerate(bad)]
    assert (len(desks), len(phones)) == (load.desks, load.phones)
    until, learners = time.monotonic() + load.seconds, desks + phones
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


async def everyone(entering: Iterable[Awaitable[Wire]]) -> list[Wire]:
    return list(await asyncio.gather(*entering))


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
    whole = load.seconds * load.rate
    for _ in range(whole if silent else random.randrange(whole)):
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


def parts(waits: list[float], *which: float) -> str:
    """Cells with these quantiles, in milliseconds."""
    waits = sorted(waits)
    return " | ".join(f"{1000 * waits[round(part * (len(waits) - 1))]:.0f}" for part in which)


def row(name: str, seen: Seen, times: list[float], lost: int, worked: float) -> str:
    late = f"the load was at most {1000 * seen.late:.0f} ms behind its plan"
    print(f"{name}: {late}; {seen.dropped} good learners were cut off", file=sys.stderr)
    times_told = f"{parts(seen.waits, 0.5, 0.99, 1.0)} | {parts(times, 0.5, 0.99)}"
    cells = f"{len(seen.sent):,} | {lost} | {times_told} | {seen.snapshots} | {1e6 * worked / len(seen.sent):.0f}"
    return f"| {name} | {cells} |"


if __name__ == "__main__":
    main()
