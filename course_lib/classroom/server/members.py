"""The members of a class: the code for joining, and each learner's secret and name."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
import unicodedata
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from course_lib.classroom.protocol import LONGEST_NAME, Refused, clean_text
from course_lib.classroom.server.record_file import Statement, read

# Letters that are easy to read aloud and copy from a screen: no 0/O or 1/l/i, and no vowels, so no words.
CODE_LETTERS = "23456789bcdfghjkmnpqrstvwxz"
CODE_LENGTH = 10
# 27 ** 10 = 2.1e14 codes (48 bits). We check every code, so wrong ones never lock out the right one, and only our own
# speed limits guessing: 2,000 codes per second on one core. At 5,000, the chance of guessing the code in a day is 1 in
# 480,000; in 16 weeks, day and night, it is 1 in 4,000.
FASTEST_GUESSING = 5000  # codes per second
TRIES_FROM_ONE_ADDRESS, TRIES_IN_ALL, MINUTE = 30, 120, 60.0  # wrong codes a minute; then we answer "too many"
MOST_ADDRESSES = 10_000
FORGOTTEN = "forgotten "  # instead of a hash: this learner has to join again
TOKEN_LIVES = 7 * 24 * 3600.0  # seconds that an instructor's token is valid
LINK_LIVES = 600.0  # seconds in which a learner's other device can use a link
MOST_LINKS = 4  # per learner; a new one replaces the oldest


class WrongCode(Refused):
    """This is not the class's code."""


class TooManyTries(Refused):
    """There were too many wrong codes recently."""


@dataclass
class Learner:
    """A learner in the class."""

    learner: str
    name: str
    account: str = ""  # on the Hub, if any
    hash: str = ""  # of the secret
    address: str = ""  # where they joined from; never saved


def new_code() -> str:
    """Return a random code for a class, like k7mt2-x9qbf."""
    letters = "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))
    return f"{letters[:5]}-{letters[5:]}"


def hashed(secret: str) -> str:
    """Return the hash that we store. A secret has 256 random bits, so it cannot be guessed and needs no salt."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same_code(given: str, code: str) -> bool:
    """Whether a code is right, ignoring case and punctuation, in constant time."""
    return hmac.compare_digest(_code_letters(given), _code_letters(code))


def _code_letters(code: str) -> bytes:
    return "".join(letter for letter in code.lower() if letter.isalnum()).encode()


class Tries:
    """Wrong codes in the last minute, by address and in total."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all: deque[float] = deque(maxlen=TRIES_IN_ALL + 1)
        self._by_address: dict[str, deque[float]] = {}

    def count(self, address: str) -> None:
        """Count one wrong code. Raises `TooManyTries` if there were too many in the last minute."""
        if len(self._by_address) >= MOST_ADDRESSES:
            self._by_address.clear()  # the total still limits everyone
        now = self._clock()
        own = self._by_address.setdefault(address, deque(maxlen=TRIES_FROM_ONE_ADDRESS + 1))
        for tries in (self._all, own):
            tries.append(now)
            if len(tries) == tries.maxlen and tries[0] > now - MINUTE:
                raise TooManyTries("too many wrong codes in the last minute: check the code; the right one still works")


class Members:
    """The learners of a record, by hash of their secret, by id and by Hub account."""

    def __init__(self, path: Path, *, anonymous: bool) -> None:
        self.anonymous, self.tries = anonymous, Tries()
        self._by_hash: dict[str, Learner] = {}
        self._by_learner: dict[str, Learner] = {}
        self._by_account: dict[str, Learner] = {}
        self._names: set[str] = set()
        self._links: dict[bytes, tuple[str, float]] = {}  # code -> secret and expiry; never saved
        self._next_place: dict[str, int] = {}  # by name: the number from which to look for a free one
        for row in read(path, "SELECT learner, name, account, hash FROM learners ORDER BY joined"):
            self._add(Learner(*row))

    def __len__(self) -> int:
        return len(self._by_hash)

    def __contains__(self, learner: object) -> bool:
        return learner in self._by_learner

    def of_secret(self, secret: str) -> Learner | None:
        """Return the learner with this secret, or None."""
        return self._by_hash.get(hashed(secret))

    def new_link(self, secret: str) -> str:
        """Return a code with which another device can join as this learner; it works once, and expires soon."""
        now, code = time.monotonic(), new_code()
        own = [each for each, link in self._links.items() if link[0] == secret]
        old = {each for each, link in self._links.items() if link[1] <= now}.union(own[: 1 - MOST_LINKS])
        self._links = {each: link for each, link in self._links.items() if each not in old}
        self._links[_code_letters(code)] = secret, now + LINK_LIVES
        return code

    def of_link(self, code: str) -> tuple[Learner, str] | None:
        """Use up a link and return its learner and their secret, or None if it is not valid."""
        secret, ends = self._links.pop(_code_letters(code), ("", 0.0))
        learner = self.of_secret(secret) if ends > time.monotonic() else None
        return None if learner is None else (learner, secret)

    def name(self, learner: str) -> str:
        """Return a learner's display name."""
        return self._by_learner[learner].name

    def join(self, name: str, account: str = "", address: str = "") -> tuple[Learner, str, list[Statement]]:
        """Return a new learner, their secret, and the SQL that saves both. A Hub account is always the same learner."""
        known = self._by_account.get(account) if account else None
        learner = known or Learner(secrets.token_hex(8), self._free_name(name), account, address=address)
        secret = secrets.token_urlsafe(32)
        self._by_hash.pop(learner.hash, None)  # joining again replaces the secret
        learner.hash = hashed(secret)
        self._add(learner)
        row = (learner.learner, learner.name, learner.hash, account, time.time())
        return learner, secret, [("INSERT OR REPLACE INTO learners VALUES (?, ?, ?, ?, ?)", row)]

    def make_room(self, is_here: Callable[[str], bool], events: Callable[[str], int]) -> list[Statement]:
        """Forget the secret of the absent learner who did the least. If several did nothing, choose the first to join
        from the address that most of them share. Returns the SQL; what the learner did stays in the record.
        """
        away = [learner for learner in self._by_hash.values() if not is_here(learner.learner)]
        if not away:
            raise Refused(f"the class is full: {len(self)} learners are here")
        idle = Counter(learner.address for learner in away if not events(learner.learner))
        chosen = min(away, key=lambda learner: (events(learner.learner), -idle[learner.address]))
        del self._by_hash[chosen.hash]
        if events(chosen.learner):
            chosen.hash = f"{FORGOTTEN}{chosen.learner}"
            return [("UPDATE learners SET hash = ? WHERE learner = ?", (chosen.hash, chosen.learner))]
        del self._by_learner[chosen.learner]
        self._names.discard(_alike(chosen.name))
        self._by_account.pop(chosen.account, None)
        return [("DELETE FROM learners WHERE learner = ?", (chosen.learner,))]

    def forget_names(self) -> list[Statement]:
        """Replace all names with numbers. Returns the SQL that removes them from the record."""
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
        free, place = wanted, self._next_place.get(_alike(wanted), 1)
        while _alike(free) in self._names:
            place += 1
            free = f"{wanted} ({place})"
        if place > 1:
            self._next_place[_alike(wanted)] = place
        return free

    def _add(self, learner: Learner) -> None:
        self._by_learner[learner.learner] = learner
        if not learner.hash.startswith(FORGOTTEN):
            self._by_hash[learner.hash] = learner
        self._names.add(_alike(learner.name))
        if learner.account:
            self._by_account[learner.account] = learner


def _alike(name: str) -> str:
    """Return a key that is equal for names that look alike."""
    return unicodedata.normalize("NFKC", name).casefold()
