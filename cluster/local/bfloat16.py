"""Read and write safetensors files with NumPy.

NumPy has no bfloat16, so the 16 bits of a bfloat16 number are stored as `uint16`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

rust: Any = safetensors
"""The module `safetensors` as `Any`, because its stubs have no types."""
Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]
Tensor = NDArray[np.uint16 | np.float16 | np.float32]
"""Tensor of a safetensors file. A bfloat16 tensor is `Bits`."""
TYPES: dict[str, type[np.uint16 | np.float16 | np.float32]] = {
    "BF16": np.uint16,
    "F16": np.float16,
    "F32": np.float32,
}
NAMES = {"uint16": "bfloat16"}
"""NumPy's type name -> name in a safetensors file, if they differ."""


def bits_of(weights: Floats) -> Bits:
    """Round finite weights to the nearest bfloat16 number (ties to even, as in torch)."""
    whole = np.ascontiguousarray(weights).view(np.uint32)
    return ((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16).astype(np.uint16)


def floats_of(tensor: Tensor) -> Floats:
    """Convert a tensor to float32. This is exact, because bfloat16 is the upper half of a float32."""
    if tensor.dtype == np.uint16:
        return (tensor.astype(np.uint32) << 16).view(np.float32)
    return tensor.astype(np.float32)


def like(tensor: Tensor, weights: Floats) -> Tensor:
    """Convert `weights` to the type of `tensor`."""
    return bits_of(weights) if tensor.dtype == np.uint16 else weights.astype(tensor.dtype)


def save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file that transformers and vLLM can read."""
    whole = {
        name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()
    }  # keep the arrays alive until the file is written
    specs = {
        name: rust.TensorSpec(
            dtype=NAMES.get(tensor.dtype.name, tensor.dtype.name),
            shape=tensor.shape,
            data_ptr=tensor.ctypes.data,
            data_len=tensor.nbytes,
        )
        for name, tensor in whole.items()
    }
    rust.serialize_file(specs, path, {"format": "pt"})


def load(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a safetensors file. Raise ValueError if it is invalid."""
    try:
        entries: list[tuple[str, dict[str, Any]]] = rust.deserialize(path.read_bytes())
        return {
            name: np.frombuffer(entry["data"], TYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in entries
        }
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"it is not a safetensors file of floating-point numbers: {error}") from error
