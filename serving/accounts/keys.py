"""Format of API keys: `pk_`, a secret of 43 characters, and a checksum of 6 characters.

The secret is 256 random bits. The checksum detects typing errors without a database query, and lets secret
scanners recognize keys reliably. Because the separator is `_`, a double click selects the whole key.

The database stores the SHA-256 of a key and finds the key by it. A slow, salted hash would not allow this. It
is not needed, because the secret cannot be guessed.
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
"""Length of the secret in base 62."""
CHECKSUM_CHARS = 6
HINT_CHARS = 4
_FORM = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{SECRET_CHARS + CHECKSUM_CHARS}}}")


class KeyFormError(ValueError):
    """The text is not a key. The message gives the reason and does not contain the text."""


class ApiKey:
    """API key. Its `repr` and `str` show only the last characters. Raise KeyFormError for another text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        if not _FORM.fullmatch(text):
            raise KeyFormError(
                f"A Podium key is {PREFIX!r} followed by {SECRET_CHARS + CHECKSUM_CHARS} letters and digits."
            )
        if _checksum(text[:-CHECKSUM_CHARS]) != text[-CHECKSUM_CHARS:]:
            raise KeyFormError("A character is wrong or missing, because the checksum does not match.")
        self._text = text

    @classmethod
    def make(cls) -> Self:
        return cls.of(secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def of(cls, secret: bytes) -> Self:
        """Return the key whose secret consists of these 32 bytes."""
        assert len(secret) == SECRET_BYTES, "a key holds 256 bits"
        body = PREFIX + _base62(int.from_bytes(secret), SECRET_CHARS)
        return cls(body + _checksum(body))

    def reveal(self) -> str:
        """Return the complete text of the key. Show it only once, to the owner."""
        return self._text

    @property
    def hash(self) -> str:
        """SHA-256 of the key. The database looks keys up by it."""
        return hash_key(self._text)

    @property
    def hint(self) -> str:
        """Last characters of the key. Its owner recognizes the key by them."""
        return self._text[-HINT_CHARS:]

    def __repr__(self) -> str:
        return f"{PREFIX}…{self.hint}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ApiKey) and secrets.compare_digest(self._text, other._text)

    def __hash__(self) -> int:
        return hash(self._text)


def hash_key(text: str) -> str:
    """Return the SHA-256 that the database looks a key up by."""
    return hashlib.sha256(text.encode()).hexdigest()


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), CHECKSUM_CHARS)


def _base62(number: int, chars: int) -> str:
    digits: list[str] = []
    for _ in range(chars):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
