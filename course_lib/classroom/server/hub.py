"""A class as a JupyterHub service: the Hub identifies users, and its groups decide what they may do.

Members of the Hub's instructors group log in as everywhere else on the Hub. Members of the learners group join without
a code, with the token of their own server.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuth, HubOAuthCallbackHandler, HubOAuthenticated
from tornado.netutil import bind_sockets
from tornado.web import Application, Finish, HTTPError, RequestHandler

from course_lib.classroom.content import content
from course_lib.classroom.server import Options, interrupted, make_application
from course_lib.classroom.server.addresses import Address
from course_lib.classroom.server.guards import Guarded, Server
from course_lib.classroom.server.instructor import Page
from course_lib.classroom.server.members import Learner
from course_lib.classroom.server.room import Room

INSTRUCTORS = "instructors"
LEARNERS = "learners"
NEEDED = ("JUPYTERHUB_API_TOKEN", "JUPYTERHUB_API_URL", "JUPYTERHUB_SERVICE_URL", "JUPYTERHUB_SERVICE_PREFIX")
TOKEN = "token "  # the Authorization scheme of Jupyter tokens


class NoHub(ValueError):
    """This process is not a Hub service; the message says what to do."""


class HubLogin:
    """Identifies users through the Hub, and admits them by group."""

    def __init__(self, hub: HubOAuth, instructors: str = INSTRUCTORS, learners: str = LEARNERS) -> None:
        self._hub, self._instructors, self._learners = hub, instructors, learners

    async def is_instructor(self, handler: Guarded) -> bool:
        """Whether the user is an instructor. A page redirects users who are not logged in to the Hub."""
        token = (handler.get_secure_cookie(self._hub.cookie_name) or b"").decode("ascii", "replace")
        user = await self._user(token, self._hub.get_session_id(handler)) if token else None
        if user is None:
            if isinstance(handler, Page):
                handler.redirect(f"{handler.settings['prefix']}/login")
                raise Finish()
            return False
        if self._instructors not in user.get("groups", ()):
            raise HTTPError(403, f"{user['name']} must be in the Hub's group {self._instructors} to see this page")
        return True

    async def let_in(self, handler: Guarded) -> tuple[Learner, str]:
        """Admit the learner whose server sent its Hub token. No code is needed, and the name comes from the Hub."""
        given = handler.request.headers.get("Authorization", "")
        user = await self._user(given.removeprefix(TOKEN)) if given.startswith(TOKEN) else None
        if user is None or user.get("kind") != "user":
            raise HTTPError(403, "the Hub does not know you: join from a notebook on the Hub, without a code")
        if self._learners not in user.get("groups", ()):
            raise HTTPError(
                403,
                f"{user['name']} is not in this class: ask your instructor to add you to the Hub's group "
                f"{self._learners}",
            )
        return await handler.room.let_in(user["name"], "" if handler.room.members.anonymous else user["name"])

    async def _user(self, token: str, session: str = "") -> dict[str, Any] | None:
        return await self._hub.user_for_token(token, session_id=session, sync=False)


class Login(HubOAuthenticated, RequestHandler):  # pyright: ignore[reportIncompatibleMethodOverride]
    """`/login`: redirects to the Hub, which redirects back to the instructor's page."""

    def get(self) -> None:
        self.request.uri = f"{self.settings['prefix']}/"  # where the Hub redirects back to
        self.redirect(self.get_login_url())


def serve_in_hub(options: Options, instructors: str = INSTRUCTORS, learners: str = LEARNERS) -> int:
    """Serve a class as a Hub service until the Hub ends it."""
    if missing := [name for name in NEEDED if not os.environ.get(name)]:
        raise NoHub(
            f"--hub is for a service that a JupyterHub starts ({missing[0]} is not set): see docs/deploy/jupyterhub"
        )
    asyncio.run(_serve(options, instructors, learners))
    return 0


def make_hub_application(room: Room, address: Address, login: HubLogin, *, prefix: str) -> Application:
    """Return the web application of a class, with the Hub's login."""
    application = make_application(room, address, prefix=prefix, login=login)
    # Derived from this service's token: secret, and the same after a restart, so logins survive.
    secret = f"class {os.environ['JUPYTERHUB_API_TOKEN']}"
    application.settings["cookie_secret"] = hashlib.sha256(secret.encode()).hexdigest()
    routes: list[Any] = [(f"{prefix}/oauth_callback", HubOAuthCallbackHandler), (f"{prefix}/login", Login)]
    application.add_handlers(".*$", routes)
    return application


async def _serve(options: Options, instructors: str, learners: str) -> None:
    own, prefix = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"]), os.environ["JUPYTERHUB_SERVICE_PREFIX"].rstrip("/")
    host, port = own.hostname or "127.0.0.1", own.port or 80
    given = options.address or os.environ.get("JUPYTERHUB_PUBLIC_URL", "") or f"http://{host}:{port}{prefix}"
    room = Room(Path(options.record), content(), title=options.title or "", anonymous=options.anonymous)
    try:
        room.deliver_in(asyncio.get_running_loop())
        login = HubLogin(HubOAuth.instance(), instructors, learners)
        application = make_hub_application(room, Address(host, port, given=given), login, prefix=prefix)
        server = Server(application, xheaders=True)  # behind the Hub's proxy
        server.add_sockets(bind_sockets(port, host))
        print(f"{room.title}: {given}, for the Hub's group {instructors}; {learners} can join", flush=True)
        await interrupted()
        server.stop()
    finally:
        room.close()
