"""Memory budget for the conversations that this router has in memory: texts, images and files.

The number of runs does not limit the memory, because one request may have up to `limits.max_body_bytes`. So
the bytes are counted as well. This includes the bytes of runs, of clients that follow a run, of request
bodies, and of files while they are read.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from sys import getsizeof
from typing import Any, cast

from conductor.errors import Overloaded
from conductor.model.messages import File, Image, Message, Part, Text, ToolCall, ToolResult
from conductor.model.terms import Priority
from conductor.run.record import Account, Record
from conductor.run.task import Task
from conductor.run.turns import Given
from serving.settings.settings import Settings
from serving.shares import KEPT, share

SMALL_BYTES = 65_536
"""Size in bytes up to which a request always fits. `limits.max_running` bounds the sum of such requests."""
RETRY_AFTER_S = 5.0


class MemoryBudget:
    """Limit of the bytes in memory (`limits.max_running_bytes`).

    When memory is short, each key gets only a share.

    Args:
        settings: function that returns the current settings.
        unwritten: function that returns the bytes of ended runs that are not stored yet, by key id.
    """

    def __init__(
        self, settings: Callable[[], Settings], unwritten: Callable[[], Counter[str]] = Counter
    ) -> None:
        self._settings, self._unwritten = settings, unwritten
        self._of_keys = Counter[str]()

    def check(self, account: Account, n_bytes: int, priority: Priority) -> None:
        """Check that `n_bytes` more fit into the budget. If nothing is in memory, any size fits.

        Raises:
            Overloaded: the bytes do not fit, or the key has used its share, or the run has the priority
                `batch` and the rest of the budget is reserved for other runs.
        """
        if n_bytes <= SMALL_BYTES:
            return
        settings, of_keys = self._settings(), self._of_keys + self._unwritten()
        most = settings.limits.max_running_bytes * (settings.batches.room if priority == "batch" else 1)
        room = most - of_keys.total()
        has_share = bool(account.key_id) and of_keys[account.key_id] >= share(of_keys)
        if of_keys and n_bytes > room - (KEPT * most if has_share else 0):
            message = (
                "Requests that are running or not yet stored use the whole memory budget (limits.max_running_bytes). "
                "Retry soon."
            )
            raise Overloaded(message, retry_after_s=RETRY_AFTER_S, param="limits.max_running_bytes")

    @contextmanager
    def hold(self, account: Account, n_bytes: int, priority: Priority) -> Generator[None]:
        """Check that `n_bytes` more fit, and occupy them until the end of the block.

        Raises:
            Overloaded: see `check`.
        """
        self.check(account, n_bytes, priority)
        with self.occupy(account, n_bytes):
            yield

    @contextmanager
    def occupy(self, account: Account, n_bytes: int) -> Generator[None]:
        """Occupy `n_bytes` until the end of the block, even if they do not fit into the budget."""
        self._of_keys[account.key_id] += n_bytes
        try:
            yield
        finally:
            self._of_keys[account.key_id] -= n_bytes
            if not self._of_keys[account.key_id]:
                del self._of_keys[account.key_id]


def bytes_of_task(task: Task) -> int:
    """Return the size in bytes of a task's conversation, tools and answer format."""
    tools = sum(
        getsizeof(tool.description) + _bytes_of_json(tool.parameters) + _bytes_of_json(tool.format)
        for tool in task.tools.tools
    )
    wanted = _bytes_of_json(task.answer_format.schema) if task.answer_format else 0
    return bytes_of(task.conversation) + tools + wanted


def bytes_of_record(record: Record) -> int:
    """Return the size in bytes of a record's task and tool results."""
    resume_inputs = [segment.given for segment in record.segments if segment.given is not None]
    return bytes_of_task(record.task) + sum(map(bytes_of_given, resume_inputs))


def bytes_of_given(resume_input: Given) -> int:
    """Return the size in bytes of tool results, and of the messages that the client sent with them."""
    return sum(_bytes_of_part(each.result) for each in resume_input.results) + bytes_of(resume_input.said)


def bytes_of(messages: Iterable[Message]) -> int:
    """Return the size in bytes of messages in memory."""
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
            fields = cast(dict[str, Any], value)
            return getsizeof(fields) + sum(map(getsizeof, fields)) + sum(map(_bytes_of_json, fields.values()))
        case list():
            items = cast(list[Any], value)
            return getsizeof(items) + sum(map(_bytes_of_json, items))
        case _:
            return getsizeof(value)
