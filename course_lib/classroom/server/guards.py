"""What every answer of the class's server has in common: who may ask, from where, and what a browser may do with it.

A page of another site can neither read nor do anything here: the name that was asked for must be one of ours (a name of
theirs that leads here is no use), the Origin of what changes something must be this server, cookies are not sent from
other sites, and every action carries a token that only our own page has.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any
from urllib.parse import urlsplit

from tornado import httputil
from tornado.web import HTTPError, RequestHandler

from course_lib.classroom.protocol import Refused
from course_lib.classroom.server.room import Room

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
LARGEST_BODY = 16_384  # bytes of what is posted


class Guarded(RequestHandler):
    """A request that was asked under our own name, and not by a page of another site."""

    @property
    def room(self) -> Room:
        return self.settings["room"]

    def set_default_headers(self) -> None:
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        refuse_strangers(self.request, self.settings["host_names"])

    def body(self) -> dict[str, Any]:
        """What was posted: a JSON object."""
        try:
            given = json.loads(self.request.body)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise Refused("post a JSON object")
        return given

    def refuse(self, status: int, sentence: str) -> None:
        """Say why not."""
        self.set_status(status)
        self.finish({"error": sentence})

    def write_error(self, status_code: int, **given: Any) -> None:
        """One sentence, and nothing of ours in it."""
        error = given.get("exc_info", (None, None, None))[1]
        told = error.log_message if isinstance(error, HTTPError) and error.log_message else self._reason
        self.finish({"error": told})


def refuse_strangers(request: httputil.HTTPServerRequest, host_names: frozenset[str]) -> None:
    """Raise 403 for a name that is not ours, and for the page of another site."""
    if not is_own_host(request.host, host_names):
        raise HTTPError(403, "this class is not served under that name; use the address that it printed")
    origin = request.headers.get("Origin")
    if origin is not None and not is_same_origin(origin, request):
        raise HTTPError(403, "another site may ask nothing here")


def is_own_host(host: str, host_names: frozenset[str]) -> bool:
    """Whether somebody asked for us by a number or a name of this machine. A number cannot be bent to lead here."""
    name = urlsplit(f"//{host}").hostname or ""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in host_names
    return True


def is_same_origin(origin: str, request: httputil.HTTPServerRequest) -> bool:
    """Whether a page comes from this server: the same protocol, name and port."""
    theirs = urlsplit(origin)
    return theirs.scheme == request.protocol and theirs.netloc.lower() == request.host.lower()
