"""Render a lesson's cells as self-contained HTML: text, formulas as MathML, code and stored outputs."""

from __future__ import annotations

import html

from latex2mathml.converter import convert as mathml
from nbconvert.filters import ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from course_lib.authoring.outline import ASKS
from course_lib.checks.catalog import find_prediction
from course_lib.checks.prediction import LETTERS, Prediction
from course_lib.checks.showing import marked
from course_lib.runtime.course_files import Cell, source

HIGHLIGHTED = HtmlFormatter(cssclass="code", style="xcode")
TEXT_OUTPUTS = ("text/html", "image/svg+xml", "text/plain")  # the first available one is shown


class SlideRenderer(IPythonRenderer):
    """Renders Markdown with formulas as MathML, which browsers draw themselves, and keeps only external links."""

    def __init__(self) -> None:
        super().__init__(escape=False, exclude_anchor_links=True)

    def inline_math(self, body: str) -> str:
        """Return an inline formula as MathML."""
        return mathml(body)

    def block_math(self, body: str) -> str:
        """Return a displayed formula as MathML."""
        return mathml(body, display="block")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """Return an external link; a link to a file of the course becomes plain text, because it is not included."""
        return super().link(text, url, title) if url.startswith("https://") else text


def text_html(text: str) -> str:
    """Convert Markdown to HTML."""
    return MarkdownWithMath(renderer=SlideRenderer()).render(text)


def cell_html(cell: Cell) -> str:
    """Return a cell as HTML. A `predict` cell shows only its question, a `reveal` cell only its output."""
    text = source(cell)
    if cell["cell_type"] == "markdown":
        return f'<div class="text">{text_html(text)}</div>'
    asked = ASKS.findall(text)
    if asked:
        return "".join(question_html(find_prediction(number)) for number in asked)
    shown = "" if not text or text.startswith("reveal(") else highlight(text, PythonLexer(), HIGHLIGHTED)
    return shown + "".join(map(_output_html, cell.get("outputs", [])))


def question_html(prediction: Prediction) -> str:
    """Return a question as HTML, with its choices unless the answer is a typed number."""
    choices = "" if prediction.typed else "".join(f"<li>{marked(choice.says)}</li>" for choice in prediction.choices)
    assert len(prediction.choices) <= len(LETTERS)
    listed = f'<ol type="a">{choices}</ol>' if choices else ""
    head = f'<p class="head">Predict {prediction.number}</p>'
    begin = f'<div class="question" data-number="{prediction.number}">'
    return f"{begin}{head}<p>{marked(prediction.question)}</p>{listed}</div>"


def _output_html(output: dict) -> str:
    if output["output_type"] == "stream":
        return f'<pre class="output">{ansi2html("".join(output["text"]))}</pre>'
    if output["output_type"] == "error":
        return f'<pre class="output">{ansi2html(chr(10).join(output["traceback"]))}</pre>'
    data = output.get("data", {})
    kind = next((kind for kind in TEXT_OUTPUTS if kind in data), None)
    shown = "".join(data.get(kind, ""))
    return f'<pre class="output">{html.escape(shown)}</pre>' if kind == "text/plain" else f"<div>{shown}</div>"


def highlighting() -> str:
    """Return the CSS for highlighted code."""
    return str(HIGHLIGHTED.get_style_defs(".code"))
