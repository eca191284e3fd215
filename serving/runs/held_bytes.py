"""How many bytes the conversations have that this router works on: texts, pictures and files.

A place counts a run, whatever it holds, and one may hold as much as `limits.max_body_bytes`. So these are counted too: of
runs under way, of who follows one, and of files while they are read.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from sys import getsizeof
from typing import Any, cast

from conductor.errors import Overloaded
from conductor.model.messages import File, Image, Message, Part, Text, ToolCall, ToolResult
from conductor.model.priority import Priority
from conductor.run.record import Account, Record
from conductor.run.task import Task
from conductor.run.turns import Given
from serving.settings.settings import Settings
from serving.shares import KEPT, share

SMALL_BYTES = 65_536
"""Who holds no more is always let in: `limits.max_running` bounds what these hold together."""
RETRY_AFTER_S = 5.0


class HeldBytes:
    """Those of one router, by whoever holds them: the id of a run, or something of its own.

    Args:
        unwritten: what runs hold that have ended and are not written yet, by the id of their key.
    """

    def __init__(self, unwritten: Callable[[], Counter[str]] = Counter) -> None:
        self._held, self._unwritten = dict[object, tuple[str, int]](), unwritten

    def check(self, account: Account, n_bytes: int, priority: Priority, settings: Settings) -> None:
        """Whether there is room for as many more. Where nobody holds any, there always is.

        Raises:
            Overloaded: there is none, or none for what can wait, or the key has its share of it.
        """
        if n_bytes <= SMALL_BYTES:
            return
        of_keys = self._unwritten()
        for key_id, held_bytes in self._held.values():
            of_keys[key_id] += held_bytes
        most = settings.limits.max_running_bytes * (settings.batches.room if priority == "batch" else 1)
        room = most - of_keys.total()
        has_share = bool(account.key_id) and of_keys[account.key_id] >= share(of_keys)
        if of_keys and n_bytes > room - (KEPT * most if has_share else 0):
            message = (
                "The requests under way here, and those not written to the store yet, hold limits.max_running_bytes. "
                "Try again soon."
            )
            raise Overloaded(message, retry_after_s=RETRY_AFTER_S, param="limits.max_running_bytes")

    def put(self, holder: object, account: Account, n_bytes: int) -> None:
        """Count what `holder` holds."""
        self._held[holder] = (account.key_id, n_bytes)

    def has(self, holder: object) -> bool:
        """Whether it is counted what `holder` holds."""
        return holder in self._held

    def leave(self, holder: object) -> None:
        """It holds nothing any more."""
        self._held.pop(holder, None)

    @contextmanager
    def holding(
        self, account: Account, n_bytes: int, priority: Priority, settings: Settings
    ) -> Generator[None]:
        """Count so many more until the end of the block.

        Raises:
            Overloaded: see `check`.
        """
        self.check(account, n_bytes, priority, settings)
        holder = object()
        self.put(holder, account, n_bytes)
        try:
            yield
        finally:
            self.leave(holder)


def bytes_of_task(task: Task) -> int:
    """What the conversation takes, the tools that are offered and the form of the answer."""
    tools = sum(
        getsizeof(tool.description) + _bytes_of_json(tool.parameters) + _bytes_of_json(tool.format)
        for tool in task.tools.tools
    )
    wanted = _bytes_of_json(task.answer_format.schema) if task.answer_format else 0
    return bytes_of(task.conversation) + tools + wanted


def bytes_of_record(record: Record) -> int:
    """What the conversation takes, and what its client's tools gave."""
    given = [segment.given for segment in record.segments if segment.given is not None]
    return bytes_of_task(record.task) + sum(map(bytes_of_given, given))


def bytes_of_given(given: Given) -> int:
    """What a client sent for its tools, and beside it."""
    return sum(_bytes_of_part(each.result) for each in given.results) + bytes_of(given.said)


def bytes_of(messages: Iterable[Message]) -> int:
    """What they take in memory."""
    return sum(
        sum(map(_bytes_of_part, message.parts))
        + (_bytes_of_json(message.native.payload) if message.native is not None else 0)
        + _bytes_of_json(message.thoughts)
        for message in messages
    )


def _bytes_of_part(part: Part) -> int:
    match part:
        case Text():
            return getsizeof(part.text)
        case Image():
            return getsizeof(part.url)
        case File():
            return getsizeof(part.url) + getsizeof(part.text)
        case ToolCall():
            return getsizeof(part.arguments)
        case ToolResult():
            return sum(map(_bytes_of_part, part.parts))


def _bytes_of_json(value: Any) -> int:
    match value:
        case dict():
            held = cast(dict[str, Any], value)
            return getsizeof(held) + sum(map(getsizeof, held)) + sum(map(_bytes_of_json, held.values()))
        case list():
            items = cast(list[Any], value)
            return getsizeof(items) + sum(map(_bytes_of_json, items))
        case _:
            return getsizeof(value)
