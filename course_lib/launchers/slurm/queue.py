"""Submit, query and cancel a job with Slurm's commands.

`squeue` forgets a job the moment it ends, and `sacct` needs a database that not every cluster has. So we get the state
from `scontrol show job`, which remembers a job for some minutes.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from course_lib.launchers.diagnosis.errors import LaunchError
from course_lib.launchers.slurm.script import INSIDE_JOB, output_file

ASK_EVERY = 1.0  # seconds: all users share the controller, so don't ask too often
ENDS_WITHIN = 60.0  # after `scancel`; Slurm gives a process 30 s (KillWait)
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
RUNNING = {"RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING"}
# Reasons for pending that will never go away.
NEVER = re.compile(
    r"Partition(Config|NodeLimit|TimeLimit)|BadConstraints|Invalid(Account|QOS)|AccountNotAllowed|QOSNotAllowed"
)


@dataclass(frozen=True)
class State:
    """What Slurm reports about a job."""

    name: str  # RUNNING, PENDING, FAILED ...
    reason: str = ""
    restarts: int = 0
    nodes: str = ""
    exit_code: int = 0  # of the job's script

    @property
    def waits(self) -> bool:
        return self.name in WAITING

    @property
    def has_ended(self) -> bool:
        return self.name not in WAITING | RUNNING


class SlurmJob:
    """One submitted job."""

    def __init__(self, number: str) -> None:
        self.number = number
        self.output = Path.cwd() / output_file(number)  # what its ranks print
        self._state = State("PENDING")
        self._asked = 0.0

    @classmethod
    def submit(cls, script: Path, variables: Mapping[str, str]) -> SlurmJob:
        """Submit a script, which Slurm runs with these variables in its environment, and return the job."""
        done = _slurm("sbatch", "--parsable", str(script), variables=variables)
        if done.returncode:
            raise LaunchError(f"Slurm refuses the job: {_complaint(done)}. `sinfo` shows what the cluster has")
        return cls(done.stdout.strip().partition(";")[0])

    def state(self, at_most_old: float = ASK_EVERY) -> State:
        """Return the job's state, at most a second old. If the controller does not answer, it is the last known one."""
        if time.monotonic() - self._asked >= at_most_old:
            done = _slurm("scontrol", "--oneliner", "show", "job", self.number)
            self._asked = time.monotonic()
            if done.returncode == 0:
                self._state = _parse(done.stdout)
            elif "Invalid job id" in done.stderr:
                self._state = State("FORGOTTEN")
        return self._state

    def wait_for_its_turn(self, again: bool = False) -> int:
        """Wait until the job runs (or has run), printing what it waits for. Returns how often Slurm has restarted it.

        A requeued job has its new count at once, while the rest of the old run is still `COMPLETING`.
        """
        said = ""
        while (state := self.state()).waits or (again and state.name == "COMPLETING"):
            if NEVER.search(state.reason):
                raise LaunchError(
                    f"job {self.number} can never start: {state.reason}. Compare its nodes, time, partition and "
                    "account with what `sinfo` and `scontrol show partition` show"
                )
            if state.reason not in (said, "None", ""):
                said = state.reason
                print(f"[launch] job {self.number} is waiting: {said}", flush=True)
            time.sleep(ASK_EVERY / 4)
        print(f"[launch] job {self.number} runs on {state.nodes}; its output is in {self.output.name}, too", flush=True)
        return state.restarts

    def how_to_look(self) -> str:
        """Return a sentence that tells the user how to check on a job that is no longer watched."""
        return (
            f"job {self.number} keeps running, but is no longer watched: `squeue --job {self.number}` shows its state, "
            f"{self.output} has what its ranks print, and `scancel {self.number}` ends it"
        )

    def end(self, within: float = 0.0) -> bool:
        """Give the job `within` seconds to end by itself, then cancel it. Returns whether it has ended.

        If so, its output file is removed, because the output has already been shown.
        """
        ended = self._ends_within(within)
        if not ended:
            _slurm("scancel", self.number)
            ended = self._ends_within(ENDS_WITHIN)
        if ended:
            with contextlib.suppress(OSError):
                self.output.unlink()
        return ended

    def _ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.state(at_most_old=0.0).has_ended:
            if time.monotonic() >= deadline:
                return False
            time.sleep(ASK_EVERY / 10)
        return True


def clean_environment() -> dict[str, str]:
    """Return the environment without the variables of an outer Slurm job, because a notebook may run inside one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
    kept.pop(INSIDE_JOB, None)
    return kept


def address_of_first_node(nodes: str) -> str:
    """Return the address that Slurm uses for the first of `nodes`, a node list such as `n[1-2]`."""
    first = _slurm("scontrol", "show", "hostnames", nodes).stdout.split()[0]
    found = re.search(r"NodeAddr=(\S+)", _slurm("scontrol", "--oneliner", "show", "node", first).stdout)
    return found[1] if found else first


def _slurm(
    program: str, *arguments: str, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    if shutil.which(program) is None:
        raise LaunchError(
            f"there is no {program} here: call launch(on=slurm(...)) and `course ... --slurm` on a machine from which "
            "jobs are submitted (a login node), or leave out `on` to run on this machine"
        )
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, env={**clean_environment(), **(variables or {})}
    )


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that sbatch printed to stderr, without its name."""
    lines = done.stderr.strip().splitlines() or [f"it ended with exit code {done.returncode}"]
    return lines[-1].removeprefix("sbatch: ").removeprefix("error: ")


def _parse(line: str) -> State:
    facts = dict(re.findall(r"(\w+)=(\S*)", line))
    restarts, nodes = int(facts.get("Restarts", 0)), facts.get("NodeList", "").replace("(null)", "")
    exit_code = int(facts.get("ExitCode", "0:0").partition(":")[0])
    return State(facts.get("JobState", "FORGOTTEN"), facts.get("Reason", ""), restarts, nodes, exit_code)
