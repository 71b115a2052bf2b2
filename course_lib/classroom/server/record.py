"""The record of a class: one SQLite file that loses nothing when the server is killed.

A writer thread commits statements in batches, every few milliseconds, and runs their callbacks after the commit. The
file stores who has joined (with secrets only as hashes), and every event once.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import queue
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from course_lib.classroom.protocol import Event

GATHER = 0.02  # seconds to collect statements for a commit; longer with many learners: fewer commits and messages
GATHER_MORE, MANY = 0.03, 20  # used after a batch of at least MANY
RETRY = 1.0  # seconds before retrying a failed commit: someone may free disk space
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
INSERT_EVENTS = "INSERT OR IGNORE INTO events (learner, id, kind, received, body) VALUES "
ONE_EVENT = "(?, ?, ?, ?, ?)"
MOST_AT_ONCE = 100  # events per statement: SQLite allows 999 values

Statement = tuple[str, tuple[Any, ...]]


class BadRecord(ValueError):
    """The file is not a record of a class, or is in use; the message says which."""


class Record:
    """An open record. `write` returns at once; after the commit, `deliver` gets the callbacks of the batch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.deliver: Callable[[list[Callable[[], None]]], None] = lambda _: None
        self._fold_in = False
        self._lock = _locked(path)
        self._connection = _opened(path)
        self._waiting: queue.SimpleQueue[tuple[list[Statement], Callable[[], None]] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_all, name="record", daemon=True)
        self._writer.start()

    def write(self, statements: list[Statement], then: Callable[[], None]) -> None:
        """Queue statements, to be executed in the order of the calls; `then` is called after the commit."""
        self._waiting.put((statements, then))

    def fold_in(self) -> None:
        """Checkpoint and truncate SQLite's write-ahead log after the next commit, so that no old data is left in it."""
        self._fold_in = True

    def close(self) -> None:
        """Write what is queued, and close the file."""
        self._waiting.put(None)
        self._writer.join()
        self._connection.close()
        self._lock.close()

    def _write_all(self) -> None:
        going_on, batch = True, []
        while going_on:
            before, batch = len(batch), [self._waiting.get()]
            time.sleep(GATHER if before < MANY else GATHER_MORE)
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            going_on = batch[-1] is not None
            self._commit([one for one in batch if one is not None])

    def _commit(self, batch: list[tuple[list[Statement], Callable[[], None]]]) -> None:
        """Commit a batch in one transaction, retrying while the disk is full. Callbacks run only after success."""
        while True:
            try:
                with self._connection:
                    for statement in together([each for statements, _ in batch for each in statements]):
                        self._connection.execute(*statement)
                break
            except sqlite3.OperationalError as error:
                print(f"course class: {self.path}: {error}; trying again, nothing is lost", file=sys.stderr)
                time.sleep(RETRY)
        if self._fold_in:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._fold_in = False
        self.deliver([then for _, then in batch])


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
    connection = sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    except sqlite3.DatabaseError as error:
        raise BadRecord(f"{path} is not the record of a class ({error}); give another file") from error
    finally:
        connection.close()


def _locked(path: Path) -> Any:
    """Lock a file next to the record until the process ends. SQLite's own lock would block readers."""
    try:
        held = open(path.with_name(f"{path.name}.lock"), "w", opener=_private)  # noqa: SIM115 - locked while it is open
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadRecord(f"{path} is in use by another `course class`; end that one, or give another file") from None
    return held


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _opened(path: Path) -> sqlite3.Connection:
    """Return a connection for the writer, creating the file if needed, readable only by its owner."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA secure_delete=ON")  # overwrite deleted names in the file
        known = connection.execute("PRAGMA user_version").fetchone()[0]
        if known > VERSION or (known == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone()):
            raise BadRecord(f"{path} is not the record of a class, or a newer course wrote it; give another file")
        connection.executescript(SCHEMA)
        connection.execute(f"PRAGMA user_version={VERSION}")
        connection.commit()
    except sqlite3.DatabaseError as error:
        connection.close()
        raise BadRecord(f"{path} is not the record of a class ({error}); give another file") from error
    return connection
