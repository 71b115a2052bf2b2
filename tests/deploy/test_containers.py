"""The image of docs/deploy: what can be said of it, and done, without a container."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docs" / "deploy" / "Dockerfile"


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """The instructions in order, each as its word and what stands behind it."""
    text = re.sub(r"\\\n", " ", dockerfile.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


STEPS = instructions(DOCKERFILE)


def copied(steps: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What is copied from the repository, and where to: (source, destination)."""
    copies = [shlex.split(text) for word, text in steps if word == "COPY" and not text.startswith("--from=builder")]
    return [(source, words[-1]) for words in copies for source in words[:-1]]


def is_sent(name: str, ignore: Path) -> bool:
    """Whether a top-level file is sent to the builder; the last rule that matches it decides."""
    rules = [rule for rule in ignore.read_text().split() if fnmatch(name, rule.removeprefix("!"))]
    return not rules or rules[-1].startswith("!")


@pytest.mark.parametrize(
    ("name", "among"),
    [("Dockerfile", {"course_lib"}), ("site.Dockerfile", {"docs", "tests", "notebooks", "CHANGELOG.md"})],
)
def test_all_that_an_image_copies_is_there_and_is_sent_to_the_builder(name, among):
    sources = [source for source, _ in copied(instructions(DOCKERFILE.with_name(name)))]
    assert among <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert is_sent(source, DOCKERFILE.with_name(f"{name}.dockerignore")), source


@pytest.mark.parametrize("name", [".git", ".venv", "tests", "progress.json"])
def test_what_the_image_does_not_need_is_not_sent(name):
    assert not is_sent(name, DOCKERFILE.with_name("Dockerfile.dockerignore"))


def test_nothing_in_the_image_runs_as_root():
    words = [word for word, _ in STEPS]
    last = max(place for place, word in enumerate(words) if word == "USER")
    user = STEPS[last][1]
    assert user not in ("root", "0")
    assert "RUN" not in words[last:]
    assert [text.split()[-1] for _, text in STEPS if text.startswith("useradd")] == [user]


def test_the_image_takes_torchs_version_from_where_everybody_does():
    (install,) = [text for _, text in STEPS if text.startswith("pip install")]
    assert "--constraint constraints.txt" in install
    assert "torch" not in install


@pytest.mark.timeout(3600)  # the packages are large
@pytest.mark.slow  # it installs all there is; that the files and the constraints are there, the tests above say
def test_the_images_steps_give_a_course_that_trains(tmp_path):
    for source, destination in copied(STEPS):
        target = tmp_path / (source if destination == "./" else destination)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / source, target)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    environment = os.environ | {"PATH": f"{tmp_path}/venv/bin:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)

    def run(words: list[str], folder: Path) -> str:
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (install,) = [text for _, text in STEPS if text.startswith("pip install")]
    run(shlex.split(install), tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    command = json.loads(next(text for word, text in STEPS if word == "CMD"))
    assert "The course can run here." in run(command, home)
    assert "5 updates" in run(shlex.split("course train ddp --ranks 2 --updates 5 --hidden 8 --batch 8"), home)
