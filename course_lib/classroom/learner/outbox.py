"""A desk's unsent events and the latest news from its class: one file, shared by all kernels and the lab's server.

An event stays here until the class has saved it, because a kernel may be killed and the class may be offline.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from course_lib.runtime.course_files import hold_lock

FILE = Path(".course", "class.sqlite3")
LOCK = Path(".course", "channel.lock")
MOST_WAITING = 5000  # events; beyond that, the oldest are dropped
PATIENCE = 5.0  # seconds to wait for a writing process; a write takes milliseconds
TABLES = """
create table if not exists events (place integer primary key autoincrement, learner text, id text unique, event text);
create table if not exists news (learner text primary key, news text);
"""


class Outbox:
    """Access to the outbox file. Use one object per thread; any number of processes may share the file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file = _opened(path)
        except sqlite3.OperationalError:  # locked or read-only
            raise
        except sqlite3.DatabaseError:  # corrupted by a power failure: its content is already lost
            self._file = _made_anew(path)

    @classmethod
    @contextlib.contextmanager
    def of(cls, folder: Path) -> Iterator[Outbox]:
        """Open the outbox of a desk, and close it afterwards."""
        outbox = cls(folder / FILE)
        try:
            yield outbox
        finally:
            outbox.close()

    def put(self, learner: str, event: dict[str, Any]) -> None:
        """Store an event until it is removed."""
        row = (learner, event["id"], json.dumps(event))
        self._file.execute("insert or ignore into events (learner, id, event) values (?, ?, ?)", row)
        self._file.execute("delete from events where place <= (select max(place) from events) - ?", (MOST_WAITING,))

    def waiting(self, learner: str, most: int = -1) -> list[dict[str, Any]]:
        """Return this learner's events that the class has not saved, oldest first: all, or at most `most`."""
        query = "select event from events where learner = ? order by place limit ?"
        return [json.loads(event) for (event,) in self._file.execute(query, (learner, most))]

    def count(self, learner: str) -> int:
        """Return the number of this learner's events that the class has not saved."""
        return self._file.execute("select count(*) from events where learner = ?", (learner,)).fetchone()[0]

    def remove(self, ids: Iterable[str]) -> None:
        """Delete events that the class has saved or refused."""
        self._file.executemany("delete from events where id = ?", [(str(each),) for each in ids])

    def news(self, learner: str) -> dict[str, Any]:
        """Return the latest news for this learner: `state`, whether the class is `reached`, and what it `refused`."""
        row = self._file.execute("select news from news where learner = ?", (learner,)).fetchone()
        return json.loads(row[0]) if row else {}

    def add_news(self, learner: str, **news: Any) -> None:
        """Update some fields of the news."""
        known = self.news(learner)
        if known != (now := {**known, **news}):
            self._file.execute("insert or replace into news (learner, news) values (?, ?)", (learner, json.dumps(now)))

    def clear(self) -> None:
        """Delete all events and news."""
        self._file.executescript("delete from events; delete from news;")

    def version(self) -> int:
        """Return a number that changes after another connection has written."""
        return self._file.execute("pragma data_version").fetchone()[0]

    def close(self) -> None:
        self._file.close()


def only_one(folder: Path) -> sqlite3.Connection | None:
    """Return the lock on sending for a desk, or None if another process holds it."""
    return hold_lock(folder / LOCK)


def _opened(path: Path) -> sqlite3.Connection:
    """Open the file without fsync: the operating system keeps what a killed process wrote."""
    file = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    try:
        file.execute("pragma synchronous = off")
        file.executescript(TABLES)
    except sqlite3.Error:
        file.close()
        raise
    return file


def _made_anew(path: Path) -> sqlite3.Connection:
    """Replace a corrupted file and open it. A process that finds it corrupted at the same time opens the new one."""
    lock = hold_lock(path.with_suffix(".lock"), PATIENCE)
    if lock is None:
        raise sqlite3.OperationalError("the outbox is being repaired")
    try:
        return _opened(path)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        path.unlink()
        return _opened(path)
    finally:
        lock.close()
