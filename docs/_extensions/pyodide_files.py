"""Python for a page: Pyodide, fetched once from the npm registry, checked, and kept in the virtual environment."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

VERSION = "314.0.7"
SHA512 = "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
ADDRESS = f"https://registry.npmjs.org/pyodide/-/pyodide-{VERSION}.tgz"
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
KEPT = Path(sys.prefix) / f"pyodide-{VERSION}"
PATIENCE = 120  # seconds for 6 MB


class NoPyodide(Exception):
    """There is none, and the message says what to do."""


def pyodide_folder(kept: Path = KEPT) -> Path:
    """The folder with Pyodide's files, fetched if they are not there yet."""
    if not all((kept / name).is_file() for name in FILES):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            packed = _fetch(Path(scratch))
            _check(packed)
            _unpack(packed, Path(scratch) / "package")
            shutil.rmtree(kept, ignore_errors=True)
            (Path(scratch) / "package").rename(kept)
    return kept


def _fetch(folder: Path) -> Path:
    """The package, by npm where there is one, for it knows of mirrors; else from the registry itself."""
    packed = folder / f"pyodide-{VERSION}.tgz"
    words = ["npm", "pack", f"pyodide@{VERSION}", "--silent", "--fetch-retries=0"]
    try:
        if shutil.which("npm"):
            subprocess.run(words, cwd=folder, capture_output=True, timeout=PATIENCE, check=True)
        else:
            with urllib.request.urlopen(ADDRESS, timeout=PATIENCE) as answer:
                packed.write_bytes(answer.read())
    except (OSError, subprocess.SubprocessError) as error:
        raise NoPyodide(
            f"Pyodide could not be fetched, so the site's widgets are still pictures. With a network, run make site "
            f"again; or unpack {ADDRESS} into {KEPT} ({error})"
        ) from error
    return packed


def _check(packed: Path) -> None:
    found = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
    if found != SHA512:
        raise NoPyodide(f"what was fetched is not Pyodide {VERSION}: its sha512 is {found}, and not {SHA512}")


def _unpack(packed: Path, folder: Path) -> None:
    """Only the files that a page needs."""
    folder.mkdir()
    with tarfile.open(packed) as archive:
        for name in FILES:
            member = archive.extractfile(f"package/{name}")
            assert member is not None
            (folder / name).write_bytes(member.read())
