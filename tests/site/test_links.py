"""Links that hold: every link, anchor and picture of the built site leads somewhere in it."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ATTRIBUTES = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """What a page links to, and the places in it that can be linked to."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.without_words: list[str] = []
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        target = values.get(ATTRIBUTES.get(tag, ""))
        if target and not target.startswith("data:"):
            self.links.append(target)
        if tag == "img" and "alt" not in values:
            self.without_words.append((target or "")[:80])


@pytest.fixture(scope="module")
def pages(site_folder: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in sorted(site_folder.rglob("*.html")) if "_static" not in file.parts}


def internal(pages: dict[Path, Page]) -> Iterator[tuple[Path, str, Path, str]]:
    """Page, link as it is written, the file it leads to and the anchor there."""
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if not parts.scheme and not parts.netloc:
                target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
                yield file, link, target / "index.html" if target.is_dir() else target, unquote(parts.fragment)


def test_every_page_of_the_course_is_there(pages, site_folder):
    names = {file.relative_to(site_folder).as_posix() for file in pages}
    lessons = {name for name in names if name.startswith("lessons/") and name != "lessons/index.html"}
    exercises = {name for name in names if name.startswith("exercises/") and name != "exercises/index.html"}
    assert (len(lessons), len(exercises)) == (12, 13)
    sections = {"index", "handbook/index", "benchmarks", "contributing", "changelog", "search"}
    folders = {"lessons/index", "exercises/index", "teaching/index", "deploy/index", "api/index", "api/launcher"}
    assert {f"{name}.html" for name in sections | folders} <= names


def test_every_link_leads_to_a_file_of_the_site(pages, site_folder):
    missing = {
        (file.relative_to(site_folder).as_posix(), link)
        for file, link, target, _ in internal(pages)
        if not target.is_file()
    }
    assert missing == set()


def test_every_anchor_is_on_the_page_that_it_names(pages, site_folder):
    missing = {
        (file.relative_to(site_folder).as_posix(), link)
        for file, link, target, anchor in internal(pages)
        if anchor and target in pages and anchor not in pages[target].anchors
    }
    assert missing == set()


def test_every_picture_has_words(pages, site_folder):
    bare = {file.relative_to(site_folder).as_posix(): page.without_words for file, page in pages.items()}
    assert {name: pictures for name, pictures in bare.items() if pictures} == {}


def test_no_link_leads_to_a_notebook_or_a_markdown_file(pages, site_folder):
    """Which is what a link looks like that was not made into one between pages."""
    raw = {link for _, link, _, _ in internal(pages) if urlsplit(link).path.endswith((".ipynb", ".md"))}
    assert raw == set()


def test_no_solution_is_published(site_folder):
    """Neither their notebooks nor the words that only they have."""
    names = [file.name for file in site_folder.rglob("*") if "solution" in file.name.lower()]
    assert names == []
