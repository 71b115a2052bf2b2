"""Formulas as MathML, made while the site is built: browsers draw it themselves, without JavaScript or fonts."""

from __future__ import annotations

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def setup(app: Sphinx) -> dict[str, bool]:
    """Make `html_math_renderer = "mathml"` known."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def inline(translator: HTML5Translator, node: nodes.Node) -> None:
    """A formula in a line."""
    translator.body.append(f"{convert(node.astext())}&#8288;")  # a word joiner: no line begins with a colon
    raise nodes.SkipNode


def block(translator: HTML5Translator, node: nodes.Node) -> None:
    """A formula on a line of its own; one that is too wide scrolls."""
    translator.body.append(f'<div class="formula" tabindex="0">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode
