"""bfloat16 weights and safetensors files with NumPy alone, which has no such type: 16 bits are kept in
`uint16`.

The format: https://huggingface.co/docs/safetensors (eight bytes of length, a JSON header, the tensors one
after another).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]
Tensor = NDArray[np.uint16 | np.float16 | np.float32]
"""Of a safetensors file; bfloat16 as `Bits`."""
TYPES: dict[str, type[np.uint16 | np.float16 | np.float32]] = {
    "BF16": np.uint16,
    "F16": np.float16,
    "F32": np.float32,
}
NAMES = {np.dtype(kind): name for name, kind in TYPES.items()}


def bits_of(weights: Floats) -> Bits:
    """Rounded to the nearest bfloat16, ties to even, as torch rounds. Weights are finite."""
    whole = np.ascontiguousarray(weights).view(np.uint32)
    return ((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16).astype(np.uint16)


def floats_of(tensor: Tensor) -> Floats:
    """Exactly: bfloat16 is the upper half of a float32."""
    if tensor.dtype == np.uint16:
        return (tensor.astype(np.uint32) << 16).view(np.float32)
    return tensor.astype(np.float32)


def like(tensor: Tensor, weights: Floats) -> Tensor:
    """`weights` in the type of `tensor`."""
    return bits_of(weights) if tensor.dtype == np.uint16 else weights.astype(tensor.dtype)


def save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, as transformers and vLLM read it."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor).data)


def load(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file.

    Raises:
        ValueError: it is cut off, is something else, or has a type that is not read here.
    """
    data = path.read_bytes()
    try:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        return {name: _tensor(data, 8 + length, **entry) for name, entry in header.items()}
    except (struct.error, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no safetensors file: {error}") from error


def _tensor(data: bytes, start: int, dtype: str, shape: list[int], data_offsets: tuple[int, int]) -> Tensor:
    begin, end = data_offsets
    return np.frombuffer(data[start + begin : start + end], TYPES[dtype]).reshape(shape)
