"""To knock at a class's door: its address, its certificate, the code."""

from __future__ import annotations

import hashlib
import json
import os
import re
import ssl
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from course_lib.classroom.learner.class_file import CannotJoin, Membership

PATIENCE = 15.0  # seconds for an answer
LONGEST_ANSWER = 100_000  # bytes
HUB_TOKEN = "JUPYTERHUB_API_TOKEN"  # under a Hub, it says who somebody is, and lets its holder act as them
HUB_CLASS = "COURSE_CLASS"  # the address of the Hub's own class, which alone may see the token


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirection as it is: an answer that no class gives."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """None: it is not followed."""


class OtherCertificate(ssl.SSLError):
    """Somebody else answers at the class's address."""


def ask_to_join(url: str, code: str, name: str) -> Membership:
    """What the class gives to somebody who has its code. Raises `CannotJoin` with the reason."""
    address, fingerprint = tidy_address(url)
    request = urllib.request.Request(f"{address}/join", method="POST")
    request.add_header("Content-Type", "application/json")
    words = {"name": name}
    if code:
        words["code"] = code
    elif is_of_the_hub(url):
        request.add_header("Authorization", f"token {os.environ[HUB_TOKEN]}")
    request.data = json.dumps(words).encode()
    try:
        answer, fingerprint = _answer(request, fingerprint)
        return Membership(address, answer["learner"], answer["secret"], answer["class"], fingerprint)
    except urllib.error.HTTPError as error:
        raise CannotJoin(_refusal(error, address)) from error
    except OtherCertificate as error:
        raise CannotJoin(f"{address} shows another certificate than this address names: ask your instructor") from error
    except OSError as error:
        raise CannotJoin(
            f"nobody answers at {address}: is `course class` running there, and is that its address?"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CannotJoin(f"what answers at {address} is not a class of this course") from error


def is_of_the_hub(url: str) -> bool:
    """Whether this is the class of the Hub that we are on: there, nobody needs a code. Raises `CannotJoin`."""
    ours = os.environ.get(HUB_CLASS)
    return HUB_TOKEN in os.environ and bool(ours) and tidy_address(url)[0] == tidy_address(ours or "")[0]


def tidy_address(url: str) -> tuple[str, str]:
    """The class's address as requests begin, and the fingerprint that may stand behind a #. Raises `CannotJoin`."""
    text = url.strip() if "://" in url else f"http://{url.strip()}"
    if not _is_address(text):
        raise CannotJoin(f"{url!r} is no address of a class: it looks like http://192.168.0.7:8899")
    parts = urlsplit(text)
    fingerprint = re.sub(r"[^0-9a-f]", "", parts.fragment.removeprefix("sha256").lower())
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")), fingerprint


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and " " not in text
    except ValueError:  # a port that is none
        return False


def trust(url: str, fingerprint: str) -> ssl.SSLContext | None:
    """What a connection to this address has to prove: None without TLS; with a fingerprint, that certificate alone.

    The certificate is fetched first, and then the connection must be made with it: nothing is sent to another. Raises
    `OtherCertificate`.
    """
    if not url.startswith("https:"):
        return None
    if not fingerprint:
        return ssl.create_default_context()
    shown = certificate_of(url)
    if fingerprint_of(shown) != fingerprint:
        raise OtherCertificate("the certificate is not the one that was shown when this class was joined")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # it is this very certificate, under whatever name
    context.load_verify_locations(cadata=shown)
    return context


def certificate_of(url: str) -> str:
    """What a server shows, as PEM, whoever it is."""
    parts = urlsplit(url)
    return ssl.get_server_certificate((parts.hostname or "", parts.port or 443), timeout=PATIENCE)


def fingerprint_of(certificate: str) -> str:
    """sha256, in hexadecimal."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()


def _answer(request: urllib.request.Request, fingerprint: str) -> tuple[dict[str, Any], str]:
    """What is answered, and the fingerprint that will be asked for from now on.

    A certificate of the class's own, of which nothing was known, is taken as it is: as ssh does at the first time.
    """
    try:
        return _sent(request, trust(request.full_url, fingerprint)), fingerprint
    except urllib.error.URLError as error:
        if fingerprint or not isinstance(error.reason, ssl.SSLCertVerificationError):
            raise
        fingerprint = fingerprint_of(certificate_of(request.full_url))
        return _sent(request, trust(request.full_url, fingerprint)), fingerprint


def _sent(request: urllib.request.Request, context: ssl.SSLContext | None) -> dict[str, Any]:
    """Straight to the class, which sends nobody on: a proxy, or another address, would read what is for the class."""
    handlers: list[Any] = [urllib.request.ProxyHandler({}), NoRedirect()]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(request, timeout=PATIENCE) as answer:
        found = json.loads(answer.read(LONGEST_ANSWER))
    if not all(isinstance(found[key], str) for key in ("learner", "secret", "class")):
        raise ValueError("not what a class answers")
    return found


def _refusal(error: urllib.error.HTTPError, address: str) -> str:
    try:
        said = json.loads(error.read(LONGEST_ANSWER))["error"]
        if isinstance(said, str) and said:
            return said
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return f"{address} answers with {error.code}: is that the address of a class?"
