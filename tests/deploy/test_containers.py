"""The image of docs/deploy: what can be said of it, and done, without a container."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.dockerfile import copied, copy_into, instructions, is_sent

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docs" / "deploy" / "Dockerfile"
STEPS = instructions(DOCKERFILE)


def test_all_that_the_image_copies_is_there_and_is_sent_to_the_builder():
    sources = [source for source, _ in copied(STEPS)]
    assert "course_lib" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert is_sent(source, DOCKERFILE.with_name("Dockerfile.dockerignore")), source


def test_all_that_the_websites_image_copies_is_there_and_is_sent_to_the_builder():
    website = DOCKERFILE.with_name("site.Dockerfile")
    steps = [step for step in instructions(website) if not step.text.startswith("--from=builder")]
    sources = [source for source, _ in copied(steps)]
    assert {"docs", "tests", "notebooks", "CHANGELOG.md"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert is_sent(source, website.with_name("site.Dockerfile.dockerignore")), source


@pytest.mark.parametrize("name", [".git", ".venv", "tests", "progress.json"])
def test_what_the_image_does_not_need_is_not_sent(name):
    assert not is_sent(name, DOCKERFILE.with_name("Dockerfile.dockerignore"))


def test_nothing_in_the_image_runs_as_root():
    words = [step.word for step in STEPS]
    last = max(place for place, word in enumerate(words) if word == "USER")
    assert STEPS[last].text not in ("root", "0")
    assert "RUN" not in words[last:]
    made = [step.text.split() for step in STEPS if step.text.startswith("useradd")]
    assert [words[-1] for words in made] == [STEPS[last].text]


def test_the_image_takes_torchs_version_from_where_everybody_does():
    (install,) = [step.text for step in STEPS if step.text.startswith("pip install")]
    assert "--constraint constraints.txt" in install
    assert "torch" not in install


@pytest.mark.timeout(3600)  # the packages are large
@pytest.mark.slow  # it installs all there is; that the files and the constraints are there, the tests above say
def test_the_images_steps_give_a_course_that_trains(tmp_path):
    copy_into(tmp_path, ROOT, STEPS)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    environment = os.environ | {"PATH": f"{tmp_path}/venv/bin:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)

    def run(words: list[str], folder: Path) -> str:
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (install,) = [step.text for step in STEPS if step.text.startswith("pip install")]
    run(shlex.split(install), tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    command = json.loads(next(step.text for step in STEPS if step.word == "CMD"))
    assert "The course can run here." in run(command, home)
    assert "5 updates" in run(shlex.split("course train ddp --ranks 2 --updates 5 --hidden 8 --batch 8"), home)
