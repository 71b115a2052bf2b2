"""Every message of the desk is sent at once: the setting names our connection, and it says so to TCP."""

from __future__ import annotations

import json
from types import SimpleNamespace

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from traitlets.utils.importstring import import_item

from course_lib.lab.settings import CONFIG


def test_the_connection_that_the_settings_name_sends_every_message_at_once(monkeypatch):
    settings = json.loads((CONFIG / "jupyter_server_config.json").read_text())
    ours = import_item(settings["ServerApp"]["kernel_websocket_connection_class"])
    assert issubclass(ours, ZMQChannelsWebsocketConnection)
    asked = []
    monkeypatch.setattr(ZMQChannelsWebsocketConnection, "connect", lambda _: asked.append("connect"))
    page = SimpleNamespace(set_nodelay=lambda value: asked.append(value))
    connection = object.__new__(ours)
    monkeypatch.setattr(ours, "websocket_handler", page)
    connection.connect()
    assert asked == [True, "connect"]
