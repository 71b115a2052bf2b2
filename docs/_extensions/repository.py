"""Where the repository lies on the web, if it does, and which of its files is which page of the site."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
SETTING = "COURSE_REPOSITORY"  # https://github.com/OWNER/NAME: links to source and to Binder are there once it is set
BRANCH = os.environ.get("COURSE_BRANCH", "main")

# A pattern of files in the repository, and the page that each becomes: {} is the file's name without its ending.
PAGES = {
    "docs/index.md": "index",
    "README.md": "readme",
    "docs/handbook/README.md": "handbook/index",
    "docs/handbook/*.md": "handbook/{}",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "notebooks/*.ipynb": "lessons/{}",
    "exercises/*.ipynb": "exercises/{}",
    "docs/lessons.md": "lessons/index",
    "docs/exercises.md": "exercises/index",
    "docs/teaching/README.md": "teaching/index",
    "docs/teaching/*.md": "teaching/{}",
    "docs/deploy/README.md": "deploy/index",
    "docs/deploy/*.md": "deploy/{}",
    "docs/deploy/jupyterhub/README.md": "deploy/jupyterhub",
    "tests/README.md": "tests/index",
    "tests/browser/README.md": "tests/browser",
    "tests/checks/README.md": "tests/checks",
    "tests/benchmarks/README.md": "benchmarks",
}
STANDS_FOR = {"exercises": "docs/exercises.md", "notebooks": "docs/lessons.md", "course_lib": "api/index"}


class NoAddress(RuntimeError):
    """A site cannot be published without the repository's address. The sentence says how to give it."""


def address() -> str:
    """The repository's address on the web, without a slash at its end; empty if nobody has said it."""
    return os.environ.get(SETTING, "").rstrip("/")


def require_address() -> None:
    """Raise `NoAddress` if nobody has said where the repository is: a published site says how to get the course."""
    if not re.fullmatch(r"https?://[^/\s]+/\S+", address()):
        raise NoAddress(
            f"{SETTING} is {address()!r}, and a published site says where the course is: set it to the repository's "
            f"address, as in {SETTING}=https://github.com/OWNER/NAME. Without --publish you get a preview."
        )


def pages() -> dict[str, str]:
    """Every file of the repository that becomes a page, with the page's name."""
    found: dict[str, str] = {}
    for pattern, name in PAGES.items():
        for file in sorted(ROOT.glob(pattern)):
            found.setdefault(file.relative_to(ROOT).as_posix(), name.format(file.stem))
    return found


def page_of(path: str, known: dict[str, str]) -> str | None:
    """The page that shows a file or folder of the repository, if there is one."""
    path = STANDS_FOR.get(path, path)
    if path.startswith("api/"):
        return path
    room = re.fullmatch(r"course_lib/(\w+)/?(__init__\.py)?", path)
    return f"api/{room.group(1)}" if room and (ROOT / path).exists() else known.get(path)


def source_address(path: str) -> str:
    """Where a file or a folder of the repository is on the web; empty where that is not known."""
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{address()}/{kind}/{BRANCH}/{path}" if address() else ""


def binder_address(path: str) -> str:
    """Where Binder opens a notebook of the repository; empty unless the repository is on GitHub."""
    found = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", address())
    return f"https://mybinder.org/v2/gh/{found.group(1)}/{BRANCH}?urlpath=lab/tree/{path}" if found else ""


def resolved(target: str, file: str) -> str | None:
    """The path in the repository that a link in `file` leads to; None if it leads to none."""
    if re.match(r"[a-z]+:|#|/", target):
        return None
    path = os.path.normpath(PurePosixPath(file).parent / target)
    return path if not path.startswith("..") and (ROOT / path).exists() else None
