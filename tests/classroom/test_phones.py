"""A phone joins by opening the class's address: it gets a cookie, asks questions, and links to a desk."""

from __future__ import annotations

import json
import re

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from course_lib.classroom import protocol
from course_lib.classroom.content import content
from course_lib.classroom.learner.joining import tidy_address
from course_lib.classroom.server import members
from course_lib.classroom.server.addresses import Address, qr_code
from tests.classroom.serving import Learner, ask, enter

pytestmark = pytest.mark.anyio


async def join_by_page(served, code, name="Ada"):
    """What a browser does: the answer, and the cookie."""
    body = json.dumps({"code": code, "name": name})
    answer = await ask(f"{served.url}/join?page=1", method="POST", body=body, headers={"Origin": served.url})
    return json.loads(answer.body), answer.headers.get("Set-Cookie", "")


async def channel_of(served, cookie, origin=None):
    """A learner on the channel that a page opens."""
    headers = {"Cookie": cookie.split(";")[0], "Origin": origin or served.url}
    url = served.url.replace("http", "ws", 1) + "/channel"
    learner = Learner(await websocket_connect(HTTPRequest(url, headers=headers)), "", "")
    await learner.wait_for(bool)
    return learner


async def links_of(served, cookie):
    """The codes for a desk and a phone of the same learner."""
    page = await ask(f"{served.url}/", headers={"Cookie": cookie.split(";")[0]})
    token = re.search(r'name="xsrf" content="([^"]+)"', page.body.decode())[1]
    both = f"{cookie.split(';')[0]}; {page.headers['Set-Cookie'].split(';')[0]}"
    status, found = await served.post("/link", {}, Cookie=both, Origin=served.url, **{"X-XSRFToken": token})
    assert status == 200, found
    return found, re.search(r"--code (\S+)", found["line"])[1], found["phone"].partition("#me=")[2]


async def test_the_class_s_address_is_a_page_to_join_on_and_says_nothing_else(served):
    await served.join("Ada")
    page = await ask(f"{served.url}/")
    assert (page.code, "Join the class" in page.body.decode()) == (200, True)
    assert not any(word in page.body.decode() for word in (served.code, served.token, "Ada"))


async def test_a_page_gets_a_cookie_that_no_script_reads_and_answers_with_it(served):
    joined, cookie = await join_by_page(served, served.code)
    assert "secret" not in joined
    assert {"HttpOnly", "SameSite=Strict"} <= {part.strip() for part in cookie.split(";")}
    ada = await channel_of(served, cookie)
    asked = (await served.act("ask", number="00.1", round="before", seconds=60))["asked"]
    await ada.wait_for(lambda state: state["asked"])
    assert 0 < ada.state["asked"]["left"] <= 60
    assert await ada.say(kind="answered", asked=asked, said="a") == ""
    assert (await served.snapshot())["missing"] == []


async def test_a_page_of_another_site_cannot_use_the_cookie(served):
    _, cookie = await join_by_page(served, served.code)
    with pytest.raises(HTTPClientError, match="403"):
        await channel_of(served, cookie, "https://evil.example")
    stolen = {"Cookie": cookie.split(";")[0], "Origin": "https://evil.example"}
    assert (await served.post("/link", {}, **stolen))[0] == 403
    assert (await served.post("/link", {}, Cookie=stolen["Cookie"]))[0] == 403  # without the token of our page


async def test_a_phone_and_a_desk_are_the_same_learner_by_a_link_that_works_once(served):
    joined, cookie = await join_by_page(served, served.code)
    found, desk, phone = await links_of(served, cookie)
    assert found["line"] == f"course lab --class {served.url} --code {desk}"
    status, linked = await served.join("Somebody else", desk)
    assert (status, linked["learner"], linked["name"]) == (200, joined["learner"], "Ada")
    assert (await served.join("Somebody else", desk))[0] == 403
    again, its_cookie = await join_by_page(served, phone, "")
    assert again["learner"] == joined["learner"]
    first, second = await channel_of(served, cookie), await channel_of(served, its_cookie)
    await first.say(kind="done", on=True)
    await second.wait_for(lambda state: state["done"])
    shown = await served.snapshot()
    assert (shown["here"], shown["learners"], shown["done"]) == (1, 1, 1)


async def test_a_link_is_of_no_use_after_ten_minutes(served, monkeypatch):
    monkeypatch.setattr(members, "LINK_LIVES", 0.0)
    _, cookie = await join_by_page(served, served.code)
    _, desk, _ = await links_of(served, cookie)
    assert (await served.join("Somebody", desk))[0] == 403


async def test_links_of_a_learner_replace_each_other_and_nobody_elses(served):
    links = served.room.members
    (_, one), (_, other) = await served.join("Ada"), await served.join("Ben")
    first = links.new_link(other["secret"])
    many = [links.new_link(one["secret"]) for _ in range(3 * members.MOST_LINKS)]
    assert len(links._links) == members.MOST_LINKS + 1
    assert [links.of_link(code) is None for code in many[-members.MOST_LINKS - 1 :]] == [True, *[False] * 4]
    assert links.of_link(first)[0].name == "Ben"


async def test_questions_are_seen_without_names_voted_up_and_settled(served):
    ada, ben = await enter(served, "Ada"), await enter(served, "Ben")
    (first,) = await ada.send({"kind": "wondered", "text": "Why <b>two</b>?"})
    (second,) = await ben.send({"kind": "wondered", "text": "And on eight GPUs?"})
    await ben.wait_for(lambda state: len(state["wonderings"]) == 2)
    for _ in range(2):  # one learner, one vote
        assert await ada.say(kind="seconded", question=second, on=True) == ""
    await ben.wait_for(lambda state: state["wonderings"][0]["votes"] == 1)
    assert [each["text"] for each in ben.state["wonderings"]] == ["And on eight GPUs?", "Why <b>two</b>?"]
    assert "Ada" not in json.dumps(ben.state)
    assert [each["name"] for each in (await served.snapshot())["wonderings"]] == ["Ben", "Ada"]
    await served.act("show", question=first)
    assert (await served.snapshot())["stage"] == {"text": "Why <b>two</b>?"}
    for question in (first, second):
        await served.act("settle", question=question)
    await ben.wait_for(lambda state: state["wonderings"] == [])
    assert (await served.snapshot())["stage"] is None
    assert await ada.say(kind="seconded", question=second, on=True) == "that question is answered"


async def test_nobody_fills_the_list_of_questions(served):
    ada, ben = await enter(served), await enter(served)
    told = [await ada.say(kind="wondered", text=f"{n}?" * 999) for n in range(protocol.MOST_QUESTIONS + 1)]
    assert told[-1] == "5 of your questions are waiting: the instructor answers those first"
    assert told[:-1] == [""] * protocol.MOST_QUESTIONS
    assert await ben.say(kind="wondered", text="mine?") == ""
    assert all(len(each["text"]) <= protocol.LONGEST_QUESTION for each in (await served.snapshot())["wonderings"])
    assert await ben.say(kind="wondered", text=" ") == "write a question first"


async def test_a_vote_is_followed_by_talk_and_a_second_vote_whose_bars_show_both(served):
    ada = await enter(served)
    for round_, said in (("before", "a"), ("after", "c")):
        asked = (await served.act("ask", number="00.1", round=round_))["asked"]
        await ada.say(kind="answered", asked=asked, said=said)
        if round_ == "before":
            await served.act("discuss", asked=asked, seconds=120)
            await ada.wait_for(lambda state: state["asked"]["discussed"])
            assert ada.state["asked"]["revealed"] is None
            assert "closed" in await ada.say(kind="answered", asked=asked, said="b")
    await served.act("reveal", asked=asked)
    await ada.wait_for(lambda state: state["asked"]["revealed"])
    revealed = ada.state["asked"]["revealed"]
    assert (revealed["before"]["counts"], revealed["counts"]) == ([1, 0, 0], [0, 0, 1])


async def test_everyone_is_called_to_a_section_and_is_not_done_there_yet(served):
    ada, section = await enter(served), content().sections["06"][2]
    await ada.say(kind="done", on=True)
    await served.act("go", lesson="06", section=section)
    await ada.wait_for(lambda state: state["call"])
    assert ada.state["call"]["section"] == section
    assert ada.state["call"]["name"] == "06_pipeline_parallelism"
    assert not ada.state["done"]


@pytest.mark.parametrize(
    ("action", "details"),
    [
        ("ask", {"number": ["06.2"], "round": "before"}),
        ("ask", {"number": "06.2", "round": "before", "seconds": 1e9}),
        ("discuss", {"asked": {}}),
        ("show", {"learner": "nobody"}),
        ("settle", {"question": []}),
        ("go", {"lesson": "06", "section": "99 · Nowhere"}),
    ],
)
async def test_an_action_that_makes_no_sense_gets_a_sentence(served, action, details):
    status, answer = await served.post(f"/view/{action}", details, **served.instructor)
    assert (status, " " in answer["error"]) == (400, True)


async def test_a_cell_on_the_projector_is_pieces_of_text(served):
    ada = await enter(served)
    source = "def f():\n    return '<script>alert(1)</script>'\n"
    await ada.say(kind="showed", source=source, lesson="", section="")
    await served.act("show", learner=ada.learner)
    cell = (await served.snapshot())["stage"]["cell"]
    assert "".join(text for _, text in cell) == source
    assert ["k", "def"] in cell
    await served.act("show")
    assert (await served.snapshot())["stage"] is None


def test_the_qr_code_holds_the_address_with_the_code():
    pytest.importorskip("segno", reason="a QR code needs segno: pip install -e '.[teaching]'")
    address = Address("127.0.0.1", 8899, "ab" * 32)
    assert address.with_code("k7mt2-x9qbf") == "https://127.0.0.1:8899/#code=k7mt2-x9qbf"
    assert qr_code("a").startswith("data:image/svg+xml")
    assert qr_code("a") != qr_code("b")


def test_a_desk_takes_the_qr_codes_address_too():
    assert tidy_address("https://10.0.0.1:8899/#code=k7mt2-x9qbf") == ("https://10.0.0.1:8899", "")
    assert tidy_address("https://10.0.0.1:8899/#sha256=AB:CD")[1] == "abcd"
