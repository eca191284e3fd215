"""Parser for server-sent events, in linear time and bounded memory.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream. The workers
for OpenAI's API use `EventReader`. The SDKs of Anthropic and Google parse events themselves, but they copy an
event for each of its lines, or buffer it without a limit. `WholeEvents` therefore passes them only complete
events, each with one line of data.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from math import inf
from typing import Any, NamedTuple

import httpx2
import msgspec

from serving.workers.http_guard import BodyRefused, in_small_pieces

BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 * 2**20
"""Size limit of a decompressed event. A picture in base64 fits."""
MOST_VALUES = 200_000
"""Maximum JSON values of an event, 100 bytes each. Log probabilities need tens of thousands."""
FIELDS = (b"data", b"event", b"id", b"retry", b"")
"""Field names of an event. A line with an empty name is a comment."""
PLAIN = b"data: "
JSON_BEGINS, JSON_ENDS = (b"{", b"["), (b"}", b"]")
MOST_EMPTY = 100_000
"""Maximum lines and events without content in one answer. A ping per second is 3,600 in an hour."""
MOST_EMPTY_BYTES = 64 * 2**20
"""Size limit of such lines and events together."""
MOST_BLANK = 100
"""Number of bytes at the end of a line that are searched for the end of its JSON."""
MOST_DIGITS = 100
"""Number of digits from which an integer is read as infinity."""


class Event(NamedTuple):
    name: bytes
    """Type of the event, or b"" if it has none."""
    data: bytes


class EventReader:
    """Incremental parser: takes bytes as they arrive, and returns the events that they complete.

    It also accepts JSON without `data:` (a complete answer or an error), and events without a blank line
    between.
    """

    def __init__(self, most_values: int = MOST_VALUES) -> None:
        self._most_values = most_values
        self._line = bytearray()
        """Beginning of an incomplete line."""
        self._data: list[bytes] = []
        self._name = b""
        self._n_bytes = 0
        """Size of the current event's complete lines."""
        self._n_empty = self._n_empty_bytes = 0
        self._is_first = True
        self._is_bare = False
        """True if the current event is JSON without `data:`."""
        self.is_done = False
        """True if `[DONE]` has arrived. Later bytes are ignored."""

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events with data that `piece` completes, or raise BodyRefused for too much without
        content.
        """
        if self.is_done:
            return []
        events: list[Event] = []
        if b"\n\n" in piece and not (self._data or self._name):
            piece = self._read_plain(bytes(self._line) + piece, events)
            self._line.clear()
        lines = piece.split(b"\n")
        rest = lines.pop()
        if lines:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
            self._read(lines, events)
        self._line += rest
        if self._n_bytes + len(self._line) > MAX_EVENT_BYTES:
            raise BodyRefused(f"The server sent an event of more than {MAX_EVENT_BYTES} bytes.")
        return events

    def _read_plain(self, piece: bytes, events: list[Event]) -> bytes:
        """Read events in the usual form, JSON after `data: `. Return the rest from the first other one."""
        at = 0
        while (end := piece.find(b"\n\n", at)) >= 0:
            data = piece[at + len(PLAIN) : end]
            if (
                not piece.startswith(PLAIN, at)
                or data[:1] != b"{"
                or data[-1:] != b"}"
                or b"\n" in data
                or b"\r" in data
            ):
                break
            if len(data) > self._most_values and has_more_values(data, self._most_values):
                raise BodyRefused(f"The server sent an event of more than {self._most_values} JSON values.")
            events.append(Event(b"", data))
            at, self._is_first = end + 2, False
        return piece[at:]

    def end(self) -> list[Event]:
        """Return the event that is still open, because some servers do not terminate their last event."""
        events: list[Event] = []
        if not self.is_done:
            self._read([bytes(self._line)], events)
            self._line.clear()
            self._close(events)
        return events

    def skip(self, n_bytes: int) -> None:
        """Count a line or an event without content. Raise BodyRefused if there are too many."""
        self._n_empty += 1
        self._n_empty_bytes += n_bytes
        if self._n_empty > MOST_EMPTY:
            raise BodyRefused(f"The server sent more than {MOST_EMPTY} events without content.")
        if self._n_empty_bytes > MOST_EMPTY_BYTES:
            raise BodyRefused(f"The server sent more than {MOST_EMPTY_BYTES} bytes without content.")

    def _read(self, lines: list[bytes], events: list[Event]) -> None:
        if self._is_first:
            lines[0], self._is_first = lines[0].removeprefix(BOM), False
        for each in lines:
            line = each.rstrip(b"\r")
            if not line:
                self._read_blank(events)
                continue
            field, _, value = line.partition(b":")
            if field not in FIELDS:
                field = field.strip().lower()
            if self._is_bare and field in FIELDS:
                self._close(events)
            if self._is_bare or (field not in FIELDS and line.lstrip().startswith(JSON_BEGINS)):
                self._is_bare |= not self._data
                self._data.append(line)
            elif field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif field == b"event":
                self._name = value.removeprefix(b" ")
            else:
                self.skip(len(line) + 1)
                continue
            self._n_bytes += len(line) + 1

    def _read_blank(self, events: list[Event]) -> None:
        if not self._is_bare or self._data[-1][-MOST_BLANK:].rstrip().endswith(JSON_ENDS):
            self._close(events)
        else:
            self.skip(1)

    def _close(self, events: list[Event]) -> None:
        lines, name = self._data, self._name
        self._data, self._name, self._n_bytes, self._is_bare = [], b"", 0, False
        for data in lines if len(lines) > 1 and all(map(_is_whole, lines)) else [b"\n".join(lines)]:
            self.is_done |= _is_end(data)
            if has_more_values(data, self._most_values):
                raise BodyRefused(f"The server sent an event of more than {self._most_values} JSON values.")
            if data and data != b"null" and not self.is_done:
                events.append(Event(name, data))
            else:
                self.skip(len(data))


def json_of(data: bytes) -> Any:
    """Return the JSON in an event's data. `json` reads huge numbers, lone surrogates and bad UTF-8, which
    msgspec rejects.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return json.loads(data.decode("utf-8", "replace"), parse_int=_integer)
    except (ValueError, RecursionError) as exc:
        raise msgspec.DecodeError("Not valid JSON.") from exc


def without_framing(body: bytes) -> bytes:
    """Return the JSON of an answer without a stream, even if the server sent it as an event."""
    body = body.removeprefix(BOM).strip()
    return body if body.startswith(JSON_BEGINS) else body.partition(b"data:")[2].partition(b"\ndata:")[0]


def _integer(digits: str) -> float:
    return int(digits) if len(digits) < MOST_DIGITS else inf


def _is_whole(line: bytes) -> bool:
    """Return whether a line is a complete event. Some servers send no blank lines between events."""
    line = line.strip()
    return (line.startswith(b"{") and line.endswith(b"}")) or _is_end(line)


def _is_end(data: bytes) -> bool:
    return data.strip(b' "').startswith((b"[DONE]", b"[done]"))


def has_more_values(data: bytes, most: int) -> bool:
    """Return whether `data`, if it is JSON, has more than `most` values. Lists and objects count as well."""
    if len(data) <= most or _separators(data) <= most:
        return False
    # after removing escapes, every quotation mark begins or ends a string
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 4 * most:
        return True
    return _separators(b"".join(bare.split(b'"')[::2])) > most


def _separators(data: bytes) -> int:
    return data.count(b",") + data.count(b"{") + data.count(b"[")


class WholeEvents(httpx2.AsyncByteStream):
    """Response body that yields only complete events, each with its data on one line. Line ends in JSON may
    be spaces. The SDKs take up to 0.2 ms per value.

    Args:
        change: function that returns the events to pass on in place of an event.
    """

    def __init__(
        self, body: httpx2.AsyncByteStream, most_values: int, change: Callable[[Event], Iterable[Event]]
    ) -> None:
        self._body, self._change = body, change
        self._reader = EventReader(most_values)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with aclosing(in_small_pieces(aiter(self._body))) as pieces:
            async for piece in pieces:
                for event in self._reader.feed(piece):
                    is_empty = True
                    for each in self._change(event):
                        is_empty = False
                        yield _encode(each)
                    if is_empty:
                        self._reader.skip(len(event.data))
                    await asyncio.sleep(0)  # the SDK takes long for each event, so let other tasks run
        for event in self._reader.end():
            for each in self._change(event):
                yield _encode(each)

    async def aclose(self) -> None:
        await self._body.aclose()


def _encode(event: Event) -> bytes:
    name = b"event: " + event.name.replace(b"\r", b"") + b"\n" if event.name else b""
    data = event.data.replace(b"\n", b" ").replace(b"\r", b" ")
    return name + b"data: " + data.decode("utf-8", "replace").encode() + b"\n\n"
