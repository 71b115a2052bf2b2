"""The instructor's request handlers: page and projector, the snapshot and its changes, and the actions."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from tornado import gen
from tornado.iostream import StreamClosedError
from tornado.util import TimeoutError
from tornado.web import Finish, HTTPError, StaticFileHandler

from course_lib.classroom.content import plain_heading
from course_lib.classroom.protocol import Refused
from course_lib.classroom.server.addresses import qr_code
from course_lib.classroom.server.guards import A_WEEK, HEADERS, Guarded, Quiet, refuse_strangers, trust
from course_lib.classroom.server.members import Learner
from course_lib.classroom.server.room import NotSaved, Room
from course_lib.grading.pages import sha256

PAGES = Path(__file__).resolve().parent.parent / "pages"
TEMPLATES = Environment(loader=FileSystemLoader(PAGES), autoescape=True, undefined=StrictUndefined)
POLICY = "Content-Security-Policy"
SLIDES_POLICY = (  # a lesson's outputs contain styles, but no scripts
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
CHANGES_EVERY = 0.25  # minimum seconds between snapshots
PAUSE = 10  # times the duration of a snapshot: a large one must not slow down the class
STILL_THERE = 15.0  # seconds between keep-alives: proxies close idle connections
SLOWEST_READER = timedelta(seconds=60)


class Changes:
    """Makes one snapshot for all listeners after a change, at most four per second."""

    def __init__(self, room: Room, address: str) -> None:
        self._room, self._address = room, address
        self._text, self._is_old, self._told_at, self._took = "", True, 0.0, 0.0
        self._waking: asyncio.TimerHandle | None = None
        self._next: asyncio.Future[None] | None = None

    def note(self) -> None:
        """Note that something has changed."""
        self._is_old = True
        if self._waking is None and self._next is not None:
            loop = asyncio.get_running_loop()
            pause = max(CHANGES_EVERY, PAUSE * self._took)
            self._waking = loop.call_at(max(loop.time(), self._told_at + pause), self._tell)

    def _tell(self) -> None:
        self._waking, self._told_at = None, asyncio.get_running_loop().time()
        following, self._next = self._next, None
        if following is not None:
            following.set_result(None)

    def after_the_next(self) -> asyncio.Future[None]:
        """Return a future that is done after the next change."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    def snapshot(self) -> str:
        """Return the snapshot as JSON, cached until the next change."""
        if self._is_old:
            began = time.perf_counter()
            self._text = json.dumps({**self._room.snapshot(), "address": self._address}, ensure_ascii=False)
            self._is_old, self._took = False, time.perf_counter() - began
        return f'{{"now": {time.time():.3f}, {self._text[1:]}'  # for countdowns


class ForInstructors(Guarded):
    """Requires the instructor's cookie. A token in the URL is moved into the cookie."""

    async def prepare(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().prepare()
        token = self.get_query_argument("token", "")
        if token and self.request.method == "GET" and self.room.is_instructor(token):
            secure = self.request.protocol == "https"
            name, path = self.settings["cookie"], self.settings["prefix"] or "/"
            self.set_cookie(
                name, token, expires_days=A_WEEK, path=path, httponly=True, samesite="Strict", secure=secure
            )
            self.redirect(self.request.path)
            raise Finish()
        if not await self.settings["login"].is_instructor(self):
            self.answer_others()
            raise Finish()

    def answer_others(self) -> None:
        """Respond to anyone who is not the instructor."""
        self.refuse(403, "this is for the instructor: open the address with the token that `course class` printed")


class TokenLogin:
    """Identifies the instructor by the printed token, and learners by the code. `HubLogin` asks a Hub instead."""

    async def is_instructor(self, handler: Guarded) -> bool:
        return handler.room.is_instructor(handler.get_cookie(handler.settings["cookie"], "") or "")

    async def let_in(self, handler: Guarded) -> tuple[Learner, str]:
        """Admit a learner who sent the class's code."""
        given = handler.body()
        name, code = given.get("name"), given.get("code")
        if not isinstance(code, str) or len(code) > 100 or not isinstance(name, (str, type(None))):
            raise Refused('join with {"code": "...", "name": "..."}')
        return await handler.room.join(code, name or "", handler.request.remote_ip or "")


class Page(ForInstructors):
    """A page for the instructor, from a template in `pages/`."""

    def initialize(self, page: str) -> None:
        self._page = page

    def get(self) -> None:
        self.set_header(POLICY, HEADERS[POLICY].replace("frame-ancestors 'none'", "frame-ancestors 'self'"))
        has_code = isinstance(self.settings["login"], TokenLogin)  # a Hub knows who its learners are
        self.show(self._page, qr=qr_code(self.settings["address"].with_code(self.room.code)) if has_code else "")

    def show(self, page: str, **values: str) -> None:
        """Respond with a page, which gets the XSRF token for its actions."""
        self.finish(TEMPLATES.get_template(page).render(xsrf_token=self.xsrf_token.decode(), **values))


class Slides(Page):
    """`GET /slides/06`: a lesson's slides, with a poll of the class where the lesson asks for a prediction."""

    async def get(self, lesson: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        from course_lib.authoring.outline import NoLesson
        from course_lib.classroom.slides import CannotExport, slides_script

        try:
            page = await asyncio.to_thread(slides_of, lesson)
        except NoLesson as error:
            return self.refuse(404, str(error))
        except CannotExport as error:
            return self.refuse(501, str(error))
        self.set_header(POLICY, SLIDES_POLICY.format(sha256(slides_script())))
        self.finish(page)


@lru_cache(maxsize=2)
def slides_of(lesson: str) -> str:
    """Return the slides of a lesson, for a class."""
    from course_lib.authoring.outline import find_outline
    from course_lib.classroom.slides import slides_page
    from course_lib.classroom.teaching import speaker_notes

    found = find_outline(lesson)
    return slides_page(found, speaker_notes(found), in_class=True)


class Home(Page):
    """`GET /`: the instructor's page, and for everyone else the page on which learners join and answer."""

    def initialize(self, page: str, for_learners: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().initialize(page)
        self._for_learners = for_learners

    def answer_others(self) -> None:
        self.show(self._for_learners, title=self.room.title)


class State(ForInstructors):
    """`GET /view/state`: returns the snapshot."""

    def get(self) -> None:
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(self.settings["changes"].snapshot())


class Plan(ForInstructors):
    """`GET /view/plan`: the minutes, notes and predictions of each section, for the instructor only."""

    def get(self) -> None:
        self.finish(plan())


@cache
def plan() -> dict[str, list[dict[str, Any]]]:
    """Return the sections of each lesson, with the headings that the class uses."""
    from course_lib.authoring.outline import outlines
    from course_lib.classroom.teaching import read_notes

    return {
        number: [
            {
                "section": plain_heading(section.heading),
                "minutes": section.minutes,
                "asks": list(section.asked),
                "notes": read_notes(number).get(section.heading, ""),
            }
            for section in lesson.sections
        ]
        for number, lesson in outlines().items()
    }


class Stream(ForInstructors):
    """`GET /view/changes`: streams the snapshot, and a new one after every change."""

    async def get(self) -> None:
        changes: Changes = self.settings["changes"]
        trust(self.request.connection.stream)  # pyright: ignore
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.set_header("X-Accel-Buffering", "no")
        try:
            while True:
                changed = changes.after_the_next()
                await self._send(f"data: {changes.snapshot()}\n\n")
                while not changed.done():
                    await asyncio.wait([changed], timeout=STILL_THERE)
                    if not changed.done():
                        await self._send(": still there\n\n")
        except StreamClosedError:
            return
        except TimeoutError:
            self.request.connection.stream.close()  # pyright: ignore

    async def _send(self, text: str) -> None:
        self.write(text)
        await gen.with_timeout(SLOWEST_READER, self.flush(), quiet_exceptions=Exception)


class Action(ForInstructors):
    """`POST /view/ask` and the other actions."""

    async def post(self, kind: str) -> None:
        try:
            done = await self.room.act(kind, **{str(name): value for name, value in self.body().items()})
        except Refused as error:
            self.refuse(400, str(error))
        except NotSaved as error:
            self.refuse(503, f"This was not saved: {error}.")
        else:
            self.finish({"asked": done["asked"]} if "asked" in done else {})


class Files(Quiet, StaticFileHandler):
    """Serves the pages' scripts and styles, which contain no secrets."""

    def prepare(self) -> None:
        refuse_strangers(self.request, self.settings["host_names"])
        if "\0" in self.path_args[0]:
            raise HTTPError(404)

    def get_content_type(self) -> str:
        """Return a script's type ourselves, because Windows may call scripts plain text."""
        return "text/javascript" if (self.absolute_path or "").endswith(".js") else super().get_content_type()

    def set_extra_headers(self, path: str) -> None:
        for name, value in HEADERS.items():
            self.set_header(name, value)
