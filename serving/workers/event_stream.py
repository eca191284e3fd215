"""Server-sent events, read from bytes: in linear time, and no event larger than is held in memory.

The format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream. OpenAI's wires read
with `EventReader`. The SDKs of Anthropic and Google have readers of their own, which copy an event for each of its
lines or keep it however long it grows, so they are given whole events of one line of data each: `WholeEvents`.
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
"""Of an event, unpacked; a picture in base64 fits."""
MOST_VALUES = 200_000
"""Of JSON in an event: likely tokens by the twenty are ten thousands. A value takes a hundred bytes once it is read."""
FIELDS = (b"data", b"event", b"id", b"retry", b"")
"""Of an event; the last one is a comment's."""
PLAIN = b"data: "
JSON_BEGINS, JSON_ENDS = (b"{", b"["), (b"}", b"]")
MOST_EMPTY = 100_000
"""Lines and events of one answer that hold nothing: blank ones, comments, pings and events of unknown names. A ping a
second is 3,600 in an hour."""
MOST_EMPTY_BYTES = 64 * 2**20
"""Of such lines and events."""
MOST_BLANK = 100
"""Bytes after JSON at the end of a line."""
MOST_DIGITS = 100
"""Of an integer that is read as one."""


class Event(NamedTuple):
    """One event."""

    name: bytes
    """Empty: it has none."""
    data: bytes


class EventReader:
    """Bytes as they arrive in, the events that became whole with them out.

    Reads what servers send in place of events, too: JSON without `data:` (a whole answer, or an error), and events with
    no blank line between them.

    Args:
        most_values: of JSON in an event.
    """

    def __init__(self, most_values: int = MOST_VALUES) -> None:
        self._most_values = most_values
        self._line = bytearray()
        """The beginning of a line whose end has not come."""
        self._data: list[bytes] = []
        self._name = b""
        self._n_bytes = 0
        """Of the lines of the event that has begun."""
        self._n_empty = self._n_empty_bytes = 0
        self._is_first = True
        self._is_bare = False
        """The event that has begun is JSON without `data:`."""
        self.is_done = False
        """`[DONE]` came: nothing is read after it."""

    def feed(self, piece: bytes) -> list[Event]:
        """The events with data that `piece` completes.

        Raises:
            BodyRefused: one is longer than `MAX_EVENT_BYTES`, or has too many values; or too much came without content.
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
            raise BodyRefused(f"sent an event of more than {MAX_EVENT_BYTES} bytes.")
        return events

    def _read_plain(self, piece: bytes, events: list[Event]) -> bytes:
        """Read events as nearly all servers send them: one line of JSON after `data: `. Return the rest of the piece, from
        the first event on that is not like that.
        """
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
                raise BodyRefused(f"sent an event of more than {self._most_values} values.")
            events.append(Event(b"", data))
            at, self._is_first = end + 2, False
        return piece[at:]

    def end(self) -> list[Event]:
        """The event that has begun, for servers that do not end their last one."""
        events: list[Event] = []
        if not self.is_done:
            self._read([bytes(self._line)], events)
            self._line.clear()
            self._close(events)
        return events

    def skip(self, n_bytes: int) -> None:
        """Count a line or an event that holds nothing.

        Raises:
            BodyRefused: there are too many.
        """
        self._n_empty += 1
        self._n_empty_bytes += n_bytes
        if self._n_empty > MOST_EMPTY:
            raise BodyRefused(f"sent more than {MOST_EMPTY} events without content.")
        if self._n_empty_bytes > MOST_EMPTY_BYTES:
            raise BodyRefused(f"sent more than {MOST_EMPTY_BYTES} bytes without content.")

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
                raise BodyRefused(f"sent an event of more than {self._most_values} values.")
            if data and data != b"null" and not self.is_done:
                events.append(Event(name, data))
            else:
                self.skip(len(data))


def json_of(data: bytes) -> Any:
    """The JSON in an event's data; also where it holds numbers, halves of characters or bytes that msgspec does not read.

    Raises:
        msgspec.DecodeError: it is none.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return json.loads(data.decode("utf-8", "replace"), parse_int=_integer)
    except (ValueError, RecursionError) as exc:
        raise msgspec.DecodeError("This is no JSON.") from exc


def without_framing(body: bytes) -> bytes:
    """Return the JSON of an answer that was to be no stream, though its server sent it as an event."""
    body = body.removeprefix(BOM).strip()
    return body if body.startswith(JSON_BEGINS) else body.partition(b"data:")[2].partition(b"\ndata:")[0]


def _integer(digits: str) -> float:
    return int(digits) if len(digits) < MOST_DIGITS else inf


def _is_whole(line: bytes) -> bool:
    """Whether a line of an event is one of its own: its server sends no blank line between events."""
    line = line.strip()
    return (line.startswith(b"{") and line.endswith(b"}")) or _is_end(line)


def _is_end(data: bytes) -> bool:
    return data.strip(b' "').startswith((b"[DONE]", b"[done]"))


def has_more_values(data: bytes, most: int) -> bool:
    """Whether `data`, if it is JSON, holds more values than `most`, in lists and objects that are counted, too."""
    if len(data) <= most or _separators(data) <= most:
        return False
    # without what is escaped, quotation marks are around strings
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 4 * most:
        return True
    return _separators(b"".join(bare.split(b'"')[::2])) > most


def _separators(data: bytes) -> int:
    return data.count(b",") + data.count(b"{") + data.count(b"[")


class WholeEvents(httpx2.AsyncByteStream):
    """A body of events, one by one, each with its data on one line: JSON means the same with its line ends as blanks.

    Args:
        body: unpacked.
        most_values: see `EventReader`; an SDK's model of each takes up to 0.2 ms.
        change: what becomes of each.
    """

    def __init__(
        self,
        body: httpx2.AsyncByteStream,
        most_values: int,
        change: Callable[[Event], Iterable[Event]],
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
                        yield _written(each)
                    if is_empty:
                        self._reader.skip(len(event.data))
                    await asyncio.sleep(0)  # whoever models it takes long; others have their turn in between
        for event in self._reader.end():
            for each in self._change(event):
                yield _written(each)

    async def aclose(self) -> None:
        """Close the body."""
        await self._body.aclose()


def _written(event: Event) -> bytes:
    name = b"event: " + event.name.replace(b"\r", b"") + b"\n" if event.name else b""
    data = event.data.replace(b"\n", b" ").replace(b"\r", b" ")
    return name + b"data: " + data.decode("utf-8", "replace").encode() + b"\n\n"
