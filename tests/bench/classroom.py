"""A class of 200 learners who each send 20 events a second: what is lost, and how long an acknowledgement takes.

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

LEARNERS, EVENTS_A_SECOND, SECONDS = 200, 20, 60
SILENT, VANISHING = 20, 20
SETTLE = 30.0  # seconds for what is still on the way


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
    rows = [row("200 learners", *hold(0, 0)), row("and 40 bad ones", *hold(SILENT, VANISHING))]
    write_section(
        "Class",
        f"{LEARNERS} learners on real WebSockets, each {EVENTS_A_SECOND} events a second for {SECONDS} s, one in a "
        "message, from a second process on the same machine; the instructor's page follows. From sending an event to "
        f"the acknowledgement, which comes when it is on the disk. Bad ones: {SILENT} that send and never read, "
        f"{VANISHING} that vanish without a word. Lost: sent, and not acknowledged or not in the record.\n\n"
        f"On {describe_machine()}.\n\n"
        "| class | sent | lost | median, ms | p99, ms | longest, ms | snapshots | server's work for an event, µs |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|\n" + "\n".join(rows),
    )


def hold(silent: int, vanishing: int) -> tuple[Seen, int, float]:
    """Hold a class: what its good learners saw, how many events were lost, and the server's seconds of work."""
    with tempfile.TemporaryDirectory() as folder, class_in_a_process(Path(folder, "class.db")) as served:
        assert served.process is not None
        worked = cpu_seconds(served.process.pid)
        seen = asyncio.run(play(served, silent, vanishing))
        worked = cpu_seconds(served.process.pid) - worked
        recorded = {event["id"] for learner, event in read_events(Path(folder, "class.db")) if learner}
    return seen, len(seen.sent.keys() - (recorded & seen.kept)), worked


async def play(served: Served, silent: int, vanishing: int) -> Seen:
    seen = Seen()
    gc.freeze()  # the pauses of the load are not the server's
    await served.log_in()
    learners = [await enter(served, f"learner {place} of the load", seen.hear) for place in range(LEARNERS)]
    bad = [await enter(served, "", lambda _: None) for _ in range(silent + vanishing)]
    tasks = [asyncio.ensure_future(follow(served, seen))]
    tasks += [asyncio.ensure_future(trouble(one, place < silent)) for place, one in enumerate(bad)]
    until = time.monotonic() + SECONDS
    await asyncio.gather(*(send(learner, seen, until) for learner in learners))
    settled = time.monotonic() + SETTLE
    while len(seen.kept) < len(seen.sent) and time.monotonic() < settled:
        await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    seen.dropped = sum(learner.closed for learner in learners)
    return seen


async def enter(served: Served, name: str, heard: Callable[[bytes], None]) -> Wire:
    status, joined = await served.join(name)
    assert status == 200, joined
    return await wire(served.url, joined["secret"], heard)


async def send(learner: Wire, seen: Seen, until: float) -> None:
    """Events at an even pace, from a moment of one's own."""
    pause, events = 1 / EVENTS_A_SECOND, samples()
    due = time.monotonic() + random.random() * pause
    while due < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        event = event_of(**next(events))
        seen.sent[event["id"]] = time.monotonic()
        seen.late = max(seen.late, time.monotonic() - due)
        learner.send(json.dumps({"events": [event]}).encode())
        due += pause


async def trouble(learner: Wire, silent: bool) -> None:
    """Send and never read; or break off without a word, the connection left as it is."""
    if silent:
        learner.transport.pause_reading()
    for _ in range(SECONDS * EVENTS_A_SECOND if silent else random.randrange(SECONDS * EVENTS_A_SECOND)):
        if learner.closed:
            return
        learner.send(json.dumps({"events": [event_of(kind="slower")]}).encode())
        await asyncio.sleep(1 / EVENTS_A_SECOND)
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
