"""What nobody can do in a class: pose as another, see what is not theirs, fill the disk, guess their way in."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import ssl

import pytest
from tornado.httpclient import HTTPClientError

from course_lib.classroom import protocol
from course_lib.classroom.server import members
from course_lib.classroom.server.addresses import Address
from course_lib.classroom.server.members import CODE_LENGTH, CODE_LETTERS, TooManyTries, Tries, new_code
from tests.classroom.serving import ask, connect, enter, event_of

pytestmark = pytest.mark.anyio

QUESTION = "00.1"
INSTRUCTORS = ("/projector", "/slides/00", "/view/plan", "/view/state", "/view/changes")
DOORS = ("/", *INSTRUCTORS, "/pages/class.css", "/channel")


def counts(snapshot):
    return next(one for one in snapshot["questions"] if one["number"] == QUESTION)["before"]["counts"]


async def test_a_learners_secret_opens_nothing_of_the_instructors(served):
    ada = await enter(served)
    login, form = served.cookie.split("; ")
    for name in (login.split("=")[0], "another"):
        shown = {"Cookie": f"{name}={ada.secret}; {form}", "Authorization": f"Bearer {ada.secret}"}
        for door in INSTRUCTORS:
            assert (await ask(f"{served.url}{door}?token={ada.secret}", headers=shown)).code == 403
        home = (await ask(f"{served.url}/?token={ada.secret}", headers=shown)).body.decode()
        assert "Join the class" in home
        assert served.code not in home
        posted = {"number": QUESTION, "round": "before"}
        status, answer = await served.post("/view/ask", posted, **shown, **{"X-XSRFToken": served.xsrf})
        assert (status, "instructor" in answer["error"]) == (403, True)
    assert served.room.tally.askings == {}


async def test_a_learner_can_send_no_action_of_the_instructors(served):
    ada = await enter(served)
    asked = (await served.act("ask", number=QUESTION, round="before"))["asked"]
    for kind in ("ask", "reveal", "close", "lower", "faster", "__init__"):
        assert "an event is one of" in await ada.say(kind=kind, asked=asked, number=QUESTION, round="before")
    assert served.room.tally.shown.open
    assert not served.room.tally.shown.revealed


async def test_what_a_learner_sends_counts_for_nobody_else(served):
    ada, ben = await enter(served, "Ada"), await enter(served, "Ben")
    event = event_of(kind="stuck", on=True, learner=ben.learner, name="Ben", secret=ben.secret)
    assert await ada.say(**event) == ""
    assert await ben.say(**event_of(kind="slower", id=event["id"])) == ""  # her id keeps none of his events out
    assert [hand["name"] for hand in (await served.snapshot())["hands"]] == ["Ada"]
    assert served.room.tally.slower == {ben.learner}
    assert not ben.state["stuck"]


async def test_nobody_takes_the_name_of_another(served):
    names = ["Ada", " ada ", "\uff21\uff44\uff41", "A\u200bda", "Ada (2)"]
    given = [(await served.join(name))[1]["name"] for name in names]
    assert len({members._alike(name) for name in given}) == len(given)
    assert given[0] == "Ada"


async def test_a_secret_that_is_not_of_this_class_is_turned_away_for_good(served):
    for shown in ("Bearer wrong", "", f"Basic {served.token}"):
        channel = await connect(served, shown)
        assert await channel.read_message() is None
        assert channel.close_code == protocol.UNKNOWN_SECRET


@pytest.mark.parametrize("action", ["close", "reveal"])
async def test_a_question_that_is_over_takes_no_answer_and_stays_over(served, action):
    ada = await enter(served)
    asked = (await served.act("ask", number=QUESTION, round="before"))["asked"]
    await served.act(action, asked=asked)
    assert "closed" in await ada.say(kind="answered", asked=asked, said="c")
    assert "closed" in await ada.say(kind="answered", asked="0" * 32, said="c")
    assert not served.room.tally.shown.open
    assert counts(await served.snapshot()) == [0, 0, 0]


async def test_words_of_learners_are_data_without_control_characters_and_of_a_longest_length(served):
    name = "<img src=x onerror=alert(1)>\x1b[2J\u202e\x00\n"
    ada = await enter(served, name)
    await ada.say(kind="checked", number="02.1", passed=False, points=1e99, part="no part", mistake="=1+1\r" * 999)
    await ada.say(kind="showed", source="x\x1b[31m = 1\n" + 99_999 * "y", lesson="99", section="<b>")
    shown = await served.snapshot()
    trials = next(one for one in shown["exercises"] if one["number"] == "02.1")
    assert trials["trying"] == ["<img src=x onerror=alert(1)> [2J"]
    (mistake,) = trials["mistakes"]
    assert mistake["part"] == ""
    assert len(mistake["mistake"]) <= protocol.LONGEST_TEXT
    (hand,) = shown["hands"]
    assert (hand["lesson"], hand["section"], len(hand["source"])) == ("", "", protocol.LONGEST_SOURCE)
    for text in (hand["source"], mistake["mistake"]):
        assert not set(text) & set("\x1b\x00\r\u202e")
    assert (
        (await ask(f"{served.url}/view/state", headers={"Cookie": served.cookie}))
        .headers["Content-Type"]
        .startswith("application/json")
    )


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "predicted", "number": "99.9", "said": "a"},
        {"kind": "predicted", "number": QUESTION, "said": "z"},
        {"kind": "predicted", "number": "00.2", "said": 10**400},
        {"kind": "predicted", "number": ["00.1"], "said": "a"},
        {"kind": "checked", "number": "99.9"},
        {"kind": ["predicted"]},
        {"kind": "predicted", "number": QUESTION, "said": "a", "id": "../../etc"},
        {"kind": "showed", "source": " "},
    ],
)
async def test_what_the_course_does_not_know_is_refused_in_a_sentence(served, event):
    ada = await enter(served)
    assert " " in await ada.say(**event)
    assert await ada.say(kind="slower") == ""  # and the channel goes on


@pytest.mark.parametrize(
    ("limit", "most", "sentence"),
    [
        ("MOST_EVENTS", 3, "3 events per learner"),
        ("MOST_BYTES", 300, "bytes per learner"),
        ("MOST_BYTES_IN_ALL", 400, "bytes per learner"),
    ],
)
async def test_nobody_fills_the_disk(served, monkeypatch, limit, most, sentence):
    monkeypatch.setattr(protocol, limit, most)
    ada = await enter(served)
    told = [await ada.say(kind="slower") for _ in range(5)]
    assert told[0] == ""
    assert sentence in told[-1]
    assert len(served.room._seen[ada.learner]) < 5


async def test_who_sends_too_fast_is_slowed_down_and_told_so_and_loses_nothing(served, monkeypatch):
    monkeypatch.setattr(protocol, "BURST", 5)
    ada = await enter(served)
    sent = [await ada.send({"kind": "slower"}) for _ in range(8)]
    while len(ada.kept) < len(sent):
        await ada.hear()
    assert any("slowed" in told for told in ada.told)


@pytest.mark.parametrize("message", ["x", "[]", "[" * 100_000, '{"events": 1}', json.dumps({"events": [0] * 501})])
async def test_a_message_that_is_none_ends_its_own_channel_alone(served, message):
    ada, ben = await enter(served), await enter(served)
    await ada.channel.write_message(message)
    assert await ada.hear() is None
    assert await ben.say(kind="slower") == ""


async def test_a_message_of_a_megabyte_is_not_read(served):
    ada = await enter(served)
    await ada.channel.write_message('{"events": []}' + " " * protocol.LARGEST_MESSAGE)
    await ada.send({"kind": "slower"})
    assert await ada.hear() is None
    posted = await ask(f"{served.url}/join", method="POST", body="x" * 99_999)
    assert posted.code in (400, 599)  # refused, or cut off while it was sent


async def test_wrong_codes_are_limited_and_never_keep_out_the_right_one(served, monkeypatch):
    monkeypatch.setattr(members, "TRIES_FROM_ONE_ADDRESS", 3)
    assert [(await served.join(code=new_code()))[0] for _ in range(5)] == [403, 403, 403, 429, 429]
    assert "the right one still works" in (await served.join(code=new_code()))[1]["error"]
    assert (await served.join("Ada"))[0] == 200  # from the same address


def test_wrong_codes_are_counted_from_everywhere_and_forgotten_after_a_minute():
    now = [0.0]
    tries = Tries(lambda: now[0])
    for place in range(members.TRIES_IN_ALL):
        tries.count(f"10.0.0.{place}")
    with pytest.raises(TooManyTries):
        tries.count("10.9.9.9")
    now[0] = members.MINUTE + 1
    tries.count("10.9.9.9")


def test_the_code_has_enough_letters_to_be_guessed_as_fast_as_we_can_check_and_none_that_look_alike():
    seconds_of_a_term = 16 * 7 * 24 * 3600
    assert len(set(CODE_LETTERS)) ** CODE_LENGTH > 4000 * members.FASTEST_GUESSING * seconds_of_a_term
    assert len(new_code().replace("-", "")) == CODE_LENGTH
    assert not set(CODE_LETTERS) & set("0o1li")
    assert members.same_code(" K7MT2X9Q ", "k7mt-2x9q")
    assert not members.same_code("k7mt-2x9r", "k7mt-2x9q")


async def test_no_page_of_another_site_can_do_anything(served):
    stranger = {"Origin": "https://evil.example"}
    ask_it = {"number": QUESTION, "round": "before"}
    assert (await served.post("/view/ask", ask_it, **served.instructor, **stranger))[0] == 403
    assert (await served.post("/view/ask", ask_it, Cookie=served.cookie))[0] == 403  # no token of our page
    assert (await served.post("/join", {"code": served.code}, **stranger))[0] == 403
    ada = await enter(served)
    with pytest.raises(HTTPClientError):
        await connect(served, f"Bearer {ada.secret}", **stranger)
    assert served.room.tally.askings == {}
    assert (await served.post("/view/ask", ask_it, **served.instructor, Origin=served.url))[0] == 200


async def test_no_name_that_was_bent_to_lead_here_is_answered(served):
    for door in DOORS:
        headers = {"Cookie": served.cookie, "Host": "rebound.example"}
        assert (await ask(f"{served.url}{door}", headers=headers)).code == 403, door
    assert (await served.post("/join", {"code": served.code}, Host="rebound.example"))[0] == 403


async def test_pages_run_no_script_but_their_own_and_cookies_stay_at_home(served):
    page = await ask(f"{served.url}/", headers={"Cookie": served.cookie.split(";")[0]})
    policy = page.headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'self'" in policy  # the slides show it
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in (await ask(f"{served.url}/")).headers["Content-Security-Policy"]
    login = await ask(f"{served.url}/?token={served.token}", follow_redirects=False)
    assert login.headers["Location"] == "/"  # the token leaves the address
    for cookie in (*login.headers.get_list("Set-Cookie"), *page.headers.get_list("Set-Cookie")):
        assert "httponly" in cookie.lower()
        assert "samesite=strict" in cookie.lower()


async def test_slides_in_a_class_run_no_script_but_their_own_and_hold_no_secret(served):
    pytest.importorskip("latex2mathml", reason="there is no latex2mathml: pip install -e '.[teaching]'")
    slides = await ask(f"{served.url}/slides/00", headers={"Cookie": served.cookie})
    page, policy = slides.body.decode(), slides.headers["Content-Security-Policy"]
    script = page.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert "frame-ancestors 'none'" in policy
    assert not any(secret in page for secret in (served.token, served.xsrf, served.code))
    assert page.count('<iframe id="class"') == 1
    assert page.count('data-number="00.1"') == 1
    missing = await ask(f"{served.url}/slides/77", headers={"Cookie": served.cookie})
    assert (missing.code, "give one of 00, 01" in missing.body.decode()) == (404, True)


async def test_the_record_holds_no_secret_and_is_for_the_owners_eyes(served, tmp_path):
    ada = await enter(served)
    await ada.say(kind="slower")
    for file in tmp_path.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
        assert not any(secret.encode() in file.read_bytes() for secret in (ada.secret, served.token))


def test_a_class_without_names_keeps_none_not_even_earlier_ones(in_class, tmp_path):
    def are_kept():
        return any(b"Hedwig" in file.read_bytes() for file in tmp_path.iterdir())

    async def scene(served):
        await enter(served, "Hedwig the curious")
        name = (await served.join("Hedwig the second"))[1]["name"]
        return name, are_kept()

    assert in_class(scene) == ("Hedwig the second", True)
    assert in_class(scene, anonymous=True) == ("learner 4", False)  # while it is held, too
    assert in_class(scene) == ("learner 6", False)  # what was promised holds
    assert not are_kept()


def test_with_tls_the_address_has_the_fingerprint_of_the_certificate_that_is_met(in_class, tmp_path):
    async def scene(served):
        host, port = served.url.removeprefix("https://").split(":")
        met = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
        print_of_it = hashlib.sha256(ssl.PEM_cert_to_DER_cert(met)).hexdigest()
        assert (await served.snapshot())["address"] == f"{served.url}/#sha256={print_of_it}"
        ada = await enter(served)
        assert await ada.say(kind="slower") == ""
        login = await ask(f"{served.url}/?token={served.token}", follow_redirects=False)
        assert "secure" in login.headers["Set-Cookie"].lower()
        return print_of_it

    assert in_class(scene, tls=True) == in_class(scene, tls=True)  # kept for the next start
    assert (tmp_path / "class.db.key").stat().st_mode & 0o077 == 0


def test_only_what_others_can_listen_to_is_called_open():
    assert Address("0.0.0.0", 8899).is_open
    assert not Address("127.0.0.1", 8899).is_open
    assert not Address("0.0.0.0", 8899, fingerprint="ab").is_open
    assert not Address("127.0.0.1", 8899, given="https://hub.example/services/class").is_open
