"""The site, built once for all tests, and a plain static server on loopback that shows it."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock

from tests.browser.conftest import chromium  # noqa: F401, a fixture

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def site_folder() -> Path:
    """The built site: build/site, if it is newer than all that it is made of, else it is built."""
    pytest.importorskip("myst_nb", reason="there is no Sphinx: pip install -e '.[site]'")
    (ROOT / "build").mkdir(exist_ok=True)
    with FileLock(ROOT / "build" / "site.lock"):
        words = [sys.executable, ROOT / "docs" / "build.py", "--if-needed"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "build" / "site"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server that serves files, and says nothing of it."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def site_address(site_folder: Path) -> Iterator[str]:
    """The address of the site's front page, without `index.html`."""
    with serve(site_folder) as address:
        yield address


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """A static server on loopback that shows a folder, and its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
