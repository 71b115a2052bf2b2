"""What happens while a learner works: `publish` announces it, and whoever has subscribed hears it.

The checks publish predictions and results. A class is built on top of the checks, so they cannot import it: it
subscribes here instead, once, in `course_lib/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_listeners: list[Callable[..., Any]] = []


def subscribe(listener: Callable[..., Any]) -> None:
    """From now on, call `listener(kind, **facts)` for every event."""
    _listeners.append(listener)


def publish(kind: str, **facts: Any) -> None:
    """Tell every listener what happened. A listener does not raise and does not wait."""
    for listener in _listeners:
        listener(kind, **facts)
