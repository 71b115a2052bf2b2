"""A real JupyterHub with its proxy, people who log in to it, and cells that they run in a kernel there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from course_lib.runtime.machine import free_port

HERE = Path(__file__).parent
CONFIG = HERE.parents[1] / "docs" / "deploy" / "jupyterhub" / "jupyterhub_config.py"
PATIENCE = 300  # seconds for what takes some on a quiet machine


def need_a_hub() -> None:
    """Skip without the programs."""
    pytest.importorskip("jupyterhub", reason="jupyterhub is not installed")
    if shutil.which("configurable-http-proxy") is None:
        pytest.skip("the Hub's proxy is not installed: npm install --global configurable-http-proxy")


@contextlib.contextmanager
def started_hub(folder: Path, **variables: str) -> Iterator[str]:
    """The address of a Hub; it and all that it has started end with the block."""
    ports = [free_port() for _ in range(4)]
    unwanted = ("PYTEST_", "JUPYTER", "COURSE_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    environment |= {
        "COURSE_HUB_CONFIG": str(CONFIG),
        "COURSE_HUB_STATE": str(folder),
        "COURSE_HUB_PORTS": " ".join(map(str, ports[:3])),
        "COURSE_CLASS_PORT": str(ports[3]),
        "PYTHONPATH": str(HERE.parents[1]),
        **variables,
    }
    log = folder / "hub.log"
    with open(log, "w") as output:
        words = [sys.executable, "-m", "jupyterhub", "--config", str(HERE / "hub_config.py")]
        hub = subprocess.Popen(words, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{ports[0]}"
        wait(lambda: _answers(f"{address}/hub/login"), log, hub)
        wait(lambda: _answers(f"http://127.0.0.1:{ports[3]}/services/class/pages/class.css"), log, hub)
        yield address
    finally:
        hub.send_signal(signal.SIGTERM)
        try:
            hub.wait(60)
        except subprocess.TimeoutExpired:
            hub.kill()


def wait(happened: Callable[[], Any], log: Path | None = None, process: subprocess.Popen | None = None) -> Any:
    """What is there at last."""
    end = time.monotonic() + PATIENCE
    while not (found := happened()):
        gone = process is not None and process.poll() is not None
        if gone or time.monotonic() > end:
            raise AssertionError(f"it did not happen\n{log.read_text()[-4000:] if log else ''}")
        time.sleep(0.2)
    return found


@dataclass
class Person:
    """Somebody with a browser's cookies, logged in to the Hub."""

    hub: str
    name: str

    def __post_init__(self) -> None:
        import requests

        self.session = requests.Session()
        form = self.session.get(f"{self.hub}/hub/login").text
        (xsrf,) = set(re.findall(r'name="_xsrf" value="([^"]+)"', form))
        given = {"username": self.name, "password": "", "_xsrf": xsrf}
        self.session.post(f"{self.hub}/hub/login", data=given, allow_redirects=False).raise_for_status()

    def get(self, path: str) -> Any:
        """A page, wherever it leads."""
        return self.session.get(f"{self.hub}{path}")

    def start_server(self) -> None:
        """The way a browser does, and wait until it is up. From then on a token speaks for this person."""
        xsrf = self.session.cookies.get("_xsrf", path="/hub/")
        asked = self.session.post(
            f"{self.hub}/hub/api/users/{self.name}/tokens", json={"note": "test"}, headers={"X-XSRFToken": str(xsrf)}
        )
        self.header = {"Authorization": f"token {asked.json()['token']}"}
        self.session.post(f"{self.hub}/hub/api/users/{self.name}/server", headers=self.header).raise_for_status()
        wait(lambda: self._server().get("ready"))

    def _server(self) -> dict[str, Any]:
        model = self.session.get(f"{self.hub}/hub/api/users/{self.name}", headers=self.header).json()
        return model["servers"].get("", {})

    def run(self, *cells: str) -> list[str]:
        """What each cell of a new kernel on this person's server prints or raises."""
        from websocket import create_connection

        server = f"{self.hub}/user/{self.name}"
        made = self.session.post(f"{server}/api/kernels", json={"path": "exercises"}, headers=self.header)
        made.raise_for_status()
        address = f"{server.replace('http', 'ws', 1)}/api/kernels/{made.json()['id']}/channels"
        channel = create_connection(address, header=self.header, timeout=PATIENCE)
        try:
            return [_result(channel, cell) for cell in cells]
        finally:
            channel.close()


def _result(channel: Any, cell: str) -> str:
    sent = uuid.uuid4().hex
    header = {"msg_id": sent, "msg_type": "execute_request", "username": "", "session": sent, "version": "5.3"}
    content = {"code": cell, "silent": False}
    channel.send(
        json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"})
    )
    printed: list[str] = []
    while True:
        message = json.loads(channel.recv())
        if message["parent_header"].get("msg_id") != sent:
            continue
        kind, said = message["msg_type"], message["content"]
        if kind == "stream":
            printed.append(said["text"])
        elif kind in ("execute_result", "display_data"):
            printed.append(said["data"].get("text/plain", ""))
        elif kind == "error":
            printed.append(f"{said['ename']}: {said['evalue']}")
        elif kind == "status" and said["execution_state"] == "idle":
            return "".join(printed)


def _answers(address: str) -> bool:
    import requests

    try:
        return requests.get(address, timeout=5).ok
    except requests.RequestException:
        return False
