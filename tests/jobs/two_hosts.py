"""Two hosts on this machine, with a cable between them: network namespaces, each with a name and an address."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ADDRESSES = {"host1": "10.77.0.1", "host2": "10.77.0.2"}


@dataclass
class Host:
    """A namespace, which lives as long as the process that keeps it."""

    name: str
    keeper: subprocess.Popen

    def command(self, *words: str) -> list[str]:
        """What runs `words` on this host."""
        return ["nsenter", "--net", "--uts", "--mount", f"--target={self.keeper.pid}", "--wd=.", *words]

    def run(self, *words: str) -> None:
        subprocess.run(self.command(*words), check=True, capture_output=True)

    def plug(self, direction: str) -> None:
        """Pull the cable (`down`) or put it back (`up`)."""
        self.run("ip", "link", "set", "eth0", direction)


def why_not() -> str | None:
    """Why there can be no such hosts here, or None."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if missing := [program for program in ("ip", "unshare", "nsenter", "setpriv") if shutil.which(program) is None]:
        return f"there is no {', '.join(missing)}: apt-get install iproute2 util-linux"
    made = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "one", "type", "veth", "peer", "name", "two"], capture_output=True
    )
    return f"network namespaces are forbidden here: {made.stderr.decode().strip()}" if made.returncode else None


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """`host1` and `host2`, which find each other by name, until the block ends."""
    names = folder / "hosts"
    names.write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in ADDRESSES.items()))
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(_host(name, names)) for name in ADDRESSES]
        peer = ["type", "veth", "peer", "name", "eth0", "netns", str(hosts[1].keeper.pid)]
        hosts[0].run("ip", "link", "add", "eth0", *peer)
        for host in hosts:
            host.run("ip", "address", "add", f"{ADDRESSES[host.name]}/24", "dev", "eth0")
            host.plug("up")
        yield hosts[0], hosts[1]


@contextlib.contextmanager
def _host(name: str, names: Path) -> Iterator[Host]:
    setup = f"mount --bind {names} /etc/hosts && hostname {name} && ip link set lo up && echo ready && exec sleep 3600"
    command = ["setpriv", "--pdeathsig=KILL", "unshare", "--net", "--uts", "--mount", "sh", "-c", setup]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as keeper:
        try:
            ready = keeper.stdout.readline()
            assert ready == "ready\n"
            yield Host(name, keeper)
        finally:
            keeper.kill()
