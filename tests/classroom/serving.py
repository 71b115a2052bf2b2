"""A class to test with: a server in its own process or in the test's loop, and learners on real WebSockets."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from tornado.netutil import bind_sockets
from tornado.websocket import WebSocketClientConnection, websocket_connect

from course_lib.classroom.content import content
from course_lib.classroom.server import make_application
from course_lib.classroom.server.addresses import Address, certificate_names, encrypted, fingerprint, own_certificate
from course_lib.classroom.server.guards import Server
from course_lib.classroom.server.record_file import read_events
from course_lib.classroom.server.room import Room
from course_lib.runtime.machine import free_port
from tests.browser.lab import wait
from tests.conftest import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
AsyncHTTPClient.configure(None, max_clients=1000)


@dataclass
class Served:
    """A class that runs."""

    url: str
    code: str
    token: str
    process: subprocess.Popen[str] | None = None
    room: Room | None = None
    cookie: str = ""
    xsrf: str = ""
    printed: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # of the application, if it is in this process

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        """What is answered to something that is posted."""
        answer = await ask(f"{self.url}{path}", method="POST", body=json.dumps(body), headers=headers)
        return answer.code, json.loads(answer.body)

    async def join(self, name: str = "", code: str | None = None) -> tuple[int, dict[str, Any]]:
        return await self.post("/join", {"code": self.code if code is None else code, "name": name})

    async def log_in(self) -> None:
        """Open the instructor's page as a browser does, which keeps the cookies."""
        answer = await ask(f"{self.url}/view/state?token={self.token}", follow_redirects=False)
        self.cookie = "; ".join(line.split(";")[0] for line in answer.headers.get_list("Set-Cookie"))
        page = await ask(f"{self.url}/", headers={"Cookie": self.cookie})
        self.cookie += "; " + "; ".join(line.split(";")[0] for line in page.headers.get_list("Set-Cookie"))
        self.xsrf = re.search(r'name="xsrf" content="([^"]+)"', page.body.decode())[1]  # type: ignore[index]

    async def act(self, action: str, **details: Any) -> dict[str, Any]:
        """What the instructor does."""
        status, answer = await self.post(f"/view/{action}", details, **self.instructor)
        assert status == 200, answer
        return answer

    @property
    def instructor(self) -> dict[str, str]:
        return {"Cookie": self.cookie, "X-XSRFToken": self.xsrf}

    async def snapshot(self) -> dict[str, Any]:
        return json.loads((await ask(f"{self.url}/view/state", headers={"Cookie": self.cookie})).body)


async def ask(url: str, **request: Any) -> HTTPResponse:
    """Whatever is answered, an error too."""
    request.setdefault("request_timeout", PATIENCE)
    return await AsyncHTTPClient().fetch(HTTPRequest(url, validate_cert=False, **request), raise_error=False)


@dataclass
class Learner:
    """Somebody in the class, with a channel."""

    channel: WebSocketClientConnection
    learner: str
    secret: str
    state: dict[str, Any] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    told: list[dict[str, Any]] = field(default_factory=list)

    async def send(self, *events: dict[str, Any]) -> list[str]:
        """Send events; returns their ids."""
        made = [event_of(**event) for event in events]
        await self.channel.write_message(json.dumps({"events": made}))
        return [event["id"] for event in made]

    async def hear(self) -> dict[str, Any] | None:
        """The next that the class says, None at the end."""
        message = await asyncio.wait_for(self.channel.read_message(), PATIENCE)
        if message is None:
            return None
        heard = json.loads(message)
        self.told.append(heard)
        self.kept |= set(heard.get("kept", ()))
        self.refused |= heard.get("refused", {})
        self.state = heard.get("state", self.state)
        return heard

    async def say(self, **event: Any) -> str:
        """Send one event and wait for what becomes of it: "" if it is kept, else the sentence."""
        (sent,) = await self.send(event)
        while sent not in self.kept and sent not in self.refused:
            assert await self.hear() is not None
        return self.refused.get(sent, "")

    async def wait_for(self, what: Any) -> None:
        """Hear until the state is so."""
        while not self.state or not what(self.state):
            assert await self.hear() is not None


def event_of(**event: Any) -> dict[str, Any]:
    """An event as the learner's side makes it."""
    return {"id": secrets.token_hex(16), "at": time.time(), **event}


async def enter(served: Served, name: str = "") -> Learner:
    """A new learner, connected, who knows the state."""
    status, joined = await served.join(name)
    assert status == 200, joined
    return await come_back(served, joined["learner"], joined["secret"])


async def come_back(served: Served, learner: str, secret: str) -> Learner:
    """The same learner again, on a new channel."""
    found = Learner(await connect(served, f"Bearer {secret}"), learner, secret)
    await found.wait_for(bool)
    return found


async def connect(served: Served, authorization: str, **headers: str) -> WebSocketClientConnection:
    url = served.url.replace("http", "ws", 1) + "/channel"
    context = ssl._create_unverified_context() if url.startswith("wss") else None
    request = HTTPRequest(url, headers={"Authorization": authorization, **headers}, ssl_options=context)
    return await websocket_connect(request)


async def raw(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of somebody who keeps to no rule."""
    address = urlsplit(served.url)
    return await asyncio.open_connection(address.hostname, address.port)


@asynccontextmanager
async def class_here(record: Path, *, tls: bool = False, port: int = 0, **given: Any) -> AsyncIterator[Served]:
    """A class in this very loop: its tally and its limits can be looked at."""
    (socket,) = bind_sockets(port, "127.0.0.1")
    files = own_certificate(record, certificate_names("127.0.0.1")) if tls else None
    address = Address("127.0.0.1", socket.getsockname()[1], fingerprint(files[0]) if files else "")
    room = Room(record, content(), **given)
    room.deliver_in(asyncio.get_running_loop())
    application = make_application(room, address)
    server = Server(application, ssl_options=encrypted(*files) if files else None)
    server.add_sockets([socket])
    served = Served(address.base, room.code, room.new_token(), room=room, settings=application.settings)
    try:
        await served.log_in()
        yield served
    finally:
        server.stop()
        await server.close_all_connections()
        room.close()


class HeldClass:
    """A class in a thread of its own, which can go away and come back with the same record."""

    def __init__(self, record: Path, **given: Any) -> None:
        self.record, self.given = record, {"port": free_port(), "title": "A small class", **given}
        self.start()

    def start(self) -> None:
        opened: Future[Served] = Future()
        self._thread = threading.Thread(target=asyncio.run, args=(self._hold(opened),), daemon=True)
        self._thread.start()
        self.served = opened.result(PATIENCE)

    async def _hold(self, opened: Future[Served]) -> None:
        async with class_here(self.record, **self.given) as served:
            self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
            opened.set_result(served)
            await self._over.wait()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(PATIENCE)

    @property
    def joining(self) -> tuple[str, str]:
        """The address and the code."""
        return self.served.url, self.served.code

    def act(self, action: str, **details: Any) -> dict[str, Any]:
        """What the instructor does."""
        return asyncio.run_coroutine_threadsafe(self.served.act(action, **details), self._loop).result(PATIENCE)

    def kept(self) -> list[dict[str, Any]]:
        """All that learners have sent and the record has."""
        return [event for learner, event in read_events(self.record) if learner]

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """The same, when there are so many."""
        return wait(lambda: len(found := self.kept()) >= count and found)


@contextmanager
def class_in_a_process(record: Path, *words: str, port: int = 0, stderr: Any = None) -> Iterator[Served]:
    """`course class`, which a test may kill."""
    command = [sys.executable, "-m", "course_lib", "class", "--no-browser", "--record", str(record)]
    command += ["--port", str(port or free_port()), *words]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env, cwd=record.parent)
    try:
        yield _announced(process)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def _announced(process: subprocess.Popen[str]) -> Served:
    """What a class has printed when it is ready."""
    lines: list[str] = []
    for line in process.stdout or ():
        lines.append(line)
        if line.startswith("Ctrl-C"):
            break
    printed = "".join(lines)
    url, token = re.search(r"for you\s+(\S+)/\?token=(\S+)", printed).groups()  # type: ignore[union-attr]
    code = re.search(r"code (\S+)", printed)[1]  # type: ignore[index]
    return Served(url, code, token, process=process, printed=printed)


def end(served: Served, number: int = signal.SIGKILL) -> int:
    """End the server's process by a signal; returns its exit status."""
    assert served.process is not None
    served.process.send_signal(number)
    return served.process.wait(PATIENCE)
