"""What benchmarks share: contenders that take turns, and tables in the README beside this file, a section for each."""

from __future__ import annotations

import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from pathlib import Path

import torch

from course_lib.runtime import machine

RESULTS = Path(__file__).with_name("README.md")


def alternate(contenders: Sequence[Callable[[], object]], rounds: int, warm_up: int = 1) -> list[float]:
    """Return the median seconds of each contender. They take turns, so that a noisy minute hits them all."""
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(warm_up + rounds):
        for contender, spent in zip(contenders, times, strict=True):
            machine.wait_for_gpu()
            began = time.perf_counter()
            contender()
            machine.wait_for_gpu()
            spent.append(time.perf_counter() - began)
    return [statistics.median(spent[warm_up:]) for spent in times]


def describe_machine() -> str:
    """Return the machine in words, without its name: cores, memory, processor, GPUs, versions."""
    memory = machine.memory_bytes()
    parts = [f"{machine.cores()} {platform.machine()} cores, {platform.system()}"]
    if memory:
        parts.append(f"{memory / 2**30:.0f} GiB of memory")
    if torch.cuda.is_available():
        parts.append(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}")
    parts += [f"Python {platform.python_version()}", f"PyTorch {torch.__version__}", f"{date.today():%B %Y}"]
    return ", ".join(parts)


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table: words to the left, columns whose first cell has a digit or a sign to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    rule = "|".join("--:" if re.match(r"[-+]?\d", cell) else "---" for cell in cells[0])
    return "\n".join([f"| {head} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in cells)])


def write_section(title: str, about: str, *tables: str) -> None:
    """Print a section and put it in place of the section with the same title."""
    body = "\n\n".join([about, f"On {describe_machine()}.", *tables])
    print(f"\n## {title}\n\n{body}\n")
    head, *sections = re.split(r"^(?=## )", RESULTS.read_text(), flags=re.MULTILINE)
    kept = [section.strip() for section in sections if not section.startswith(f"## {title}\n")]
    aside = RESULTS.with_suffix(".tmp")
    aside.write_text("\n\n".join([head.strip(), *sorted([*kept, f"## {title}\n\n{body}"])]) + "\n")
    aside.replace(RESULTS)
