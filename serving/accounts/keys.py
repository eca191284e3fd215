"""The form of an API key: `pk_`, 43 characters of secret, 6 of checksum.

The secret is 256 random bits. The checksum tells a typing error from a key that is not known, without a
question to the database, and secret scanners can be sure of what they find. `_` lets a double click select
all of it. The database keeps the SHA-256 of a key: a slow hash would protect a guessable secret, and cannot
be looked up.
"""

import hashlib
import re
import secrets
import string
import zlib
from typing import Self

PREFIX = "pk_"
ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
SECRET_BYTES = 32
SECRET_CHARS = 43
"""Of base 62, for as many bytes."""
CHECKSUM_CHARS = 6
HINT_CHARS = 4
_FORM = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{SECRET_CHARS + CHECKSUM_CHARS}}}")


class KeyFormError(ValueError):
    """A text is no key; the message says why, and does not show it."""


class ApiKey:
    """One key. Neither `repr` nor `str` shows more than its end.

    Args:
        text: all of it.

    Raises:
        KeyFormError: it has not the form of a key, or its checksum says that a character is wrong.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        if not _FORM.fullmatch(text):
            raise KeyFormError(
                f"It has not the form of a Podium key: {PREFIX!r} and {SECRET_CHARS + CHECKSUM_CHARS} letters and digits."
            )
        if _checksum(text[:-CHECKSUM_CHARS]) != text[-CHECKSUM_CHARS:]:
            raise KeyFormError("A character of the key is wrong or missing: its checksum does not fit.")
        self._text = text

    @classmethod
    def make(cls) -> Self:
        """A new one, from the operating system's random numbers."""
        return cls.of(secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def of(cls, secret: bytes) -> Self:
        """The key of these 32 bytes."""
        assert len(secret) == SECRET_BYTES, "a key holds 256 bits"
        body = PREFIX + _base62(int.from_bytes(secret), SECRET_CHARS)
        return cls(body + _checksum(body))

    def reveal(self) -> str:
        """All of it: to be shown once to whom it was made for."""
        return self._text

    @property
    def hash(self) -> str:
        """What the database knows it by."""
        return hash_key(self._text)

    @property
    def hint(self) -> str:
        """Its end, by which people recognise it."""
        return self._text[-HINT_CHARS:]

    def __repr__(self) -> str:
        return f"{PREFIX}…{self.hint}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ApiKey) and secrets.compare_digest(self._text, other._text)

    def __hash__(self) -> int:
        return hash(self._text)


def hash_key(text: str) -> str:
    """Return what the database knows a key by."""
    return hashlib.sha256(text.encode()).hexdigest()


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), CHECKSUM_CHARS)


def _base62(number: int, chars: int) -> str:
    digits: list[str] = []
    for _ in range(chars):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
