"""Records in the memory of one replica."""

import heapq
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator

from conductor.model.messages import Message, Text
from conductor.run.record import Record
from serving.settings.settings import LimitSettings


class MemoryStore:
    """The newest runs of this replica, in its memory; gone with it.

    Args:
        limits: how many are kept, and how many bytes of them; asked at every `put`, because settings change.
    """

    def __init__(self, limits: Callable[[], LimitSettings]) -> None:
        self._limits = limits
        self._records = OrderedDict[str, Record]()
        self._bytes = dict[str, int]()

    async def put(self, record: Record) -> None:
        """See `RecordStore.put`."""
        limits = self._limits()
        self._records[record.id], self._bytes[record.id] = record, weight(record)
        total_bytes = sum(self._bytes.values())
        while len(self._records) > limits.records or (
            len(self._records) > 1 and total_bytes > limits.records_bytes
        ):
            oldest, _ = self._records.popitem(last=False)
            total_bytes -= self._bytes.pop(oldest)

    async def get(self, id: str) -> Record | None:
        """See `RecordStore.get`."""
        return self._records.get(id)

    async def newest(self, limit: int) -> list[Record]:
        """See `RecordStore.newest`."""
        return heapq.nlargest(limit, self._records.values(), key=lambda record: record.created)


BYTES_BESIDE_TEXT = 4_000
"""Of a record: numbers, names, objects."""


def weight(record: Record) -> int:
    """About how many bytes of memory `record` holds. A text that several steps were shown is one object, and counts once."""
    return BYTES_BESIDE_TEXT + sum({id(text): sys.getsizeof(text) for text in _texts(record)}.values())


def _texts(record: Record) -> Iterator[str]:
    yield record.answer
    for call in record.calls:
        yield from (call.output, call.reasoning)
        if isinstance(call.inner, Record):
            yield from _texts(call.inner)
    for plan in record.plans:
        yield from _of(plan.prompt)
        for step in plan.steps:
            yield step.subtask
            yield from _of(step.prompt)


def _of(prompt: tuple[Message, ...]) -> Iterator[str]:
    for message in prompt:
        for part in message.parts:
            yield part.text if isinstance(part, Text) else part.url
