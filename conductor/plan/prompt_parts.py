"""Parts of prompts: tags around untrusted texts, header lines that vary between calls, and images and files.

A tag around an untrusted text is called a mark. Its name ends with a key, a word that does not occur in the
enclosed text, so that the text cannot close the tag itself.

The conductor sees the names of images and files, but never their content.
"""

import base64
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from conductor.model.messages import File, Image, Message, Part, Text, ToolResult
from conductor.model.reply import Delta
from conductor.model.worker import PoolMember

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
    """Return a key for marks: a word that occurs in none of `texts`. It is computed from the first text, or
    from all if the word occurs in one.
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
    """Enclose `text` in marks. In attributes, line breaks become spaces, and double quotes single ones."""
    facts = "".join(f' {each}="{_one_line(value)}"' for each, value in attributes.items())
    return f"<{name}-{key}{facts}>\n{text}\n</{name}-{key}>"


def read_marked(name: str, key: str, text: str) -> tuple[list[str], str]:
    """Return the texts between marks of this name and key, and the text after the last one."""
    matches = list(re.finditer(rf"<{name}-{key}[^\n]*>\n(.*?)\n</{name}-{key}>", text, re.DOTALL))
    return [each[1] for each in matches], text[matches[-1].end() :] if matches else text


def _one_line(value: str) -> str:
    return " ".join(value.replace('"', "'").split())


class EchoFilter:
    """Removes the prompt's marks from a streaming answer that repeats them. All other text passes unchanged.

    Text that may be the beginning of a mark is held back until the next characters decide. The result
    therefore does not depend on how the answer is split into deltas.
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
        async for delta in deltas:
            yield replace(delta, text=self.feed(delta.text)) if delta.text else delta
        if rest := self.finish():
            yield Delta(rest)

    def feed(self, text: str) -> str:
        """Process the next piece of the answer, and return the text that can be passed on."""
        if "<" not in text and not (self._pending or self._is_inside or self._has_just_ended):
            return text
        return "".join(map(self._next, text))

    def finish(self) -> str:
        """Return the text that is still held back. At the end of the answer, it cannot become a mark."""
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


NO_IMAGE = "[Image omitted: this model cannot read images.]"
BLIND_NOTE = (
    "The user's images were not sent, because this worker cannot see images (`sees_images`) or cannot fetch them from "
    "their URLs (`fetches_pictures`)."
)
NO_PDF_NOTE = "The user's PDFs were not sent, because this worker cannot read PDFs (`reads_pdfs`)."
MOST_NAMED = 64
"""Maximum number of attachments that are listed. The rest are counted."""
FILE = "file"
"""Name of the marks around a text file."""
Leaf = Text | Image | File


def reads(member: PoolMember, part: Part) -> bool:
    match part:
        case Image():
            return member.sees_images
        case File(text=None):
            return member.reads_pdfs
        case _:
            return True


def fit(messages: Iterable[Message], member: PoolMember) -> list[Message]:
    """Convert messages and tool results for `member`: text files to tags, attachments it cannot read to a
    line.
    """

    def show(part: Leaf) -> Leaf:
        if not reads(member, part):
            return Text(
                NO_IMAGE
                if isinstance(part, Image)
                else f"[{_name_of(part)} was omitted: this model cannot read PDFs.]",
                part.cache,
            )
        if isinstance(part, File) and part.text is not None:
            marked = enclose(FILE, mark_key(part.text, part.name), part.text, file=part.name)
            return Text(marked, part.cache)
        return part

    return [_map(message, show) for message in messages]


def omission_notes(conversation: Sequence[Message], member: PoolMember) -> tuple[str, ...]:
    """Return notes for the record about the attachments that were not sent to `member`."""
    has_image = any(message.has_image for message in conversation)
    has_pdf = any(message.has_pdf for message in conversation)
    return (
        *((BLIND_NOTE,) if has_image and not member.sees_images else ()),
        *((NO_PDF_NOTE,) if has_pdf and not member.reads_pdfs else ()),
    )


def with_names(messages: Iterable[Message]) -> list[Message]:
    """Replace each image and file in `messages` by a line of text."""

    def show(part: Leaf) -> Leaf:
        match part:
            case Image():
                return Text(NO_IMAGE)
            case File():
                return Text(f"[{_name_of(part)} is here.]")
            case _:
                return part

    return [_map(message, show) for message in messages]


def describe_attachments(conversation: Iterable[Message], pool: Sequence[PoolMember]) -> str:
    """Return the description of all attachments for the conductor, or "" if there are none."""
    parts = [part for message in conversation for part in message.all_parts if isinstance(part, Image | File)]
    if not parts:
        return ""
    lines = [f"- {_describe(part)}: {_readers(part, pool)}" for part in parts[:MOST_NAMED]]
    more = len(parts) - MOST_NAMED
    return "\n".join(["Attached:", *lines, *([f"- and {more} more"] if more > 0 else [])])


def _readers(part: Image | File, pool: Sequence[PoolMember]) -> str:
    able = [str(number) for number, member in enumerate(pool) if reads(member, part)]
    if len(able) == len(pool):
        return "every worker can use it"
    return f"only {', '.join(able)} can use it" if able else "no worker can use it"


def _describe(part: Image | File) -> str:
    if isinstance(part, Image):
        kind = part.url[len("data:") :].partition(";")[0] if part.url.startswith("data:") else "by address"
        return f"a picture ({kind[:40]})"
    return f"{part.name} ({'PDF' if part.text is None else 'text'}, {_size(part.n_bytes)})"


def _name_of(part: Part) -> str:
    name = part.name if isinstance(part, File) else ""
    kind = "The text file" if isinstance(part, File) and part.text is not None else "The PDF"
    return f"{kind} {name}"


def _size(n_bytes: int) -> str:
    return f"{n_bytes} bytes" if n_bytes < 1000 else f"{n_bytes / 1000:,.0f} kB"


def _map(message: Message, show: Callable[[Leaf], Leaf]) -> Message:
    if not any(isinstance(part, Image | File) for part in message.all_parts):
        return message
    return replace(message, parts=tuple(_map_parts(message.parts, show)))


def _map_parts(parts: Iterable[Part], show: Callable[[Leaf], Leaf]) -> Iterator[Part]:
    for part in parts:
        match part:
            case ToolResult():
                yield replace(part, parts=tuple(show(each) for each in part.parts))
            case Text() | Image() | File():
                yield show(part)
            case _:
                yield part
