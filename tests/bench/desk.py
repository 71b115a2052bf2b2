"""How long a learner waits for the desk: from `course lab` to a server that answers, and to lesson 00 on the screen.

Beside it is JupyterLab as it comes, with the same lesson: what remains of the time is the browser's, for JupyterLab's
own JavaScript.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.bench.table import describe_machine, write_section
from tests.browser.lab import NOTEBOOK, ROOT, free_port, need_a_browser, server, started_lab

ROUNDS = 5
LESSON = f"{NOTEBOOK} .jp-MarkdownCell h1"


@contextmanager
def the_desk(folder: Path):
    """`course lab`; yields its address."""
    with started_lab(folder) as lab:
        yield lab.address.replace("/lab?", "/lab/tree/notebooks/00_start_here.ipynb?")  # past the home page


@contextmanager
def jupyterlab_alone(folder: Path):
    """`jupyter lab` with the first lesson, and nobody's settings."""
    shutil.copy(ROOT / "notebooks" / "00_start_here.ipynb", folder)
    words = ["jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={free_port()}"]
    with server(words, folder, {**os.environ, "HOME": str(folder)}) as (_, address):
        yield address.replace("/lab?", "/lab/tree/00_start_here.ipynb?")


def start(browser, started: Callable[[Path], AbstractContextManager[str]], folder: Path) -> tuple[float, float]:
    """Seconds until the server has an address, and until the first lesson can be read."""
    began = time.monotonic()
    with started(folder) as address:
        served = time.monotonic() - began
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector(LESSON)
        shown = time.monotonic() - began
        page.wait_for_timeout(2000)  # it saves what is open
        page.close()
    return served, shown


def measure() -> dict[str, tuple[float, float]]:
    """A newcomer's first start, and the medians of some later ones; a browser is open already."""
    from playwright.sync_api import sync_playwright

    with (
        sync_playwright() as playwright,
        tempfile.TemporaryDirectory() as ours,
        tempfile.TemporaryDirectory() as theirs,
    ):
        browser = playwright.chromium.launch(executable_path=need_a_browser(), args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1366, "height": 768})
        first = start(context, the_desk, Path(ours))
        later, alone = [], []
        for _ in range(ROUNDS):
            later.append(start(context, the_desk, Path(ours)))
            alone.append(start(context, jupyterlab_alone, Path(theirs)))
        browser.close()
    return {"the first `course lab`": first, "a later one": medians(later), "`jupyter lab` alone": medians(alone)}


def medians(times: list[tuple[float, float]]) -> tuple[float, float]:
    """Of each column."""
    served, shown = zip(*times, strict=True)
    return statistics.median(served), statistics.median(shown)


if __name__ == "__main__":
    rows = [f"| {name} | {served:.1f} | {shown:.1f} |" for name, (served, shown) in measure().items()]
    write_section(
        "Desk",
        f"Seconds from the command, with chromium already open; for later starts, the median of {ROUNDS}.\n\n"
        f"On {describe_machine()}.\n\n"
        "| start | until the server answers | until lesson 00 can be read |\n|---|--:|--:|\n" + "\n".join(rows),
    )
