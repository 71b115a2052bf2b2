"""The course as a wheel, built and installed for tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PATIENCE

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*words: str | Path, **options) -> str:
    """What a program prints; it must end well."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=PATIENCE, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """Of what git knows, so that nothing which lies about gets in."""
    pytest.importorskip("hatchling")
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in [name for name in names if not name.startswith("tests/") and (ROOT / name).is_file()]:
        (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "clone" / name)
    build = ["wheel", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-w", folder]
    run(sys.executable, "-m", "pip", *build, folder / "clone")
    (made,) = folder.glob("*.whl")
    return made


@contextlib.contextmanager
def installed_wheel(wheel: Path) -> Iterator[Path]:
    """A folder that has the package, among those in which a submission's Python finds what is installed."""
    folder = Path(sys.prefix) / f"installed-for-a-test-{os.getpid()}"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--disable-pip-version-check", "--target", folder, wheel)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
