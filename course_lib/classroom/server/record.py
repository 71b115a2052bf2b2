"""The record of a class: one SQLite file that loses nothing when the server is killed.

A writer thread commits statements in batches, every few milliseconds, and runs their callbacks after the commit. The
file stores who has joined (with secrets only as hashes), and every event once.

Only what is on disk, in the file that the path names, is acknowledged. While nothing can be written, `trouble` says
why. If the file was deleted, replaced or overwritten, we write it again from the open connection, which still has it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import Any

from course_lib.classroom.lock import hold_lock
from course_lib.classroom.protocol import Event

GATHER = 0.02  # seconds to collect statements for a commit; longer with many learners: fewer commits and messages
GATHER_MORE, MANY = 0.03, 20  # used after a batch of at least MANY
RETRY = 1.0  # seconds before retrying a failed commit, and between looks at an idle file
CACHE = -128 * 1024  # SQLite's page cache in KiB: what it holds can be written again if the file is overwritten
LARGEST_LOG = 4 << 20  # bytes of SQLite's write-ahead log before we move it into the file, at least
LARGEST_PART = 4  # ... and the part of the file that it may have, one in so many: each move reads the whole file
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
SIZES = "SELECT (SELECT count(*) FROM learners), (SELECT max(place) FROM events)"  # events are never deleted
SMALL_TABLES = tuple(f"SELECT * FROM {table} ORDER BY rowid" for table in TABLES if table != "events")
DIGESTS = 1 << 128
INTACT = f"{SIZES}, (SELECT count(*) FROM events), (SELECT * FROM pragma_quick_check)"
INSERT_EVENTS = "INSERT OR IGNORE INTO events (learner, id, kind, received, body) VALUES "
ONE_EVENT = "(?, ?, ?, ?, ?)"
MOST_AT_ONCE = 100  # events per statement: SQLite allows 999 values

Statement = tuple[str, tuple[Any, ...]]
Batch = list[tuple[list[Statement], Callable[[], None]]]


class BadRecord(ValueError):
    """The file is not a record of a class, cannot be written, or is in use; the message says which."""


class Record:
    """An open record. `write` returns at once; after the commit, `deliver` gets the callbacks of the batch.

    `troubled` is called, in the writer's thread, when `trouble` or `notice` has changed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble = ""  # why nothing can be saved at the moment
        self.notice = ""  # where the record is, if it had to be written again
        self.deliver: Callable[[list[Callable[[], None]]], None] = lambda _: None
        self.troubled: Callable[[], None] = lambda: None
        self._fold_in = False
        self._lock = _locked(path)
        self._connection = _opened(path)
        self._digest = _digest(self._connection)  # which also fills the cache
        self._is_lost = False  # the file was found to be another one, whatever its marks are
        self._sizes, self._seen = self._connection.execute(SIZES).fetchone(), _marks(path)
        self._waiting: queue.SimpleQueue[tuple[list[Statement], Callable[[], None]] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._unsaved = 0
        self._writer = threading.Thread(target=self._write_all, name="record", daemon=True)
        self._writer.start()

    def write(self, statements: list[Statement], then: Callable[[], None]) -> None:
        """Queue statements, to be executed in the order of the calls; `then` is called after the commit."""
        self._waiting.put((statements, then))

    def fold_in(self) -> None:
        """Checkpoint and truncate SQLite's write-ahead log after the next commit, so that no old data is left in it."""
        self._fold_in = True

    def close(self) -> bool:
        """Write what is queued and close the file. Returns whether everything was saved; it doesn't wait for space."""
        self._closing.set()
        self._waiting.put(None)
        self._writer.join()
        with contextlib.suppress(sqlite3.Error):  # what was acknowledged is in the log, if not in the file
            self._connection.close()
        self._lock.close()
        return not self._unsaved

    def _write_all(self) -> None:
        open_, batch = True, []
        while open_:
            before, batch = len(batch), self._next()
            time.sleep(GATHER if before < MANY else GATHER_MORE)
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            open_ = None not in batch
            self._commit([one for one in batch if one is not None])

    def _next(self) -> list[Any]:
        with contextlib.suppress(queue.Empty):
            return [self._waiting.get(timeout=RETRY)]
        return []  # nobody writes: only look whether the file is still there

    def _commit(self, batch: Batch) -> None:
        """Commit a batch in one transaction, retrying until it is saved. Callbacks run only after success."""
        while True:
            try:
                self._save([each for statements, _ in batch for each in statements])
                break
            except Exception as error:  # whatever it is, this thread must go on, and the class must hear of it
                trouble = f"{self.path} cannot be written ({error}), so nothing is saved or acknowledged until it can"
                if self._closing.is_set():
                    self._unsaved += sum(len(statements) for statements, _ in batch)
                    return self._say(f"{trouble}. Learners keep what is missing, and send it when the class goes on")
                self._report(trouble, self.notice)
                self._closing.wait(RETRY)
        self._report("", self.notice)
        if batch:
            self.deliver([then for _, then in batch])

    def _save(self, statements: list[Statement]) -> None:
        """Execute the statements and make sure that they are in the file that the path names."""
        for _ in range(3):
            if not self._is_in_place():
                self._write_again()
            if statements:
                with self._connection:
                    for statement in together(statements):
                        self._connection.execute(*statement)
                self._digest = (self._digest + _digest(self._connection, self._sizes[1] or 0)) % DIGESTS
                self._sizes = self._connection.execute(SIZES).fetchone()
            main, log = _marks(self.path)
            if main is not None and main == self._seen[0] and _same(log, self._seen[1]):
                self._seen = main, log
                if self._move_log():
                    return
        raise BadRecord("another program keeps changing it")  # while we write, three times in a row

    def _move_log(self) -> bool:
        """Move the write-ahead log into the file, if that is due. Returns whether the file has everything afterwards:
        it changes here, so its mark cannot tell whether another program has changed it, too.
        """
        main, log = self._seen
        is_long = main is not None and log is not None and log[1] > max(LARGEST_LOG, main[1] // LARGEST_PART)
        if not (self._fold_in or is_long):
            return True
        self._connection.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if self._fold_in else 'PASSIVE'})")
        marks = _marks(self.path)
        self._is_lost = not self._holds_everything()
        if not self._is_lost:
            self._fold_in, self._seen = False, marks
        return not self._is_lost

    def _is_in_place(self) -> bool:
        """Whether the path still names our file, with everything in it. Only a file that was touched is read."""
        if self._is_lost:
            return False
        (main, log), (old_main, old_log) = _marks(self.path), self._seen
        if (main, log) == self._seen:
            return True
        if not (main and old_main and main[:2] == old_main[:2] and log and _same(log, old_log)):
            return False  # we alone change the file's size; a commit that fails may leave a part of it in the log
        if self._holds_everything():
            self._seen = main, log
            return True
        return False

    def _holds_everything(self) -> bool:
        """Whether the file that the path names is a whole record, with every row as it was saved: a page with other
        bytes may look like a page, too.
        """
        with contextlib.suppress(BadRecord, sqlite3.Error):
            connection = _opened_to_read(self.path)
            try:
                return self._is_whole(connection) and all(
                    connection.execute(query).fetchall() == self._connection.execute(query).fetchall()
                    for query in SMALL_TABLES
                )
            finally:
                connection.close()
        return False

    def _is_whole(self, connection: sqlite3.Connection) -> bool:
        """Whether a record is a sound database with all events, and no letter of them has changed."""
        return connection.execute(INTACT).fetchone() == self._whole() and _digest(connection) == self._digest

    def _whole(self) -> tuple[int, int | None, int, str]:
        """What `INTACT` finds in a file that has everything."""
        return *self._sizes, self._sizes[1] or 0, "ok"

    def _write_again(self) -> None:
        """Copy everything to a new file: to the same path if it is free, else next to the file that is there now."""
        others = (self.path.with_stem(f"{self.path.stem}-{number}") for number in itertools.count(2))
        path = next(each for each in itertools.chain([self.path], others) if not each.exists())
        if path == self.path:
            _remove(path, "-wal", "-shm")  # they belong to the lost file
        lock = self._lock if path == self.path else _locked(path)
        try:
            copy = self._copied_to(path)
        except BaseException:
            _remove(path, "", "-wal", "-shm")
            if lock is not self._lock:
                lock.close()
                _remove(path, ".lock")
            raise
        self._abandon()
        lost, self.path, self._lock, self._connection = self.path, path, lock, copy
        self._seen, self._is_lost = _marks(path), False
        where = "it was written again" if path == lost else f"start with {path} from now on"
        self._report("", f"{lost} was deleted or changed by another program. Nothing is missing: {where}")

    def _copied_to(self, path: Path) -> sqlite3.Connection:
        copy = _opened(path)
        try:
            with copy:
                for table, columns in TABLES.items():
                    rows = self._connection.execute(f"SELECT * FROM {table} ORDER BY rowid")
                    copy.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})", rows)
            if not self._is_whole(copy):
                raise BadRecord("another program has changed it, and it cannot be recovered")
        except BaseException:
            copy.close()
            raise
        return copy

    def _abandon(self) -> None:
        """Close the lost file without changing it: someone else may have put theirs into its place."""
        log = self.path.with_name(f"{self.path.name}-wal")
        if is_ours := _same(_mark(log), self._seen[1]):
            os.truncate(log, 0)  # else SQLite would copy it into the file when it closes
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        if is_ours:
            _remove(self.path, "-wal", "-shm")

    def _report(self, trouble: str, notice: str) -> None:
        if (trouble, notice) != (self.trouble, self.notice):
            news = trouble if trouble else notice if notice != self.notice else "saving again; nothing is missing"
            self.trouble, self.notice = trouble, notice
            self._say(news)
            self.troubled()

    def _say(self, sentence: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal may be a file on the same full disk
            print(f"course class: {sentence}", file=sys.stderr, flush=True)


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
    connection = _opened_to_read(path)
    try:
        return connection.execute(query).fetchall()
    except sqlite3.DatabaseError as error:
        raise BadRecord(f"{path} is not the record of a class ({error}); give another file") from error
    finally:
        connection.close()


def _opened_to_read(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True)


def _digest(connection: sqlite3.Connection, after: int = 0) -> int:
    """Return the sum of the digests of all events from a place on. No digest is kept in the file that it is of."""
    rows = connection.execute("SELECT * FROM events WHERE place > ?", (after,))
    return sum(int.from_bytes(blake2b(repr(row).encode(), digest_size=16).digest(), "big") for row in rows) % DIGESTS


def _locked(path: Path) -> sqlite3.Connection:
    """Lock a file next to the record until the process ends. A lock on the record itself would block readers."""
    try:
        lock = hold_lock(path.with_name(f"{path.name}.lock"))
    except (OSError, sqlite3.Error) as error:
        raise BadRecord(f"{path} cannot be written ({error}); free some space, or give another file") from error
    if lock is None:
        raise BadRecord(f"{path} is in use by another `course class`; end that one, or give another file")
    return lock


def _opened(path: Path) -> sqlite3.Connection:
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
        connection.execute("PRAGMA wal_autocheckpoint=0")  # only `_save` changes the file, so it knows who else does
        connection.execute(f"PRAGMA cache_size={CACHE}")
        known = connection.execute("PRAGMA user_version").fetchone()[0]
        if known > VERSION or (known == 0 and connection.execute("SELECT 1 FROM sqlite_master").fetchone()):
            raise BadRecord(f"{path} is not the record of a class, or a newer course wrote it; give another file")
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


Mark = tuple[tuple[int, int], int, int, int] | None  # which file it is, its size and when it was changed


def _marks(path: Path) -> tuple[Mark, Mark]:
    """Return the marks of a record and of its write-ahead log; None for a file that is not there."""
    return _mark(path), _mark(path.with_name(f"{path.name}-wal"))


def _mark(path: Path) -> Mark:
    with contextlib.suppress(OSError):
        found = path.stat()
        return (found.st_dev, found.st_ino), found.st_size, found.st_mtime_ns, found.st_ctime_ns  # one can be set back
    return None


def _same(one: Mark, other: Mark) -> bool:
    """Whether both are marks of the same file, whatever was written to it."""
    return one is not None and other is not None and one[0] == other[0]


def _remove(path: Path, *ends: str) -> None:
    """Remove the files whose names are the path and these ends."""
    for end in ends:
        with contextlib.suppress(OSError):
            path.with_name(f"{path.name}{end}").unlink()
