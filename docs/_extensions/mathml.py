"""Formulas as MathML, made while the site is built: browsers draw it themselves, without JavaScript or fonts."""

from __future__ import annotations

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.writers.html5 import HTML5Translator


def setup(app: Sphinx) -> dict[str, bool]:
    """Make `html_math_renderer = "mathml"` known."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.add_post_transform(Punctuation)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Punctuation(SphinxPostTransform):
    """Gives a formula in a line the punctuation that follows it, so that no line begins with a comma."""

    default_priority = 900

    def run(self) -> None:
        """Move it out of the text."""
        for formula in self.document.findall(nodes.math):
            text = formula.next_node(descend=False, siblings=True)
            if isinstance(text, nodes.Text) and (match := re.match(r"[.,;:)?!]+", text)):
                formula["punctuation"] = match[0]
                text.parent.replace(text, nodes.Text(text[match.end() :]))


def inline(translator: HTML5Translator, node: nodes.Element) -> None:
    """A formula in a line."""
    formula, after = convert(node.astext()), node.get("punctuation")
    translator.body.append(f'<span class="formula-and">{formula}{after}</span>' if after else formula)
    raise nodes.SkipNode


def block(translator: HTML5Translator, node: nodes.Node) -> None:
    """A formula on a line of its own; one that is too wide scrolls."""
    translator.body.append(f'<div class="formula" tabindex="0">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode
