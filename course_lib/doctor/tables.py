"""The measurements as text: a row per rank, a matrix of links, and all-reduces next to their predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course_lib.doctor.health import Health, verdict
from course_lib.planning.network import Link

WIDEST_MATRIX = 16  # ranks: a wider matrix does not fit on a screen; use the picture
LARGE_SKEW = 0.1  # seconds


def health_text(health: Health) -> str:
    """Return all tables, with the verdict at the end."""
    parts = [_ranks(health), _data(health), _links(health), _all_reduces(health), verdict(health)]
    return "\n\n".join(part for part in parts if part)


def _ranks(health: Health) -> str:
    devices = [each.device for each in health.ranks]
    on_gpus = devices[0].on_gpu
    head = ["rank", "host", "device", "matmul", "memory", "clock"]
    rows = [
        [
            str(each.rank),
            each.device.host,
            each.device.name + (f" (shared by {each.device.shared_by})" if each.device.shared_by > 1 else ""),
            f"{each.device.operations / 1e9:,.0f} GFLOP/s",
            f"{each.device.copied / 1e9:,.1f} GB/s",
            f"{each.clock * 1e3:+,.1f} ms" if each.clock else "0",
        ]
        for each in health.ranks
    ]
    how = (
        "in bfloat16; ranks that share a GPU take turns"
        if on_gpus
        else "in float32, per core; waiting for a core does not count"
    )
    lines = [*_table(head, rows), f"matmul: {how}; memory: bytes read and written by a copy"]
    if late := max((each.clock for each in health.ranks), key=abs, default=0.0):
        advice = ": synchronize the machines' clocks (chrony, NTP), or their logs will not line up"
        lines.append(
            f"clock: ahead of rank 0's machine; the largest offset is {late * 1e3:+,.1f} ms"
            + (advice if abs(late) > LARGE_SKEW else "")
        )
    return "\n".join(lines)


def _data(health: Health) -> str:
    readings = [(each.rank, each.reading) for each in health.ranks if each.reading and not each.reading.trouble]
    if not readings:
        return ""
    rows = [
        [
            str(rank),
            f"{one.size / 1e6:,.1f} MB",
            f"{one.size / one.first / 1e6:,.0f} MB/s",
            f"{one.size / one.again / 1e6:,.0f} MB/s",
        ]
        for rank, one in readings
    ]
    told = (
        "The kernel was asked to forget the files before the first read"
        if all(one.forgotten for _, one in readings)
        else "The kernel could not be asked to forget the files: even the first read may come from memory"
    )
    more = "; the second read comes from memory (the page cache), like a later epoch if the data fits there"
    return "\n".join([*_table(["rank", "its part", "read", "read again"], rows), told + more])


def _links(health: Health) -> str:
    ranks = len(health.ranks)
    if ranks < 2:
        return ""
    place = "from GPU to GPU (NCCL)" if health.ranks[0].over_gpus else "from host to host memory (gloo)"
    if ranks > WIDEST_MATRIX:
        return "\n".join([f"Links, {place}", *_extremes(health)])
    parts = []
    for name, value in (
        ("latency in microseconds", lambda link: f"{link.latency * 1e6:,.0f}"),
        ("bandwidth in GB/s", lambda link: f"{link.bandwidth / 1e9:,.2f}"),
    ):
        parts.append("\n".join([f"Links, {place}: {name}", *_matrix(health, value)]))
    return "\n\n".join(parts)


def _matrix(health: Health, value: Callable[[Link], str]) -> list[str]:
    numbers = range(len(health.ranks))
    rows = [[str(row), *("-" if row == c else value(health.link(row, c)) for c in numbers)] for row in numbers]
    return _table(["rank", *map(str, numbers)], rows)


def _extremes(health: Health) -> list[str]:
    """Return a table with the best, the median and the worst link."""
    rows = []
    for name, key in (("latency", lambda pair: pair.link.latency), ("bandwidth", lambda pair: -pair.link.bandwidth)):
        ordered = sorted(health.links.values(), key=key)
        for place, pair in (("best", ordered[0]), ("median", ordered[len(ordered) // 2]), ("worst", ordered[-1])):
            rows.append([f"{place} {name}", f"ranks {pair.ranks[0]} and {pair.ranks[1]}", str(pair.link)])
    return _table(["", "between", "link"], rows)


def _all_reduces(health: Health) -> str:
    measured = health.all_reduces()
    if not measured:
        return ""
    rows = [
        [_size(size), f"{took * 1e3:,.2f} ms", f"{expected * 1e3:,.2f} ms", f"{took / expected:.1f}"]
        for size, took, expected in measured
    ]
    head = ["all-reduce", "measured", "predicted", "ratio"]
    more = "predicted: a ring over these links; it ignores the additions, and that ranks share cores and memory"
    return "\n".join([*_table(head, rows), more])


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with right-aligned columns, each as wide as its widest cell."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = []
    for row in [head, *rows]:
        lines.append("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    return lines
