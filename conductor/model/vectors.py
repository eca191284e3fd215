"""A vector as the text that runs carry: base64 of little-endian float32, as OpenAI's `encoding_format: base64`."""

import base64
import binascii
import struct
from collections.abc import Sequence


def encode(vector: Sequence[float]) -> str:
    """`vector` as text.

    Raises:
        ValueError: a number of it is none that float32 holds.
    """
    try:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
    except (struct.error, OverflowError) as exc:
        raise ValueError(f"no vector: {exc}") from exc


def decode(text: str) -> list[float]:
    """The vector in `text`.

    Raises:
        ValueError: there is none.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError(f"no base64: {exc}") from exc
    if not data or len(data) % 4:
        raise ValueError(f"{len(data)} bytes are no vector of float32")
    return list(struct.unpack(f"<{len(data) // 4}f", data))
