"""Records in the memory of one replica."""

import heapq
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator

from conductor.model.messages import Message, Text
from conductor.run.record import Record, RunRecords
from serving.accounts.caller import Caller
from serving.settings.sections import LimitSettings


class MemoryStore:
    """The newest runs of this replica, in its memory; gone with it.

    Args:
        limits: how many are kept, and how many bytes of them; asked at every `put`, because settings change.
    """

    def __init__(self, limits: Callable[[], LimitSettings]) -> None:
        self._limits = limits
        self._runs = OrderedDict[str, RunRecords]()
        self._bytes = dict[str, int]()

    async def put(self, records: RunRecords) -> None:
        """See `RecordStore.put`."""
        limits = self._limits()
        id = records.record.id
        self._runs[id], self._bytes[id] = records, weight(records)
        total_bytes = sum(self._bytes.values())
        while len(self._runs) > limits.records or (
            len(self._runs) > 1 and total_bytes > limits.records_bytes
        ):
            oldest, _ = self._runs.popitem(last=False)
            total_bytes -= self._bytes.pop(oldest)

    async def get(self, id: str) -> RunRecords | None:
        """See `RecordStore.get`."""
        return self._runs.get(id)

    async def newest(self, limit: int, caller: Caller) -> list[RunRecords]:
        """See `RecordStore.newest`."""
        visible = (run for run in self._runs.values() if caller.sees(run.record.account))
        return heapq.nlargest(limit, visible, key=lambda run: run.record.created)


BYTES_BESIDE_TEXT = 4_000
"""Of a record: numbers, names, objects."""


def weight(records: RunRecords) -> int:
    """About how many bytes of memory a run holds. A text that several steps were shown is one object, and
    counts once.
    """
    texts = {id(text): sys.getsizeof(text) for record in records for text in _texts(record)}
    return BYTES_BESIDE_TEXT * (1 + len(records.inner)) + sum(texts.values())


def _texts(record: Record) -> Iterator[str]:
    yield record.answer
    yield from _of(record.task.conversation)
    for call in record.calls:
        yield from (call.output, call.reasoning)
    for plan in record.plans:
        yield from _of(plan.prompt)
        for step in plan.steps:
            yield step.subtask
            yield step.needs
            yield from _of(step.prompt)


def _of(messages: tuple[Message, ...]) -> Iterator[str]:
    for message in messages:
        for part in message.parts:
            yield part.text if isinstance(part, Text) else part.url
