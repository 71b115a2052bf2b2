"""How long a widget takes to draw itself again: in a real JupyterLab, from a slider's move to the new picture.

It needs chromium, and `pip install playwright`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from course_lib.machine import free_port
from tests.bench.table import describe_machine, write_section

MOVES = 41
WIDGETS = {
    "all-reduce, 4 ranks": "pictures.explore_all_reduce(4)",
    "schedule bench, 3 stages": "pictures.schedule_bench(3, 4)",
    "scaling": "pictures.explore_scaling()",
    "meshes of 16 devices": "pictures.explore_meshes()",
    "memory of a step": "pictures.explore_memory()",
    "schedules, 4 stages": "pictures.explore_schedules()",
    "placement of 10 blocks": "pictures.explore_placement([BlockCost(0.01, 2**20)] * 10, 4)",
    "batches of 5,000 sequences": "pictures.explore_batches([1 + number % 60 for number in range(5000)])",
}
IMPORTS = "from course_lib import pictures\nfrom course_lib.planning import BlockCost"
# From the event to the new picture, laid out; then back, so that every move changes something.
MOVE = """
async ([number, moves]) => {
  const root = document.querySelectorAll(".course-widget")[number];
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


@contextmanager
def lab(folder: Path) -> Iterator[str]:
    """JupyterLab on that folder, without a user's settings; its address, with its token."""
    port, token = free_port(), secrets.token_hex(8)
    settings = folder / "settings"
    tracker = settings / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    tracker.parent.mkdir(parents=True)
    tracker.write_text('{"windowingMode": "none"}')  # all widgets are on the page at once
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={port}"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}"]
    environment = {**os.environ, "JUPYTERLAB_SETTINGS_DIR": str(settings), "JUPYTER_CONFIG_DIR": str(folder / "none")}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/api?token={token}")
        yield f"{address}/lab/tree/widgets.ipynb?token={token}"
    finally:
        server.terminate()
        server.wait()


def wait_for(address: str) -> None:
    """Return when a server answers there."""
    while True:
        try:
            urllib.request.urlopen(address).close()
            return
        except urllib.error.URLError:
            time.sleep(0.2)


def write_notebook(path: Path) -> None:
    """One cell for each widget."""
    cells = [
        {"cell_type": "code", "execution_count": None, "id": f"c{n}", "metadata": {}, "outputs": [], "source": source}
        for n, source in enumerate([IMPORTS, *WIDGETS.values()])
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    path.write_text(json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))


def run_all(page: Any) -> None:
    """Run every cell, and wait until every widget is there."""
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_selector(".jp-mod-idle, [data-status='idle'], .jp-Notebook-ExecutionIndicator")
    for cell in range(1 + len(WIDGETS)):
        page.locator(".jp-Notebook .jp-CodeCell .jp-InputArea-editor").nth(cell).click()
        page.keyboard.press("Control+Enter")
    page.wait_for_function(f"document.querySelectorAll('.course-widget svg').length === {len(WIDGETS)}")


def redraws() -> dict[str, list[float]]:
    """For each widget, milliseconds of every move of its first slider."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        write_notebook(Path(folder, "widgets.ipynb"))
        with lab(Path(folder)) as address:
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.set_default_timeout(300_000)
            page.goto(address)
            run_all(page)
            times = {name: page.evaluate(MOVE, [number, MOVES])[1:] for number, name in enumerate(WIDGETS)}
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
        f"Milliseconds from a slider's move to the new picture, laid out, in JupyterLab and Chromium: of {MOVES - 1} "
        "moves the median and the fastest tenth, for a round trip waits for whatever else the machine does; and the "
        "CPU time of one in the kernel."
    )
    head = ["| widget | median, ms | fastest tenth, ms | kernel, ms of CPU |", "|---|--:|--:|--:|"]
    write_section("Widgets", "\n".join([about, "", f"On {describe_machine()}.", "", *head, *rows]))


if __name__ == "__main__":
    main()
