"""Start JupyterLab in half the time: `python -m course_lib.lab.server` takes the same options as `jupyter lab`.

When imported, jsonschema builds a parser for RFC 3987 addresses in notebooks, which takes two seconds of CPU time. We
hide the package that it needs for that, because our notebooks contain no such addresses.
"""

from __future__ import annotations

import asyncio
import sys

sys.modules.setdefault("rfc3987_syntax", None)  # pyright: ignore[reportArgumentType]

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection  # noqa: E402


class PromptConnection(ZMQChannelsWebsocketConnection):
    """The connection between a page and its kernel, which sends every message immediately (TCP_NODELAY).

    Otherwise, a second small message waits until the page acknowledges the first one, which costs 40 ms on Linux for
    each redraw of a widget.
    """

    def connect(self) -> asyncio.Future[None] | None:
        """Disable the delay when a page has opened its side."""
        self.websocket_handler.set_nodelay(True)
        return super().connect()


def main() -> None:
    """Serve until stopped."""
    from jupyterlab.labapp import main as serve

    serve()


if __name__ == "__main__":
    main()
