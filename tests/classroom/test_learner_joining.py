"""`course lab --class`, and whom a desk trusts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from course_lib import lab
from course_lib.classroom.learner import class_file, join
from course_lib.classroom.learner.channel import Conversation
from course_lib.classroom.learner.class_file import CannotJoin
from course_lib.classroom.learner.joining import OtherCertificate, fingerprint_of, tidy_address, trust
from course_lib.classroom.server.addresses import own_certificate
from course_lib.classroom.server.record_file import read
from course_lib.command import main
from tests.classroom.serving import HeldClass


@pytest.fixture
def opened(monkeypatch):
    """`course lab` up to the moment at which it would become JupyterLab."""
    monkeypatch.setattr(lab.os, "execve", lambda *_: None)
    monkeypatch.setattr(lab.subprocess, "call", lambda *_, **__: 0)


def test_course_lab_joins_and_says_what_is_sent(desk, small_class, opened, capsys):
    url, code = small_class.joining
    assert main(["lab", "--desk", str(desk), "--class", url, "--code", code, "--name", "Ada"]) == 0
    assert "You are in A small class. Sent to the class" in capsys.readouterr().out
    first = class_file.read(desk)
    assert main(["lab", "--desk", str(desk), "--class", url]) == 0
    assert class_file.read(desk) == first, "who is in the class already is not asked again"


def test_course_lab_asks_for_what_is_missing_where_somebody_can_answer(desk, small_class, opened, monkeypatch, capsys):
    words = ["lab", "--desk", str(desk), "--class", small_class.served.url]
    assert main(words) == 2
    assert "--code is missing" in capsys.readouterr().err
    answers = iter([small_class.served.code, "Grace"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    assert main(words) == 0
    assert read(small_class.record, "SELECT name FROM learners") == [("Grace",)]


def test_a_code_without_a_class_and_a_class_that_is_not_there_are_named(desk, opened, capsys):
    assert main(["lab", "--desk", str(desk), "--code", "K7QF2M"]) == 2
    assert "give its address, too, with --class URL" in capsys.readouterr().err
    assert main(["lab", "--desk", str(desk), "--class", "http://127.0.0.1:9", "--code", "K7QF2M"]) == 1
    assert "no answer from http://127.0.0.1:9" in capsys.readouterr().err


@pytest.fixture
def secure_class(tmp_path_factory) -> Iterator[HeldClass]:
    """A class with a certificate of its own."""
    made = HeldClass(tmp_path_factory.mktemp("secure") / "class.db", tls=True)
    yield made
    made.stop()


@pytest.mark.slow
def test_a_certificate_of_the_classs_own_is_known_by_the_fingerprint_in_its_address(desk, secure_class):
    url, code = secure_class.joining
    own = fingerprint_of(own_certificate(secure_class.record, [])[0].read_text())
    joined = join(f"{url}/#sha256={own}", code, "Ada", stay=False)
    assert (joined.url, joined.fingerprint) == (url, own)
    class_file.forget(desk)
    assert join(url, code, "Ada", stay=False).fingerprint == own, "at the first time it is taken as it is"


def test_whoever_shows_another_certificate_gets_neither_code_nor_secret(desk, secure_class, monkeypatch):
    url, code = secure_class.joining
    requests, find = [], Application.find_handler
    monkeypatch.setattr(Application, "find_handler", lambda *given: requests.append(given) or find(*given))
    with pytest.raises(CannotJoin, match="a different certificate"):
        join(f"{url}/#sha256={'0' * 64}", code, "Ada", stay=False)
    with pytest.raises(OtherCertificate):
        trust(url, "0" * 64)
    member = class_file.Membership(url, "1", "secret", "A class", "0" * 64)
    with pytest.raises(OtherCertificate):
        asyncio.run(Conversation(desk, member, None, None)._connect())  # type: ignore[arg-type]
    assert requests == []


def test_an_address_is_taken_as_people_write_it():
    assert tidy_address(" 192.168.0.7:8899 ") == ("http://192.168.0.7:8899", "")
    assert tidy_address("https://host/services/class/") == ("https://host/services/class", "")
    assert tidy_address("https://host:1/#sha256=AB:CD") == ("https://host:1", "abcd")


class Listening(RequestHandler):
    """A stranger who writes down what is sent, and sends some on to another address."""

    def post(self) -> None:
        self.settings["heard"].append(self.request.headers.get("Authorization", ""))
        if self.settings["elsewhere"]:
            self.redirect(self.settings["elsewhere"], status=302)
        else:
            self.finish({"learner": "1", "secret": "s", "class": "The Hub's class"})

    get = post


def joined_at_a_stranger(desk, monkeypatch, *, of_the_hub: bool, elsewhere: bool = False) -> list[str]:
    """What addresses have heard that somebody has joined without a code, on a Hub."""
    heard: list[str] = []
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "of Ada alone")

    async def play() -> None:
        sockets = [bind_sockets(0, "127.0.0.1")[0] for _ in range(2)]
        there, other = (f"http://127.0.0.1:{one.getsockname()[1]}" for one in sockets)
        for one, onward in zip(sockets, (f"{other}/join" if elsewhere else "", ""), strict=True):
            server = HTTPServer(Application([("/join", Listening)], heard=heard, elsewhere=onward))
            server.add_socket(one)
        monkeypatch.setenv("COURSE_CLASS", f"{there if of_the_hub else other}/")
        await asyncio.to_thread(join, there, folder=desk, stay=False)

    asyncio.run(play())
    return heard


@pytest.mark.slow
def test_the_hubs_class_is_joined_by_the_hubs_token(desk, monkeypatch):
    assert joined_at_a_stranger(desk, monkeypatch, of_the_hub=True) == ["token of Ada alone"]


def test_nobody_but_the_hubs_class_is_shown_the_token(desk, monkeypatch):
    assert joined_at_a_stranger(desk, monkeypatch, of_the_hub=False) == [""]


def test_a_class_that_sends_us_on_is_none(desk, monkeypatch):
    with pytest.raises(CannotJoin, match="answers with 302"):
        joined_at_a_stranger(desk, monkeypatch, of_the_hub=True, elsewhere=True)
