"""Links between the repository's files, made into links between the site's pages."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import PurePosixPath

from repository import ROOT, page_of, resolved, source_address

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"(^ {0,3}(`{3,}|~{3,}).*?^ {0,3}\2`*\s*$)", re.MULTILINE | re.DOTALL)


def with_page_links(text: str, file: str, known: dict[str, str], bring: Callable[[str], str]) -> str:
    """Markdown of `file`, as it reads on the file's page.

    A link to another page stays one. A file that is no page is linked where the repository is on the web; if that is
    not known, `bring` takes it along and returns its path on the site. A folder is then only named.
    """
    here = PurePosixPath(known[file]).parent

    def replaced(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        path, _, anchor = target.partition("#")
        found = resolved(path, file) if path else None
        if found is None:
            return match.group(0)
        mark = f"#{anchor}" if anchor else ""
        return f"{picture}[{words}]({_new_target(found, mark)})" if _new_target(found, mark) else words

    def _new_target(found: str, mark: str) -> str:
        page = page_of(found, known)
        if page:
            return os.path.relpath(page, here) + _ending(found) + mark
        if source_address(found) and not found.startswith("notebooks/images"):
            return source_address(found) + mark
        return "" if (ROOT / found).is_dir() else os.path.relpath(bring(found), here)

    parts = FENCE.split(text)
    return "".join(
        LINK.sub(replaced, part) if place % 3 == 0 else part for place, part in enumerate(parts) if place % 3 != 2
    )


def _ending(path: str) -> str:
    return ".ipynb" if path.startswith("notebooks/") and path.endswith(".ipynb") else ".md"
