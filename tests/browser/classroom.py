"""Somebody in a class without a notebook: playwright has the test's event loop, so these wait on plain sockets."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from typing import Any

from tests.classroom.serving import Served
from tests.conftest import PATIENCE


class Learner:
    """Joins, says events, hears states."""

    def __init__(self, served: Served, name: str) -> None:
        body = json.dumps({"code": served.code, "name": name}).encode()
        request = urllib.request.Request(f"{served.url}/join", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            self.secret = json.loads(answer.read())["secret"]
        self.url, self.state = served.url, {}
        self.connect()

    def connect(self) -> None:
        """Open the channel, and hear how things stand."""
        import websocket

        channel = f"{self.url.replace('http', 'ws')}/channel"
        self.channel = websocket.create_connection(
            channel, header=[f"Authorization: Bearer {self.secret}"], suppress_origin=True
        )
        self.heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, args=(self.channel, self.heard), daemon=True).start()
        self.hear(lambda state: state)

    def _listen(self, channel: Any, heard: queue.SimpleQueue[str]) -> None:
        """All the time: who does not answer the server's pings is taken for gone."""
        with contextlib.suppress(Exception):  # the server was killed, or the test is over
            while text := channel.recv():
                heard.put(text)

    def say(self, kind: str, **what: Any) -> str:
        """Send an event, and wait until it is kept; "" or the reason why it is not."""
        event = {"id": uuid.uuid4().hex, "kind": kind, "at": time.time(), **what}
        self.channel.send(json.dumps({"events": [event]}))
        while True:
            told = self._receive()
            if event["id"] in told.get("kept", ()):
                return ""
            if event["id"] in told.get("refused", {}):
                return told["refused"][event["id"]]

    def hear(self, what: Callable[[dict[str, Any]], Any]) -> Any:
        """What of the state is asked for, as soon as it is something."""
        while not what(self.state):
            self._receive()
        return what(self.state)

    def asked(self, round_: str = "before") -> dict[str, Any]:
        """The question that the class is asked in that round, as soon as it is."""
        self.hear(lambda state: state["asked"] and state["asked"]["round"] == round_)
        return self.state["asked"]

    def answer(self, said: Any) -> str:
        """To the question that is asked."""
        return self.say("answered", asked=self.hear(lambda state: state["asked"])["asked"], said=said)

    def _receive(self) -> dict[str, Any]:
        told = json.loads(self.heard.get(timeout=PATIENCE))
        self.state = told.get("state", self.state)
        return told
