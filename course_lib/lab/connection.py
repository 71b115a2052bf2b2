"""The connection between a page and its kernel, without the pause that TCP makes between two small messages."""

from __future__ import annotations

import asyncio

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection


class PromptConnection(ZMQChannelsWebsocketConnection):
    """Sends every message at once.

    Otherwise a second small message waits until the page has acknowledged the first, and the page waits with that: 40
    ms on Linux, for each redraw of a widget.
    """

    def connect(self) -> asyncio.Future[None] | None:
        """Called when a page has opened its side."""
        self.websocket_handler.set_nodelay(True)
        return super().connect()
