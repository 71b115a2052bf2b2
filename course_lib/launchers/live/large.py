"""Large values travel through a file: a pipe would copy them four times, and every rank would get a copy of its own.

The file is private to this user, and whoever takes the value removes it. A tensor is mapped into memory, so that its
bytes are written once and read when they are used.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from course_lib.launchers.process import messages

LARGE = 1 << 20  # bytes


@dataclass(frozen=True)
class TensorFile:
    """A tensor whose bytes are in a file."""

    path: str
    dtype: Any
    shape: tuple[int, ...]
    requires_grad: bool


@dataclass(frozen=True)
class PickleFile:
    """A pickled value in a file."""

    path: str


def lay_down(value: Any, folder: str) -> Any:
    """Return the value, or, if it is large, what stands for it in a file of this folder."""
    torch = sys.modules["torch"]
    if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_quantized:
        if value.nbytes < LARGE:
            return value
        path = _new_file(folder)
        value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tofile(path)
        return TensorFile(path, value.dtype, tuple(value.shape), value.requires_grad)
    packed = messages.pack_value(value)
    return value if len(packed) < LARGE else PickleFile(_write(packed, folder))


def take_up(value: Any) -> Any:
    """Return the value that was laid down, and remove its file."""
    if not isinstance(value, (TensorFile, PickleFile)):
        return value
    try:
        if isinstance(value, PickleFile):
            return messages.unpack(_read(value.path))
        import torch

        bytes_ = torch.from_file(value.path, shared=False, size=os.path.getsize(value.path), dtype=torch.uint8)
        return bytes_.view(value.dtype).view(value.shape).requires_grad_(value.requires_grad)
    finally:
        os.unlink(value.path)


@contextlib.contextmanager
def sent(packed: bytes) -> Iterator[bytes | PickleFile]:
    """Yield what to send to several ranks for these bytes: a file if they are many, which exists during the block."""
    if len(packed) < LARGE:
        yield packed
        return
    path = _write(packed, tempfile.gettempdir())
    try:
        yield PickleFile(path)
    finally:
        os.unlink(path)


def received(packed: bytes | PickleFile) -> bytes:
    """Return the bytes that were sent."""
    return _read(packed.path) if isinstance(packed, PickleFile) else packed


def _write(packed: bytes, folder: str) -> str:
    path = _new_file(folder)
    with open(path, "wb") as file:
        file.write(packed)
    return path


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _new_file(folder: str) -> str:
    number, path = tempfile.mkstemp(prefix="course_lib-", dir=folder)
    os.close(number)
    return path
