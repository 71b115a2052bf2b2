"""The file that stores a desk's class. It holds the learner's secret, so only its owner may read it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from course_lib.runtime.course_files import write_whole

FILE = Path(".course", "class.json")
KEYS = {"url": "url", "learner": "learner", "secret": "secret", "title": "class", "fingerprint": "fingerprint"}


class CannotJoin(RuntimeError):
    """The class could not be joined; the message says why and what to do."""


@dataclass(frozen=True)
class Membership:
    """A learner's membership in a class."""

    url: str
    learner: str
    secret: str
    title: str
    fingerprint: str = ""  # sha256 of the class's self-signed certificate, if it has one

    def __repr__(self) -> str:
        return f"Membership({self.title!r} at {self.url})"  # without the secret, because reprs get printed

    @property
    def warning(self) -> str:
        """A warning if the connection is not encrypted, else an empty string."""
        if self.url.startswith("https:") or _is_this_machine(urlsplit(self.url).hostname or ""):
            return ""
        return "The connection is not encrypted: anyone on your network can read it."

    def write(self, folder: Path) -> None:
        """Write the file atomically, readable only by its owner."""
        words = {key: getattr(self, name) for name, key in KEYS.items()}
        write_whole(folder / FILE, json.dumps(words, indent=1), mode=0o600)


def read(folder: Path) -> Membership | None:
    """Return the membership of a desk; None if there is none or its file is invalid."""
    try:
        known = json.loads((folder / FILE).read_bytes())
        found = Membership(**{name: known[key] for name, key in KEYS.items()})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if all(isinstance(getattr(found, name), str) for name in KEYS) else None


def forget(folder: Path) -> None:
    """Remove the file, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        (folder / FILE).unlink()


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
