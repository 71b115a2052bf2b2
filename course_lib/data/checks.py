"""Checks of arguments that several modules of this package make."""

from __future__ import annotations


def check_at_least(least: int, why: str, **arguments: int) -> None:
    """Refuse an argument below `least`; `why` ends the sentence."""
    for name, value in arguments.items():
        if value < least:
            raise ValueError(f"{name}={value}: {why}")


def check_rank(rank: int, ranks: int) -> None:
    """Refuse a rank that is not one of 0 to ranks - 1."""
    check_at_least(1, "data is shared among at least one rank", ranks=ranks)
    if not 0 <= rank < ranks:
        raise ValueError(f"rank={rank}: with ranks={ranks}, give a rank from 0 to {ranks - 1}")
