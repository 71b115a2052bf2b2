"""Who is in a class: the code that lets one join, a secret for each learner, and what each is called."""

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

# Letters that can be read aloud and copied from a wall: no 0 and O, 1 and l and i, and no vowels to make words of.
CODE_LETTERS = "23456789bcdfghjkmnpqrstvwxz"
CODE_LENGTH = 8
# 27 letters to the 8th are 2.8e11 codes (38 bits). At 120 wrong tries a minute from everywhere, a term of 16 weeks,
# day and night, tries 2e7 of them: one chance in 14,000; a day, one in 1.6 million.
TRIES_FROM_ONE_ADDRESS, TRIES_IN_ALL, MINUTE = 30, 120, 60.0
MOST_ADDRESSES = 10_000
TOKEN_LIVES = 7 * 24 * 3600.0  # seconds that an instructor's address is good for


class WrongCode(Refused):
    """A code that is not the class's."""


class TooManyTries(Refused):
    """Too many wrong codes of late."""


@dataclass
class Learner:
    """Somebody in the class."""

    learner: str
    name: str
    account: str = ""  # at the Hub, where there is one
    hash: str = ""  # of the secret


def new_code() -> str:
    """A code for a class, like k7mt-2x9q."""
    letters = "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))
    return f"{letters[:4]}-{letters[4:]}"


def hashed(secret: str) -> str:
    """What is kept of a secret. It has 256 random bits: there is nothing to guess, and nothing to salt."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same_code(given: str, code: str) -> bool:
    """Whether a code is right, however it was typed; how long that takes says nothing about it."""
    return hmac.compare_digest(_code_letters(given), _code_letters(code))


def _code_letters(code: str) -> bytes:
    return "".join(letter for letter in code.lower() if letter.isalnum()).encode()


class Tries:
    """Wrong codes of the last minute, by address and in all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all: deque[float] = deque()
        self._by_address: dict[str, deque[float]] = {}

    def refuse_if_too_many(self, address: str) -> None:
        """Raise `TooManyTries` where one more try would be too many."""
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
        """One more wrong try."""
        if len(self._by_address) >= MOST_ADDRESSES:
            self._by_address.clear()  # those in all go on being counted
        for tries in (self._all, self._by_address.setdefault(address, deque())):
            tries.append(self._clock())


class Members:
    """The learners of a record, by the hash of their secret."""

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
        """Whose secret this is."""
        return self._by_hash.get(hashed(secret))

    def name(self, learner: str) -> str:
        """What a learner is called."""
        return self._by_learner[learner].name

    def join(self, name: str, account: str = "") -> tuple[Learner, str, list[Statement]]:
        """A new learner, the secret that is theirs alone, and what keeps them. An account of a Hub is one learner."""
        known = self._by_account.get(account) if account else None
        if known is None and len(self) >= MOST_LEARNERS:
            raise Refused(f"the class is full: it takes {MOST_LEARNERS} learners")
        learner = known or Learner(secrets.token_hex(8), self._free_name(name), account)
        secret = secrets.token_urlsafe(32)
        self._by_hash.pop(learner.hash, None)  # who joins again has a new secret
        learner.hash = hashed(secret)
        self._add(learner)
        row = (learner.learner, learner.name, learner.hash, account, time.time())
        return learner, secret, [("INSERT OR REPLACE INTO learners VALUES (?, ?, ?, ?, ?)", row)]

    def forget_names(self) -> list[Statement]:
        """Call everybody by a number from now on; what takes the names out of the record."""
        self._names.clear()
        self._by_account.clear()
        for place, learner in enumerate(self._by_learner.values(), 1):
            learner.name, learner.account = f"learner {place}", ""
            self._names.add(learner.name)
        rows = [(learner.name, learner.learner) for learner in self._by_learner.values()]
        return [("UPDATE learners SET name = ?, account = '' WHERE learner = ?", row) for row in rows]

    def _free_name(self, name: str) -> str:
        """As it was chosen, if nobody else is called so; in a class without names, a number."""
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
    """The same for names that look the same."""
    return unicodedata.normalize("NFKC", name).casefold()
