"""`course slides`: a lesson on the wall, without a network; the question first, and its answer at the next press."""

from __future__ import annotations

import re

import pytest

from course_lib.command import main
from tests.browser.lab import axe, picture

pytestmark = pytest.mark.slow

ON = "#wall section.shown .step.on"
SIZES = """sections.map((section, place) => {
  show(place, Infinity);
  const size = parseFloat(section.querySelector('.fit').style.fontSize);
  return [place + 1, size, section.scrollHeight - section.clientHeight];
})"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The slides of a lesson, made once."""
    folder = tmp_path_factory.mktemp("slides")

    def path(number: str):
        file = folder / f"{number}.html"
        if not file.exists():
            assert main(["slides", number, "--out", str(file)]) == 0
        return file

    return path


@pytest.fixture
def wall(chromium, exported):
    """Opens a lesson's slides as a projector shows them. Whatever is asked of a network is written down."""
    context = chromium.new_context(viewport={"width": 1280, "height": 720})
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))

    def opened(number: str, place: str = "1.0"):
        page = context.new_page()
        page.goto(f"{exported(number).as_uri()}#{place}")
        return page

    yield opened
    context.close()
    outside = [url for url in asked if not url.startswith(("file:", "data:"))]
    assert asked
    assert outside == []


def presses_until(page, words: str, key: str = "ArrowRight", most: int = 40) -> str:
    """Press a key until these words are on the wall; what was there before."""
    for _ in range(most):
        before = page.locator(ON).all_inner_texts()
        page.keyboard.press(key)
        if any(words in text for text in page.locator(ON).all_inner_texts()):
            return "\n".join(before)
    raise AssertionError(f"{words!r} was never on the wall")


def test_a_question_is_on_the_wall_before_its_answer(wall):
    page = wall("06")
    presses_until(page, "Predict 06.2")
    question = "\n".join(page.locator(ON).all_inner_texts())
    assert "22 units; 4" in question
    assert "makespan: 22" not in question
    before = presses_until(page, "Result")
    assert "makespan: 22" in before
    assert "Result" not in before
    page.keyboard.press("ArrowLeft")
    assert "Result" not in "\n".join(page.locator(ON).all_inner_texts())


def test_the_address_keeps_the_place_and_the_keys_lead_through_it(wall):
    page = wall("06", "5.0")
    assert page.evaluate("[screen, step]") == [4, 0]
    page.keyboard.press("End")
    assert "Where this comes from" in page.locator(ON).first.inner_text()
    page.keyboard.press("[")
    assert "Going further" in page.locator(ON).first.inner_text()
    page.keyboard.press("Home")
    page.get_by_role("button", name="Next").click()
    assert re.search(r"#2\.0$", page.url)


def test_formulas_are_drawn_by_the_browser(wall):
    page = wall("06")
    presses_until(page, "So", most=30)
    formula = page.locator(f"{ON} math[display=block]").first
    assert formula.locator("mfrac").count() == 1
    assert formula.bounding_box()["height"] > 30


@pytest.mark.parametrize("number", ["02", "06", "08"])
def test_type_stays_large_and_pictures_legible(wall, number):
    page = wall(number)
    sizes = page.evaluate(SIZES)
    assert len(sizes) > 40
    small = [place for place, size, _ in sizes if size < 0.75]
    assert len(small) <= len(sizes) / 12, small
    assert len([place for place, _, over in sizes if over > 4]) <= 1  # a long log may be scrolled
    wide = page.evaluate("[...document.querySelectorAll('.fit img')].map(one => [one.alt, one.naturalWidth])")
    assert wide
    assert all(len(alt) > 20 and width > 0 for alt, width in wide)


@pytest.mark.parametrize("size", [(1280, 720), (1920, 1080), (400, 800)])
def test_axe_finds_nothing_serious(wall, size):
    page = wall("06")
    page.set_viewport_size({"width": size[0], "height": size[1]})
    for words in ("Predict 06.1", "Result"):
        presses_until(page, words)
        page.screenshot(path=picture(f"slides_{size[0]}_{re.sub(r'[^a-z0-9]+', '_', words.lower())}"))
    assert axe(page, "main, nav") == []


def test_the_presenter_sees_notes_and_leads(wall):
    page = wall("06", "2.0")
    with page.expect_popup() as opened:
        page.keyboard.press("p")
    speaker = opened.value
    speaker.locator("#section", has_text="The bubble").wait_for()
    assert "What goes wrong" in speaker.locator("#notes").inner_text()
    assert "It fills once" in speaker.locator("#notes").inner_text()  # what a wrong answer believes
    assert "of 9 minutes" in speaker.locator("#clock").inner_text()
    speaker.keyboard.press("ArrowRight")
    page.locator("#place", has_text="3 / ").wait_for()
    speaker.screenshot(path=picture("slides_presenter"))
    assert axe(speaker, "#speaker") == []
