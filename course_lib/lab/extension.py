"""The Jupyter server extension of the desk: `course/home` returns what its home page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado.web import authenticated

from course_lib.course_files import desk_folder
from course_lib.lab.home import home


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "course_lib.lab.extension"}]


def _load_jupyter_server_extension(app: Any) -> None:
    at = url_path_join(app.web_app.settings["base_url"], "course", "home")
    app.web_app.add_handlers(".*$", [(at, Home, {"folder": desk_folder()})])


class Home(APIHandler):
    """`GET`: the lessons, what is done of them, and what comes next."""

    def initialize(self, folder: Path) -> None:
        self.folder = folder

    @authenticated
    def get(self) -> None:
        self.finish(home(self.folder))
