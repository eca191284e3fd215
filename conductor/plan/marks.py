"""Tags that enclose untrusted texts in a prompt, and removal of header lines that vary between calls.

Such a tag is called a mark. Its name ends with a key, a word that does not occur in the enclosed text, so that
the text cannot close the tag itself.
"""

import base64
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence

from msgspec.structs import replace

from conductor.model.messages import Message, Text
from conductor.model.reply import Delta

_LINES = re.compile(r"^[ \t]*x-anthropic-[a-z-]+-header:[^\n]*(?:\n+|\Z)", re.IGNORECASE | re.MULTILINE)


def without_volatile_lines(text: str) -> str:
    """Remove `x-anthropic-…-header:` lines, which vary between calls, from `text`."""
    return _LINES.sub("", text) if "-header:" in text else text


def with_stable_system(messages: Iterable[Message]) -> list[Message]:
    """Remove the lines that vary between calls from system messages, and drop those that become empty."""
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
    remaining = tuple(
        part
        for part, before in zip(parts, message.parts, strict=True)
        if part == before or not isinstance(part, Text) or part.text
    )
    return replace(message, parts=remaining) if remaining else None


KEY_CHARS = 5
MARK_CHARS = 1000
"""Maximum length of a mark that an answer repeats, in characters. A longer one is assumed to end there."""


def mark_key(*texts: str) -> str:
    """Return a key for marks around `texts`: a word that occurs in none of them.

    It is computed from the first text, or from all of them if that word occurs in one. A text can contain its
    own key only by chance, so further attempts are rare.
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
    """Enclose `text` in an opening and a closing mark.

    In attribute values, line breaks become spaces, and double quotes become single quotes.
    """
    facts = "".join(f' {each}="{_one_line(value)}"' for each, value in attributes.items())
    return f"<{name}-{key}{facts}>\n{text}\n</{name}-{key}>"


def read_marked(name: str, key: str, text: str) -> tuple[list[str], str]:
    """Return the texts between the marks with this name and key, and the text after the last mark.

    Marks with another key are ordinary text.
    """
    matches = list(re.finditer(rf"<{name}-{key}[^\n]*>\n(.*?)\n</{name}-{key}>", text, re.DOTALL))
    return [each[1] for each in matches], text[matches[-1].end() :] if matches else text


def _one_line(value: str) -> str:
    return " ".join(value.replace('"', "'").split())


class EchoFilter:
    """Removes the prompt's marks from a streaming answer that repeats them. All other text passes unchanged.

    Text that may be the beginning of a mark is held back until the next characters decide. The result
    therefore does not depend on how the answer is split into deltas.

    Args:
        name: name of the marks.
        key: key of the marks. It occurs neither in the texts between them nor in the user's text.
    """

    def __init__(self, name: str, key: str) -> None:
        self._openings = (f"<{name}-{key}", f"</{name}-{key}")
        self._pending = ""
        self._is_inside = self._has_just_ended = False
        self._is_quoted = False
        self._mark_chars = 0
        self.removed = 0
        """Number of marks that were removed."""

    async def filter(self, deltas: AsyncIterator[Delta]) -> AsyncGenerator[Delta]:
        """Yield `deltas` without the marks."""
        async for delta in deltas:
            yield replace(delta, text=self.feed(delta.text)) if delta.text else delta
        if rest := self.finish():
            yield Delta(rest)

    def feed(self, text: str) -> str:
        """Read the next text of the answer, and return the text that can be passed on."""
        if "<" not in text and not (self._pending or self._is_inside or self._has_just_ended):
            return text
        return "".join(map(self._next, text))

    def finish(self) -> str:
        """End the answer, and return the text that was held back, because it is not a mark."""
        pending, self._pending = self._pending, ""
        return pending

    def _next(self, char: str) -> str:
        if self._is_inside:
            self._skip(char)
            return ""
        if self._has_just_ended:
            self._has_just_ended = False
            if char == "\n":
                return ""
        self._pending += char
        if self._pending in self._openings:
            self._pending, self._is_inside, self._is_quoted, self._mark_chars = "", True, False, 0
            self.removed += 1
            return ""
        text = ""
        while self._pending and not any(opening.startswith(self._pending) for opening in self._openings):
            text, self._pending = text + self._pending[0], self._pending[1:]
        return text

    def _skip(self, char: str) -> None:
        """Skip the rest of a mark, up to its closing bracket or the end of the line."""
        self._mark_chars += 1
        if char == '"':
            self._is_quoted = not self._is_quoted
        ends = (char == ">" and not self._is_quoted) or char == "\n" or self._mark_chars >= MARK_CHARS
        if ends:
            self._is_inside, self._has_just_ended = False, char == ">"
