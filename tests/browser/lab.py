"""`course lab` in a real browser, for tests: a server on a desk of its own, and a page to do what a learner does.

Playwright (Python) drives the system's chromium. A test takes the fixture `lab` (a server for the module) or `page`
(that server's page), and says what a learner does:

    def test_an_answer_is_praised(page):
        page.open("exercises/00_start_here.ipynb")
        page.run(page.cell("from course_lib"))
        page.write(page.cell("def pass_on"), "def pass_on(value): ...")
        said = page.run(page.cell('check("00.1"'))       # waits until it has run, and returns its outputs as text
        page.screenshot("an_answer")                     # tests/browser/seen/an_answer.png: look at it
        assert page.axe(".jp-OutputArea-output") == []   # what axe finds serious in that part of the page

Nothing waits for a time: `run`, `run_all` and `wait` end when the thing has happened.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from course_lib.lab.desk import Desk
from course_lib.lab.settings import prepare_first_screen
from course_lib.runtime.machine import free_port
from tests.conftest import PATIENCE

ROOT = Path(__file__).resolve().parent.parent.parent
SEEN = Path(__file__).with_name("seen")  # screenshots
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ADDRESS = re.compile(r"http://(?:localhost|127\.0\.0\.1):\d+/lab\?token=\w+")
OF_TESTS = ("PYTEST_CURRENT_TEST", "COURSE_LIB_PROGRESS", "COURSE_LIB_LIVE")  # variables that no learner has
PARENT_DEATH_SIGNAL = 1  # prctl's number for it
MISSED = 20  # seconds after which a key was not heard
GIVEN_UP = 50  # looks, one after another, that find no cell running
NOTEBOOK = ".jp-NotebookPanel:not(.lm-mod-hidden)"  # the one in front
PROMPTS = f"[...document.querySelectorAll('{NOTEBOOK} .jp-CodeCell .jp-InputPrompt')].map(e => e.textContent.trim())"


def need_a_browser() -> str:
    """Chromium, or a skip with the reason."""
    pytest.importorskip("playwright", reason="there is no playwright: pip install -e '.[test]'")
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    return found or pytest.skip("there is no browser: apt-get install chromium")


@dataclass
class Lab:
    """A server, its desk, and the address that lets one in."""

    desk: Path
    address: str
    home: Path

    @property
    def token(self) -> str:
        return self.address.rpartition("=")[2]

    @property
    def server(self) -> str:
        return self.address.partition("/lab?")[0]

    def listens(self, path: str) -> bool:
        """Whether a notebook's kernel has come up, and a page is connected to it."""
        kernels = [session["kernel"] for session in self._ask("GET", "sessions") if session["path"] == path]
        return any(kernel["execution_state"] == "idle" and kernel["connections"] for kernel in kernels)

    def tidy(self) -> None:
        """No kernel runs, and the next page is a first screen again, in the light; what was written stays."""
        for session in self._ask("GET", "sessions"):
            self._ask("DELETE", f"sessions/{session['id']}")
        shutil.rmtree(Desk(self.desk).jupyter / "workspaces")
        shutil.rmtree(Desk(self.desk).jupyter / "settings", ignore_errors=True)
        prepare_first_screen(Desk(self.desk))

    def _ask(self, method: str, what: str) -> Any:
        request = urllib.request.Request(f"{self.server}/api/{what}?token={self.token}", method=method)
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read() or "null")


@contextlib.contextmanager
def started_lab(folder: Path, *more: str) -> Iterator[Lab]:
    """`course lab` on a desk in that folder. Whoever it is for has settings of Jupyter's that would stop it."""
    home, desk, log = folder / "home", folder / "desk", folder / "lab.log"
    (home / ".jupyter").mkdir(parents=True, exist_ok=True)
    (home / ".jupyter" / "jupyter_server_config.py").write_text("raise SystemExit('these settings are not ours')\n")
    kept = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
    cache = os.environ.get("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))  # it takes long to make anew
    words = ["course_lib", "lab", "--no-browser", "--port", str(free_port()), "--desk", str(desk), *more]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=folder,
            env={**kept, "HOME": str(home), "MPLCONFIGDIR": cache},
            stdout=file,
            stderr=file,
            start_new_session=True,
            preexec_fn=end_with_us,
        )
    try:
        found = wait(lambda: ADDRESS.search(log.read_text()) or (process.poll() is not None and "it ended"))
        assert isinstance(found, re.Match), log.read_text()
        yield Lab(desk, found[0].replace("localhost", "127.0.0.1"), home)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def end_with_us() -> None:
    """In the new process: it ends, and its kernels with it, even if the tests are killed. (Linux.)"""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def wait(happened: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What `happened()` returns as soon as it is something."""
    deadline = time.monotonic() + seconds
    while True:
        found = happened()
        if found:
            return found
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.05)


def happens(thing: Callable[[], Any], seconds: float) -> bool:
    """Whether `thing()` becomes something within that time."""
    try:
        return bool(wait(thing, seconds))
    except AssertionError:
        return False


class Page:
    """A browser's page with JupyterLab in it; what is not here is in `page.browser`, playwright's own."""

    def __init__(self, lab: Lab, browser_page: Any) -> None:
        self.lab, self.browser = lab, browser_page
        self.browser.set_default_timeout(PATIENCE * 1000)

    def open(self, path: str) -> None:
        """A notebook of the desk, as a click on its name opens it."""
        self.browser.goto(f"{self.lab.server}/lab/tree/{path}?token={self.lab.token}")
        self.ready(path)

    def ready(self, path: str) -> None:
        """Wait until that notebook is in front with all its cells, and its kernel listens."""
        title = f".lm-DockPanel-tabBar .lm-TabBar-tab.lm-mod-current[title*='{Path(path).name}']"
        self.browser.wait_for_selector(title)
        cells = json.loads((self.lab.desk / path).read_text())["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        wait(lambda: len(self.prompts()) == len(code))
        wait(lambda: self.lab.listens(path))
        self.browser.wait_for_selector(f"{NOTEBOOK} .jp-Notebook-ExecutionIndicator[data-status='idle']")

    def cell(self, words: str, nth: int = 0) -> Any:
        """The cell that has these words in it."""
        return self.browser.locator(f"{NOTEBOOK} .jp-Cell").filter(has_text=words).nth(nth)

    def code_cell(self, words: str, nth: int = 0) -> Any:
        return self.browser.locator(f"{NOTEBOOK} .jp-CodeCell").filter(has_text=words).nth(nth)

    def nth(self, place: int) -> Any:
        """A code cell by its place among them."""
        return self.browser.locator(f"{NOTEBOOK} .jp-CodeCell").nth(place)

    def write(self, cell: Any, text: str) -> None:
        """Other text in a cell."""
        cell.locator(".cm-content").click()
        self.browser.keyboard.press("ControlOrMeta+a")
        self.browser.keyboard.insert_text(text)

    def start(self, cell: Any) -> None:
        """Run a cell, and do not wait for it. If it is folded behind a prediction, that is skipped first."""
        while not cell.is_visible():
            self.browser.locator(f"{NOTEBOOK} .course-desk-fold button").first.click()
        cell.locator(".cm-content").click()
        self.browser.keyboard.press("Control+Enter")

    def run(self, cell: Any) -> str:
        """Run a cell to its end. Returns what it shows."""
        prompt = cell.locator(".jp-InputPrompt")
        before, began = prompt.text_content(), False
        while not began:  # a page that is still busy with itself may miss a key: a learner presses it again
            self.start(cell)
            began = happens(lambda: prompt.text_content() != before, MISSED)
        wait(lambda: re.search(r"\[\d+\]", prompt.text_content() or ""))
        return self.shown(cell)

    def shown(self, cell: Any) -> str:
        """What a cell's outputs say."""
        return "\n".join(cell.locator(".jp-OutputArea-output").all_text_contents())

    def run_all(self) -> None:
        """Menu, Run, all cells; to the end."""
        self.menu("Run", "Run All Cells")
        self.wait_for_all()

    def restart_and_run_all(self) -> None:
        """With a new kernel, as one does before handing in."""
        before = self.prompts()
        self.menu("Kernel", "Restart Kernel and Run All Cells…")
        self.browser.locator(".jp-Dialog .jp-mod-accept").click()
        wait(lambda: self.prompts() != before)
        self.wait_for_all()

    def wait_for_all(self) -> None:
        """Until every cell was run, or one has failed and the others were given up."""
        quiet = 0
        while quiet < GIVEN_UP and not all(re.fullmatch(r"\[\d+\]:", prompt) for prompt in self.prompts()):
            begun = set(self.prompts()) - {"[ ]:"}
            quiet = quiet + 1 if begun and "[*]:" not in begun and self.status() == "idle" else 0
            time.sleep(0.1)

    def prompts(self) -> list[str]:
        """`[3]:` of every code cell; `[*]:` while it runs or waits, `[ ]:` if it was not run."""
        return self.browser.evaluate(PROMPTS)

    def status(self) -> str:
        """The kernel's: idle, busy, connecting, ..."""
        indicator = self.browser.locator(f"{NOTEBOOK} .jp-Notebook-ExecutionIndicator")
        return indicator.get_attribute("data-status") or ""

    def menu(self, name: str, *items: str) -> None:
        """Choose in a menu, and in the menus that it opens."""
        self.browser.locator(".lm-MenuBar-itemLabel").get_by_text(name, exact=True).click()
        for item in items:
            self.browser.locator(".lm-Menu-itemLabel").get_by_text(item, exact=True).click()

    def in_the_dark(self) -> None:
        self.menu("Settings", "Theme", "JupyterLab Dark")
        self.browser.wait_for_selector("body[data-jp-theme-light='false']", state="attached")

    def saved(self, path: str) -> dict:
        """Save, and read the file."""
        file = self.lab.desk / path
        before = file.stat().st_mtime_ns
        self.menu("File", "Save Notebook")
        wait(lambda: file.stat().st_mtime_ns != before)
        return wait(lambda: _json(file))

    def screenshot(self, name: str, **options: Any) -> Path:
        """A picture to look at, in tests/browser/seen; CI keeps them."""
        self.browser.screenshot(path=picture(name), **options)
        return picture(name)

    def axe(self, selector: str) -> list[str]:
        """What axe finds serious in that part of the page; JupyterLab's own parts are not ours to mend."""
        return axe(self.browser, selector)


@contextlib.contextmanager
def window(chromium: Any, **options: Any) -> Iterator[Any]:
    """A page in a browser of its own. A script that fails, or that the page's policy stops, fails the test."""
    context = chromium.new_context(**options)
    context.set_default_timeout(PATIENCE * 1000)
    context.set_default_navigation_timeout(PATIENCE * 1000)
    wrong: list[str] = []
    context.on("weberror", lambda error: wrong.append(str(error.error)))
    context.on("console", lambda said: wrong.append(said.text) if "Content Security" in said.text else None)
    yield context.new_page()
    context.close()
    assert wrong == []


def picture(name: str) -> Path:
    """Where a screenshot goes that somebody is to look at."""
    SEEN.mkdir(exist_ok=True)
    return SEEN / f"{name}.png"


def is_drawn_for_the_dark(picture: Any) -> bool:
    """Whether most of a picture is nearly black, and its forward passes have the blue that they have on white."""
    image = Image.open(BytesIO(picture.screenshot())).convert("RGB")
    counts = {color: count for count, color in image.getcolors(image.width * image.height) or []}
    return max(max(counts, key=counts.__getitem__)) < 40 and counts.get((0, 114, 178), 0) > 100


def pale_pixels(picture: Any) -> int:
    """How many pixels have a color that is mixed with white: on a dark page, a line's edge would shine."""
    image = Image.open(BytesIO(picture.screenshot())).convert("RGB")
    counts = image.getcolors(image.width * image.height) or []
    return sum(count for count, color in counts if min(color) > 110 and max(color) - min(color) > 25)


def axe(browser_page: Any, selector: str, serious: bool = True) -> list[str]:
    """What axe finds serious, or all that it finds, in the parts of a page that a selector names."""
    sync = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = sync.Axe().run(browser_page, context=selector).response["violations"]
    counts = [each for each in found if not serious or each["impact"] in ("serious", "critical")]
    return [f"{each['id']}: {node['html'][:200]}" for each in counts for node in each["nodes"]]


def _json(file: Path) -> dict | None:
    try:
        return json.loads(file.read_text())
    except ValueError:  # half of it
        return None
