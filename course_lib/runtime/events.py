"""Events from a learner's work: `publish` sends one to every subscriber.

The checks publish predictions and results. The classroom is built on top of the checks, so they cannot import it.
Instead, it subscribes here, once, in `course_lib/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_listeners: list[Callable[..., Any]] = []


def subscribe(listener: Callable[..., Any]) -> None:
    """Call `listener(kind, **facts)` for every event from now on."""
    _listeners.append(listener)


def publish(kind: str, **facts: Any) -> None:
    """Send an event to every listener. Listeners must not raise or block."""
    for listener in _listeners:
        listener(kind, **facts)
