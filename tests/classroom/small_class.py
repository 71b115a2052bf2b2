"""The smallest class there can be, for tests of the learner's side: keeps each event once, in a file, and asks.

`python -m tests.classroom.small_class PORT FOLDER`: its record is FOLDER/record.jsonl; the question that it asks is
read from FOLDER/state.json, and everybody is told when that file changes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import tornado.web
import tornado.websocket

CODE = "K7QF2M"


class Join(tornado.web.RequestHandler):
    def post(self) -> None:
        asked = json.loads(self.request.body)
        if asked.get("code") != CODE:
            self.set_status(403)
            self.finish({"error": "that is not this class's code"})
            return
        learner = f"learner-{len(self.settings['secrets']) + 1}"
        secret = f"secret of {learner} {asked['name']}"
        self.settings["secrets"].append(secret)
        (self.settings["folder"] / "secrets.json").write_text(json.dumps(self.settings["secrets"]))
        self.finish({"learner": learner, "secret": secret, "class": "A small class"})


class Channel(tornado.websocket.WebSocketHandler):
    def open(self) -> None:
        secret = self.request.headers.get("Authorization", "").removeprefix("Bearer ")
        if secret not in self.settings["secrets"]:
            self.close(4401, "unknown")
            return
        self.settings["here"].add(self)
        self.tell_state()

    def on_message(self, message: str | bytes) -> None:
        events = json.loads(message)["events"]
        refused = {event["id"]: "that is refused here" for event in events if event["kind"] == "slower"}
        with (self.settings["folder"] / "record.jsonl").open("a") as record:
            for event in events:
                if event["id"] not in self.settings["known"] and event["id"] not in refused:
                    self.settings["known"].add(event["id"])
                    record.write(json.dumps(event) + "\n")
        self.write_message({"kept": [event["id"] for event in events if event["id"] not in refused]})
        if refused:
            self.write_message({"refused": refused})

    def tell_state(self) -> None:
        file = self.settings["folder"] / "state.json"
        nothing = {"class": "A small class", "asked": None, "stuck": False, "line": 0}
        self.write_message({"state": json.loads(file.read_text()) if file.exists() else nothing})

    def on_close(self) -> None:
        self.settings["here"].discard(self)


async def main(port: int, folder: Path) -> None:
    secrets, record = folder / "secrets.json", folder / "record.jsonl"
    known = {json.loads(line)["id"] for line in record.read_text().splitlines()} if record.exists() else set()
    app = tornado.web.Application(
        [("/join", Join), ("/channel", Channel)],
        folder=folder,
        here=set(),
        known=known,
        secrets=json.loads(secrets.read_text()) if secrets.exists() else [],
    )
    app.listen(port, "127.0.0.1")
    print("ready", flush=True)
    seen, state = None, folder / "state.json"
    while True:
        now = state.stat().st_mtime_ns if state.exists() else None
        if now != seen:
            for channel in list(app.settings["here"]):
                channel.tell_state()
        seen = now
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
