"""A class on stage: an instructor, a projector, five phones that join by the QR code's address, and three desks.

The desks are the learner's channel without a JupyterLab; `test_class.py` has one of those.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from course_lib.checks.catalog import predictions
from course_lib.classroom.content import content
from course_lib.classroom.report import write_report
from course_lib.runtime.machine import free_port
from tests.browser.classroom import Learner
from tests.browser.lab import axe, picture, wait, window
from tests.classroom.serving import Served, class_in_a_process, end

pytestmark = pytest.mark.slow

QUESTION = predictions()["06.2"]
SECTION = content().sections["06"][2]
SOURCE = "def bubble(stages, micro_batches):\n    return (stages - 1) / micro_batches  # <b>is</b> it?\n"
FIRST, SECOND = "aacbd", "bbbab"  # what the phones say; b is right
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
SCREENS = ({"width": 1280, "height": 720}, {"width": 1920, "height": 1080})
# The smallest letters on the screen, as a part of its height.
SMALLEST = """() => Math.min(...[...document.querySelectorAll("main *, aside *")]
  .filter(each => each.checkVisibility() && [...each.childNodes].some(child => child.data?.trim()))
  .map(each => parseFloat(getComputedStyle(each).fontSize))) / innerHeight"""
FITS = "() => document.getElementById('main').scrollHeight <= document.getElementById('main').clientHeight"


def look(page: Any, name: str, *, both: bool = False) -> None:
    """A picture, in the dark, too, if asked for; nothing keeps the page from people who do not see it."""
    for scheme in ("light", "dark") if both else ("light",):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=picture(f"stage_{name}_{scheme}"))
        assert axe(page, "html") == []
    page.emulate_media(color_scheme="light")


def look_from_the_last_row(projector: Any, name: str) -> None:
    """On a small and a large projector: everything fits, in letters of 1/25 of the height."""
    for screen in SCREENS:
        projector.set_viewport_size(screen)
        wait(lambda: projector.evaluate(FITS))
        assert projector.evaluate(SMALLEST) >= 1 / 25 - 1e-6
        look(projector, f"{name}_{screen['width']}", both=True)


def opened(page: Any, served: Served, place: str = "") -> Any:
    page.goto(f"{served.url}/{place}?token={served.token}")
    return page


def join(phone: Any, served: Served, name: str) -> None:
    """By the address in the QR code: only a name is typed."""
    phone.goto(f"{served.url}/#code={served.code}")
    phone.get_by_role("textbox", name="Your name").fill(name)
    phone.get_by_role("button", name="Join").click()
    phone.get_by_text("No question right now").wait_for()


def vote(phones: list[Any], letters: str) -> None:
    for phone, letter in zip(phones, letters, strict=True):
        phone.get_by_role("button", name=f"{letter}) ").click()
        phone.locator("#question button[aria-pressed=true]").wait_for()


def said(page: Any, text: str) -> None:
    wait(lambda: text in page.locator("aside").inner_text().replace("\n", " "))


# Every question of the course, asked, discussed and revealed: those that do not fit on the projector, or are too small.
MISFITS = """async () => {
  const { show } = await import("/pages/projector.js");
  const state = await (await fetch("/view/state")).json();
  const address = location.href;
  history.replaceState(null, "", location.pathname); // not the question of a slide
  const misfits = [], fits = FITS, smallest = SMALLEST;
  for (const question of state.questions) {
    for (const stage of ["open", "discussed", "revealed"]) {
      const counts = { counts: question.choices.map((_, index) => 10 + index), other: question.typed ? 3 : 0 };
      const asked = { shown: true, round: "after", answers: 24, ends: 0, [stage]: true };
      const others = state.questions.filter(each => each !== question);
      show({ ...state, questions: [{ ...question, asked, before: counts, after: counts }, ...others] });
      await new Promise(resolve => requestAnimationFrame(resolve));
      if (!fits() || smallest() < 1 / 25 - 1e-6) misfits.push(`${question.number} ${stage}`);
    }
  }
  history.replaceState(null, "", address);
  show(state);
  return misfits;
}""".replace("FITS", FITS).replace("SMALLEST", SMALLEST)


def test_every_question_fits_on_a_projector_in_letters_for_the_last_row(chromium, tmp_path):
    with class_in_a_process(tmp_path / "class.db") as held, window(chromium, viewport=SCREENS[0]) as projector:
        opened(projector, held, "projector")
        projector.get_by_text("here").wait_for()
        for screen in SCREENS:
            projector.set_viewport_size(screen)
            assert projector.evaluate(MISFITS) == []


def test_the_slides_hold_the_poll_where_the_lesson_predicts_and_the_presenter_has_the_class_beside_the_notes(
    chromium, tmp_path
):
    with class_in_a_process(tmp_path / "class.db") as held, window(chromium, viewport=SCREENS[0]) as page:
        opened(page, held)
        page.goto(f"{held.url}/slides/02")
        poll, desks = page.frame_locator("#class"), [Learner(held, f"desk {place}") for place in range(3)]
        for _ in range(40):
            page.keyboard.press("ArrowRight")
            if page.locator("#class").is_visible():
                break
        poll.get_by_text("3 here").wait_for()  # 02.1 is on the wall, and not asked yet
        assert poll.get_by_role("button").all_inner_texts() == ["Back", "Ask", "Next"]
        assert poll.locator(".is-right, .moving").count() == 0
        inside = page.frames[1]
        for screen in SCREENS:
            page.set_viewport_size(screen)
            assert inside.evaluate(MISFITS) == []
        look(page, "slides_poll", both=True)
        poll.get_by_label("Ask: 02.1").click()
        for desk, letter in zip(desks, "aab", strict=True):
            assert desk.answer(letter) == ""
        poll.get_by_label("Discuss: 02.1").click()
        poll.get_by_label("Ask again: 02.1").click()
        for desk in desks:
            desk.asked("after")
            assert desk.answer("c") == ""
        poll.get_by_text("3 of 3").wait_for()
        poll.get_by_label("Reveal: 02.1").click()
        poll.get_by_text("2 → 0").wait_for()
        look(page, "slides_poll_revealed")
        with page.expect_popup() as speaking:
            page.keyboard.press("p")  # heard by the poll, which has the focus
        _speak(page, speaking.value)
        page.keyboard.press("c")
        poll.get_by_text("2 → 0").wait_for()
        assert "desk" not in poll.locator("body").inner_text()


def _speak(page: Any, speaker: Any) -> None:
    """From the presenter's own window: the next slide, notes, and the class."""
    inside = speaker.frame_locator("#class")
    inside.get_by_text("Revealed. 3 answers").wait_for()
    inside.get_by_role("link", name="Open the slides of 02").wait_for()
    assert "What goes wrong" in speaker.locator("#notes").inner_text()
    speaker.set_viewport_size({"width": 1600, "height": 900})
    look(speaker, "slides_speaker")
    speaker.locator("#notes").press("ArrowRight")
    wait(lambda: not page.locator("#class").is_visible())


def test_a_class_joins_by_phone_votes_talks_votes_again_and_survives_the_servers_death(chromium, tmp_path):
    record, port = tmp_path / "class.db", free_port()
    with contextlib.ExitStack() as running:
        held = running.enter_context(class_in_a_process(record, port=port))
        page = opened(running.enter_context(window(chromium, viewport={"width": 1280, "height": 800})), held)
        projector = running.enter_context(window(chromium, viewport=SCREENS[0]))
        opened(projector, held, "projector")
        phones = [running.enter_context(window(chromium, **PHONE)) for _ in FIRST]
        for phone, name in zip(phones, ("Ada", "Ben", "<i>Cy</i>", "Dee", "Eve"), strict=True):
            join(phone, held, name)
        desks = [Learner(held, f"desk {place}") for place in range(3)]
        said(projector, "8 here")
        look_from_the_last_row(projector, "welcome")

        _vote_and_discuss(page, projector, phones, desks)
        end(held)
        projector.get_by_text("Not connected to the class").wait_for()
        phones[0].get_by_text("not connected").wait_for()
        phones[0].get_by_role("button", name="Done").click()  # it waits in the phone
        again = running.enter_context(class_in_a_process(record, port=port))
        for desk in desks:
            desk.connect()
        _vote_again_and_reveal(page, projector, phones, desks)
        _ask_show_and_call(page, projector, phones, desks)
        assert again.code == held.code
    _read_the_report(record, tmp_path, chromium)


def _vote_and_discuss(page: Any, projector: Any, phones: list[Any], desks: list[Learner]) -> None:
    page.locator("#lessons button").filter(has_text="06").first.click()
    page.locator("#questions").get_by_label("Ask: 06.2", exact=True).click()
    said(projector, "0 of 8 answered")
    look(phones[0], "phone_asked", both=True)
    vote(phones, FIRST)
    for desk in desks[:2]:
        assert desk.answer("a") == ""
    said(projector, "7 of 8 answered")
    page.get_by_text("Waiting for desk 2.").wait_for()
    assert projector.locator("#countdown").inner_text().count(":") == 1
    assert not any(choice.believes in projector.content() for choice in QUESTION.choices if choice.believes)
    look_from_the_last_row(projector, "asked")
    page.get_by_label("Discuss: 06.2").first.click()
    projector.get_by_text("convince each other").wait_for()
    phones[1].get_by_text("You will vote again.").wait_for()
    assert projector.locator(".moving").count() == 0


def _vote_again_and_reveal(page: Any, projector: Any, phones: list[Any], desks: list[Learner]) -> None:
    page.get_by_text("Not connected to the class").wait_for(state="hidden")
    page.get_by_text("Done: 1 of").wait_for()  # pressed while nobody was there
    page.get_by_label("Ask again: 06.2").first.click()
    for phone in phones:
        phone.get_by_text("second vote").wait_for()
    vote(phones, SECOND)
    for desk in desks:
        desk.asked("after")
        assert desk.answer("b") == ""
    said(projector, "8 of 8 answered")
    page.get_by_label("Reveal: 06.2").first.click()
    wrong = QUESTION.choices[0]
    projector.get_by_text(wrong.believes).wait_for()
    counts = projector.locator(".bars .count").all_text_contents()
    assert counts == ["4 → 1", "1 → 7", "1 → 0", "1 → 0"]
    assert "✓ right" in (projector.locator(".is-right").text_content() or "")
    assert not any(name in projector.content() for name in ("Ada", "Ben", "desk 1"))
    wait(lambda: projector.locator(".is-right .fill").evaluate("each => each.style.width") == "88%")
    look_from_the_last_row(projector, "revealed")
    phones[3].get_by_text(wrong.believes).wait_for()
    phones[3].get_by_text("(yours)").wait_for()
    look(phones[3], "phone_revealed", both=True)
    page.get_by_label("Put away: 06.2").first.click()


def _ask_show_and_call(page: Any, projector: Any, phones: list[Any], desks: list[Learner]) -> None:
    phones[2].get_by_role("button", name="I am stuck").click()
    phones[2].get_by_label("Ask one").fill("Does <b>1F1B</b> help with two stages?")
    phones[2].get_by_role("button", name="Ask", exact=True).click()
    phones[4].get_by_label("I want to know, too: Does <b>1F1B</b> help").click()
    page.get_by_text("▲ 1").wait_for()
    assert desks[0].say("showed", source=SOURCE, lesson="06", section=SECTION) == ""
    page.get_by_role("button", name="Show on projector, without the name").click()
    projector.get_by_text("A cell from the class").wait_for()
    assert projector.locator("#cell").text_content() == SOURCE
    assert "desk 0" not in projector.content()
    look_from_the_last_row(projector, "cell")
    page.get_by_label("Show on projector: Does <b>1F1B</b> help").click()
    projector.get_by_text("Does <b>1F1B</b> help with two stages?").wait_for()
    page.locator("#tab-plan").click()
    page.get_by_label(f"Everyone to 06 {SECTION}").click()
    assert desks[1].hear(lambda state: state["call"])["section"] == SECTION
    phones[0].get_by_text(f"The class is at 06: {SECTION}").wait_for()
    page.get_by_text(f"06 {SECTION}: 0 of").wait_for()
    look(page, "instructor", both=True)
    page.get_by_label("Answered: Does <b>1F1B</b> help").click()
    page.get_by_text("No questions.").wait_for()


def _read_the_report(record: Path, folder: Path, chromium: Any) -> None:
    write_report(record, folder / "report")
    with window(chromium, viewport={"width": 1280, "height": 900}) as page:
        page.goto((folder / "report" / "index.html").as_uri())
        page.get_by_role("heading", name="What to say tomorrow").wait_for()
        look(page, "report", both=True)
        page.set_viewport_size({"width": 400, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        page.get_by_role("button", name="points").click()  # its one script is let run
