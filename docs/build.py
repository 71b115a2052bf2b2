"""Build the site into build/site: python docs/build.py. Warnings are errors; no lesson is executed."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "docs" / "_extensions"))

from repository import NoAddress, require_address  # noqa: E402

BUILD = ROOT / "build"
SITE, SOURCE, READ = BUILD / "site", BUILD / "site-source", BUILD / "site-read"
STAMP = BUILD / "site-built"  # as new as the newest file that the site was built from
# Sphinx makes millions of nodes and keeps most: not looking for garbage among them saves a fifth of the time.
SPHINX = """
import gc, os, sys
gc.disable()
from sphinx.cmd.build import main
failed = main(sys.argv[1:])
sys.stdout.flush(), sys.stderr.flush()
os._exit(failed)
"""
SOURCES = ("docs/**/*", "notebooks/**/*", "exercises/*", "course_lib/**/*", "tests/**/README.md", "*.md")


def sources() -> list[Path]:
    """All files that the site is made of."""
    found = (file for pattern in SOURCES for file in ROOT.glob(pattern))
    return [file for file in found if file.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & set(file.parts)]


def newest(files: list[Path]) -> int:
    """When the newest of these files was written."""
    return max(file.stat().st_mtime_ns for file in files)


def build(builder: str = "html", folder: Path = SITE) -> None:
    """Build with Sphinx; afresh if what makes the pages has changed."""
    built = STAMP.stat().st_mtime_ns if STAMP.is_file() else 0
    makers = [file for file in sources() if file.suffix == ".py" and file.is_relative_to(ROOT / "docs")]
    if newest(makers) > built:
        for old in (SITE, SOURCE, READ):
            shutil.rmtree(old, ignore_errors=True)
    SOURCE.mkdir(parents=True, exist_ok=True)
    words = ["-b", builder, "-c", ROOT / "docs", "-d", READ, "-W", "--keep-going", "-q", SOURCE, folder]
    subprocess.run([sys.executable, "-c", SPHINX, *map(str, words)], cwd=ROOT, check=True)


def main() -> int:
    """Build, and say how long it took and how large the site is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--if-needed", action="store_true", help="not if the site is newer than all that it is made of")
    parser.add_argument("--links", action="store_true", help="visit the links that lead out of the site, instead")
    parser.add_argument("--publish", action="store_true", help="refuse to build without the repository's address")
    options = parser.parse_args()
    if options.publish:
        try:
            require_address()
        except NoAddress as reason:
            print(reason, file=sys.stderr)
            return 2
    now, began = newest(sources()), time.monotonic()
    if options.if_needed and STAMP.is_file() and SITE.is_dir() and STAMP.stat().st_mtime_ns >= now:
        return 0
    try:
        build(*(("linkcheck", BUILD / "site-links") if options.links else ()))
    except subprocess.CalledProcessError as failed:
        return failed.returncode
    if not options.links:
        STAMP.touch()
        size = sum(file.stat().st_size for file in SITE.rglob("*") if file.is_file())
        print(f"{SITE / 'index.html'}: {size / 1e6:.1f} MB, built in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
