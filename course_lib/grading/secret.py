"""The secret of a class, from which every test input is derived.

A leaked input must not help anybody, so each exercise of each submission gets its own seed, an HMAC of the secret.
A student who learns the inputs of one submission knows nothing about those of the next, not even of their own.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
from pathlib import Path

BITS = 128
WRITTEN = re.compile(rf"[0-9a-f]{{{BITS // 4}}}")


class BadSecret(ValueError):
    """The secret of a class cannot be read; the message says what to do."""


def secret_of_class(out: Path) -> bytes:
    """Return the secret of a class. The first grader draws it and saves it next to the results, in `seed.txt`."""
    path = out / "seed.txt"
    if not os.path.lexists(path):
        _create(path, f"{secrets.token_hex(BITS // 8)}\n")
    try:
        text = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise BadSecret(f"{path} cannot be read ({type(error).__name__}): {_advice(path)}") from error
    if not WRITTEN.fullmatch(text):
        raise BadSecret(f"{path} does not hold {BITS} bits as {BITS // 4} hexadecimal digits: {_advice(path)}")
    return bytes.fromhex(text)


def secret_of_number(seed: int) -> bytes:
    """Return the secret for a seed that the instructor chose."""
    return str(seed).encode()


def derive(secret: bytes, *about: str | bytes) -> bytes:
    """Return 32 bytes for this purpose. Without the secret, they reveal nothing about other purposes."""
    parts = [part.encode(errors="surrogatepass") if isinstance(part, str) else part for part in about]
    message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)  # ("ab", "c") is not ("a", "bc")
    return hmac.digest(secret, message, "sha256")


def seed_of_inputs(secret: bytes, number: str, student: str, content: bytes) -> int:
    """Return the seed of an exercise's inputs for one submission: 128 bits after a leading 1."""
    return int.from_bytes(b"\x01" + derive(secret, "inputs", number, student, content)[: BITS // 8], "big")


def _advice(path: Path) -> str:
    return (
        "restore it, because marks are comparable only on inputs from the same seed. Or remove it: every "
        f"notebook in {path.parent} is then regraded, on new inputs"
    )


def _create(path: Path, text: str) -> None:
    """Create a file with this content, unless another grader is faster. Readers never see a partial file."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)  # nobody else on this machine may read marks and pages
    aside = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        aside.touch(0o600, exist_ok=False)
        aside.write_text(text)
        with contextlib.suppress(FileExistsError):
            try:
                os.link(aside, path)
            except PermissionError:  # a file system without hard links
                path.touch(0o600, exist_ok=False)
                path.write_text(text)
    finally:
        aside.unlink(missing_ok=True)
