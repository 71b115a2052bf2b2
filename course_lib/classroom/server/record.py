"""The record of a class: one SQLite file that loses nothing when the server is killed.

A writer thread commits statements in batches, every few milliseconds, and runs their callbacks after the commit. The
file stores who has joined (with secrets only as hashes), and every event once.

We acknowledge only what is on disk, in the file at the record's path. While nothing can be written, `trouble` gives the
reason. If the file is deleted, replaced or overwritten, we write it again from the open connection, which still has
everything.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course_lib.classroom.server.record_file import (
    DIGESTS,
    TABLES,
    BadRecord,
    Statement,
    digest,
    locked,
    mark_of,
    marks_of,
    open_to_read,
    open_to_write,
    remove,
    same_file,
    together,
)

GATHER = 0.02  # seconds to collect statements for a commit; longer with many learners: fewer commits and messages
GATHER_MORE, MANY = 0.03, 20  # used after a batch of at least MANY
RETRY = 1.0  # seconds before retrying a failed commit, and between checks of an idle file
LARGEST_LOG = 4 << 20  # bytes that SQLite's write-ahead log must exceed before we move it into the file ...
LARGEST_PART = 4  # ... as well as the file's size divided by this, because each move reads the whole file
SIZES = "SELECT (SELECT count(*) FROM learners), (SELECT max(place) FROM events)"  # events are never deleted
SMALL_TABLES = tuple(f"SELECT * FROM {table} ORDER BY rowid" for table in TABLES if table != "events")
INTACT = f"{SIZES}, (SELECT count(*) FROM events), (SELECT * FROM pragma_quick_check)"

Batch = list[tuple[list[Statement], Callable[[], None]]]


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
        self._lock = locked(path)
        self._connection = open_to_write(path)
        self._digest = digest(self._connection)  # which also fills the cache
        self._is_lost = False  # the file turned out to be a different one, whatever its marks
        self._sizes, self._seen = self._connection.execute(SIZES).fetchone(), marks_of(path)
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
        """Write what is queued and close the file, without waiting for space. Returns whether everything was saved."""
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
        return []  # nothing to write: only check that the file is still there

    def _commit(self, batch: Batch) -> None:
        """Commit a batch in one transaction, retrying until it is saved. Callbacks run only after success."""
        while True:
            try:
                self._save([each for statements, _ in batch for each in statements])
                break
            except Exception as error:  # whatever it is, this thread must keep running and report it
                trouble = f"{self.path} cannot be written ({error}), so nothing is saved or acknowledged until it can"
                if self._closing.is_set():
                    self._unsaved += sum(len(statements) for statements, _ in batch)
                    return self._say(f"{trouble}. Learners keep what is missing, and send it when the class continues")
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
                self._digest = (self._digest + digest(self._connection, self._sizes[1] or 0)) % DIGESTS
                self._sizes = self._connection.execute(SIZES).fetchone()
            main, log = marks_of(self.path)
            if main is not None and main == self._seen[0] and same_file(log, self._seen[1]):
                self._seen = main, log
                if self._move_log():
                    return
        raise BadRecord("another program keeps changing it")  # while we write, three times in a row

    def _move_log(self) -> bool:
        """Move the write-ahead log into the file, if it is time. Returns whether the file has everything afterwards:
        the move changes its mark, so the mark cannot show whether another program has changed it, too.
        """
        main, log = self._seen
        is_long = main is not None and log is not None and log[1] > max(LARGEST_LOG, main[1] // LARGEST_PART)
        if not (self._fold_in or is_long):
            return True
        self._connection.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if self._fold_in else 'PASSIVE'})")
        marks = marks_of(self.path)
        self._is_lost = not self._holds_everything()
        if not self._is_lost:
            self._fold_in, self._seen = False, marks
        return not self._is_lost

    def _is_in_place(self) -> bool:
        """Whether the path still names our file, with everything in it. We read it only if its marks changed."""
        if self._is_lost:
            return False
        (main, log), (old_main, old_log) = marks_of(self.path), self._seen
        if (main, log) == self._seen:
            return True
        if not (main and old_main and main[:2] == old_main[:2] and log and same_file(log, old_log)):
            return False  # we alone change the file's size; a commit that fails may leave a part of it in the log
        if self._holds_everything():
            self._seen = main, log
            return True
        return False

    def _holds_everything(self) -> bool:
        """Whether the file at the path is a complete record, with every row as it was saved: a page with the wrong
        bytes may still look valid.
        """
        with contextlib.suppress(BadRecord, sqlite3.Error):
            connection = open_to_read(self.path)
            try:
                return self._is_whole(connection) and all(
                    connection.execute(query).fetchall() == self._connection.execute(query).fetchall()
                    for query in SMALL_TABLES
                )
            finally:
                connection.close()
        return False

    def _is_whole(self, connection: sqlite3.Connection) -> bool:
        """Whether a record is a valid database that has all events, unchanged."""
        return connection.execute(INTACT).fetchone() == self._whole() and digest(connection) == self._digest

    def _whole(self) -> tuple[int, int | None, int, str]:
        """What `INTACT` finds in a file that has everything."""
        return *self._sizes, self._sizes[1] or 0, "ok"

    def _write_again(self) -> None:
        """Copy everything to a new file: to the same path if it is free, else next to the file that is there now."""
        others = (self.path.with_stem(f"{self.path.stem}-{number}") for number in itertools.count(2))
        path = next(each for each in itertools.chain([self.path], others) if not each.exists())
        if path == self.path:
            remove(path, "-wal", "-shm")  # they belong to the lost file
        lock = self._lock if path == self.path else locked(path)
        try:
            copy = self._copied_to(path)
        except BaseException:
            remove(path, "", "-wal", "-shm")
            if lock is not self._lock:
                lock.close()
                remove(path, ".lock")
            raise
        self._abandon()
        lost, self.path, self._lock, self._connection = self.path, path, lock, copy
        self._seen, self._is_lost = marks_of(path), False
        where = "it was written again" if path == lost else f"start with {path} from now on"
        self._report("", f"{lost} was deleted or changed by another program. Nothing is missing: {where}")

    def _copied_to(self, path: Path) -> sqlite3.Connection:
        copy = open_to_write(path)
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
        """Close the lost file without changing it: someone may have put a different file in its place."""
        log = self.path.with_name(f"{self.path.name}-wal")
        if is_ours := same_file(mark_of(log), self._seen[1]):
            os.truncate(log, 0)  # else SQLite would copy it into the file when it closes
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        if is_ours:
            remove(self.path, "-wal", "-shm")

    def _report(self, trouble: str, notice: str) -> None:
        if (trouble, notice) != (self.trouble, self.notice):
            news = trouble if trouble else notice if notice != self.notice else "saving again; nothing is missing"
            self.trouble, self.notice = trouble, notice
            self._say(news)
            self.troubled()

    def _say(self, sentence: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal may be a file on the same full disk
            print(f"course class: {sentence}", file=sys.stderr, flush=True)
