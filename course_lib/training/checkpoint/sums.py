"""Whether a checkpoint is as it was saved: the SHA-256 of each of its files, in a file of their own beside them.

The list has the form that `sha256sum --check SHA256SUMS` reads, so that it can be checked without Python, too. Every
rank sums what it has written itself, and one of them writes the list: a file of another save has another sum.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

SUMS = "SHA256SUMS"
PIECE = 1 << 20  # bytes read at a time


def sums_of(files: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of each of these files, by its name."""
    found = {}
    for path in files:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
        found[path.name] = digest.hexdigest()
    return found


def write_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write the list into `folder`, and return when it is on the disk."""
    with (folder / SUMS).open("w") as file:
        file.writelines(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
        file.flush()
        os.fsync(file.fileno())


def find_damage(folder: Path, needed: Iterable[str], only: Collection[str] | None = None) -> str:
    """What is wrong with the files that were saved in `folder`, in a few words; empty if nothing is.

    `needed` are files that every list must have. `only` these are read, or all.
    """
    try:
        *lines, _ = (folder / SUMS).read_text().split("\n")
        listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
        for name in (*needed, *listed):
            if name not in listed:
                return f"{SUMS} does not list {name}"
            if (only is None or name in only) and sums_of([folder / name])[name] != listed[name]:
                return f"{name} is not as it was saved"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError) as error:  # bytes that are no text, a name that cannot be one
        return f"{SUMS} cannot be read: {error}"
    return ""
