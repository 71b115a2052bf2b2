"""The file of a class's record: what is in it, how it is opened and read, and how we notice changes by others."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
from collections.abc import Iterator
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import Any

from course_lib.classroom.protocol import Event
from course_lib.runtime.course_files import hold_lock

CACHE = -128 * 1024  # SQLite's page cache in KiB: what it holds can be written again if the file is overwritten
VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS instructors (hash TEXT PRIMARY KEY, since REAL NOT NULL);
CREATE TABLE IF NOT EXISTS learners (
    learner TEXT PRIMARY KEY, name TEXT NOT NULL, hash TEXT NOT NULL UNIQUE, account TEXT NOT NULL, joined REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS events (
    place INTEGER PRIMARY KEY, learner TEXT NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL,
    received REAL NOT NULL, body TEXT NOT NULL, UNIQUE (learner, id)
);
"""
TABLES = {"about": 2, "instructors": 2, "learners": 5, "events": 6}  # with the number of columns
DIGESTS = 1 << 128
INSERT_EVENTS = "INSERT OR IGNORE INTO events (learner, id, kind, received, body) VALUES "
ONE_EVENT = "(?, ?, ?, ?, ?)"
MOST_AT_ONCE = 100  # events per statement: SQLite allows 999 values

Statement = tuple[str, tuple[Any, ...]]
Mark = tuple[tuple[int, int], int, int, int] | None  # which file it is, its size and when it was changed


class BadRecord(ValueError):
    """The file is not a record of a class, cannot be written, or is in use; the message says which."""


def event_statement(learner: str, event: Event) -> Statement:
    """Return the SQL that saves an event, unless it is already saved."""
    body = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return INSERT_EVENTS, (learner, event["id"], event["kind"], event["received"], body)


def together(statements: list[Statement]) -> Iterator[Statement]:
    """Merge consecutive event inserts: each statement takes time from the server's thread."""
    for text, same in itertools.groupby(statements, key=itemgetter(0)):
        rows = [values for _, values in same]
        if text != INSERT_EVENTS:
            yield from ((text, values) for values in rows)
            continue
        for first in range(0, len(rows), MOST_AT_ONCE):
            some = rows[first : first + MOST_AT_ONCE]
            yield text + ", ".join([ONE_EVENT] * len(some)), tuple(itertools.chain.from_iterable(some))


def read_events(path: Path) -> Iterator[tuple[str, Event]]:
    """Yield (learner, event) for all events in order; the learner of the instructor's actions is ""."""
    for learner, body in read(path, "SELECT learner, body FROM events ORDER BY place"):
        yield learner, json.loads(body)


def read(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query, even while a class is writing the record."""
    connection = open_to_read(path)
    try:
        return connection.execute(query).fetchall()
    except sqlite3.DatabaseError as error:
        raise BadRecord(f"{path} is not the record of a class ({error}); give another file") from error
    finally:
        connection.close()


def open_to_read(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True)


def digest(connection: sqlite3.Connection, after: int = 0) -> int:
    """Return the sum of the digests of all events after a place. The file never stores its own digest."""
    rows = connection.execute("SELECT * FROM events WHERE place > ?", (after,))
    return sum(int.from_bytes(blake2b(repr(row).encode(), digest_size=16).digest(), "big") for row in rows) % DIGESTS


def locked(path: Path) -> sqlite3.Connection:
    """Lock a file next to the record until the process ends. A lock on the record itself would block readers."""
    try:
        lock = hold_lock(path.with_name(f"{path.name}.lock"))
    except (OSError, sqlite3.Error) as error:
        raise BadRecord(f"{path} cannot be written ({error}); free some space, or give another file") from error
    if lock is None:
        raise BadRecord(f"{path} is in use by another `course class`; end that one, or give another file")
    return lock


def open_to_write(path: Path) -> sqlite3.Connection:
    """Return a connection for the writer, creating the file if needed, readable only by its owner."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(path, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise BadRecord(f"{path} cannot be written ({error}); give another file") from error
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA secure_delete=ON")  # overwrite deleted names in the file
        connection.execute("PRAGMA wal_autocheckpoint=0")  # only `_save` changes the file, so it notices other changes
        connection.execute(f"PRAGMA cache_size={CACHE}")
        known = connection.execute("PRAGMA user_version").fetchone()[0]
        if known > VERSION or (known == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone()):
            raise BadRecord(f"{path} is not the record of a class, or comes from a newer course; give another file")
        connection.executescript(SCHEMA)
        connection.execute(f"PRAGMA user_version={VERSION}")
        connection.commit()
    except BadRecord:
        connection.close()
        raise
    except sqlite3.OperationalError as error:
        connection.close()
        raise BadRecord(f"{path} cannot be written ({error}); free some space, or give another file") from error
    except sqlite3.DatabaseError as error:
        connection.close()
        raise BadRecord(f"{path} is not the record of a class ({error}); give another file") from error
    return connection


def marks_of(path: Path) -> tuple[Mark, Mark]:
    """Return the marks of a record and of its write-ahead log; None for a file that does not exist."""
    return mark_of(path), mark_of(path.with_name(f"{path.name}-wal"))


def mark_of(path: Path) -> Mark:
    with contextlib.suppress(OSError):
        found = path.stat()
        return (found.st_dev, found.st_ino), found.st_size, found.st_mtime_ns, found.st_ctime_ns  # mtime is settable
    return None


def same_file(one: Mark, other: Mark) -> bool:
    """Whether both are marks of the same file, whatever was written to it."""
    return one is not None and other is not None and one[0] == other[0]


def remove(path: Path, *ends: str) -> None:
    """Remove the files named by the path plus each of these suffixes."""
    for end in ends:
        with contextlib.suppress(OSError):
            path.with_name(f"{path.name}{end}").unlink()
