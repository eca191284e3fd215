"""Size of a text in bytes and tokens, repair of split surrogate pairs in it, and a check for control characters in names.

JSON may write a character beyond U+FFFF as two escapes, and some servers split a chunk between the two. UTF-8
cannot encode half a pair, so stores, clients and providers reject it.
"""

import re
from collections.abc import Mapping
from math import ceil
from typing import Any, cast

BYTES_PER_TOKEN = 4
"""Estimated bytes of text per token."""
_HALF = re.compile("[\ud800-\udfff]")
_ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""An escaped backslash, a surrogate pair, or a lone surrogate."""
_REPLACEMENT = rb"\ufffd"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that control a terminal or change the direction of a line."""


def byte_size(text: str) -> int:
    """Return the UTF-8 size of `text`. It is an upper bound of the number of tokens."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of `text`: one per four bytes of UTF-8.

    That is one token per four English letters, two Cyrillic letters or 1.3 Chinese characters. Tokenizers with large
    vocabularies need fewer tokens for most scripts, and small ones need more.
    """
    return ceil(byte_size(text) / BYTES_PER_TOKEN)


def whole(text: str) -> str:
    """Return `text` with surrogate pairs joined. A lone surrogate becomes U+FFFD."""
    if text.isascii() or not _HALF.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def with_whole_escapes(body: bytes) -> bytes:
    """Replace lone surrogates' escapes, which JavaScript writes for cut texts, with that of U+FFFD."""
    return _ESCAPES.sub(_whole_escape, body) if _ESCAPED_HALF.search(body) else body


def _whole_escape(escape: re.Match[bytes]) -> bytes:
    return _REPLACEMENT if escape["half"] else escape[0]


def whole_value(value: Any) -> Any:
    """Apply `whole` to all strings in a JSON value, including field names."""
    match value:
        case str():
            return whole(value)
        case Mapping():
            fields = cast(Mapping[Any, Any], value)
            return {whole_value(name): whole_value(each) for name, each in fields.items()}
        case list() | tuple():
            return [whole_value(each) for each in cast(list[Any], value)]
        case _:
            return value


class HalfJoiner:
    """Joins surrogate pairs that were cut between two chunks of one text."""

    def __init__(self) -> None:
        self._half = ""

    @property
    def holds_half(self) -> bool:
        """True if the first half of a pair is waiting for the second."""
        return bool(self._half)

    def feed(self, piece: str, *, is_last: bool = False) -> str:
        """Add a chunk and return the complete characters. Half a pair at the end waits for the next chunk."""
        if not self._half and piece.isascii():
            return piece
        text, self._half = self._half + piece, ""
        if not is_last and "\ud800" <= text[-1:] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return whole(text)


def check_name_text(text: str) -> str:
    """Check that a name, as shown in terminals, has no control characters but tabs and line breaks, and no
    direction marks.
    """
    if _CONTROL.search(text):
        raise ValueError("must not contain control characters or text direction marks")
    return text
