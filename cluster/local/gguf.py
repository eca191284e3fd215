"""Reads GGUF, the file format of llama.cpp: its metadata, and its tensors as float32. NumPy only, so that
it is quick.

As https://github.com/ggml-org/ggml/blob/master/docs/gguf.md describes it; of the quantised types those that
SmolLM2's file has.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

MAGIC, VERSION = b"GGUF", 3
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a metadata value -> its `struct` format. 8 is a string, 9 an array."""
STRING, ARRAY = 8, 9
BLOCK = 32
"""Weights that share a scale."""


class GgufError(ValueError):
    """The file is not GGUF, or has a type that is not read here."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor is in the file.

    Args:
        shape: the slowest dimension first, as NumPy has it.
        kind: ggml's number of its type.
        start: its first byte.
    """

    shape: tuple[int, ...]
    kind: int
    start: int


class GgufFile:
    """One file, mapped into memory; `metadata` by name."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        magic, version = self._bytes[:4], struct.unpack_from("<I", self._bytes, 4)[0]
        if (magic, version) != (MAGIC, VERSION):
            raise GgufError(f"{path.name} is not GGUF version {VERSION}: it begins with {magic!r} {version}")
        self._at = 8
        n_tensors, n_values = self._scalar("Q"), self._scalar("Q")
        self.metadata: dict[str, Any] = {
            self._string(): self._value(self._scalar("I")) for _ in range(n_values)
        }
        found = [self._tensor() for _ in range(n_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        data = math.ceil(self._at / alignment) * alignment
        self.tensors = {name: Tensor(shape, kind, data + offset) for name, shape, kind, offset in found}

    def read(self, name: str) -> Floats:
        """The tensor's weights, dequantised.

        Raises:
            GgufError: it has a type that is not read here.
            KeyError: there is none of that name.
        """
        tensor = self.tensors[name]
        if tensor.kind not in KINDS:
            raise GgufError(f"{name} has ggml type {tensor.kind}; only {sorted(KINDS)} are read")
        block, n_bytes, dequantise = KINDS[tensor.kind]
        end = tensor.start + math.prod(tensor.shape) // block * n_bytes
        return dequantise(memoryview(self._bytes)[tensor.start : end]).reshape(tensor.shape)

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._bytes, self._at)
        self._at += struct.calcsize(f"<{code}")
        return value

    def _string(self) -> str:
        n_bytes = self._scalar("Q")
        self._at += n_bytes
        return self._bytes[self._at - n_bytes : self._at].decode()

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            of, length = self._scalar("I"), self._scalar("Q")
            return [self._value(of) for _ in range(length)]
        return self._scalar(SCALARS[kind])

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, n_dimensions = self._string(), self._scalar("I")
        shape = tuple(reversed([self._scalar("Q") for _ in range(n_dimensions)]))
        return name, shape, self._scalar("I"), self._scalar("Q")


def float32(data: memoryview) -> Floats:
    """Not quantised."""
    import numpy as np

    return np.frombuffer(data, "<f4")


def q4_1(data: memoryview) -> Floats:
    """Four bits a weight: scale, minimum, then 16 bytes with the first half of the block in their low
    bits.
    """
    import numpy as np

    blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("least", "<f2"), ("quants", "u1", BLOCK // 2)]))
    quants = np.concatenate([blocks["quants"] & 15, blocks["quants"] >> 4], axis=1).astype(np.float32)
    return blocks["scale"].astype(np.float32)[:, None] * quants + blocks["least"].astype(np.float32)[:, None]


def q8_0(data: memoryview) -> Floats:
    """Eight bits a weight and a scale."""
    import numpy as np

    blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("quants", "i1", BLOCK)]))
    return blocks["scale"].astype(np.float32)[:, None] * blocks["quants"].astype(np.float32)


KINDS: dict[int, tuple[int, int, Callable[[memoryview], Floats]]] = {
    0: (1, 4, float32),
    3: (BLOCK, 20, q4_1),
    8: (BLOCK, 34, q8_0),
}
"""ggml's type -> weights and bytes of a block, and how they are read."""
