"""Server-sent events, read from bytes: in linear time, and no event larger than is held in memory.

The format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream. OpenAI's wires read
with `EventReader`. The SDKs of Anthropic and Google have readers of their own, which copy an event for each of its
lines or keep it however long it grows, so they are given whole events of one line of data each: `WholeEvents`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import httpx2

from serving.workers.http_guard import BodyRefused

BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 16 * 2**20
"""Of an event, unpacked; a picture in base64 fits."""
MOST_VALUES = 200_000
"""Of JSON in an event: likely tokens by the twenty are ten thousands. A value takes a hundred bytes once it is read."""
FIELDS = (b"event", b"id", b"retry")


class Event(NamedTuple):
    """One event."""

    name: bytes
    """Empty: it has none."""
    data: bytes


class EventReader:
    """Bytes as they arrive in, the events that became whole with them out.

    Args:
        most_values: of JSON in an event.
        takes_bare_lines: a line that is no field is data, too: Google tells some errors so.
    """

    def __init__(self, most_values: int = MOST_VALUES, *, takes_bare_lines: bool = False) -> None:
        self._most_values, self._takes_bare_lines = most_values, takes_bare_lines
        self._line = bytearray()
        """The beginning of a line whose end has not come."""
        self._data: list[bytes] = []
        self._name = b""
        self._n_bytes = 0
        """Of the lines of the event that has begun."""
        self._is_first = True
        self.is_done = False
        """`[DONE]` came: nothing is read after it."""

    def feed(self, piece: bytes) -> list[Event]:
        """The events with data that `piece` completes.

        Raises:
            BodyRefused: one is longer than `MAX_EVENT_BYTES`, or has too many values.
        """
        if self.is_done:
            return []
        lines = piece.split(b"\n")
        rest = lines.pop()
        events: list[Event] = []
        if lines:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
            self._read(lines, events)
        self._line += rest
        if self._n_bytes + len(self._line) > MAX_EVENT_BYTES:
            raise BodyRefused(f"sent an event of more than {MAX_EVENT_BYTES} bytes.")
        return events

    def end(self) -> list[Event]:
        """The event that has begun, for servers that do not end their last one."""
        events: list[Event] = []
        self._read([bytes(self._line), b""], events)
        return events

    def _read(self, lines: list[bytes], events: list[Event]) -> None:
        if self._is_first:
            lines[0], self._is_first = lines[0].removeprefix(BOM), False
        for each in lines:
            line = each.rstrip(b"\r")
            if not line:
                self._close(events)
                continue
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif field == b"event":
                self._name = value.removeprefix(b" ")
            elif self._takes_bare_lines and field and field not in FIELDS:
                self._data.append(line)
            else:
                continue
            self._n_bytes += len(line) + 1

    def _close(self, events: list[Event]) -> None:
        data, name = b"\n".join(self._data), self._name
        self._data, self._name, self._n_bytes = [], b"", 0
        self.is_done |= data.startswith(b"[DONE]")
        if has_more_values(data, self._most_values):
            raise BodyRefused(f"sent an event of more than {self._most_values} values.")
        if data and not self.is_done:
            events.append(Event(name, data))


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
        change: what becomes of each, its data on one line.
        takes_bare_lines: see `EventReader`.
    """

    def __init__(
        self,
        body: httpx2.AsyncByteStream,
        most_values: int,
        change: Callable[[Event], Event] | None = None,
        *,
        takes_bare_lines: bool = False,
    ) -> None:
        self._body, self._change = body, change
        self._reader = EventReader(most_values, takes_bare_lines=takes_bare_lines)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            for event in self._reader.feed(piece):
                yield self._written(event)
                await asyncio.sleep(0)  # whoever models it takes long; others have their turn in between
        for event in self._reader.end():
            yield self._written(event)

    def _written(self, event: Event) -> bytes:
        event = Event(event.name.replace(b"\r", b""), event.data.replace(b"\n", b" ").replace(b"\r", b" "))
        if self._change:
            event = self._change(event)
        name = b"event: " + event.name + b"\n" if event.name else b""
        return name + b"data: " + event.data + b"\n\n"

    async def aclose(self) -> None:
        """Close the body."""
        await self._body.aclose()
