"""How Sphinx makes the site. Nothing is executed: lessons show the outputs that are stored in them."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent)]
sys.modules.setdefault("rfc3987_syntax", None)  # pyright: ignore[reportArgumentType]; two seconds, see lab/server.py

from repository import ROOT, address, source_address  # noqa: E402

from course_lib.runtime.version import __version__  # noqa: E402

project = "Training an LSTM on many GPUs"
release = version = __version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.linkcode", "myst_nb", "gather", "mathml", "named_summaries", "widgets"]
extensions += ["glossary_terms", "code_lines"]
language = "en"
highlight_language = "text"  # what has no language of its own is a terminal
exclude_patterns = ["files/**"]
default_role = "py:obj"  # docstrings write `names` with one backtick: a link where it is known, else code

nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
html_math_renderer = "mathml"

autodoc_inherit_docstrings = False  # a method says what it does, or its base class does, once
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": True}
toc_object_entries_show_parents = "hide"
add_module_names = False

html_theme = "sphinx_book_theme"  # for books: a chapter at a time, the table of contents beside it, everything local
html_title = project
DARK_PICTURES = ROOT / "course_lib" / "lab" / "labextensions" / "course-desk" / "static" / "dark_pictures.svg"
html_static_path = [str(HERE / "_static"), str(DARK_PICTURES)]
templates_path = [str(HERE / "_templates")]
html_css_files = ["site.css"]
html_js_files = [("predictions.js", {"defer": "defer"})]
html_favicon = str(HERE / "_static" / "icon.svg")
html_search_scorer = str(HERE / "_static" / "search_scores.js")
html_copy_source = False  # lessons with their pictures would be there twice
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system is
html_theme_options = {
    "repository_url": address(),
    "use_repository_button": bool(address()),
    "use_source_button": False,
    "use_download_button": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": {"**": ["page-toc.html"], "index": []},  # the front page has the whole width
    "collapse_navbar": True,  # the pages of this section; those of all would take a sixth of the time
    "navbar_persistent": [],  # search stands above the contents
    "footer_content_items": ["extra-footer.html"],
    "extra_footer": f"Version {release}. MIT licence.",
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """Where the source of a name of the reference is on the web."""
    thing = sys.modules.get(info["module"])
    for name in info["fullname"].split("."):
        thing = getattr(thing, name, None)
    try:
        lines, first = inspect.getsourcelines(inspect.unwrap(thing))
        file = Path(inspect.getsourcefile(inspect.unwrap(thing)) or "").resolve().relative_to(ROOT)
    except (TypeError, OSError, ValueError):
        return None
    found = source_address(file.as_posix())
    return f"{found}#L{first}-L{first + len(lines) - 1}" if found else None


def setup(app) -> None:
    """Signatures that Python can read: the default of a dataclass's field has no words of its own."""
    app.connect("autodoc-process-signature", _readable)


def _readable(app, what, name, thing, options, signature, returns) -> tuple[str | None, str | None]:
    return (re.sub(r"<[^<>]*>", "...", signature) if signature else signature), returns
