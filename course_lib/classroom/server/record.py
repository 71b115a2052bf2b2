"""The record of a class: one SQLite file that loses nothing when the server is killed.

A thread of its own writes, and commits what has come within some milliseconds at once; whoever waits for a statement
is told after the commit. What the file keeps: who has joined (secrets only as hashes), and every event once.
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

GATHER = 0.02  # seconds that a commit waits for more; with many learners, longer: fewer commits, fewer messages
GATHER_MORE, MANY = 0.03, 20  # and how many were waiting the last time
RETRY = 1.0  # seconds after a commit that failed: a full disk may be emptied
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
MOST_AT_ONCE = 100  # events in one statement: SQLite takes 999 values in all

Statement = tuple[str, tuple[Any, ...]]


class BadRecord(ValueError):
    """A file that is no record of a class, or is in use; the sentence says which."""


class Record:
    """An open record. `write` returns at once; when it is on the disk, `deliver` gets all that was waiting for it."""

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
        """Have these statements carried out, in the order of the calls."""
        self._waiting.put((statements, then))

    def fold_in(self) -> None:
        """Have nothing of old left in the file that SQLite writes ahead into."""
        self._fold_in = True

    def close(self) -> None:
        """Write what is waiting, and let go of the file."""
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
        """All of them, or none yet: as long as the disk is full, nobody is told that something is kept."""
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
    """What keeps an event. One that is there already is left as it is."""
    body = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return INSERT_EVENTS, (learner, event["id"], event["kind"], event["received"], body)


def together(statements: list[Statement]) -> Iterator[Statement]:
    """The same with events that follow each other in one statement: each one costs the server's thread its turn."""
    for text, same in itertools.groupby(statements, key=itemgetter(0)):
        rows = [values for _, values in same]
        if text != INSERT_EVENTS:
            yield from ((text, values) for values in rows)
            continue
        for first in range(0, len(rows), MOST_AT_ONCE):
            some = rows[first : first + MOST_AT_ONCE]
            yield text + ", ".join([ONE_EVENT] * len(some)), tuple(itertools.chain.from_iterable(some))


def read_events(path: Path) -> Iterator[tuple[str, Event]]:
    """All events of a record in order, each with whose it is; the instructor's own are of ""."""
    for learner, body in read(path, "SELECT learner, body FROM events ORDER BY place"):
        yield learner, json.loads(body)


def read(path: Path, query: str) -> list[tuple[Any, ...]]:
    """What a query finds in a record, also while a class is writing it."""
    connection = sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    except sqlite3.DatabaseError as error:
        raise BadRecord(f"{path} is not the record of a class ({error}); give another file") from error
    finally:
        connection.close()


def _locked(path: Path) -> Any:
    """A lock that ends with the process, on a file beside: SQLite's own would keep readers out."""
    try:
        held = open(path.with_name(f"{path.name}.lock"), "w", opener=_private)  # noqa: SIM115 - held while it is open
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadRecord(f"{path} is in use by another `course class`; end that one, or give another file") from None
    return held


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _opened(path: Path) -> sqlite3.Connection:
    """A connection for the writer; the file is made if there is none, for nobody else's eyes."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA secure_delete=ON")  # a name that is taken out is gone from the file
        known = connection.execute("PRAGMA user_version").fetchone()[0]
        if known > VERSION or (known == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone()):
            raise BadRecord(f"{path} is not the record of a class, or of a newer course; give another file")
        connection.executescript(SCHEMA)
        connection.execute(f"PRAGMA user_version={VERSION}")
        connection.commit()
    except sqlite3.DatabaseError as error:
        connection.close()
        raise BadRecord(f"{path} is not the record of a class ({error}); give another file") from error
    return connection
