"""A class whose record cannot be written: all are told, nobody waits, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from course_lib.classroom.server import record as records
from course_lib.runtime.machine import free_port
from tests.classroom.serving import ask, class_in_a_process, come_back, end, enter, event_of
from tests.classroom.test_record import fill, small_disk
from tests.conftest import PATIENCE

pytestmark = pytest.mark.anyio


async def test_while_nothing_can_be_saved_everyone_is_told_and_afterwards_the_class_goes_on(served, monkeypatch):
    monkeypatch.setattr(records, "RETRY", 0.05)
    together, broken = records.together, [True]

    def fail(statements):
        if broken:
            raise sqlite3.OperationalError("database or disk is full")
        return together(statements)

    ada, ben = await enter(served, "Ada"), await enter(served, "Ben")
    monkeypatch.setattr(records, "together", fail)
    (lost,) = await ada.send({"kind": "slower"})  # it waits in the server while the disk is full
    await asyncio.gather(*(one.wait_for(lambda state: state["trouble"]) for one in (ada, ben)))
    (refused,) = await ben.send({"kind": "stuck", "on": True})
    assert (await ben.hear())["state"]["trouble"] == "it cannot save anything now; what you do is kept and sent later"
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


async def test_who_waits_when_the_disk_fills_up_is_answered(served, monkeypatch):
    def fail(_):
        raise sqlite3.DatabaseError("the disk is broken")

    monkeypatch.setattr(records, "together", fail)
    (status, answer), (acted, why) = await asyncio.gather(
        served.join("Ada"), served.post("/view/faster", {}, **served.instructor)
    )
    assert (status, acted) == (503, 503)
    assert "the disk is broken" in answer["error"]
    assert "the disk is broken" in why["error"]


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
