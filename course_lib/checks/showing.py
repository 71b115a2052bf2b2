"""How output is shown: as a box in a notebook, as text in a terminal. Text from other people is always escaped."""

from __future__ import annotations

import html
import re
import sys
from typing import Any

WIDGET = "application/vnd.jupyter.widget-view+json"
CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
DIRECTIONS = "\u202a-\u202e\u2066-\u2069"  # a name could use these to look like a different name
UNPRINTABLE = re.compile(f"[{CONTROLS}{DIRECTIONS}\ud800-\udfff\ufffe\uffff]")

# The fallbacks are for front ends without JupyterLab's colors. Text is readable on its background either way.
STYLE = """<style>
.course-box { border: 1px solid var(--jp-border-color1, #bdbdbd); border-radius: 4px; margin: .3em 0; overflow: hidden;
  max-width: 60em; color: var(--jp-content-font-color1, #212121); background: var(--jp-layout-color0, #fff);
  font-family: var(--jp-content-font-family, system-ui, sans-serif); font-size: var(--jp-content-font-size1, 14px);
  line-height: 1.5; text-align: left; overflow-wrap: anywhere; }
.course-box .course-head { background: #4a4f55; color: #fff; margin: 0; padding: .45em .9em; font-weight: 600; }
.course-box.course-right .course-head { background: #00639c; }
.course-box.course-wrong .course-head { background: #a84a00; }
.course-box .course-body { padding: .1em .9em .5em; }
.course-box p, .course-box ul, .course-box ol, .course-box table, .course-box details { margin: .55em 0; }
.course-box ul, .course-box ol { padding-left: 1.6em; }
.course-box ul.course-plain { list-style: none; padding-left: 0; }
.course-box.course-box pre { white-space: pre-wrap; word-break: normal; margin: .4em 0; padding: .5em .7em;
  color: inherit; font-size: .93em; background: var(--jp-layout-color1, #f6f6f6);
  border-left: 3px solid var(--jp-border-color1, #bdbdbd);
  font-family: var(--jp-code-font-family, monospace); line-height: 1.4; }
.course-box.course-box code { font-family: var(--jp-code-font-family, monospace); font-size: .93em; color: inherit;
  background: var(--jp-layout-color2, #eee); padding: 0 .25em; border-radius: 2px; }
.course-box table { border-collapse: collapse; font-size: inherit; color: inherit; border: 0; }
.course-box td, .course-box th { text-align: left !important; padding: .15em 1em .15em 0; vertical-align: top;
  white-space: normal; background: none; color: inherit; border: 0; font-weight: normal; max-width: none; }
.course-box thead th { font-weight: 600; border-bottom: 1px solid var(--jp-border-color1, #bdbdbd); }
.course-box td.course-number { text-align: right !important; font-variant-numeric: tabular-nums; }
.course-box .course-whole { white-space: nowrap; }
.course-box tbody tr, .course-box tbody tr:hover { background: none !important; }
.course-box.course-box a { color: var(--jp-content-link-color, #00639c); text-decoration: underline !important; }
.course-box summary { cursor: pointer; font-weight: 600; }
.course-box th { overflow-wrap: break-word; }
.course-box meter { width: 5em; height: .9em; vertical-align: middle; }
.jp-OutputArea-child:has(.course-box) ~ /* buttons whose kernel has ended */
  .jp-OutputArea-child:has(> .lm-Panel.jp-OutputArea-output):not(:has(.widget-box)) { display: none; }
</style>"""


def in_notebook() -> bool:
    """Return whether this runs in a notebook: an IPython with a kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


def box(kind: str, head: str, body: str, label: str) -> str:
    """Return the HTML of a colored box. `kind` is right, wrong or neutral; `label` names it for screen readers."""
    return (
        f'{STYLE}<div class="course-box course-{kind}" role="group" aria-label="{label}">'
        f'<p class="course-head">{head}</p><div class="course-body">{body}</div></div>'
    )


def show(html: str, text: str, **options: Any) -> None:
    """Show the HTML in a notebook, and the text elsewhere."""
    if not in_notebook():
        print(text)
        return
    from IPython.display import display

    display({"text/html": html, "text/plain": text}, raw=True, **options)


class Controls:
    """Widgets in a row below an output. `put_away` removes them without a trace.

    A notebook saved with a widget that no longer exists shows an error when it is opened again.
    """

    def __init__(self, *controls: Any) -> None:
        import ipywidgets
        from IPython.display import display

        self.row = ipywidgets.HBox(controls, layout={"flex_flow": "row wrap", "align_items": "center"})
        view = {"version_major": 2, "version_minor": 0, "model_id": self.row.model_id}
        self._shown = display({WIDGET: view}, raw=True, display_id=True)

    def put_away(self) -> None:
        """Remove the widgets from the page and from the saved notebook."""
        if self._shown is not None:
            self._shown.update({"text/plain": ""}, raw=True)
        for each in (*self.row.children, self.row):
            each.close()


def plain(words: str) -> str:
    """Return a text escaped for HTML, with unprintable characters replaced."""
    return html.escape(UNPRINTABLE.sub("\ufffd", words))


def with_code(words: str) -> str:
    """Return a sentence, ours or a student's, as HTML, with `code` as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", plain(words))


def marked(words: str) -> str:
    """Return one of our sentences as HTML, with `code` as code and *words* emphasized."""
    pieces = re.split(r"(<code>.*?</code>)", with_code(words))
    stressed = [
        piece if piece.startswith("<code>") else re.sub(r"\*([^*\s][^*]*)\*", r"<em>\1</em>", piece) for piece in pieces
    ]
    return "".join(stressed)
