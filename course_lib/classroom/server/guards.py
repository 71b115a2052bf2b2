"""Checks for every request to the class's server, and security headers for every response.

Other sites can neither read nor do anything here: the Host must be ours (which prevents DNS rebinding), the Origin, if
there is one, must be this server, cookies are SameSite, and every action needs an XSRF token that only our page has.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any
from urllib.parse import urlsplit

from tornado import httputil
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
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
A_WEEK = 7  # days that a login lasts
LARGEST_BODY = 16_384  # bytes of a request body
IDLE = 60.0  # seconds until we close a connection that is idle or has not sent all of its headers
SLOWEST_BODY = 15.0  # seconds in which a body must arrive
MOST_UNKNOWN = 500  # connections of people who have shown neither a learner's secret nor the instructor's cookie


class Server(HTTPServer):
    """A server that nobody can exhaust by opening connections and sending nothing, or sending very slowly."""

    def initialize(self, *args: Any, **given: Any) -> None:
        self._unknown: list[IOStream] = []
        limits = {"max_body_size": LARGEST_BODY, "idle_connection_timeout": IDLE, "body_timeout": SLOWEST_BODY}
        super().initialize(*args, **limits, **given)

    def handle_stream(self, stream: IOStream, address: tuple) -> None:
        """Take a connection. If there are too many, the one that has been open longest without a login is closed."""
        self._unknown.append(stream)
        if len(self._unknown) > MOST_UNKNOWN:
            self._unknown = [one for one in self._unknown if not one.closed() and not hasattr(one, "is_trusted")]
        if len(self._unknown) > MOST_UNKNOWN:
            self._unknown.pop(0).close()
        super().handle_stream(stream, address)


def trust(stream: Any) -> None:
    """Keep this connection open, no matter how many others there are."""
    stream.is_trusted = True


class Quiet(RequestHandler):
    """A request handler that logs only our own faults: strangers must not fill the instructor's terminal, or a disk."""

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Log only what we did not expect; bad requests are the client's fault."""
        if not isinstance(value, HTTPError):
            super().log_exception(typ, value, tb)


class Guarded(Quiet):
    """A request handler that rejects wrong host names and pages of other sites."""

    @property
    def room(self) -> Room:
        return self.settings["room"]

    def set_default_headers(self) -> None:
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        refuse_strangers(self.request, self.settings["host_names"])

    def body(self) -> dict[str, Any]:
        """Return the request body, a JSON object."""
        try:
            given = json.loads(self.request.body)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise Refused("post a JSON object")
        return given

    def refuse(self, status: int, sentence: str) -> None:
        """Respond with an error status and a sentence that says why."""
        self.set_status(status)
        self.finish({"error": sentence})

    def write_error(self, status_code: int, **given: Any) -> None:
        """Respond with one sentence, without a traceback."""
        error = given.get("exc_info", (None, None, None))[1]
        told = error.log_message if isinstance(error, HTTPError) and error.log_message else self._reason
        self.finish({"error": told})


def refuse_strangers(request: httputil.HTTPServerRequest, host_names: frozenset[str]) -> None:
    """Raise 403 for a host name that is not ours, and for pages of other sites."""
    if not is_own_host(request.host, host_names):
        raise HTTPError(403, "this class is not served under that name; use the address that it printed")
    origin = request.headers.get("Origin")
    if origin is not None and not is_same_origin(origin, request):
        raise HTTPError(403, "requests from other sites are not allowed")


def is_own_host(host: str, host_names: frozenset[str]) -> bool:
    """Whether the Host is an IP address or one of our names. DNS rebinding cannot forge an IP address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # an unmatched bracket
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in host_names
    return True


def is_same_origin(origin: str, request: httputil.HTTPServerRequest) -> bool:
    """Whether a page comes from this server: same protocol, host and port."""
    try:
        theirs = urlsplit(origin)
    except ValueError:
        return False
    return theirs.scheme == request.protocol and theirs.netloc.lower() == request.host.lower()
