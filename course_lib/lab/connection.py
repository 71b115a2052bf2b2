"""The connection between a page and its kernel, without the delay that TCP adds between two small messages."""

from __future__ import annotations

import asyncio

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection


class PromptConnection(ZMQChannelsWebsocketConnection):
    """Sends every message immediately (TCP_NODELAY).

    Otherwise a second small message waits until the page acknowledges the first, and the page delays that: 40 ms on
    Linux, for each redraw of a widget.
    """

    def connect(self) -> asyncio.Future[None] | None:
        """Disable the delay when a page has opened its side."""
        self.websocket_handler.set_nodelay(True)
        return super().connect()
