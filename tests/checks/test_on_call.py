"""Lesson 08's page for a hang at night: its commands find the odd rank in logs of every launcher's style.

`on_call/` holds the lines that four ranks printed over NCCL (docs/nccl/hang/watchdog.log), printed again by four ranks
under `torchrun --tee 3`, `srun -l` on two nodes, and `course run`: each has its launcher's own prefix and order.
`mesh.log` is not from a run: it is written in PyTorch's format.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from course_lib.runtime.course_files import read, source

ROOT = Path(__file__).resolve().parents[2]
STORED = Path(__file__).with_name("on_call")
LOGS = {
    "as PyTorch prints it": ROOT / "docs" / "nccl" / "hang" / "watchdog.log",
    "torchrun --tee": STORED / "torchrun_tee.log",
    "srun -l": STORED / "srun_l.log",
    "course run": STORED / "course_run.log",
}


@pytest.fixture(scope="module")
def commands() -> dict[str, str]:
    """The commands of the lesson's page, by the letter that stands after each."""
    cells = {cell["id"]: source(cell) for cell in read(ROOT / "notebooks" / "08_when_ranks_hang.ipynb")["cells"]}
    page = cells["from-symptom-to-first-command"]
    return {letter: command for command, letter in re.findall(r"^(.*\bLOG\b.*)  # ([A-Z])$", page, flags=re.M)}


def typed(command: str, log: Path) -> str:
    """What a shell prints for the command, with the log's name in place of LOG."""
    words = ["sh", "-c", re.sub(r"\bLOG\b", '"$LOG"', command)]
    done = subprocess.run(words, env={"LOG": str(log), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout


def test_the_page_has_three_commands_for_a_log(commands):
    assert sorted(commands) == ["A", "B", "C"]


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS.keys())
def test_the_ranks_that_timed_out_are_listed_and_the_guilty_one_is_not(commands, log):
    call = "SeqNum=5, OpType=ALLREDUCE, NumelIn=1000000, NumelOut=1000000"
    assert typed(commands["B"], log).splitlines() == [f"rank{rank} {call}" for rank in (0, 1, 3)]


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS.keys())
def test_the_count_of_every_rank_is_printed_once_with_its_group(commands, log):
    group = "group 0(default_pg)"
    counts = [f"rank0 {group}: 5", f"rank1 {group}: 5", f"rank2 {group}: 4", f"rank3 {group}: 5"]
    assert typed(commands["C"], log).splitlines() == counts


def test_a_second_group_is_a_line_of_the_ranks_that_timed_out_in_it(commands, tmp_path):
    """The watchdog's lines of the stored log, once more as those of a group that has come further."""
    plain = LOGS["as PyTorch prints it"].read_text()
    watchdog = "\n".join(line for line in plain.splitlines() if "failure detected by watchdog" in line)
    second = watchdog.replace("GUID 0(default_pg)", "GUID 1(replicas)").replace("work: 5", "work: 12")
    log = tmp_path / "two_groups.log"
    log.write_text(plain + second)
    of_ranks_0_and_2 = [line for line in typed(commands["C"], log).splitlines() if line[:5] in ("rank0", "rank2")]
    first = "group 0(default_pg)"
    assert of_ranks_0_and_2 == [f"rank0 {first}: 5", "rank0 group 1(replicas): 12", f"rank2 {first}: 4"]


def test_of_a_group_other_than_the_default_one_only_the_ranks_that_timed_out_have_a_count(commands):
    log = STORED / "mesh.log"
    default = [f"rank{rank} group 0(default_pg): -1" for rank in range(4)]
    assert typed(commands["C"], log).splitlines() == sorted([*default, "rank1 group 3(mesh_replica): 9"])
    assert typed(commands["B"], log).startswith("rank1 SeqNum=7, ")


def test_torchruns_root_cause_is_found_with_its_exit_code(commands):
    assert "exitcode  : -6" in typed(commands["A"], STORED / "one_rank.log")


def test_every_nodes_root_cause_is_printed(commands, tmp_path):
    log = tmp_path / "two_nodes.log"
    log.write_text((STORED / "one_rank.log").read_text() * 2)
    assert typed(commands["A"], log).count("exitcode") == 2


def test_the_guilty_rank_of_the_hang_is_the_one_that_nccl_and_pytorchs_reader_name():
    hang = ROOT / "docs" / "nccl" / "hang"
    assert "missing ranks: {2}" in (hang / "torchfrtrace.txt").read_text()
    assert "Rank 2 has launched up to operation 4" in (hang / "ras.txt").read_text()
