"""The pages of a class: what they say, that names are only text, and that everybody can use them."""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from course_lib.checks.catalog import exercises
from course_lib.grading.pages import class_page, page, page_name, write_pages
from course_lib.grading.records import Mark, Record
from course_lib.grading.summary import by_student, mistakes, points_distribution, table, totals_distribution
from tests.browser.lab import axe, window

SUM = "A sum, and not the mean: divide by the number of ranks."
HOSTILE = [
    "<script>alert(1)</script>",
    "'\"><img src=x onerror=alert(1)>",
    "\u202egnp.exe",
    "lone \ud800 surrogate",
    "\x00\x1b[31m",
    "a" * 251,
    "ä" * 120,
    "%2f",
    "a#b?c&d",
    "..",
    "con",
    "=1+1",
    "\t=1+1",
    "Zoë O'Neil (2)",
    "https://example.org/",
]


def mark(number: str, wrong: dict[str, str] | None = None, **more) -> Mark:
    """All points, but for the parts that are wrong, whose causes are given."""
    wrong = wrong or {}
    parts = {part: 0 if part in wrong else most for part, most in exercises()[number].parts.items()}
    causes = {part: cause for part, cause in wrong.items() if cause}
    return Mark(
        number, parts, {part: cause or "It raises KeyError." for part, cause in wrong.items()}, True, causes, **more
    )


def not_tried(number: str) -> Mark:
    return Mark(number, dict.fromkeys(exercises()[number].parts, 0), attempted=False)


def record(student: str, *marks: Mark, **more) -> Record:
    return Record(student, "02_ddp", "", list(marks), **more)


def a_class() -> list[Record]:
    """Of every kind one, and some more."""
    return [
        record("ada", mark("02.1"), mark("02.2")),
        record("bob", mark("02.1", {"the mean": SUM, "unused parameters": SUM}), mark("02.2")),
        record("cem", mark("02.1", {"the mean": SUM}), not_tried("02.2")),
        record("dan", mark("02.1", {"the mean": ""}), mark("02.2", {"equal shares": ""}, by_clock=["equal shares"])),
        record("eve", not_tried("02.1"), not_tried("02.2"), problem="It is not a notebook."),
        record("fay", mark("02.1"), mark("02.2"), problem="Grading was stopped.", stopped_by_clock=True),
        record("gus", not_tried("02.1"), not_tried("02.2")),
        Record("hal", "", "", [], "There is no notebook."),
    ]


def hostile_class() -> list[Record]:
    """Whoever chose these names chose their errors, too."""
    wrong = "It raises `</script><b>` at “<img src=x onerror=alert(1)>”."
    return [
        record(name, mark("02.1", {"the mean": wrong}, by_clock=["the mean"]), problem=f"{name} {wrong}")
        for name in HOSTILE
    ]


class Elements(HTMLParser):
    """The elements of a page, in order, with their attributes; and that each that was opened is closed."""

    VOID = ("meta", "br", "line", "rect", "img", "input", "link", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self._open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def both_pages(records: list[Record]) -> list[str]:
    return [class_page(records), *(page(student.name, student.records) for student in by_student(records))]


def test_a_mistake_is_counted_once_for_each_student_who_made_it():
    made = {(each.number, each.cause): list(each.students) for each in mistakes(by_student(a_class()))}
    assert made == {("02.1", SUM): ["bob", "cem"], ("02.1", ""): ["dan"]}, "what a clock stopped is no mistake"
    text = class_page(a_class())
    assert re.search(r"2 students</span> · 02\.1 Average the gradients by hand", text)
    assert text.count(SUM) == 1


def test_bars_count_every_student_once():
    students = by_student(a_class())
    bars = {bar.label: bar.count for bar in points_distribution(students, "02.1")}
    assert bars == {"-": 3, "0": 1, "1": 2, "2": 0, "3": 2}
    for shown in (points_distribution(students, "02.2"), totals_distribution(students, 7)):
        assert sum(bar.count for bar in shown) == len(students)
    assert "0 points: 1 student; 1 point: 2 students; 3 points: 2 students" in class_page(a_class())


def test_many_points_are_put_together_so_that_a_phone_has_room():
    bars = points_distribution(by_student([record("ada", mark("11.1"))]), "11.1")
    assert len(bars) <= 12
    assert [bar.count for bar in bars] == [0] * (len(bars) - 1) + [1]


def test_the_page_of_a_class_names_whom_to_look_at():
    text = class_page(a_class())
    for title, count in {"Flagged": 2, "Problems with a whole notebook": 2, "Nothing handed in": 1}.items():
        assert f"<b>{title}</b>: {count}</summary>" in text
    assert re.search(r"dan</bdi></a>: 02\.2 \(equal shares\)", text)
    assert re.search(r"fay</bdi></a>: 02_ddp \(the whole notebook\)", text)
    assert re.search(r"hal</bdi></a>: There is no notebook\.", text)
    assert re.search(r"Handed in unchanged</b>: 1</summary>.*\n<ul><li><a [^>]*><bdi>gus<", text)


def test_a_student_is_told_what_was_right_what_was_wrong_and_what_is_flagged():
    dan = page("dan", [each for each in a_class() if each.student == "dan"])
    assert "Flagged: equal shares: a time limit stopped it." in dan
    assert 'Right: </span>unused parameters</span><span class="points">1 of 1</span>' in dan
    assert "Wrong: </span>the mean: It raises KeyError." in dan
    assert "Read again: lesson 02, “2 · By hand”." in dan
    fay = page("fay", [each for each in a_class() if each.student == "fay"])
    assert "Flagged: a time limit stopped it" in fay
    assert "Read again" not in fay
    assert "Flagged" not in page("ada", [a_class()[0]])


def test_the_table_says_what_a_clock_decided():
    rows = {row["student"]: row for row in csv.DictReader(table(a_class()).splitlines())}
    flagged = {student: row["flagged"] for student, row in rows.items() if row["flagged"]}
    assert flagged == {"dan": "02.2: equal shares", "fay": "02_ddp: the whole notebook"}
    assert (rows["hal"]["total"], rows["hal"]["02.1"], rows["hal"]["of"]) == ("0", "", "7")
    assert rows["hal"]["remarks"] == "There is no notebook."


@pytest.mark.parametrize(
    "begin", ["=", "+", "-", "@", "\t=", " =", "\r=", "\n=", "\u00a0=", "\x00=", "\uff1d", " \t@", "\tcmd"]
)
def test_no_cell_of_the_table_is_a_formula(begin):
    rows = list(csv.reader(table([record(f"{begin}1+1", problem=f"{begin}1+1")]).splitlines(keepends=True)))
    assert rows[1][0].startswith("'")
    remarks = table([Record("ada", f"{begin}cmd", "", [], "it is broken")])
    assert list(csv.reader(remarks.splitlines(keepends=True)))[1][-1].startswith("'")


@pytest.mark.parametrize("make", [a_class, hostile_class, list], ids=["a class", "hostile", "empty"])
def test_what_students_chose_is_only_text(make):
    scripts = {"class": 1, "student": 0}
    for place, text in enumerate(both_pages(make())):
        elements = Elements(text)
        tags = Counter(tag for tag, _ in elements.found)
        assert tags["script"] == scripts["student" if place else "class"]
        assert not tags.keys() & {"img", "iframe", "link", "object", "form", "base", "b" if place else "img"}
        assert not any(name.startswith("on") or name == "style" for _, found in elements.found for name in found)
        assert not re.search("[\x00\x1b\u202e\ud800-\udfff]", text)


@pytest.mark.parametrize("make", [a_class, hostile_class, list], ids=["a class", "hostile", "empty"])
def test_links_lead_to_what_is_there_and_nothing_is_asked_of_the_network(tmp_path, make):
    write_pages(make(), tmp_path)
    for path in [tmp_path / "index.html", *(tmp_path / "pages").iterdir()]:
        elements = Elements(path.read_text())
        for _, attributes in elements.found:
            for target in filter(None, map(attributes.get, ("href", "src", "action", "xlink:href"))):
                assert re.fullmatch(r"[\w%./~#-]+", target, re.ASCII)
                file, _, place = target.partition("#")
                leads_to = path.parent / unquote(file) if file else path
                assert leads_to.is_relative_to(tmp_path)
                assert leads_to.is_file(), target
                assert not place or f'id="{place}"' in leads_to.read_text(), target
        assert "url(" not in path.read_text()
        assert "@import" not in path.read_text()


def test_every_student_has_a_page_of_their_own_whatever_the_name(tmp_path):
    posing = page_name("a" * 251).removesuffix(".html")
    names = [*HOSTILE, "..x", ".hidden", "nul.txt", "b" * 251, posing, "Zoë Müller", "李明", "o'neil (2)"]
    write_pages([record(name) for name in names], tmp_path)
    written = sorted(path.name for path in (tmp_path / "pages").iterdir())
    assert written == sorted(map(page_name, names))
    assert len(set(written)) == len(names)
    assert not {"con.html", "nul.txt.html"} & set(written), "Windows has no such files"
    assert {"Zoë Müller.html", "李明.html", "o'neil (2).html"} <= set(written)


def test_pages_allow_their_own_style_and_script_and_nothing_else():
    for text in both_pages(hostile_class()):
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
        assert policy
        rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))
        assert rules["default-src"] == "'none'"
        assert "unsafe" not in policy[1]
        assert re.fullmatch(r"'sha256-[\w+/=]{44}'", rules["style-src"])


@pytest.mark.parametrize("make", [a_class, hostile_class, list], ids=["a class", "hostile", "empty"])
def test_pages_can_be_heard_and_used_from_the_keyboard(make):
    for text in both_pages(make()):
        elements = Elements(text)
        assert elements.all("html")[0]["lang"] == "en"
        assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in elements.all("meta")
        assert elements.all("a")[0] == {"class": "skip", "href": "#main"}
        levels = [int(tag[1]) for tag, _ in elements.found if re.fullmatch("h[1-6]", tag)]
        assert levels.count(1) == 1
        assert all(after - before <= 1 for before, after in zip([0, *levels], levels, strict=False))
        ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
        assert len(ids) == len(set(ids))
        assert all(svg["role"] == "img" and svg["aria-label"] for svg in elements.all("svg"))
        assert all(head["scope"] in ("row", "col") for head in elements.all("th"))
        for box in (found for found in elements.all("div") if found.get("class") == "scroll"):
            assert (box["tabindex"], box["role"], bool(box["aria-label"])) == ("0", "region", True)


@pytest.mark.slow
@pytest.mark.parametrize("make", [a_class, hostile_class], ids=["a class", "hostile"])
def test_axe_finds_nothing_on_a_phone_in_light_and_dark(chromium, tmp_path, make):
    write_pages(make(), tmp_path)
    largest = max((tmp_path / "pages").iterdir(), key=lambda path: path.stat().st_size)
    with window(chromium, viewport={"width": 360, "height": 740}) as page:
        for path, scheme in itertools.product((tmp_path / "index.html", largest), ("light", "dark")):
            page.emulate_media(color_scheme=scheme)
            page.goto(path.as_uri())
            page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true; })")
            assert axe(page, "html", serious=False) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.slow
def test_a_browser_runs_our_script_and_no_other(chromium, tmp_path):
    write_pages(a_class(), tmp_path)
    path = tmp_path / "index.html"
    path.write_text(path.read_text().replace("</main>", "<script>document.title = 'taken over'</script></main>"))
    page = chromium.new_page()
    page.goto(path.as_uri())
    assert page.title() == "Grades of the class"
    assert page.locator("th > button").count() == 6
    page.close()
