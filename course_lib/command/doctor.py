"""`course doctor`: what this machine has and what will work on it; with ranks, how fast each one is.

The code that needs PyTorch is in `clusters.health`, so this module can be imported without it.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from course_lib.launcher.hangs import flight_recorder
from course_lib.launcher.hangs.errors import LaunchError
from course_lib.launcher.notebook.launch import launch, start_method
from course_lib.runtime import machine
from course_lib.runtime.words import memory_in_words

__all__ = ["Fact", "MachineReport", "examine"]


@dataclass(frozen=True)
class Fact:
    """One line of the report. `advice` says what to do; `fatal` means that the course cannot run here."""

    name: str
    value: str
    advice: str = ""
    fatal: bool = False

    @property
    def mark(self) -> str:
        return "FAIL" if self.fatal else "note" if self.advice else "ok"


@dataclass
class MachineReport:
    """All facts, in order. Prints as a table, with each piece of advice on a separate line."""

    facts: list[Fact] = field(default_factory=list)

    @property
    def course_can_run(self) -> bool:
        return not any(fact.fatal for fact in self.facts)

    def __str__(self) -> str:
        width = max((len(fact.name) for fact in self.facts), default=0)
        lines = []
        for fact in self.facts:
            lines.append(f"  {fact.mark:<4}  {fact.name:<{width}}  {fact.value}")
            if fact.advice:
                lines.append(f"  {'':<4}  {'':<{width}}  -> {fact.advice}")
        conclusion = "The course can run here." if self.course_can_run else "The course cannot run here yet."
        return "\n".join([*lines, "", conclusion])


MIN_PYTHON = (3, 10)
BYTES_PER_RANK = 400 << 20  # a rank with torch loaded, a small model and its buffers


def examine() -> MachineReport:
    """Examine this machine. If the course can run, finish with a real launch."""
    report = MachineReport(_software())
    if report.course_can_run:
        report.facts.append(_distributed())
    cores, total = machine.cores(), machine.memory_bytes()
    take_turns = "with one core, ranks take turns: trust paced timelines, not measured times" if cores == 1 else ""
    low = "low: use at most 2 ranks" if total is not None and total < 3 << 30 else ""
    memory = "unknown" if total is None else memory_in_words(total)
    report.facts += [Fact("cores", str(cores), take_turns), Fact("memory", memory, low), _jupyter()]
    if report.course_can_run:
        report.facts += [_gpus(), *_nccl(), _ranks(), _grading(), _trial()]
    return report


def _software() -> list[Fact]:
    """Report the versions of Python and PyTorch."""
    oldest_python, oldest = (".".join(map(str, version)) for version in (MIN_PYTHON, flight_recorder.FIRST_VERSION))
    too_old = sys.version_info[:2] < MIN_PYTHON
    value = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    python = Fact("Python", value, f"install Python {oldest_python} or newer" if too_old else "", too_old)
    installed = _version("torch")
    if installed is None:
        return [python, Fact("PyTorch", "missing", "run `pip install -e .` in the course's folder", fatal=True)]
    too_old = tuple(int(part) for part in installed.split(".")[:2]) < flight_recorder.FIRST_VERSION
    advice = f"the course needs {oldest} or newer: pip install --upgrade torch" if too_old else ""
    return [python, Fact("PyTorch", installed, advice, too_old)]


def _distributed() -> Fact:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        advice = "this PyTorch was built without gloo: install the one from PyPI or conda-forge"
        return Fact("collectives", "missing", advice, fatal=True)
    backends = " and ".join(["gloo"] + (["NCCL"] if dist.is_nccl_available() else []))
    return Fact("collectives", backends, "" if flight_recorder.can_be_read() else flight_recorder.ADVICE)


def _jupyter() -> Fact:
    lab, kernel = _version("jupyterlab"), _version("ipykernel")
    if lab and kernel:
        return Fact("Jupyter", f"JupyterLab {lab}, kernel {kernel}")
    missing = "JupyterLab" if kernel else "the Python kernel" if lab else "JupyterLab and the Python kernel"
    return Fact("Jupyter", f"{missing} missing", "run `pip install -e .` to open the notebooks; jobs run without it")


def _gpus() -> Fact:
    import torch

    if not machine.gpus():
        return Fact("GPUs", "none: every lesson runs on the CPU")
    if not torch.cuda.is_available():
        advice = "CUDA does not initialize: update the driver, or set CUDA_VISIBLE_DEVICES= (empty) to use the CPU"
        return Fact("GPUs", f"{machine.gpus()}, but this PyTorch cannot use them", advice)
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Fact("GPUs", f"{len(names)} x {names[0]}" if len(set(names)) == 1 else ", ".join(names))


def _nccl() -> list[Fact]:
    """Report which NCCL is loaded, and whether ranks can share a GPU with it."""
    if not machine.gpus() or machine.nccl_version() == (0,):
        return []
    loaded = ".".join(map(str, machine.nccl_version()))
    if not (trouble := machine.why_not_nccl(machine.gpus() + 1)):
        return [Fact("NCCL", f"{loaded}: ranks can share a GPU")]
    how = f"`{machine.SHARING_COMMAND} course lab` changes that" if machine.SHARING_COMMAND in trouble else trouble
    return [Fact("NCCL", f"{loaded}: one rank per GPU; {how}")]


def _ranks() -> Fact:
    """Report how many ranks make sense here, and with which backend."""
    gpus = machine.gpus()
    total = machine.memory_bytes()
    most = min(8, total // 2 // BYTES_PER_RANK) if total else 4
    if gpus:
        one_each = f"up to {gpus} with a GPU each (NCCL)" if gpus > 1 else "1 with the GPU to itself (NCCL)"
        backend = "gloo" if machine.why_not_nccl(gpus + 1) else "NCCL"
        return Fact("ranks", f"{one_each}; more ranks share GPUs over {backend}: correct results, no speedup")
    cores = machine.cores()
    speed = f"up to {cores} run in parallel" if cores > 1 else "one at a time"
    return Fact("ranks", f"{speed}; up to {max(2, most)} in paced runs (gloo)")


def _grading() -> Fact:
    """Report how safely you could grade a class here; this matters only to instructors."""
    from course_lib.grading.protection import protections

    all_protections = protections()
    sandbox = all_protections[0]
    if not sandbox.holds:
        advice = f"{sandbox.otherwise} before you grade; learners need no sandbox"
        return Fact("grading", "no sandbox for submissions", advice)
    holding = sum(protection.holds for protection in all_protections)
    value = f"{holding} of {len(all_protections)} protections hold; `course grade --explain` names them"
    return Fact("grading", value)


def _trial() -> Fact:
    """Launch two real ranks and run one all-reduce."""
    started_at = time.monotonic()
    try:
        run = launch(_sum_of_ranks, ranks=2, timeout=60)
    except LaunchError as error:
        return Fact("trial launch", f"{type(error).__name__}: {error}", "the ranks cannot communicate", fatal=True)
    cold = time.monotonic() - started_at
    started_at = time.monotonic()
    launch(_sum_of_ranks, ranks=2, timeout=60)
    warm = time.monotonic() - started_at
    if list(run) != [1.0, 1.0]:
        return Fact("trial launch", f"all-reduce gave {list(run)}", "expected [1.0, 1.0]", fatal=True)
    return Fact("trial launch", f"2 ranks via {start_method()}: {cold:.1f} s the first time, then {warm:.2f} s")


def _sum_of_ranks() -> float:
    import torch
    import torch.distributed as dist

    total = torch.tensor(float(dist.get_rank()), device=machine.device())
    dist.all_reduce(total)
    return total.item()


def _version(package: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return None
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown version"
