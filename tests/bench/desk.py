"""How long a learner waits for the desk: from `course lab` to a server that answers, and to lesson 00 on the screen."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from tests.bench.table import describe_machine, write_section
from tests.browser.lab import NOTEBOOK, need_a_browser, started_lab

ROUNDS = 5
LESSON = f"{NOTEBOOK} .jp-MarkdownCell h1"


def start(chromium, folder: Path) -> tuple[float, float]:
    """Seconds until the server has an address, and until the first lesson can be read."""
    began = time.monotonic()
    with started_lab(folder) as lab:
        served = time.monotonic() - began
        page = chromium.new_page()
        page.goto(lab.address)
        page.wait_for_selector(LESSON)
        shown = time.monotonic() - began
        page.wait_for_timeout(2000)  # it saves what is open
        page.close()
    return served, shown


def measure() -> tuple[tuple[float, float], tuple[float, float]]:
    """A newcomer's first start, and the median of some later ones; a browser is open already."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=need_a_browser(), args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1366, "height": 768})
        first, *later = [start(context, Path(folder)) for _ in range(ROUNDS + 1)]
        browser.close()
    served, shown = zip(*later, strict=True)
    return first, (statistics.median(served), statistics.median(shown))


if __name__ == "__main__":
    first, later = measure()
    rows = [
        f"| {name} | {served:.1f} | {shown:.1f} |"
        for name, (served, shown) in {"the first": first, "a later one": later}.items()
    ]
    write_section(
        "Desk",
        f"Seconds from `course lab`, with chromium open already; of later starts the median of {ROUNDS}.\n\n"
        f"On {describe_machine()}.\n\n"
        "| start | until the server answers | until lesson 00 can be read |\n|---|--:|--:|\n" + "\n".join(rows),
    )
