"""`course class`, which writes down how long each event took in it: from being read to its acknowledgement.

The times are written beside the record, as times.json, when the class ends.
"""

from __future__ import annotations

import atexit
import json
import sys
import time
from pathlib import Path
from typing import Any

from course_lib.classroom.server.learners import Channel
from course_lib.cli import main

began: dict[str, float] = {}
took: list[float] = []
take, acknowledge = Channel._take, Channel._acknowledge


def timed_take(self: Channel, events: list[Any]) -> None:
    now = time.perf_counter()
    began.update((event["id"], now) for event in events)
    take(self, events)


def timed_acknowledge(self: Channel, kept: list[str], refused: dict[str, str]) -> None:
    acknowledge(self, kept, refused)
    now = time.perf_counter()
    took.extend(now - began.pop(event) for event in kept)


if __name__ == "__main__":
    Channel._take, Channel._acknowledge = timed_take, timed_acknowledge
    times = Path(sys.argv[sys.argv.index("--record") + 1]).with_name("times.json")
    atexit.register(lambda: times.write_text(json.dumps(took)))
    sys.exit(main(sys.argv[1:]))
