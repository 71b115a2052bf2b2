"""Join a class: check its address and certificate, and send the code."""

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
HUB_TOKEN = "JUPYTERHUB_API_TOKEN"  # identifies the user to the Hub, and lets its holder act as them
HUB_CLASS = "COURSE_CLASS"  # the address of the Hub's class, the only one that may see the token


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: no class sends any."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """Return None, so the redirect is not followed."""


class OtherCertificate(ssl.SSLError):
    """A different server answers at the class's address."""


def ask_to_join(url: str, code: str, name: str) -> Membership:
    """Ask the class for a membership. Raises `CannotJoin` with the reason."""
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
        raise CannotJoin(
            f"{address} presents a different certificate than the one this address names: ask your instructor"
        ) from error
    except OSError as error:
        raise CannotJoin(
            f"no answer from {address}: is `course class` running there, and is that its address?"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CannotJoin(f"the server at {address} is not a class of this course") from error


def is_of_the_hub(url: str) -> bool:
    """Whether this is the class of the Hub that we are on, which needs no code. Raises `CannotJoin`."""
    ours = os.environ.get(HUB_CLASS)
    return HUB_TOKEN in os.environ and bool(ours) and tidy_address(url)[0] == tidy_address(ours or "")[0]


def tidy_address(url: str) -> tuple[str, str]:
    """Return a class's base address and the fingerprint after the `#`, if any. Raises `CannotJoin`."""
    text = url.strip() if "://" in url else f"http://{url.strip()}"
    if not _is_address(text):
        raise CannotJoin(f"{url!r} is not the address of a class, which looks like http://192.168.0.7:8899")
    parts = urlsplit(text)
    named = re.fullmatch(r"sha256[=:]?([0-9a-fA-F: ]*)", parts.fragment)  # other fragments are for a browser
    fingerprint = re.sub(r"[^0-9a-f]", "", named[1].lower()) if named else ""
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")), fingerprint


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and " " not in text
    except ValueError:  # an invalid port
        return False


def trust(url: str, fingerprint: str) -> ssl.SSLContext | None:
    """Return the SSL context for this address: None without TLS; with a fingerprint, it trusts only that certificate.

    We fetch the certificate first and then pin it, so that nothing is sent to a different server. Raises
    `OtherCertificate`.
    """
    if not url.startswith("https:"):
        return None
    if not fingerprint:
        return ssl.create_default_context()
    shown = certificate_of(url)
    if fingerprint_of(shown) != fingerprint:
        raise OtherCertificate("the certificate differs from the one this class had when you joined")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate is pinned, so its name does not matter
    context.load_verify_locations(cadata=shown)
    return context


def certificate_of(url: str) -> str:
    """Return a server's certificate as PEM, without verifying it."""
    parts = urlsplit(url)
    return ssl.get_server_certificate((parts.hostname or "", parts.port or 443), timeout=PATIENCE)


def fingerprint_of(certificate: str) -> str:
    """Return the SHA-256 of a certificate in hexadecimal."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()


def _answer(request: urllib.request.Request, fingerprint: str) -> tuple[dict[str, Any], str]:
    """Return the class's answer, and the fingerprint to check from now on.

    Like ssh, we trust a self-signed certificate on first use.
    """
    try:
        return _sent(request, trust(request.full_url, fingerprint)), fingerprint
    except urllib.error.URLError as error:
        if fingerprint or not isinstance(error.reason, ssl.SSLCertVerificationError):
            raise
        fingerprint = fingerprint_of(certificate_of(request.full_url))
        return _sent(request, trust(request.full_url, fingerprint)), fingerprint


def _sent(request: urllib.request.Request, context: ssl.SSLContext | None) -> dict[str, Any]:
    """Send the request without proxies or redirects: either could read what is meant for the class."""
    handlers: list[Any] = [urllib.request.ProxyHandler({}), NoRedirect()]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(request, timeout=PATIENCE) as answer:
        found = json.loads(answer.read(LONGEST_ANSWER))
    if not all(isinstance(found[key], str) for key in ("learner", "secret", "class")):
        raise ValueError("this is not the answer of a class")
    return found


def _refusal(error: urllib.error.HTTPError, address: str) -> str:
    try:
        said = json.loads(error.read(LONGEST_ANSWER))["error"]
        if isinstance(said, str) and said:
            return said
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return f"{address} answers with {error.code}: is that the address of a class?"
