"""The suite in parts: `make test` runs the first three, and `make test-all` all of them. Each runs alone.

    python -m tests.parts --together lessons pages core   # what `make test` does
    python -m tests.parts faults banks          # two parts of the rest
    python -m tests.parts --changed-since REV --minutes 45 rest   # as many as fit, those that a change touched first

A part that has passed leaves a stamp: a hash of all that it depends on. While that stays the same the part is skipped,
unless FRESH=1 is set. `core` is never skipped.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAMPS = Path(sys.prefix) / "passed"
OUTSIDE = ("sbatch", "bwrap", "chromium", "npm", "configurable-http-proxy")  # programs without which tests are skipped
ALWAYS = ("course_lib", "notebooks", "exercises", "solutions", "pyproject.toml", "constraints.txt")
NBVAL = [
    *("-p", "nbval", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=600"),
    *("--nbval-sanitize-with", "tests/nbval.cfg"),
]
FAST, SLOW = "not slow or core", "slow and not core"


@dataclass(frozen=True)
class Part:
    """Some of the tests: `paths`, of which `marks` are run; `minutes` on two cores, to know what fits."""

    paths: tuple[str, ...]
    minutes: float
    marks: str = SLOW
    without: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()  # beside what all depend on
    workers: int = 3
    spread: str = "loadscope"  # how tests reach workers: a module's together, or one at a time
    options: tuple[str, ...] = ()
    skipped: bool = True  # where nothing has changed


CHECKS = ("tests/checks/test_bank.py", "tests/checks/test_mutants.py", "tests/checks/test_exercises.py")
LIVE = tuple(f"tests/launcher/test_live{more}.py" for more in ("", "_kernel", "_lifetime"))
REST: dict[str, Part] = {
    "faults": Part(("tests/launcher", "tests/foreign", "tests/clusters"), 7, without=LIVE),
    "live": Part(LIVE, 2),
    "banks": Part((*CHECKS, "tests/checks/test_predictions.py"), 30, workers=4, spread="worksteal"),
    "grading": Part(
        ("tests/checks", "tests/grading", "tests/classroom"),
        15,
        without=(*CHECKS, "tests/checks/test_predictions.py"),
    ),
    "browser": Part(("tests/browser", "tests/lab"), 15, depends=("docs/teaching",), workers=2),
    "clusters": Part(("tests/jobs", "tests/deploy"), 6, depends=("docs/deploy",)),
    "site": Part(("tests/site",), 3, depends=("docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
}
PAGES = ("tests/browser", "tests/site")
FIRST: dict[str, Part] = {
    "lessons": Part(("tests/checks/test_exercises.py", "notebooks"), 5, FAST, workers=2, options=tuple(NBVAL)),
    "pages": Part(PAGES, 1, FAST, depends=REST["site"].depends, workers=1),
    "core": Part(
        ("tests",),
        5,
        FAST,
        without=("tests/checks/test_exercises.py", *PAGES),
        depends=("docs", "README.md"),
        workers=2,
        skipped=False,
    ),
}
PARTS: dict[str, Part] = {
    **FIRST,
    **REST,
    "long": Part(
        ("tests", "exercises", "solutions"),
        20,
        without=tuple(path for part in REST.values() for path in part.paths),
        depends=("docs", "README.md"),
        options=tuple(NBVAL),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    others = [name for name in PARTS if name not in FIRST]
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "rest"], help=f"which; `rest` is {', '.join(others)}")
    parser.add_argument("--together", action="store_true", help="all at once: lessons sleep where tests compute")
    parser.add_argument("--minutes", type=float, help="begin no part that would take longer than what is left")
    parser.add_argument("--changed-since", metavar="REV", help="parts that depend most on what changed come first")
    options = parser.parse_args()
    names = [name for each in options.parts for name in (others if each == "rest" else [each])]
    if options.changed_since:
        names = sorted(names, key=lambda name: -touched(PARTS[name], options.changed_since))
    return run_together(names) if options.together else run_all(names, options.minutes)


def run_together(names: list[str]) -> int:
    """Run these parts at the same time. What the last one prints is shown as it comes, the others' when they end."""
    alone = sum(not has_passed(name) for name in names) == 1  # it has the machine to itself
    with ThreadPoolExecutor() as pool:
        passed = list(pool.map(lambda name: run(name, aside=name != names[-1], more=2 * alone), names))
    return not all(passed)


def run_all(names: Iterable[str], minutes: float | None) -> int:
    """Run these parts, one after another. Returns 0 if none has failed."""
    began, failed, left_out = time.monotonic(), [], []
    for name in names:
        spent = (time.monotonic() - began) / 60
        if minutes is not None and spent + PARTS[name].minutes > minutes:
            left_out.append(name)
        elif not run(name):
            failed.append(name)
    if left_out:
        print(f"not run, for want of time: {', '.join(left_out)}. Each runs alone: make test-{left_out[0]}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


def has_passed(name: str) -> bool:
    """Whether a part may be skipped: it has passed with all that it depends on as it is now."""
    stamp = STAMPS / name
    is_kept = PARTS[name].skipped and not os.environ.get("FRESH") and stamp.exists()
    return is_kept and stamp.read_text() == fingerprint(PARTS[name])


def run(name: str, aside: bool = False, more: int = 0) -> bool:
    """Run one part, unless it has passed, with so many `more` workers. With `aside`, its output comes at its end."""
    part, stamp = PARTS[name], STAMPS / name
    state = fingerprint(part)
    if has_passed(name):
        print(f"{name}: has passed, and nothing that it depends on has changed since (FRESH=1 runs it all the same)")
        return True
    began = time.monotonic()
    workers = os.environ.get("WORKERS") or str(part.workers + more)
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "--dist", part.spread, "--no-loadscope-reorder"]
    command += [*part.options, "-m", part.marks, *(f"--ignore={path}" for path in part.without), *part.paths]
    command += [f"--junitxml={STAMPS / name}.xml"]  # how long each test took
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # it is slow
    kept |= {"OMP_NUM_THREADS": "1", "COURSE_LIB_LIVE": "0", "COURSE_LIB_PROGRESS": str(STAMPS / "progress.json")}
    STAMPS.mkdir(exist_ok=True)
    stamp.unlink(missing_ok=True)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} if aside else {}
    done = subprocess.run(command, cwd=ROOT, env=kept, **pipes)
    passed = done.returncode == 0
    print(done.stdout or "", end="")
    if passed:
        stamp.write_text(state)
    seconds = time.monotonic() - began
    print(f"{name}: {'passed' if passed else 'FAILED'} in {seconds // 60:.0f} min {seconds % 60:.0f} s", flush=True)
    return passed


def fingerprint(part: Part) -> str:
    """A hash of the sources and notebooks that a part depends on, of Python, and of what is installed beside it."""
    found = hashlib.sha256(platform.python_version().encode())
    for path in sorted(_files(part)):
        found.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    installed = sorted(f"{each.name}=={each.version}" for each in importlib.metadata.distributions())
    programs = [str(shutil.which(name)) for name in OUTSIDE]
    found.update("\n".join([*installed, *programs]).encode())
    return found.hexdigest()


def _files(part: Part) -> Iterator[Path]:
    shared = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("*.*")]
    for name in {*ALWAYS, *shared, *part.depends, *part.paths}:
        path = ROOT / name
        inside = path.rglob("*") if path.is_dir() else [path]
        yield from (each for each in inside if each.is_file() and "__pycache__" not in each.parts)


def touched(part: Part, revision: str) -> int:
    """How many of the files that changed since `revision` are a part's own tests, or what it alone depends on."""
    said = subprocess.run(
        ["git", "diff", "--name-only", revision, "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    own = [name for name in said.splitlines() if name.startswith((*part.paths, *part.depends))]
    return sum(not name.startswith(part.without) for name in own)


if __name__ == "__main__":
    sys.exit(main())
