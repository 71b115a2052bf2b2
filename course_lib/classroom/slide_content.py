"""Cells of a lesson as HTML that asks for nothing from elsewhere: text, formulas as MathML, code, stored outputs."""

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
from course_lib.checks.markup import marked
from course_lib.checks.prediction import LETTERS, Prediction
from course_lib.course_files import Cell, source

HIGHLIGHTED = HtmlFormatter(cssclass="code", style="xcode")
TEXT_OUTPUTS = ("text/html", "image/svg+xml", "text/plain")  # the first that is there is shown


class SlideRenderer(IPythonRenderer):
    """Markdown whose formulas are MathML, which browsers draw themselves, and whose links lead out of the lesson."""

    def __init__(self) -> None:
        super().__init__(escape=False, exclude_anchor_links=True)

    def inline_math(self, body: str) -> str:
        """A formula in a line."""
        return mathml(body)

    def block_math(self, body: str) -> str:
        """A formula on a line of its own."""
        return mathml(body, display="block")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """A link; one to another file of the course is only its text, for that file is not here."""
        return super().link(text, url, title) if url.startswith("https://") else text


def text_html(text: str) -> str:
    """Markdown as HTML."""
    return MarkdownWithMath(renderer=SlideRenderer()).render(text)


def cell_html(cell: Cell) -> str:
    """A cell as it stands on a slide: of a prediction only the question, of its answer only what came out."""
    text = source(cell)
    if cell["cell_type"] == "markdown":
        return f'<div class="text">{text_html(text)}</div>'
    asked = ASKS.findall(text)
    if asked:
        return "".join(question_html(find_prediction(number)) for number in asked)
    shown = "" if not text or text.startswith("reveal(") else highlight(text, PythonLexer(), HIGHLIGHTED)
    return shown + "".join(map(_output_html, cell.get("outputs", [])))


def question_html(prediction: Prediction) -> str:
    """A question for the wall, and its choices unless a number is asked for."""
    choices = "" if prediction.typed else "".join(f"<li>{marked(choice.says)}</li>" for choice in prediction.choices)
    assert len(prediction.choices) <= len(LETTERS)
    listed = f'<ol type="a">{choices}</ol>' if choices else ""
    head = f'<p class="head">Predict {prediction.number}</p>'
    return f'<div class="question">{head}<p>{marked(prediction.question)}</p>{listed}</div>'


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
    """The colours of code, as CSS."""
    return str(HIGHLIGHTED.get_style_defs(".code"))
