"""A real Slurm on this machine: its own munged, slurmctld and one slurmd per node, in a folder of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conftest import PATIENCE, wait_until

PROGRAMS = ("setpriv", "munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
NODES = 2

# Slurm starts a requeued job when the old credentials have expired: after 5 s here, by default after two minutes.
CONFIGURATION = """
ClusterName=course
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobRequeue=1
KillWait=5
Epilog={folder}/epilog
ReturnToService=2
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=8
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=8
PartitionName=debug Nodes=n[1-2] Default=YES MaxTime=60 State=UP
PartitionName=narrow Nodes=n1 MaxTime=60 State=UP
"""


def why_not() -> str | None:
    """Why a Slurm cannot be started here, or None."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]
    if missing:
        return f"there is no {', '.join(missing)}: apt-get install --no-install-recommends slurm-wlm munge"
    return None if os.geteuid() == 0 else "Slurm's daemons start jobs as other users: only root can run them"


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """A Slurm of two nodes that lives as long as the block. Gives the variables with which its commands find it."""
    variables = _configure(folder)
    daemons: list[subprocess.Popen] = []
    try:
        munge = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("key-file", "socket", "pid-file")]
        munge += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
        daemons.append(_start(["munged", "--foreground", "--force", *munge], variables, folder))
        assert wait_until((folder / "munge.socket").exists), (folder / "daemons.log").read_text()
        daemons.append(_start(["slurmctld", "-D"], variables, folder))
        daemons += [_start(["slurmd", "-D", "-N", f"n{node + 1}"], variables, folder) for node in range(NODES)]
        assert wait_until(lambda: _idle_nodes(variables) == NODES), (folder / "daemons.log").read_text()
        yield variables
    finally:
        if len(daemons) > 1:  # a test that was interrupted may have left a job
            subprocess.run(["scancel", "--full", "--user=root"], env=os.environ | variables, capture_output=True)
            wait_until(lambda: _idle_nodes(variables) == NODES, 60)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(PATIENCE)


def _configure(folder: Path) -> dict[str, str]:
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir(mode=0o700)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    controller, first, second = _free_ports(3)
    places = {"folder": folder, "host": socket.gethostname().partition(".")[0]}
    ports = {"controller": controller, "first": first, "second": second}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**places, **ports))
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    (folder / "epilog").write_text(f"#!/bin/sh\n[ ! -e {folder}/slow ] || sleep 3\n")  # as on clusters that clean up
    (folder / "epilog").chmod(0o755)
    return {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}


def _free_ports(count: int) -> Sequence[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _start(command: list[str], variables: dict[str, str], folder: Path) -> subprocess.Popen:
    """A daemon that does not outlive these tests, whoever ends them."""
    with (folder / "daemons.log").open("a") as log:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig=TERM", *command], env=os.environ | variables, stdout=log, stderr=log
        )


def _idle_nodes(variables: dict[str, str]) -> int:
    command = ["sinfo", "--noheader", "--Node", "--partition=debug", "--states=idle"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    return len(done.stdout.splitlines()) if done.returncode == 0 else 0


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
