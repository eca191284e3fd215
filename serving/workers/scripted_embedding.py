"""Embeddings of scripted workers. The vectors are computed from a checksum of the text, so equal texts get
equal vectors. The vectors have no meaning.
"""

import hashlib
import math
import struct

from conductor.model.operation import vector_text

DIMENSIONS = 8


def embed(texts: list[str], dimensions: int | None = None) -> str:
    """Return a unit vector for each text, in the format of `Operation`."""
    return "\n".join(vector_text(_vector(text, dimensions or DIMENSIONS)) for text in texts)


def _vector(text: str, dimensions: int) -> list[float]:
    noise = hashlib.shake_256(text.encode("utf-8", "surrogatepass")).digest(2 * dimensions)
    values = [value / 32_768 for value in struct.unpack(f"<{dimensions}h", noise)]
    length = math.sqrt(sum(value * value for value in values)) or 1.0
    return [value / length for value in values]
