"""A record that is lost, or has no room, while a class is running: nothing acknowledged is missing, and it is said."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import sqlite3
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from course_lib.classroom.server import record as records
from course_lib.classroom.server import record_file
from course_lib.classroom.server.record import INTACT, Record
from course_lib.classroom.server.record_file import BadRecord, event_statement, read, read_events
from tests.classroom.serving import event_of
from tests.conftest import PATIENCE


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(records, "RETRY", 0.01)


class Writing:
    """Writes events and remembers which of them the record acknowledged."""

    def __init__(self, path: Path) -> None:
        self.record = Record(path)
        self.record.deliver = lambda waiting: [then() for then in waiting]
        self.kept: list[str] = []

    def write(self, count: int = 1, size: int = 10) -> threading.Event:
        """Write events; returns what is set when the last is acknowledged."""
        done = threading.Event()
        for _ in range(count):
            event = {**event_of(kind="showed", source="x" * size), "received": 0.0}
            statement = event_statement("ada", event)
            self.record.write([statement], lambda event=event: (self.kept.append(event["id"]), done.set()))
        return done

    def acknowledged(self, count: int = 1, size: int = 10) -> None:
        """Write events and wait until they are acknowledged."""
        until = len(self.kept) + count
        while len(self.kept) < until:
            assert self.write(count, size).wait(PATIENCE)

    def rows(self) -> list[str]:
        return [json.dumps(event) for _, event in read_events(self.record.path)]

    def read_back(self) -> list[str]:
        assert self.record.close()
        return [event["id"] for _, event in read_events(self.record.path)]


def deleted(path: Path) -> None:
    path.unlink()


def all_deleted(path: Path) -> None:
    for file in path.parent.glob("class.db*"):
        file.unlink(missing_ok=True)


def replaced(path: Path) -> None:
    foreign(path.with_name("another.db")).replace(path)


def overwritten(path: Path) -> None:
    shutil.copyfile(foreign(path.with_name("another.db")), path)  # the same file, with other content


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def log_deleted(path: Path) -> None:
    path.with_name("class.db-wal").unlink()


def log_emptied(path: Path) -> None:
    os.truncate(path.with_name("class.db-wal"), 0)


def foreign(path: Path) -> Path:
    Record(path).close()
    return path


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def over_the_header(path: Path) -> None:
    write_over(path, 0, b"not a database " * 7)


def over_a_page(path: Path) -> None:
    write_over(path, 4096 * (path.stat().st_size // 4096 // 2), os.urandom(4096))


def over_a_text(path: Path) -> None:
    """Change a few letters inside an event: every page still looks as it should."""
    content, copy = path.read_bytes(), path.with_name("copy.db")
    before = events_in(copy, content)
    # The first of them: the last page may be in SQLite's log once more, and free space may hold old rows. A change
    # there loses nothing, so the record need not notice it.
    for place in (match.start() for match in re.finditer(b"x" * 10, content)):
        changed = content[:place] + b"y" * 5 + content[place + 5 :]
        if events_in(copy, changed) != before:
            return write_over(path, place, b"y" * 5)
    write_over(path, 0, b"y" * 5)  # there are no events yet


def events_in(copy: Path, content: bytes) -> list[tuple]:
    """The events of a file with this content, without those that are only in its log yet."""
    copy.write_bytes(content)
    with (
        contextlib.closing(sqlite3.connect(f"file:{copy}?mode=ro&immutable=1", uri=True)) as connection,
        contextlib.suppress(sqlite3.Error),
    ):
        return connection.execute("SELECT * FROM events").fetchall()
    return []


def in_secret(path: Path) -> None:
    times = path.stat()
    over_a_text(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def write_over(path: Path, place: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


LOSSES = (deleted, all_deleted, replaced, overwritten, emptied, log_deleted, log_emptied)


@pytest.mark.parametrize(
    ("lose", "already_in_the_file"), [*((lose, False) for lose in LOSSES), *((lose, True) for lose in LOSSES[:-1])]
)
def test_a_record_that_is_lost_is_noticed_and_nothing_acknowledged_is_missing(tmp_path, lose, already_in_the_file):
    writing = Writing(tmp_path / "class.db")
    writing.acknowledged(300, size=1000)
    if already_in_the_file:
        writing.record.fold_in()
        writing.acknowledged(20)
    lose(tmp_path / "class.db")
    writing.acknowledged(20)
    assert "class.db was deleted or changed by another program" in writing.record.notice
    recorded = writing.read_back()
    assert len(recorded) == len(set(recorded))
    assert set(writing.kept) <= set(recorded)


@pytest.mark.parametrize("lose", [cut_short, over_the_header, over_a_page, over_a_text, in_secret])
def test_a_file_with_other_bytes_in_it_is_noticed_and_written_again(tmp_path, lose):
    writing = Writing(tmp_path / "class.db")
    writing.acknowledged(300, size=1000)
    writing.record.fold_in()
    writing.acknowledged(20)
    before = writing.rows()
    lose(tmp_path / "class.db")
    writing.acknowledged(20)
    assert "class.db was deleted or changed by another program" in writing.record.notice
    assert set(writing.kept) <= set(writing.read_back())
    assert writing.rows()[: len(before)] == before


@pytest.mark.parametrize(
    "lose", [all_deleted, emptied, cut_short, over_the_header, over_a_page, over_a_text, replaced, overwritten]
)
@pytest.mark.parametrize("largest_log", [4 << 20, 1 << 16])  # never moved into the file meanwhile, and again and again
def test_a_record_that_is_overwritten_amid_a_stream_of_writes_keeps_what_it_acknowledges(
    tmp_path, monkeypatch, lose, largest_log
):
    monkeypatch.setattr(records, "LARGEST_LOG", largest_log)
    writing = Writing(tmp_path / "class.db")
    writing.acknowledged(200, size=1000)
    writing.record.fold_in()
    writing.acknowledged(20)
    ended = threading.Event()

    def keep_writing():
        while not ended.is_set():
            assert writing.write(5, size=1000).wait(PATIENCE)

    learners = [threading.Thread(target=keep_writing) for _ in range(4)]
    for learner in learners:
        learner.start()
    for _ in range(3):  # whatever the writer does at the moment
        path, until = writing.record.path, len(writing.kept) + 40
        lose(path)
        while len(writing.kept) < until or not (writing.record.notice or lose is over_the_header):
            assert not ended.wait(0.001)  # SQLite's log may have the header, too: then nothing is lost, or noticed
    ended.set()
    for learner in learners:
        learner.join(PATIENCE)
    recorded = writing.read_back()
    assert len(recorded) == len(set(recorded))
    assert set(writing.kept) <= set(recorded)
    assert all(event["source"] == "x" * len(event["source"]) for _, event in read_events(writing.record.path))


def test_a_file_that_is_changed_while_the_log_is_moved_into_it_is_noticed(tmp_path, monkeypatch):
    writing = Writing(tmp_path / "class.db")
    writing.acknowledged(300, size=1000)
    marks = records.marks_of
    changed = []

    def marks_and_change(path):
        found = marks(path)
        if writing.record._fold_in and not changed:  # between the look at the file and the move
            changed.append(path)
            os.truncate(path, 0)
        return found

    writing.record.fold_in()
    monkeypatch.setattr(records, "marks_of", marks_and_change)
    writing.acknowledged(20)
    assert changed
    assert set(writing.kept) <= set(writing.read_back())


@pytest.mark.parametrize("lose", [replaced, overwritten])
def test_the_file_that_took_its_place_stays_as_it_is(tmp_path, lose):
    writing = Writing(tmp_path / "class.db")
    writing.acknowledged(50, size=1000)
    lose(tmp_path / "class.db")
    before = (tmp_path / "class.db").read_bytes()
    writing.acknowledged(50, size=1000)
    assert writing.record.path.name == "class-2.db"
    assert f"start with {tmp_path / 'class-2.db'} from now on" in writing.record.notice
    assert writing.read_back()
    assert (tmp_path / "class.db").read_bytes() == before
    assert read(tmp_path / "class.db", INTACT) == [(0, None, 0, "ok")]  # no log of ours is read with it


def test_a_record_that_is_deleted_while_nobody_writes_is_there_again(tmp_path):
    writing = Writing(tmp_path / "class.db")
    writing.acknowledged(5)
    told = threading.Event()
    writing.record.troubled = told.set
    (tmp_path / "class.db").unlink()
    assert told.wait(PATIENCE)
    assert len(list(read_events(tmp_path / "class.db"))) >= 5
    assert writing.record.close()


@pytest.mark.parametrize("touch", [os.utime, lambda path: read(path, "SELECT * FROM events")])
def test_a_record_that_was_only_looked_at_stays_where_it_is(tmp_path, touch):
    writing = Writing(tmp_path / "class.db")
    writing.acknowledged(5)
    touch(tmp_path / "class.db")
    writing.acknowledged(5)
    assert (writing.record.notice, writing.record.path.name) == ("", "class.db")
    assert len(writing.read_back()) >= 10


def test_what_cannot_be_recovered_ends_acknowledgements_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(record_file, "CACHE", 1)  # nothing of the file is in memory
    writing = Writing(tmp_path / "class.db")
    writing.acknowledged(300, size=5000)
    writing.record.fold_in()
    writing.acknowledged(1)
    told = threading.Event()
    writing.record.troubled = told.set
    overwritten(tmp_path / "class.db")
    kept = len(writing.kept)
    assert not writing.write().is_set()
    assert told.wait(PATIENCE)
    assert "nothing is saved or acknowledged" in writing.record.trouble
    assert not writing.record.close()
    assert len(writing.kept) == kept


@contextmanager
def small_disk(folder: Path, size: str = "400k"):
    """A file system that is soon full; only root may mount one."""
    folder.mkdir()
    if sys.platform != "linux" or os.system(f"mount -t tmpfs -o size={size} tmpfs {folder} 2>/dev/null"):
        pytest.skip("mounting a small file system takes Linux and root")
    try:
        yield folder
    finally:
        os.system(f"umount -l {folder}")


def test_a_full_disk_is_told_and_what_was_not_acknowledged_is_when_there_is_room(tmp_path, capsys):
    with small_disk(tmp_path / "disk") as disk:
        writing = Writing(disk / "class.db")
        writing.acknowledged(5)
        told = threading.Event()
        writing.record.troubled = told.set
        fill(disk / "ballast")
        done = writing.write(count=20, size=5000)
        assert told.wait(PATIENCE)
        assert "cannot be written (database or disk is full)" in writing.record.trouble
        assert not done.is_set()
        (disk / "ballast").unlink()
        assert done.wait(PATIENCE)
        assert set(writing.kept) <= set(writing.read_back())
    printed = capsys.readouterr().err
    assert "course class: " in printed
    assert "saving again; nothing is missing" in printed


def fill(path: Path) -> None:
    """Take all the room that is left."""
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            while True:
                try:
                    file.write(b"x" * size)
                except OSError:
                    break


class FullDisk(io.StringIO):
    """Where a terminal's output goes that was sent to a file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "error",
    [sqlite3.OperationalError("disk I/O error"), sqlite3.DatabaseError("malformed"), OSError(errno.EIO, "broken")],
)
def test_no_error_ends_the_writer_in_silence_not_even_where_nothing_can_be_printed(tmp_path, monkeypatch, error):
    writing = Writing(tmp_path / "class.db")
    told = threading.Event()
    writing.record.troubled = told.set
    failing = [error]

    def fail(statements):
        if failing:
            raise failing[0]
        return records_together(statements)

    records_together = records.together
    monkeypatch.setattr(records, "together", fail)
    monkeypatch.setattr(sys, "stderr", FullDisk())
    done = writing.write()
    assert told.wait(PATIENCE)
    assert str(error) in writing.record.trouble
    failing.clear()
    assert done.wait(PATIENCE)
    assert writing.read_back() == writing.kept


def test_a_record_on_a_full_disk_does_not_begin(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        fill(disk / "ballast")
        with pytest.raises(BadRecord, match="free some space, or give another file"):
            Record(disk / "class.db")


@pytest.mark.parametrize("is_freed", [True, False])
def test_closing_saves_what_waits_if_there_is_room_and_else_says_that_it_could_not(tmp_path, capsys, is_freed):
    writing = Writing(tmp_path / "class.db")
    writing.acknowledged()
    writing.record._connection.execute("PRAGMA max_page_count=1")
    told = threading.Event()
    writing.record.troubled = told.set
    writing.write(count=20, size=5000)
    assert told.wait(PATIENCE)
    assert len(writing.kept) == 1
    if is_freed:
        writing.record._connection.execute("PRAGMA max_page_count=100000")
    assert writing.record.close() == is_freed
    assert len(writing.kept) == len(list(read_events(tmp_path / "class.db"))) == (21 if is_freed else 1)
    assert ("Learners keep what is missing" in capsys.readouterr().err) != is_freed
