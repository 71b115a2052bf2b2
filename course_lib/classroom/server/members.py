"""The members of a class: the code for joining, and each learner's secret and name."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
import unicodedata
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from course_lib.classroom.protocol import LONGEST_NAME, MOST_LEARNERS, Refused, clean_text
from course_lib.classroom.server.record import Statement, read

# Letters that are easy to read aloud and copy from a screen: no 0/O or 1/l/i, and no vowels, so no words.
CODE_LETTERS = "23456789bcdfghjkmnpqrstvwxz"
CODE_LENGTH = 8
# 27 ** 8 = 2.8e11 codes (38 bits). At 120 wrong tries a minute in total, 16 weeks of guessing day and night cover 2e7
# of them, a chance of one in 14,000; a day has one in 1.6 million.
TRIES_FROM_ONE_ADDRESS, TRIES_IN_ALL, MINUTE = 30, 120, 60.0
MOST_ADDRESSES = 10_000
TOKEN_LIVES = 7 * 24 * 3600.0  # seconds that an instructor's token is valid


class WrongCode(Refused):
    """The code is not that of the class."""


class TooManyTries(Refused):
    """There were too many wrong codes recently."""


@dataclass
class Learner:
    """A learner in the class."""

    learner: str
    name: str
    account: str = ""  # on the Hub, if any
    hash: str = ""  # of the secret


def new_code() -> str:
    """Return a random code for a class, like k7mt-2x9q."""
    letters = "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))
    return f"{letters[:4]}-{letters[4:]}"


def hashed(secret: str) -> str:
    """Return the hash that we store. A secret has 256 random bits, so it cannot be guessed and needs no salt."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same_code(given: str, code: str) -> bool:
    """Whether a code is right, ignoring case and punctuation, in constant time."""
    return hmac.compare_digest(_code_letters(given), _code_letters(code))


def _code_letters(code: str) -> bytes:
    return "".join(letter for letter in code.lower() if letter.isalnum()).encode()


class Tries:
    """Wrong codes of the last minute, by address and in total."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all: deque[float] = deque()
        self._by_address: dict[str, deque[float]] = {}

    def refuse_if_too_many(self, address: str) -> None:
        """Raise `TooManyTries` if there were too many wrong codes in the last minute."""
        since = self._clock() - MINUTE
        for tries, most in (
            (self._all, TRIES_IN_ALL),
            (self._by_address.get(address, deque()), TRIES_FROM_ONE_ADDRESS),
        ):
            while tries and tries[0] < since:
                tries.popleft()
            if len(tries) >= most:
                raise TooManyTries("too many wrong codes in the last minute: wait a minute, then try again")

    def count(self, address: str) -> None:
        """Count one wrong try."""
        if len(self._by_address) >= MOST_ADDRESSES:
            self._by_address.clear()  # the total still limits everyone
        for tries in (self._all, self._by_address.setdefault(address, deque())):
            tries.append(self._clock())


class Members:
    """The learners of a record, by hash of their secret, by id and by Hub account."""

    def __init__(self, path: Path, *, anonymous: bool) -> None:
        self.anonymous, self.tries = anonymous, Tries()
        self._by_hash: dict[str, Learner] = {}
        self._by_learner: dict[str, Learner] = {}
        self._by_account: dict[str, Learner] = {}
        self._names: set[str] = set()
        for row in read(path, "SELECT learner, name, account, hash FROM learners ORDER BY joined"):
            self._add(Learner(*row))

    def __len__(self) -> int:
        return len(self._by_learner)

    def __contains__(self, learner: object) -> bool:
        return learner in self._by_learner

    def of_secret(self, secret: str) -> Learner | None:
        """Return the learner with this secret, or None."""
        return self._by_hash.get(hashed(secret))

    def name(self, learner: str) -> str:
        """Return a learner's display name."""
        return self._by_learner[learner].name

    def join(self, name: str, account: str = "") -> tuple[Learner, str, list[Statement]]:
        """Return a new learner, their secret, and the SQL that saves both. A Hub account always is the same learner."""
        known = self._by_account.get(account) if account else None
        if known is None and len(self) >= MOST_LEARNERS:
            raise Refused(f"the class is full: it takes {MOST_LEARNERS} learners")
        learner = known or Learner(secrets.token_hex(8), self._free_name(name), account)
        secret = secrets.token_urlsafe(32)
        self._by_hash.pop(learner.hash, None)  # joining again replaces the secret
        learner.hash = hashed(secret)
        self._add(learner)
        row = (learner.learner, learner.name, learner.hash, account, time.time())
        return learner, secret, [("INSERT OR REPLACE INTO learners VALUES (?, ?, ?, ?, ?)", row)]

    def forget_names(self) -> list[Statement]:
        """Replace all names by numbers. Returns the SQL that removes them from the record."""
        self._names.clear()
        self._by_account.clear()
        for place, learner in enumerate(self._by_learner.values(), 1):
            learner.name, learner.account = f"learner {place}", ""
            self._names.add(learner.name)
        rows = [(learner.name, learner.learner) for learner in self._by_learner.values()]
        return [("UPDATE learners SET name = ?, account = '' WHERE learner = ?", row) for row in rows]

    def _free_name(self, name: str) -> str:
        """Return a unique name based on the chosen one, or a numbered one in an anonymous class."""
        chosen = "" if self.anonymous else clean_text(name, LONGEST_NAME)
        wanted = chosen or f"learner {len(self) + 1}"
        free, place = wanted, 1
        while _alike(free) in self._names:
            place += 1
            free = f"{wanted} ({place})"
        return free

    def _add(self, learner: Learner) -> None:
        self._by_hash[learner.hash] = self._by_learner[learner.learner] = learner
        self._names.add(_alike(learner.name))
        if learner.account:
            self._by_account[learner.account] = learner


def _alike(name: str) -> str:
    """Return a key that is equal for names that look alike."""
    return unicodedata.normalize("NFKC", name).casefold()
