"""Numbers as one says them, and lists of round ones for sliders."""

from __future__ import annotations

from collections.abc import Sequence

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))


def size_in_words(size: float) -> str:
    """Bytes: 4 MB, 1.5 GB."""
    scale, prefix = next(((scale, prefix) for scale, prefix in PREFIXES if size >= scale), (1, ""))
    return f"{size / scale:.3g} {prefix}B"


def memory_in_words(size: float) -> str:
    """Bytes of memory, in powers of two: 512 MiB, 80 GiB."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**power:
            return f"{size / 2**power:,.3g} {unit}" if size < 1000 * 2**power else f"{size / 2**power:,.0f} {unit}"
    return f"{size:.0f} B"


def time_in_words(seconds: float) -> str:
    """20 ms, 1.5 s, 300 µs."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def round_numbers(low: float, high: float, digits: Sequence[float] = (1, 2, 5)) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... from `low` to `high`."""
    powers = range(-12, 16)
    found = [float(f"{digit}e{power}") for power in powers for digit in digits]
    return tuple(number for number in found if low * 0.999 <= number <= high * 1.001)


def powers_of_two(low: int, high: int) -> tuple[int, ...]:
    """1, 2, 4, ... from `low` to `high`."""
    return tuple(2**power for power in range(64) if low <= 2**power <= high)


def worded(options: Sequence[float], say) -> dict[float, str]:
    """Each option with its words."""
    return {option: say(option) for option in options}
