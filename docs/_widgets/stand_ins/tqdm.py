"""In a page there is no terminal for a progress bar: this takes the place of tqdm there, and shows nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class tqdm:  # noqa: N801, its real name
    """Goes through what it is given."""

    def __init__(self, iterable: Iterable[Any] = (), **options: Any) -> None:
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)

    def __enter__(self) -> tqdm:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, done: int = 1) -> None:
        """Nothing to see."""
