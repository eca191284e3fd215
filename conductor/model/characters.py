"""Size of a text in bytes and tokens, repair of split surrogate pairs in it, and a check for control characters in names.

JSON may write a character beyond U+FFFF as two escapes, and some servers split a chunk between the two. UTF-8
cannot encode half a pair, so stores, clients and providers reject it.
"""

import re
from collections.abc import Mapping
from math import ceil
from typing import Any, cast

BYTES_PER_TOKEN = 4
"""Bytes of text per token, for estimates that are neither high nor low. An English letter is one byte, a Cyrillic one two, and
a Chinese character three."""
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
    """Estimate the tokens of `text` in any script. The estimate is high rather than low.

    An English token has about four characters. Other alphabets need up to one token per character; Chinese,
    Japanese, Korean and Indic scripts up to 1.5; an emoji up to 3. The length of a character in UTF-8 tells
    these apart, which is fast enough for a megabyte.
    """
    n_chars, n_bytes = len(text), byte_size(text)
    ascii = len(text.encode("ascii", "ignore"))
    astral = len(text.encode("utf-16-le", "surrogatepass")) // 2 - n_chars
    others = n_chars - ascii - astral
    threes = n_bytes - ascii - 4 * astral - 2 * others
    return ceil(ascii / BYTES_PER_TOKEN + (others - threes) + 1.5 * threes + 3 * astral)


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
