"""How long a widget takes to draw itself again: in a real JupyterLab, from a slider's move to the new picture."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.table import describe_machine, write_section
from tests.browser.lab import Page, need_a_browser, started_lab
from tests.browser.widgets import IMPORTS, WIDGETS, write_notebook

MOVES = 41
NAME = "widgets.ipynb"
# From the event to the new picture, laid out; then back, so that every move changes something.
MOVE = """
async (root, moves) => {
  const input = root.querySelector("input[type=range]"), stage = root.querySelector(".stage");
  const start = input.valueAsNumber, times = [];
  for (let move = 0; move < moves; move += 1) {
    const changed = new Promise((resolve) => {
      const observer = new MutationObserver(() => {
        observer.disconnect();
        stage.getBoundingClientRect();
        resolve(performance.now());
      });
      observer.observe(stage, { childList: true, subtree: true });
    });
    const began = performance.now();
    input.valueAsNumber = move % 2 ? start : start + 1;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    times.push((await changed) - began);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return times;
}
"""


def redraws() -> dict[str, list[float]]:
    """For each widget, milliseconds of every move of its first slider."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright, started_lab(Path(folder)) as lab:
        write_notebook(lab.desk / NAME, IMPORTS, *WIDGETS.values())
        browser = playwright.chromium.launch(executable_path=need_a_browser(), args=["--no-sandbox"])
        page = Page(lab, browser.new_page(viewport={"width": 1400, "height": 1000}))
        page.open(NAME)
        page.run_all()
        times = {}
        for place, name in enumerate(WIDGETS, 1):
            page.nth(place).scroll_into_view_if_needed()
            widget = page.nth(place).locator(".course-widget")
            widget.locator("svg").first.wait_for()
            times[name] = widget.evaluate(MOVE, MOVES)[1:]
        browser.close()
    return times


def kernel_milliseconds(source: str, redraws: int = 20) -> float:
    """What one redraw costs the kernel, in milliseconds of CPU."""
    names: dict[str, Any] = {}
    exec(f"{IMPORTS}\nwidget = {source}", names)
    began = time.process_time()
    for _ in range(redraws):
        names["widget"].redraw()
    return (time.process_time() - began) / redraws * 1000


def main() -> None:
    """Measure, print and write the table."""
    rows = [
        f"| {name} | {statistics.median(times):.0f} | {sorted(times)[len(times) // 10]:.0f} "
        f"| {kernel_milliseconds(WIDGETS[name]):.1f} |"
        for name, times in redraws().items()
    ]
    about = (
        f"Milliseconds from a slider's move to the new picture, laid out, in JupyterLab and Chromium; of {MOVES - 1} "
        "moves, the median and the fastest tenth, because a round trip waits for whatever else the machine does; and "
        "the kernel's CPU time per move."
    )
    head = ["| widget | median, ms | fastest tenth, ms | kernel, ms of CPU |", "|---|--:|--:|--:|"]
    write_section("Widgets", "\n".join([about, "", f"On {describe_machine()}.", "", *head, *rows]))


if __name__ == "__main__":
    main()
