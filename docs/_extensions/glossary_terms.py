"""Terms of the glossary in lessons and handbook: a page's first use links to the entry, and shows it on hover."""

from __future__ import annotations

import functools
import re

from docutils import nodes
from repository import ROOT
from sphinx.application import Sphinx

GLOSSARY = "handbook/glossary"
READ = ("lessons/", "exercises/", "handbook/")  # the folders whose pages explain terms
ENTRY = re.compile(r"^\*\*(.+?)\.\*\* (.+?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
TWO_MEANINGS = {"Bank", "Head", "Launch"}  # lessons use these words in another sense, too
NOT_INSIDE = (nodes.title, nodes.reference, nodes.literal, nodes.literal_block, nodes.raw, nodes.math, nodes.strong)


def setup(app: Sphinx) -> dict[str, bool]:
    """Link terms once a page is complete."""
    app.connect("doctree-resolved", _link_terms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def entries(text: str) -> dict[str, str]:
    """Return the glossary's terms and what they mean, as plain text on one line."""
    plain = {term: re.sub(r"\[More\]\(\S+\)\.|[`*]", "", words) for term, words in ENTRY.findall(text)}
    return {term: " ".join(words.split()) for term, words in plain.items()}


def anchor(term: str) -> str:
    """Return the id of a term's entry."""
    return "term-" + re.sub(r"\W+", "-", term.lower())


@functools.cache
def pattern(terms: frozenset[str]) -> re.Pattern[str]:
    """Return what finds a term in running text, longest first, in the singular and in the plural.

    A term with capitals inside is found as it is written: ZeRO is not zero.
    """
    in_order = [re.escape(term) for term in sorted(terms, key=lambda term: (-len(term), term))]
    words = "|".join(f"(?i:{term})" if term[1:].islower() else term for term in in_order)
    return re.compile(rf"(?<![\w-])({words})(?:e?s)?(?![\w-])")


def _link_terms(app: Sphinx, tree: nodes.document, page: str) -> None:
    meanings = entries((ROOT / "docs" / f"{GLOSSARY}.md").read_text())
    if page == GLOSSARY:
        for strong in tree.findall(nodes.strong):
            term = strong.astext().rstrip(".")
            if term in meanings and strong.parent.astext().startswith(term):
                strong.parent["ids"].append(anchor(term))
    elif page.startswith(READ):
        unseen = {term.lower(): term for term in meanings if term not in TWO_MEANINGS}
        where = app.builder.get_relative_uri(page, GLOSSARY) if unseen else ""
        for text in [one for one in tree.findall(nodes.Text) if not _is_inside(one)]:
            text.parent.replace(text, list(_linked(text.astext(), unseen, meanings, where)))


def _is_inside(text: nodes.Text) -> bool:
    node = text.parent
    while node is not None:
        if isinstance(node, NOT_INSIDE):
            return True
        node = node.parent
    return False


def _linked(text: str, unseen: dict[str, str], meanings: dict[str, str], where: str) -> list[nodes.Node]:
    """Return the text, cut at the terms that it is the first to use; they leave `unseen`."""
    parts: list[nodes.Node] = []
    end = 0
    for match in pattern(frozenset(unseen.values())).finditer(text) if unseen else ():
        term = unseen.pop(match[1].lower(), None)
        if term is not None:
            parts.append(nodes.Text(text[end : match.start()]))
            link = {"refuri": f"{where}#{anchor(term)}", "reftitle": meanings[term], "internal": True}
            parts.append(nodes.reference("", match[0], classes=["glossary-term"], **link))
            end = match.end()
    return [*parts, nodes.Text(text[end:])]
