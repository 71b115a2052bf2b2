"""The benchmark's results, as tables in `tests/bench/README.md`: one section per benchmark."""

from __future__ import annotations

import platform
import re
from datetime import date
from pathlib import Path

import torch

from course_lib import machine

RESULTS = Path(__file__).with_name("README.md")


def describe_machine() -> str:
    """The machine in words, without its name: cores, memory, processor, GPUs, versions."""
    memory = machine.memory_bytes()
    parts = [f"{machine.cores()} {platform.machine()} cores, {platform.system()}"]
    if memory:
        parts.append(f"{memory / 2**30:.0f} GiB of memory")
    if torch.cuda.is_available():
        parts.append(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}")
    parts += [f"Python {platform.python_version()}", f"PyTorch {torch.__version__}", f"{date.today():%B %Y}"]
    return ", ".join(parts)


def write_section(title: str, body: str) -> None:
    """Print a section and put it in place of the section of the same title."""
    print(f"\n## {title}\n\n{body}\n")
    old = RESULTS.read_text() if RESULTS.exists() else "# Benchmarks\n\nMeasured by `make bench`.\n"
    head, *sections = re.split(r"^(?=## )", old, flags=re.MULTILINE)
    kept = [section for section in sections if not section.startswith(f"## {title}\n")]
    new = [*(section.strip() for section in kept), f"## {title}\n\n{body}"]
    aside = RESULTS.with_suffix(".tmp")
    aside.write_text("\n\n".join([head.strip(), *sorted(new)]) + "\n")
    aside.replace(RESULTS)
