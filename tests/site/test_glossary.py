"""The glossary's terms, where pages use them first."""

from __future__ import annotations

import re
import sys
from html import unescape
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "docs" / "_extensions"))

terms = pytest.importorskip("glossary_terms")
ENTRIES = terms.entries((ROOT / "docs" / "handbook" / "glossary.md").read_text())


def test_an_entry_is_one_line_of_plain_text():
    assert len(ENTRIES) >= 40
    assert ENTRIES["Desk"] == "The folder you work in: lessons, exercises, progress."
    assert not [words for words in ENTRIES.values() if re.search(r"[\n`*\[]", words)]


def test_a_term_is_found_in_the_plural_and_not_inside_another_word():
    found = terms.pattern(frozenset(ENTRIES)).findall("Ranks, all_reduce, pre-stage, two micro-batches, zero, ZeRO")
    assert found == ["Rank", "micro-batch", "ZeRO"]


@pytest.mark.slow
def test_a_lesson_links_a_term_once_to_its_entry_and_shows_what_it_means(site_folder):
    entry_ids = set(re.findall(r'id="(term-[^"]+)"', (site_folder / "handbook/glossary.html").read_text()))
    assert len(entry_ids) == len(ENTRIES)
    lesson = (site_folder / "lessons/06_pipeline_parallelism.html").read_text()
    links = re.findall(r'<a class="glossary-term[^"]*" href="[^"#]*#([^"]+)" title="([^"]+)">', lesson)
    assert len(links) == len(set(links)) >= 10
    assert {target for target, _ in links} <= entry_ids
    assert (terms.anchor("Bubble"), ENTRIES["Bubble"]) in [(target, unescape(title)) for target, title in links]
