"""The theme's contents fold, by a chevron that has no name: this gives each one, for those who hear the page."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    """After the theme has said how contents are made."""
    app.connect("html-page-context", _name_them, priority=1000)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _name_them(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    made = context["generate_toctree_html"]

    def named(*words: Any, **options: Any) -> Any:
        contents = made(*words, **options)  # parsed by the theme, with BeautifulSoup
        for fold in contents("summary"):
            fold["aria-label"] = f"Pages in {fold.find_previous('a').get_text(strip=True)}"
        return contents

    context["generate_toctree_html"] = named
