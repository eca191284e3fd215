"""Images and files of a conversation: which workers can read them, and their description for the conductor.

The conductor never sees their content.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from conductor.model.messages import File, Image, Message, Part, Text, ToolResult
from conductor.model.worker import PoolMember
from conductor.plan.marks import enclose, mark_key

NO_IMAGE = "[A picture is here that this model cannot see.]"
BLIND_NOTE = (
    "The user's images were not sent, because this worker cannot see images (`sees_images`) or cannot fetch them from "
    "their URLs (`fetches_pictures`)."
)
NO_PDF_NOTE = "The user's PDFs were not sent, because this worker cannot read PDFs (`reads_pdfs`)."
MOST_NAMED = 64
"""Maximum number of attachments that are listed. The rest are counted."""
FILE = "file"
"""Name of the tags that enclose a text file (`marks.py`)."""
Leaf = Text | Image | File


def reads(member: PoolMember, part: Part) -> bool:
    """Return whether `member` can read `part`."""
    match part:
        case Image():
            return member.sees_images
        case File(text=None):
            return member.reads_pdfs
        case _:
            return True


def fit(messages: Iterable[Message], member: PoolMember) -> list[Message]:
    """Convert `messages`, including tool results, to what `member` can read.

    A text file becomes text between tags. A line of text replaces each attachment that the worker cannot read.
    """

    def show(part: Leaf) -> Leaf:
        if not reads(member, part):
            return Text(
                NO_IMAGE
                if isinstance(part, Image)
                else f"[{_name_of(part)} is here that this model cannot read.]",
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
