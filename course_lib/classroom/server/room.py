"""A running class: accepts learners' events and the instructor's actions, counts them, and saves them.

Everything runs in the server's thread, except the record's writer. An event is counted on arrival and acknowledged when
it is on disk: if the server is killed in between, it forgets the event, and the learner sends it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from course_lib.classroom import protocol
from course_lib.classroom.content import Content
from course_lib.classroom.protocol import Event, Refused
from course_lib.classroom.server import view
from course_lib.classroom.server.actions import action
from course_lib.classroom.server.members import TOKEN_LIVES, Learner, Members, WrongCode, hashed, new_code, same_code
from course_lib.classroom.server.record import Record
from course_lib.classroom.server.record_file import Statement, event_statement, read, read_events
from course_lib.classroom.server.tally import INSTRUCTOR, Tally

RECORD_IS_FULL = "the class's record is full: nothing more is saved"
KEEP_IT = "it cannot save anything now; what you do is kept and sent later"
SEEN_BY_ITS_LEARNER = ("answered", "stuck", "showed", "slower", "done", "wondered", "seconded")
SEEN_BY_EVERYONE = ("wondered", "seconded")
ABOUT = "INSERT OR REPLACE INTO about VALUES (?, ?)"


class NotSaved(RuntimeError):
    """Nothing can be saved at the moment; the message says why."""


class Room:
    """A class and its record. `changed` is called with the learners whose state has changed, or None for all."""

    def __init__(self, path: Path, content: Content, *, title: str = "", anonymous: bool = False) -> None:
        self.content, self.record = content, Record(path)
        about: dict[str, str] = dict(read(path, "SELECT key, value FROM about"))
        self.title = protocol.clean_text(title, 100) or about.get("title") or "Train an LSTM on many GPUs"
        self.code = about.get("code") or new_code()
        self.members = Members(path, anonymous=anonymous or about.get("anonymous") == "yes")
        self.tally = Tally(content)
        self.here: Counter[str] = Counter()  # open channels per learner
        self.changed: Callable[[Iterable[str] | None], None] = lambda _: None
        self.changed_for_everyone: Callable[[], None] = lambda: None  # they may receive it a little later
        self._unsaved: set[asyncio.Future[None]] = set()  # futures of those who wait for something to be saved
        self._seen: dict[str, set[bytes]] = defaultdict(set)  # event ids per learner
        self._bytes: Counter[str] = Counter()
        self._bytes_in_all = 0
        for learner, event in read_events(path):
            self._count(learner, event)
        about = {"title": self.title, "code": self.code, "anonymous": "yes" if self.members.anonymous else "no"}
        self._keep([(ABOUT, pair) for pair in about.items()])
        if self.members.anonymous:
            self._keep(self.members.forget_names())
            self.record.fold_in()
        oldest = time.time() - TOKEN_LIVES
        self._instructors = {hash_ for hash_, since in read(path, "SELECT * FROM instructors") if since > oldest}

    def new_token(self) -> str:
        """Return a new token for the instructor's page, which stays valid after a restart of the server."""
        token = secrets.token_urlsafe(32)
        self._instructors.add(hashed(token))
        self._keep([("INSERT OR REPLACE INTO instructors VALUES (?, ?)", (hashed(token), time.time()))])
        return token

    def is_instructor(self, token: str) -> bool:
        """Whether this is an instructor's token."""
        return hashed(token) in self._instructors

    async def join(self, code: str, name: str, address: str) -> tuple[Learner, str]:
        """Admit a learner who knows the code. Returns the learner and the secret, of which we store only a hash."""
        linked = self.members.of_link(code)
        if linked is not None:
            return linked
        if not same_code(code, self.code):
            self.members.tries.count(address)
            raise WrongCode("this is not the code of the class: check it and try again")
        return await self.let_in(name, address=address)

    async def let_in(self, name: str, account: str = "", address: str = "") -> tuple[Learner, str]:
        """Admit a learner whom a code or a Hub has authenticated."""
        self._refuse_if_in_trouble()
        room = []
        if len(self.members) >= protocol.MOST_LEARNERS:
            room = self.members.make_room(lambda learner: self.here[learner] > 0, self.events_of)
        learner, secret, statements = self.members.join(name, account, address)
        await self._kept([*room, *statements])
        self.changed(())
        return learner, secret

    def take(self, learner: str, events: list[Any], then: Callable[[], None]) -> tuple[list[str], dict[str, str]]:
        """Count a learner's events. Returns the ids that are saved once `then` is called, and the refusals by id."""
        self._refuse_if_in_trouble()
        kept, refused, statements, touched, everyone = [], {}, [], set(), False
        for sent in events:
            try:
                identity = protocol.event_id(sent)
                if bytes.fromhex(identity) not in self._seen[learner]:
                    event, hands = self._accept(learner, sent), len(self.tally.hands)
                    statements.append(self._count(learner, event))
                    touched |= {learner} if event["kind"] in SEEN_BY_ITS_LEARNER else set()
                    everyone |= event["kind"] in SEEN_BY_EVERYONE
                    touched |= {*self.tally.hands} if len(self.tally.hands) != hands else set()  # those in line move up
            except Refused as refusal:
                refused[protocol.clean_text(sent.get("id") if isinstance(sent, dict) else "", 40)] = str(refusal)
            else:
                kept.append(identity)
        self.record.write(statements, then)
        if statements:
            self.changed(touched)
        if everyone:
            self.changed_for_everyone()
        return kept, refused

    def _accept(self, learner: str, sent: Any) -> Event:
        event = {**protocol.clean(sent, self.content), "received": time.time()}
        if event["kind"] == "answered":
            asking = self.tally.askings.get(event["asked"])
            if asking is None or not asking.open:
                raise Refused("this question is closed: it takes no more answers")
            event["said"] = protocol.answer(asking.number, event["said"], self.content)
        self._check_questions(learner, event)
        if len(self._seen[learner]) >= protocol.MOST_EVENTS:
            raise Refused(f"the class keeps {protocol.MOST_EVENTS} events per learner, and you have reached that limit")
        if self._bytes_in_all >= protocol.MOST_BYTES_IN_ALL:
            raise Refused(RECORD_IS_FULL)
        half = protocol.MOST_BYTES_IN_ALL // 2  # the second half of the record is reserved for equal shares
        share = protocol.MOST_BYTES if self._bytes_in_all < half else half // protocol.MOST_LEARNERS
        if self._bytes[learner] >= share:
            raise Refused(f"the class keeps {share} bytes per learner, and you have reached that limit")
        return event

    def _check_questions(self, learner: str, event: Event) -> None:
        questions = self.tally.questions
        if event["kind"] == "wondered":
            waiting = sum(each.open and each.learner == learner for each in questions.values())
            if waiting >= protocol.MOST_QUESTIONS:
                raise Refused(f"{waiting} of your questions are waiting: the instructor answers those first")
        wanted = questions.get(event.get("question", ""))
        if event["kind"] == "seconded" and not (wanted and wanted.open):
            raise Refused("that question is answered")

    async def act(self, kind: str, **details: Any) -> Event:
        """Carry out an instructor's action. Raises `Refused` if it is impossible, `NotSaved` if it cannot be saved."""
        self._refuse_if_in_trouble()
        event = {"id": secrets.token_hex(16), "kind": kind, "received": time.time()}
        event |= action(kind, details, self.tally, self.members)
        statement = self._count(INSTRUCTOR, event)
        await self._kept([statement])
        self.changed(None)
        return event

    def state(self, learner: str) -> dict[str, Any]:
        """Return the state to send to a learner."""
        state = view.learner_state(self.tally, self.content, learner, self.title)
        return {**state, "trouble": KEEP_IT if self.record.trouble else ""}

    def snapshot(self) -> dict[str, Any]:
        """Return the state to show to the instructor."""
        about = {"class": self.title, "code": self.code, "learners": len(self.members), "here": len(+self.here)}
        about["trouble"] = self.record.trouble or self.record.notice
        return {**about, **view.snapshot(self.tally, self.content, self.members.name, +self.here)}

    def close(self) -> bool:
        """Write what is queued and close the record. Returns whether everything was saved."""
        return self.record.close()

    def events_of(self, learner: str) -> int:
        """Return how many events of a learner the class has."""
        return len(self._seen.get(learner, ()))

    def _refuse_if_in_trouble(self) -> None:
        if self.record.trouble:
            raise NotSaved(self.record.trouble)

    def _count(self, learner: str, event: Event) -> Statement:
        """Count an event and return the SQL that saves it."""
        self.tally.apply(learner, event)
        self._seen[learner].add(bytes.fromhex(event["id"]))
        statement = event_statement(learner, event)
        size = len(statement[1][-1])
        self._bytes[learner] += size
        self._bytes_in_all += size
        return statement

    def _keep(self, statements: list[Statement]) -> None:
        self.record.write(statements, lambda: None)

    def deliver_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the callbacks of commits in the thread of this loop."""

        def deliver(waiting: list[Callable[[], None]]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
                loop.call_soon_threadsafe(_call_all, waiting)

        self.record.deliver = deliver
        self.record.troubled = lambda: deliver([self._tell_of_trouble])

    def _tell_of_trouble(self) -> None:
        """Notify everyone that nothing can be saved, or that saving works again. Nobody waits for disk space."""
        for waiting in self._unsaved if self.record.trouble else ():
            if not waiting.done():
                waiting.set_exception(NotSaved(self.record.trouble))
        self.changed(None)

    async def _kept(self, statements: list[Statement]) -> None:
        """Write statements and wait until they are on disk. Raises `NotSaved` if they cannot be written now."""
        done = asyncio.get_running_loop().create_future()
        self._unsaved.add(done)
        self.record.write(statements, lambda: None if done.done() else done.set_result(None))
        try:
            await asyncio.shield(done)
        finally:
            self._unsaved.discard(done)


def _call_all(waiting: list[Callable[[], None]]) -> None:
    for then in waiting:
        then()
