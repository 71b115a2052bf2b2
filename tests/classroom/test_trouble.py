"""A class whose record cannot be written, or is gone: all are told, nobody waits, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from course_lib.classroom.server import record as records
from course_lib.classroom.server.record_file import BadRecord, read, read_events
from tests.classroom.serving import Learner, ask, class_in_a_process, come_back, end, enter, event_of, free_port
from tests.classroom.test_record import fill, overwritten, small_disk
from tests.classroom.test_restart import hear_until_the_end, send_until_the_end
from tests.conftest import PATIENCE


def test_while_nothing_can_be_saved_everyone_is_told_and_afterwards_the_class_goes_on(in_class, monkeypatch):
    monkeypatch.setattr(records, "RETRY", 0.05)
    together, broken = records.together, [True]

    def fail(statements):
        if broken:
            raise sqlite3.OperationalError("database or disk is full")
        return together(statements)

    async def scene(served):
        ada, ben = await enter(served, "Ada"), await enter(served, "Ben")
        monkeypatch.setattr(records, "together", fail)
        (lost,) = await ada.send({"kind": "slower"})  # it waits in the server while the disk is full
        await asyncio.gather(*(one.wait_for(lambda state: state["trouble"]) for one in (ada, ben)))
        (refused,) = await ben.send({"kind": "stuck", "on": True})
        assert (await ben.hear())["state"][
            "trouble"
        ] == "it cannot save anything now; what you do is kept and sent later"
        status, answer = await served.join("Eve")
        assert (status, "disk is full" in answer["error"]) == (503, True)
        question = {"number": "00.1", "round": "before"}
        status, answer = await served.post("/view/ask", question, **served.instructor)
        assert (status, "This was not saved" in answer["error"]) == (503, True)
        assert "cannot be written (database or disk is full)" in (await served.snapshot())["trouble"]
        assert (ada.kept | ben.kept, ada.refused | ben.refused) == (set(), {})
        assert not (await served.snapshot())["hands"]

        broken.clear()
        await asyncio.gather(*(one.wait_for(lambda state: not state["trouble"]) for one in (ada, ben)))
        assert await ben.say(kind="stuck", on=True, id=refused) == ""
        while lost not in ada.kept:
            await ada.hear()
        await served.act("ask", **question)
        shown = await served.snapshot()
        assert (shown["trouble"], len(shown["hands"]), shown["slower"]) == ("", 1, 1)

    in_class(scene)


def test_who_waits_when_the_disk_fills_up_is_answered(in_class, monkeypatch):
    async def scene(served):
        def fail(_):
            raise sqlite3.DatabaseError("the disk is broken")

        monkeypatch.setattr(records, "together", fail)
        (status, answer), (acted, why) = await asyncio.gather(
            served.join("Ada"), served.post("/view/faster", {}, **served.instructor)
        )
        assert (status, acted) == (503, 503)
        assert "the disk is broken" in answer["error"]
        assert "the disk is broken" in why["error"]

    in_class(scene)


async def lose_in_the_middle(served, lose) -> list[Learner]:
    """The learners of a class that loses its record while they send, and is then killed."""
    learners = [await enter(served) for _ in range(5)]
    sending = [asyncio.ensure_future(send_until_the_end(learner)) for learner in learners]
    hearing = [asyncio.ensure_future(hear_until_the_end(learner)) for learner in learners]

    def kept() -> int:
        return sum(len(learner.kept) for learner in learners)

    while kept() < 200:
        await asyncio.sleep(0.001)
    await lose(kept, learners)
    end(served, signal.SIGKILL)
    await asyncio.gather(*hearing)
    for task in sending:
        task.cancel()
    return learners


async def until_written_again(record, kept) -> None:
    """Wait until the record is whole again, and 500 events more were acknowledged. Whoever kills a class before that
    has two accidents at once.
    """
    while not (record.exists() and has_events(record)):
        await asyncio.sleep(0.001)
    before = kept()
    while kept() < before + 500:
        await asyncio.sleep(0.001)


def has_events(record) -> bool:
    with contextlib.suppress(BadRecord):
        return bool(read(record, "SELECT 1 FROM events LIMIT 1"))
    return False


def assert_all_is_there(learners, record) -> None:
    recorded = {(learner, event["id"]) for learner, event in read_events(record)}
    kept = {(learner.learner, identity) for learner in learners for identity in learner.kept}
    assert len(kept) >= 200
    assert not kept - recorded


@pytest.mark.slow  # `test_record.py` deletes records, and `test_restart.py` kills a class under load
def test_a_record_that_is_deleted_under_load_has_all_that_was_acknowledged(tmp_path):
    record = tmp_path / "class.db"

    async def delete(kept, _):
        for file in tmp_path.glob("class.db*"):
            file.unlink()
        await until_written_again(record, kept)

    with class_in_a_process(record) as served:
        learners = asyncio.run(lose_in_the_middle(served, delete))
    assert_all_is_there(learners, record)


@pytest.mark.slow  # `test_record.py` overwrites records
def test_a_record_that_is_overwritten_under_load_has_all_that_was_acknowledged(tmp_path):
    """Someone copies another class's record over it: theirs stays as it is, and ours is written next to it."""
    record = tmp_path / "class.db"

    async def overwrite(kept, _):
        overwritten(record)
        await until_written_again(record.with_name("class-2.db"), kept)

    with class_in_a_process(record) as served:
        learners = asyncio.run(lose_in_the_middle(served, overwrite))
    assert_all_is_there(learners, record.with_name("class-2.db"))


@pytest.mark.slow  # `test_record.py` fills a disk
def test_a_disk_that_fills_up_under_load_keeps_all_that_was_acknowledged(tmp_path):
    with small_disk(tmp_path / "disk", "2m") as disk:

        async def until_full(_, learners):
            fill(disk / "ballast")
            await asyncio.gather(*(until(lambda one=one: one.state.get("trouble")) for one in learners))

        with class_in_a_process(disk / "class.db") as served:
            learners = asyncio.run(lose_in_the_middle(served, until_full))
        (disk / "ballast").unlink()
        assert_all_is_there(learners, disk / "class.db")


async def until(what) -> None:
    while not what():
        await asyncio.sleep(0.01)


@pytest.mark.slow
def test_a_class_on_a_full_disk_with_its_terminal_there_too_is_told_of_and_ends_when_it_is_asked_to(tmp_path):
    with small_disk(tmp_path / "disk", "1m") as disk:
        errors = (disk / "errors.txt").open("w")
        with class_in_a_process(disk / "class.db", stderr=errors) as served:

            async def scene():
                await served.log_in()
                ada = await enter(served, "Ada")
                fill(disk / "ballast")
                await ada.send(*(event_of(kind="showed", source="x" * 9000) for _ in range(20)))
                await ada.wait_for(lambda state: state["trouble"])
                assert "disk is full" in (await served.snapshot())["trouble"]
                assert ada.kept == set()
                return ada

            ada = asyncio.run(scene())
            assert end(served, signal.SIGTERM) in (1, 120)  # 120: Python could not flush its own output either
        errors.close()
        (disk / "ballast").unlink()
        with class_in_a_process(disk / "class.db", port=urlsplit(served.url).port or 0) as again:

            async def come():
                found = await come_back(again, ada.learner, ada.secret)
                assert await found.say(kind="slower") == ""

            asyncio.run(come())


WITHOUT_UNIX = """
import asyncio, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
def not_there(*_):
    raise NotImplementedError
asyncio.SelectorEventLoop.add_signal_handler = not_there
from course_lib.classroom.server import Options, serve
sys.exit(serve(Options(port=int(sys.argv[1]), record=sys.argv[2], browser=False)))
"""


@pytest.mark.slow  # `test_starting.py` holds a record with the same lock
@pytest.mark.skipif(sys.platform == "win32", reason="ends the class by a signal of Unix")
def test_a_class_is_served_where_there_is_only_what_windows_has(tmp_path):
    words = [sys.executable, "-c", WITHOUT_UNIX, str(port := free_port()), str(tmp_path / "class.db")]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    served = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert any(line.startswith("Ctrl-C") for line in served.stdout or ())
        assert asyncio.run(ask(f"http://127.0.0.1:{port}/projector")).code == 403
        served.send_signal(signal.SIGINT)
        assert served.wait(PATIENCE) == 0
    finally:
        served.kill()
        served.wait()
        served.stdout.close()  # type: ignore[union-attr]
