"""Marks that keep texts of others apart, and lines that differ from call to call."""

import base64
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence

from msgspec.structs import replace

from conductor.model.messages import Message, Text
from conductor.model.reply import Delta

_LINES = re.compile(r"^[ \t]*x-anthropic-[a-z-]+-header:[^\n]*(?:\n+|\Z)", re.IGNORECASE | re.MULTILINE)


def without_volatile_lines(text: str) -> str:
    """Return `text` without them."""
    return _LINES.sub("", text) if "-header:" in text else text


def with_stable_system(messages: Iterable[Message]) -> list[Message]:
    """Return `messages` without such lines in their system messages; what holds nothing else is left out."""
    return [stable for message in messages if (stable := _stable(message)) is not None]


def _stable(message: Message) -> Message | None:
    if message.role != "system":
        return message
    parts = [
        replace(part, text=without_volatile_lines(part.text)) if isinstance(part, Text) else part
        for part in message.parts
    ]
    if parts == list(message.parts):
        return message
    kept = tuple(
        part
        for part, before in zip(parts, message.parts, strict=True)
        if part == before or not isinstance(part, Text) or part.text
    )
    return replace(message, parts=kept) if kept else None


KEY_CHARS = 5
MARK_CHARS = 1000
"""An echoed mark that has not ended by then is taken to end there."""


def mark_key(*texts: str) -> str:
    """A word that occurs in none of `texts`: computed from the first, or where that one occurs, from all of
    them.

    Nobody can write a text that holds the keys computed from it, so the second try is hardly ever followed
    by a third.
    """
    digest = hashlib.sha256(without_volatile_lines(texts[0]).encode("utf-8", "surrogatepass"))
    key = _word(digest.digest())
    if _occurs(key, texts):
        for text in texts[1:]:
            digest.update(text.encode("utf-8", "surrogatepass"))
    while _occurs(key, texts):
        digest.update(b" ")
        key = _word(digest.digest())
    return key


def _word(digest: bytes) -> str:
    return base64.b32encode(digest)[:KEY_CHARS].decode().lower()


def _occurs(key: str, texts: Sequence[str]) -> bool:
    return any(key in text for text in texts)


def enclose(name: str, key: str, text: str, **attributes: str) -> str:
    """`text` inside a mark of its own. Values of attributes become one line, their double quotes single
    ones.
    """
    facts = "".join(f' {each}="{_one_line(value)}"' for each, value in attributes.items())
    return f"<{name}-{key}{facts}>\n{text}\n</{name}-{key}>"


def read_marked(name: str, key: str, text: str) -> tuple[list[str], str]:
    """The texts inside the marks with that name and key in `text`, and what follows the last of them.

    The key is that of `mark_key`: marks with another one are words of whoever wrote them.
    """
    found = list(re.finditer(rf"<{name}-{key}[^\n]*>\n(.*?)\n</{name}-{key}>", text, re.DOTALL))
    return [each[1] for each in found], text[found[-1].end() :] if found else text


def _one_line(value: str) -> str:
    return " ".join(value.replace('"', "'").split())


class EchoFilter:
    """Removes the marks of a prompt from an answer that repeats them, while the answer is written.
    Everything else passes unchanged.

    What may be the beginning of a mark is held back until it is decided, so it does not matter how the
    answer is cut into pieces.

    Args:
        name: of the marks.
        key: of the marks; it does not occur in the texts inside them, nor in the user's.
    """

    def __init__(self, name: str, key: str) -> None:
        self._openings = (f"<{name}-{key}", f"</{name}-{key}")
        self._held = ""
        self._is_inside = self._has_just_ended = False
        self._is_quoted = False
        self._mark_chars = 0
        self.removed = 0
        """How many marks were removed."""

    async def filter(self, deltas: AsyncIterator[Delta]) -> AsyncGenerator[Delta]:
        """`deltas` without the marks."""
        async for delta in deltas:
            yield replace(delta, text=self.feed(delta.text)) if delta.text else delta
        if rest := self.finish():
            yield Delta(rest)

    def feed(self, text: str) -> str:
        """What may be shown once `text` has come."""
        if "<" not in text and not (self._held or self._is_inside or self._has_just_ended):
            return text
        return "".join(map(self._next, text))

    def finish(self) -> str:
        """What was held back and is no mark after all."""
        held, self._held = self._held, ""
        return held

    def _next(self, char: str) -> str:
        if self._is_inside:
            self._skip(char)
            return ""
        if self._has_just_ended:
            self._has_just_ended = False
            if char == "\n":
                return ""
        self._held += char
        if self._held in self._openings:
            self._held, self._is_inside, self._is_quoted, self._mark_chars = "", True, False, 0
            self.removed += 1
            return ""
        shown = ""
        while self._held and not any(opening.startswith(self._held) for opening in self._openings):
            shown, self._held = shown + self._held[0], self._held[1:]
        return shown

    def _skip(self, char: str) -> None:
        """Pass over the rest of a mark: to its bracket, or to the end of its line where it has none."""
        self._mark_chars += 1
        if char == '"':
            self._is_quoted = not self._is_quoted
        ends = (char == ">" and not self._is_quoted) or char == "\n" or self._mark_chars >= MARK_CHARS
        if ends:
            self._is_inside, self._has_just_ended = False, char == ">"
