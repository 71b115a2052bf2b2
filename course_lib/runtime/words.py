"""Numbers in words: "3 ranks", "4 MB" for what travels, "512 MiB" for memory, "20 ms"."""

from __future__ import annotations

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))


def size_in_words(size: float) -> str:
    """Format bytes: 4 MB, 1.5 GB."""
    scale, prefix = next(((scale, prefix) for scale, prefix in PREFIXES if size >= scale), (1, ""))
    return f"{size / scale:.3g} {prefix}B"


def memory_in_words(size: float) -> str:
    """Format bytes of memory, in powers of two: 512 MiB, 80 GiB."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**power:
            return f"{size / 2**power:,.3g} {unit}" if size < 1000 * 2**power else f"{size / 2**power:,.0f} {unit}"
    return f"{size:.0f} B"


def time_in_words(seconds: float) -> str:
    """Format seconds: 20 ms, 1.5 s, 300 µs."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def counted(count: int, noun: str, nouns: str = "") -> str:
    """Return the count with its noun: "1 rank", "3 ranks"; `nouns` is the plural if it isn't just an s."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"
