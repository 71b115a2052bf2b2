"""What the driver knows about a machine's GPUs: how they are connected, memory errors, faults. Where it can be read."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from course_lib.doctor.report import Finding

PATIENCE = 20  # seconds for a command of the driver's: one whose GPU has fallen off the bus may hang
ECC = ("index", "ecc.errors.uncorrected.volatile.total", "ecc.errors.corrected.volatile.total", "temperature.gpu")
STYLES = re.compile(r"\x1b\[[0-9;]*m")  # underlining and the like
XID = re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)")


@dataclass(frozen=True)
class GpuHealth:
    """Of one machine: the table of connections as the driver draws it, and what was found."""

    host: str
    topology: str = ""
    findings: list[Finding] = field(default_factory=list)


def examine_gpus(host: str) -> GpuHealth:
    """Ask the driver; what cannot be asked is a finding, too."""
    if shutil.which("nvidia-smi") is None:
        return GpuHealth(host, findings=[Finding("GPUs", "nvidia-smi is not here: nothing is known but their rates")])
    topology, why_not = _said_by("nvidia-smi", "topo", "-m")
    findings = [Finding("topology", f"cannot be read: {why_not}")] if why_not else []
    return GpuHealth(host, plain(topology), [*findings, _memory_errors(), _faults()])


def plain(table: str) -> str:
    """A table of the driver's in plain letters, its columns below each other everywhere."""
    lines = [line.rstrip() for line in STYLES.sub("", table).expandtabs(8).splitlines()]
    return "\n".join(lines).strip("\n")


def _memory_errors() -> Finding:
    said, why_not = _said_by("nvidia-smi", f"--query-gpu={','.join(ECC)}", "--format=csv,noheader,nounits")
    return Finding("memory errors (ECC)", f"cannot be read: {why_not}") if why_not else ecc_finding(said)


def ecc_finding(said: str) -> Finding:
    """The errors since the driver was loaded, from nvidia-smi's lines: GPU, uncorrected, corrected, degrees."""
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines() if line.count(",") == len(ECC) - 1]
    told = "; ".join(f"GPU {gpu}: {bad} uncorrected, {mended} corrected, {heat} °C" for gpu, bad, mended, heat in rows)
    bad = [row[0] for row in rows if row[1].isdigit() and int(row[1])]
    advice = f"GPU {', '.join(bad)} has wrong bits in its memory: reset it, or have it replaced" if bad else ""
    return Finding("memory errors (ECC)", told or "none are counted", advice)


def _faults() -> Finding:
    said, why_not = _said_by("dmesg")
    if why_not:
        return Finding("faults (Xid)", f"the kernel's log cannot be read ({why_not}); try `sudo dmesg | grep Xid`")
    return xid_finding(said)


def xid_finding(said: str) -> Finding:
    """The driver's error numbers in the kernel's log, if there are any."""
    found = XID.findall(said)
    if not found:
        return Finding("faults (Xid)", "none in the kernel's log")
    told = ", ".join(dict.fromkeys(f"Xid {number} on {place}" for place, number in found))
    return Finding("faults (Xid)", told, "look the numbers up in NVIDIA's list of Xid errors before you train here")


def _said_by(*command: str) -> tuple[str, str]:
    """What a command printed, and why it could not, one of the two."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{command[0]}: {getattr(error, 'strerror', None) or f'no answer for {PATIENCE} s'}"
    if done.returncode:
        return "", _first_line([done.stderr, done.stdout]) or f"{command[0]} ended with status {done.returncode}"
    return done.stdout, ""


def _first_line(texts: Sequence[str]) -> str:
    return next((line.strip() for text in texts for line in text.splitlines() if line.strip()), "")
