"""The web server of a class: a `Room` behind tornado, which Jupyter already depends on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tornado.ioloop import PeriodicCallback
from tornado.netutil import bind_sockets
from tornado.web import Application

from course_lib.classroom import protocol
from course_lib.classroom.content import content
from course_lib.classroom.server.actions import ACTIONS
from course_lib.classroom.server.addresses import Address, certificate_names, encrypted, fingerprint, own_certificate
from course_lib.classroom.server.guards import Server
from course_lib.classroom.server.instructor import (
    PAGES,
    Action,
    Changes,
    Files,
    Home,
    Page,
    Plan,
    Slides,
    State,
    Stream,
    TokenLogin,
)
from course_lib.classroom.server.learners import Channel, Channels, Join, Link
from course_lib.classroom.server.room import Room

ON_DESKS = PAGES.parent / "learner" / "labextensions" / "course-class" / "static"  # shared by phones and desks
MOST_FILES = 4096  # more than `MOST_CHANNELS_IN_ALL` and `MOST_UNKNOWN` together
PING = 60.0  # seconds between pings; a learner who is gone is noticed after two pings, and a slow one is not dropped
LOOK_EVERY = 5000  # milliseconds between checks for learners who do not read
OPEN = (
    "Nothing is encrypted: anyone on the network can read what learners send, and impersonate them or you in "
    "the class; start with --tls to encrypt it.\n"
)
ALONE = "Only this machine can reach it; use --host 0.0.0.0 --tls to let others on your network in.\n"
FEW = "On Windows, a class handles about 400 learners at a time: Python cannot watch more than 512 connections there.\n"


class BadAddress(ValueError):
    """The address cannot be used; the message says what to give instead."""


@dataclass(frozen=True)
class Options:
    """The options of `course class`."""

    port: int = 8899
    host: str = "127.0.0.1"
    record: str = "class.db"
    title: str | None = None
    tls: bool = False
    anonymous: bool = False
    address: str | None = None  # for learners, if there is a proxy in front
    browser: bool = True


def serve(options: Options) -> int:
    """Serve a class until interrupted. Returns 1 if something could not be saved at the end."""
    return 0 if asyncio.run(_serve(options)) else 1


async def _serve(options: Options) -> bool:
    sockets = _listen(options)
    _allow_many_connections()
    room = Room(Path(options.record), content(), title=options.title or "", anonymous=options.anonymous)
    try:
        room.deliver_in(asyncio.get_running_loop())
        gc.freeze()  # the course is never garbage: scanning it would only cause pauses
        files = own_certificate(Path(options.record), certificate_names(options.host)) if options.tls else None
        mark = fingerprint(files[0]) if files else ""
        address = Address(options.host, sockets[0].getsockname()[1], mark, options.address or "")
        server = Server(
            make_application(room, address),
            ssl_options=encrypted(*files) if files else None,
            xheaders=bool(options.address),  # trust the proxy's headers for client address and protocol
        )
        server.add_sockets(sockets)
        token = room.new_token()
        _announce(options, room, address, token)
        if options.browser:
            webbrowser.open(address.instructors(token))
        await interrupted()
        server.stop()
    finally:
        saved = room.close()
    return saved


def _allow_many_connections() -> None:
    """Raise this process's limit on open files, which is 256 on macOS; there is none on Windows."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _listen(options: Options) -> list[socket.socket]:
    given = urlsplit(options.address or "http://")
    if given.scheme not in ("http", "https") or (options.address and not given.hostname):
        raise BadAddress(f"--address {options.address}: give a whole address, like https://class.example.org")
    try:
        return bind_sockets(options.port, options.host)
    except OSError as error:
        raise BadAddress(
            f"{options.host}, port {options.port}: {error.strerror}; give another --port, or a --host of this machine"
        ) from error


def make_application(room: Room, address: Address, *, prefix: str = "", login: Any = None) -> Application:
    """Return the web application of a class. `login` decides who is an instructor; on a Hub, it asks the Hub."""
    channels, changes = Channels(room), Changes(room, address.learners)

    def changed(learners: Any) -> None:
        channels.tell(learners)
        changes.note()

    room.changed, room.changed_for_everyone = changed, channels.tell_everyone_soon
    PeriodicCallback(channels.drop_who_does_not_read, LOOK_EVERY).start()
    routes: list[Any] = [
        ("/", Home, {"page": "class.html", "for_learners": "learner.html"}),
        ("/projector", Page, {"page": "projector.html"}),
        ("/slides/([0-9]{2})", Slides, {"page": ""}),
        ("/join", Join),
        ("/link", Link),
        ("/channel", Channel),
        ("/view/state", State),
        ("/view/changes", Stream),
        ("/view/plan", Plan),
        (f"/view/({'|'.join(ACTIONS)})", Action),
        ("/pages/(.*)", Files, {"path": str(PAGES)}),
        ("/desk/(question.js)", Files, {"path": str(ON_DESKS)}),
    ]
    return Application(
        [(f"{prefix}{path}", *rest) for path, *rest in routes],
        room=room,
        channels=channels,
        changes=changes,
        login=login or TokenLogin(),
        prefix=prefix,
        address=address,
        learner_cookie=f"course-class-learner-{address.port}",
        cookie=f"course-class-{address.port}",  # cookies ignore ports, so each class needs its own name
        host_names=address.names,
        xsrf_cookies=True,
        xsrf_cookie_name=f"course-class-xsrf-{address.port}",
        xsrf_cookie_kwargs={
            "samesite": "Strict",
            "httponly": True,
            "path": prefix or "/",
            "secure": address.base.startswith("https:"),
        },
        websocket_ping_interval=PING,
        websocket_ping_timeout=PING,
        websocket_max_message_size=protocol.LARGEST_MESSAGE,
        log_function=lambda handler: None,
    )


def _announce(options: Options, room: Room, address: Address, token: str) -> None:
    print(f"{room.title}\n")
    print(f"  for you           {address.instructors(token)}")
    print(f"  for learners      {address.learners}   code {room.code}")
    print(f"  on a laptop       course lab --class {address.learners}")
    print(f"  on a phone        {address.with_code(room.code)}, or the QR code on the projector")
    print(f"  saved in          {options.record}: start with this file again to continue the class\n")
    if address.is_open:
        print(OPEN)
    if address.is_loopback and not address.given:
        print(ALONE)
    if sys.platform == "win32":
        print(FEW)
    print("Ctrl-C ends it.", flush=True)


async def interrupted() -> None:
    """Wait for Ctrl-C or SIGTERM."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))  # asyncio's do not work on Windows
    await stop.wait()
