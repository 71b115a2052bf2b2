"""A Dockerfile as its instructions, and what of it can be done without a container."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction: its word, in capitals, and what stands behind it."""

    word: str
    text: str


def instructions(dockerfile: Path) -> list[Instruction]:
    """The instructions, in order; lines that end with a backslash go on."""
    text = re.sub(r"\\\n", " ", dockerfile.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Instruction(*line.split(maxsplit=1)) for line in lines]


def copied(steps: list[Instruction]) -> list[tuple[str, str]]:
    """What is copied from the repository, and where to: (source, destination)."""
    pairs = []
    for step in steps:
        if step.word == "COPY":
            *sources, destination = shlex.split(step.text)
            pairs += [(each, destination) for each in sources]
    return pairs


def copy_into(folder: Path, root: Path, steps: list[Instruction]) -> None:
    """Do what the COPY instructions do, into a folder that stands for their working folder."""
    for source, destination in copied(steps):
        target = folder / (source if destination == "./" else destination)
        if (root / source).is_dir():
            shutil.copytree(root / source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(root / source, target)


def is_sent(name: str, ignore: Path) -> bool:
    """Whether a top-level file is sent to the builder; the last rule that matches it decides."""
    sent = True
    for rule in ignore.read_text().split():
        if fnmatch(name, rule.removeprefix("!")):
            sent = rule.startswith("!")
    return sent
