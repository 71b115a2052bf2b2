"""What an answer returned, as plain data: numbers without behavior.

An answer may return an object that claims to equal everything, or bytes that run code when they are unpickled. So
everything that leaves a rank is written as JSON, and read back only as tensors, numbers, text, lists and dicts.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch

MOST_NUMBERS = 200_000
MOST_BITS = 1_000  # of an integer: Python refuses to print very long ones
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)
}
# A single number of one of these dtypes is accepted, too, and converted to the wider one.
WIDER = dict.fromkeys(
    (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64), torch.int64
) | dict.fromkeys((torch.float8_e4m3fn, torch.float8_e5m2), torch.float64)


def encode(value: Any, depth: int = 0) -> Any:
    """Return `value` in JSON's types. Anything that isn't plain data becomes the name of its type."""
    if isinstance(value, (np.number, np.bool_)):
        value = float(value) if isinstance(value, np.floating) else value.item()
    if isinstance(value, int) and (bits := int.bit_length(value)) > MOST_BITS:
        return {"other": f"int of {bits} bits"}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value)
    for base in (int, float, str):
        if isinstance(value, base):
            return base(value)
    if depth < 20 and isinstance(value, dict):
        return {"dict": [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in value.items()]}
    if depth < 20 and isinstance(value, (list, tuple, set, frozenset, range)):
        return [encode(item, depth + 1) for item in value]
    return {"other": type(value).__name__}


def decode(data: Any) -> Any:
    """Return the value that `encode` wrote. Raises `ValueError` for anything else: the data may be forged."""
    if data is None or type(data) in (bool, int, float, str):
        return data
    if type(data) is list:
        return [decode(item) for item in data]
    if type(data) is dict and data.keys() == {"dict"}:
        return {_hashable(decode(key)): decode(item) for key, item in data["dict"]}
    if type(data) is dict and data.keys() == {"tensor", "shape", "data"}:
        return _decode_tensor(data)
    if type(data) is dict and data.keys() == {"other"} and type(data["other"]) is str:
        return Other(data["other"][:40])
    raise ValueError("this is not plain data")


class Other:
    """A value that wasn't plain data: it has only the name of its type, and it equals nothing."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{self.kind}>"


def _encode_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    if tensor.numel() == 1 and (wide := WIDER.get(tensor.dtype)):
        tensor = tensor.to(wide)
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES or tensor.numel() > MOST_NUMBERS:
        return {"other": f"tensor of {tensor.numel()} {name}"}
    row = (
        tensor.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
    )  # a one-element tensor may have any stride
    bytes_of_it = row.view(torch.uint8).numpy().tobytes()
    return {"tensor": name, "shape": list(tensor.shape), "data": base64.b64encode(bytes_of_it).decode()}


def _decode_tensor(data: dict[str, Any]) -> torch.Tensor:
    dtype, shape = DTYPES.get(data["tensor"]), data["shape"]
    if dtype is None or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("this is not a tensor")
    content = bytearray(base64.b64decode(data["data"]))
    if not content and 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).reshape(shape)


def _hashable(key: Any) -> Any:
    if isinstance(key, list):
        return tuple(map(_hashable, key))
    if key is None or isinstance(key, (bool, int, float, str)):
        return key
    raise ValueError("this cannot be the key of a dict")
