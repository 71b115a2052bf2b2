"""The Jupyter server extension of a class: it holds the learner's secret, which no page ever sees.

`course/class/news` returns the news from the class; `course/class/tell` forwards what a learner does. Both require
Jupyter's login and XSRF check.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado.web import HTTPError, authenticated

from course_lib.classroom.learner import membership, tell
from course_lib.classroom.learner.channel import start_channel
from course_lib.classroom.learner.outbox import Outbox
from course_lib.classroom.protocol import LONGEST_SOURCE
from course_lib.runtime.course_files import desk_folder

LOOK = 0.2  # seconds between checks for news
LONGEST_WAIT = 25.0  # seconds until a long poll returns without news
TELLS = {  # the kinds of events that a page may send, with their field types
    "reached": {"lesson": str, "section": str},
    "answered": {"asked": str, "said": (str, int, float)},
    "stuck": {"on": bool, "lesson": str, "section": str},
    "slower": {},
    "done": {"on": bool},
    "showed": {"source": str, "lesson": str, "section": str},
}


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "course_lib.classroom.learner.extension"}]


def _load_jupyter_server_extension(app: Any) -> None:
    """Add the two handlers, and connect to this desk's class, if it is in one."""
    folder, web = desk_folder(), app.web_app
    at = url_path_join(web.settings["base_url"], "course", "class")
    web.add_handlers(".*$", [(f"{at}/news", News, {"folder": folder}), (f"{at}/tell", Tell, {"folder": folder})])
    if membership(folder) is not None:
        start_channel(folder)


def news_of(folder: Path) -> dict[str, Any]:
    """Return the news that a page gets. It contains no secrets."""
    member = membership(folder)
    if member is None:
        return {"joined": False}
    start_channel(folder)  # the learner may have joined from a notebook
    with Outbox.of(folder) as outbox:
        said = outbox.news(member.learner)
        waiting = outbox.count(member.learner)
    shown = {"reached": bool(said.get("reached")), "unknown": bool(said.get("unknown")), "waiting": waiting}
    return {"joined": True, "class": member.title, "state": said.get("state"), "refused": said.get("refused"), **shown}


class FromTheDesk(APIHandler):
    """The base of both handlers."""

    def initialize(self, folder: Path) -> None:
        self.folder = folder


class News(FromTheDesk):
    """`GET`: waits for news that the page does not have yet; `after` is the mark of its latest news."""

    @authenticated
    async def get(self) -> None:
        after, loop = self.get_argument("after", ""), asyncio.get_running_loop()
        ends = loop.time() + LONGEST_WAIT
        self._closed = False
        while True:
            try:
                news = news_of(self.folder)
            except (OSError, sqlite3.Error):
                news = {"joined": False}
            mark = str(hash(json.dumps(news, sort_keys=True)))
            if mark != after or loop.time() > ends or self._closed:
                break
            await asyncio.sleep(LOOK if news["joined"] else 5 * LOOK)
        if not self._closed:
            self.finish({"mark": mark, "news": news})

    def on_connection_close(self) -> None:
        self._closed = True


class Tell(FromTheDesk):
    """`POST`: sends a learner's action on the page. Returns the event's id, which is "" without a class."""

    @authenticated
    def post(self) -> None:
        told = self.get_json_body()
        fields = TELLS.get(str(told.get("kind"))) if isinstance(told, dict) else None
        if fields is None or told is None:
            raise HTTPError(400, f"send one of {', '.join(TELLS)}")
        facts = {name: told.get(name) for name in fields}
        for name, kind in fields.items():
            if not isinstance(facts[name], kind) or len(str(facts[name])) > LONGEST_SOURCE:
                raise HTTPError(400, f"{name} is missing, of the wrong type, or too long")
        self.finish({"id": tell(told["kind"], folder=self.folder, **facts)})
