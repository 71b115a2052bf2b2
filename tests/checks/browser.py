"""A real browser that looks at pages, where there is one: chromium, and axe-core where node finds it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from tests.conftest import PATIENCE

DARK = "@media screen and (prefers-color-scheme: dark)"
# Axe runs in each frame, which is as wide as a phone, and tells the page around it what it found.
LOOK = """
document.querySelectorAll("details").forEach(each => { each.open = true; });
axe.run().then(found => {
  const said = found.violations.map(each => `${each.id}: ${each.nodes[0].html}`);
  if (document.documentElement.scrollWidth > innerWidth) said.push("wider than the screen");
  parent.postMessage([NAME, said], "*");
});
"""
COLLECT = """
const seen = {};
addEventListener("message", told => {
  seen[told.data[0]] = told.data[1];
  document.querySelector("pre").textContent = JSON.stringify(seen);
});
"""


def chromium() -> str:
    """The program, or a skip."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return found or pytest.skip("there is no browser: apt-get install chromium")


def axe() -> str:
    """Axe's source, or a skip."""
    if shutil.which("node") is None:
        pytest.skip("there is no node, so no axe")
    asked = subprocess.run(["node", "-p", "require.resolve('axe-core/axe.min.js')"], capture_output=True, text=True)
    if asked.returncode:
        pytest.skip(
            "node does not find axe-core: npm install axe-core in some folder, and NODE_PATH=FOLDER/node_modules"
        )
    return Path(asked.stdout.strip()).read_text()


def look_at(program: str, axe_source: str, pages: dict[str, Path], width: int) -> dict[str, list[str]]:
    """What axe has against each page, in light and dark; and whether it is wider than the screen."""
    frames = []
    for name, path in pages.items():
        for scheme in ("light", "dark"):
            copy = path.with_name(f"{name}-{scheme}.html")
            copy.write_text(_with_axe(path.read_text(), axe_source, f"{name} {scheme}", scheme))
            frames.append(f'<iframe src="{copy.as_uri()}" width="{width}" height="740"></iframe>')
    around = next(iter(pages.values())).with_name("around.html")
    around.write_text(f"<!doctype html><script>{COLLECT}</script><pre>{{}}</pre>{''.join(frames)}")
    found = re.search("<pre>(.*?)</pre>", dump(program, around), re.DOTALL)
    assert found
    return json.loads(unescape(found[1]))


def dump(program: str, path: Path) -> str:
    """The page as it is when its scripts have run."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=60000"]
    options += [f"--user-data-dir={path.parent / 'profile'}", "--dump-dom"]
    done = subprocess.run([program, *options, path.as_uri()], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _with_axe(text: str, axe_source: str, name: str, scheme: str) -> str:
    """A copy that lets axe in, and takes the scheme for the browser's."""
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    assert DARK in text
    text = text.replace(DARK, "@media all" if scheme == "dark" else "@media not all")
    look = LOOK.replace("NAME", json.dumps(name))
    return text.replace("</body>", f"<script>{axe_source}</script><script>{look}</script></body>")
