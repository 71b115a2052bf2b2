"""What a desk has to tell its class, and what the class has last said: one file, for all kernels and the lab's server.

An event stays in it until the class has kept it: a kernel may be killed, and the class may be away.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FILE = Path(".course", "class.sqlite3")
LOCK = Path(".course", "channel.lock")
MOST_WAITING = 5000  # events; of more, the oldest go
PATIENCE = 5.0  # seconds for another process that writes; it writes for some milliseconds
TABLES = """
create table if not exists events (place integer primary key autoincrement, learner text, id text unique, event text);
create table if not exists news (learner text primary key, news text);
"""


class Outbox:
    """Each object belongs to one thread; any number of them, in any process, use one file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file = _opened(path)
        except sqlite3.OperationalError:  # locked, or not to be written
            raise
        except sqlite3.DatabaseError:  # damaged, by a machine that lost its power: what was in it is lost already
            path.unlink()
            self._file = _opened(path)

    @classmethod
    @contextlib.contextmanager
    def of(cls, folder: Path) -> Iterator[Outbox]:
        """The outbox of a desk, closed afterwards."""
        outbox = cls(folder / FILE)
        try:
            yield outbox
        finally:
            outbox.close()

    def put(self, learner: str, event: dict[str, Any]) -> None:
        """Keep an event until it is removed."""
        row = (learner, event["id"], json.dumps(event))
        self._file.execute("insert or ignore into events (learner, id, event) values (?, ?, ?)", row)
        self._file.execute("delete from events where place <= (select max(place) from events) - ?", (MOST_WAITING,))

    def waiting(self, learner: str) -> list[dict[str, Any]]:
        """All that this learner has told and the class has not kept, oldest first."""
        rows = self._file.execute("select event from events where learner = ? order by place", (learner,))
        return [json.loads(event) for (event,) in rows]

    def remove(self, ids: Iterable[str]) -> None:
        """Forget events: the class has them, or does not want them."""
        self._file.executemany("delete from events where id = ?", [(str(each),) for each in ids])

    def news(self, learner: str) -> dict[str, Any]:
        """What the class has last told this learner: `state`, whether it is `reached`, and what it `refused`."""
        row = self._file.execute("select news from news where learner = ?", (learner,)).fetchone()
        return json.loads(row[0]) if row else {}

    def add_news(self, learner: str, **news: Any) -> None:
        """What is new; the rest stays."""
        known = self.news(learner)
        if known != (now := {**known, **news}):
            self._file.execute("insert or replace into news (learner, news) values (?, ?)", (learner, json.dumps(now)))

    def clear(self) -> None:
        """Forget everything."""
        self._file.executescript("delete from events; delete from news;")

    def version(self) -> int:
        """Another number after somebody else has written."""
        return self._file.execute("pragma data_version").fetchone()[0]

    def close(self) -> None:
        self._file.close()


def only_one(folder: Path) -> sqlite3.Connection | None:
    """The right to send for a desk, or None if another process has it. It ends with the process, however that ends."""
    file = sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        file.execute("begin exclusive")
    except sqlite3.OperationalError:
        file.close()
        return None
    return file


def _opened(path: Path) -> sqlite3.Connection:
    """No write waits for the disk: what a killed process wrote is safe with the system."""
    file = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    try:
        file.execute("pragma synchronous = off")
        file.executescript(TABLES)
    except sqlite3.Error:
        file.close()
        raise
    return file
