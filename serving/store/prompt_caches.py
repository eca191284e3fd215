"""Prompt caches: which worker answered the turns of a conversation last, and how much of it the worker's provider has
cached.

The store shares the rows between replicas. A replica also has its newest rows in memory, so that it knows its own
conversations while the store is unreachable. The rows contain no texts.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from operator import attrgetter

from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from conductor.errors import StoreUnavailable
from conductor.model.characters import estimate_tokens
from conductor.model.messages import File, Image, Message, Text, ToolCall, ToolResult, Toolset, cache_marks
from conductor.model.operation import PromptCache
from conductor.plan.prompt_parts import with_stable_system
from conductor.run.record import Record
from conductor.run.task import Task
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import StoreError
from serving.database.clock import now_us
from serving.database.inserts import RowInsert
from serving.database.schema import prompt_cache
from serving.database.writer import Operation
from serving.fairness import FairDict

logger = logging.getLogger("podium")

PATIENCE_S = 0.2
"""Seconds that a turn waits for the rows of one id."""
FLUSH_S = 5.0
"""Seconds that a router waits for the store at its end."""
MOST_IDS = 10_000
"""Maximum number of ids whose rows are in memory. The API key with the most ids loses the one that it has not used for
the longest time."""
LIFETIMES_S = {"30m": 1800, "1h": 3600, "24h": 86_400}
"""Lifetime of a provider's cache in seconds, by the lifetime of its breakpoints or by OpenAI's `retention` or `ttl`."""
OUTAGES = (StoreUnavailable, StoreError, SQLAlchemyError, TimeoutError)
"""Errors after which only the rows in memory are used. `SQLAlchemyError` covers a missing table."""


@dataclass(frozen=True, slots=True)
class PromptCacheRow:
    """Row of the table `prompt_cache`. Its fields are the columns.

    Args:
        id: one of `row_ids`.
        worker: worker that answered a step. The worker of the newest row gave the last answer.
        deployment: deployment that answered, or "" if the worker has only one.
        n_messages: number of messages of the conversation in the prompt.
        tail: hash of the last user message among them.
        prefix: hash of these messages, of the tool results that followed them in the last call, and of the tools. See
            `is_unchanged`.
        tokens: input tokens of the last call, as the provider reported them.
        cached_tokens: those of them that were read from a cache or written to it, as the provider reported them.
        answer_tokens: mean length of the answers so far.
        turns: number of user turns so far.
        lifetime: lifetime of the cache: `5m`, `1h`, or "" for the provider's own.
        quick_turns: number of user turns in a row that came quickly. See `PromptCache.quick_turns`.
        written_us: time at which the last call read and wrote the cache, in microseconds since 1970.
        drop_us: time from which the row is ignored, in microseconds since 1970.
    """

    id: str
    worker: str
    deployment: str
    n_messages: int
    tail: str
    tokens: int
    answer_tokens: int
    turns: int
    lifetime: str
    written_us: int
    drop_us: int
    prefix: str = ""
    cached_tokens: int = 0
    quick_turns: int = 0


def digests_of(messages: Iterable[Message]) -> Iterator[str]:
    """Yield a hash of the messages up to each message.

    It covers roles, texts, attachments and the names of tools. Ids and arguments of tool calls do not count, because
    clients write them differently. Cache marks do not count either.
    """
    digest = blake2b(digest_size=16)
    for message in messages:
        for part in (message.role, "\n".join(_texts_of(message)), *_others_of(message)):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8))
            digest.update(data)
        digest.update(b"\xff" * 8)  # no part is as long as this
        yield digest.copy().hexdigest()


def _texts_of(message: Message) -> Iterator[str]:
    return (part.text for part in message.all_parts if isinstance(part, Text))


def _others_of(message: Message) -> Iterator[str]:
    for part in message.all_parts:
        match part:
            case Image():
                yield part.url
            case File():
                yield part.text or part.url or part.id
            case ToolCall():
                yield part.name
            case _:
                pass


def digest_of(messages: Iterable[Message]) -> str:
    """Return the hash of all `messages`, or "" if there are none. See `digests_of`."""
    digest = ""
    for each in digests_of(messages):
        digest = each
    return digest


def head_of(messages: Sequence[Message]) -> str:
    """Return a hash of the messages up to the first user message."""
    ends = (index + 1 for index, message in enumerate(messages) if message.role == "user")
    return digest_of(with_stable_system(messages[: next(ends, len(messages))]))


def tail_of(messages: Sequence[Message]) -> str:
    """Return a hash of the last user message, or "" if there is none."""
    users = [message for message in reversed(messages) if message.role == "user"]
    return digest_of(users[:1])[:16]


def row_ids(cache: PromptCache, messages: Sequence[Message]) -> list[str]:
    """Return the ids under which a conversation has rows, the better one first.

    1. A hash of the conversation's id and of the first user message. The agents of a session have the same conversation
       id, and differ in this message. The system prompt does not count, because it may contain the time.
    2. The conversation's id, if the client has named the conversation. It is used if the first user message has changed.
    """
    first = digest_of([message for message in messages if message.role == "user"][:1])
    digest = blake2b(f"{cache.conversation}\0{first}".encode(), digest_size=16)
    return [digest.hexdigest(), *([cache.conversation] if cache.is_named else [])]


def rows_of(record: Record, keep_s: float) -> list[PromptCacheRow]:
    """Return the rows of a run that has an answer or waits for tools: for each worker that has read the conversation, one
    for each of `row_ids`. There is none if the run has no conversation or no plan of a conductor, or its answer no input
    tokens, as that of a program.
    """
    task, result = record.task, record.answering
    cache = task.sampling.options.prompt_cache
    is_planned = task.plan is None and not task.plan_only and record.status in ("finished", "waiting")
    if cache is None or not cache.conversation or not is_planned or result is None or result.inner_run:
        return []
    if result.usage is None or not result.usage.input_tokens:
        return []
    messages = with_stable_system(task.conversation)
    texts = [message.text for message in messages if message.role == "assistant"]
    answers = [estimate_tokens(text) for text in texts if text] + [result.usage.output_tokens]
    waited_s = sum(segment.waited_s for segment in record.segments)
    written_us = int((record.created + _call_time_s(record) + waited_s) * 1e6)
    lifetime = lifetime_of(task)
    lifetimes_s = [LIFETIMES_S.get(each, 0) for each in (lifetime, cache.retention, cache.ttl)]
    ids = row_ids(cache, task.conversation)
    row = PromptCacheRow(
        id=ids[0],
        worker=result.worker,
        deployment=result.deployment,
        n_messages=len(messages),
        tail=tail_of(messages),
        tokens=result.usage.input_tokens,
        answer_tokens=round(sum(answers) / len(answers)),
        turns=sum(message.role == "user" for message in messages),
        lifetime=lifetime,
        written_us=written_us,
        drop_us=written_us + int(max(keep_s, *lifetimes_s) * 1e6),
        prefix=_prefix_of(messages, _results_of(record), task.tools),
        cached_tokens=result.usage.cached_input_tokens + result.usage.cache_write_tokens,
        quick_turns=cache.quick_turns,
    )
    by_worker = {each.worker: each for each in (*_rows_of_earlier_steps(record, row), row)}
    return [replace(each, id=id) for each in by_worker.values() for id in ids]


def _rows_of_earlier_steps(record: Record, row: PromptCacheRow) -> Iterator[PromptCacheRow]:
    """Yield a row for each step before the answering one whose prompt began as the next turn's prompt will.

    Args:
        record: record of the run.
        row: row of the answering step. It stays the newest one.
    """
    task, plan = record.task, record.answering_plan
    prefix = _prefix_of(with_stable_system(task.conversation), (), task.tools)
    for step in plan.steps[:-1] if plan else ():
        result = step.results[0] if step.results and (step.tools or not task.tools) else None
        if result is None or result.inner_run or step.first_token_s is None:
            continue
        if (usage := result.usage) is not None and usage.input_tokens:
            yield replace(
                row,
                worker=result.worker,
                deployment=result.deployment,
                tokens=usage.input_tokens,
                cached_tokens=usage.cached_input_tokens + usage.cache_write_tokens,
                prefix=prefix,
                written_us=min(int((record.created + step.first_token_s) * 1e6), row.written_us - 1),
            )


def _call_time_s(record: Record) -> float:
    """Return the time at which the answering step's last call began to answer, in seconds since the run began. Providers
    count the lifetime of a cache from there.
    """
    plan = record.answering_plan
    steps = plan.steps[-1:] if plan else ()
    times = [
        each for step in steps for each in (step.first_token_s, *(turn.answered_s for turn in step.turns))
    ]
    return max((each for each in times if each is not None), default=record.wall_s)


def lifetime_of(task: Task) -> str:
    """Return the lifetime of the caches that the calls of a task write: that of the client's breakpoints, or else that of
    Podium's. "" is the provider's own.
    """
    if marks := set(cache_marks(task.conversation, task.tools.tools)):
        return "1h" if marks & {"1h", "12h"} else "5m"
    cache = task.sampling.options.prompt_cache
    return cache.lifetime if cache else ""


def _results_of(record: Record) -> list[ToolResult]:
    """Return the tool results in the prompt of the answering step's last call."""
    plan = record.answering_plan
    turns = plan.steps[-1].turns if plan else ()
    return [each.result for turn in turns if turn.is_answered for each in turn.results]


def _prefix_of(messages: Iterable[Message], results: Iterable[ToolResult], tools: Toolset) -> str:
    """Return the number of `results`, and a hash of what a provider has cached: the tools, the messages and the results.

    Clients may return results in another order.
    """
    texts = sorted(result.text for result in results)
    digest = blake2b(digest_of(messages).encode(), digest_size=16)
    for tool in tools.tools:
        digest.update(
            repr((tool.namespace, tool.name, tool.description, tool.parameters, tool.format)).encode(
                "utf-8", "surrogatepass"
            )
        )
    for text in texts:
        digest.update(f"\0{len(text)}\0{text}".encode("utf-8", "surrogatepass"))
    return f"{len(texts)} {digest.hexdigest()}"


def is_unchanged(row: PromptCacheRow, messages: Sequence[Message], tools: Toolset) -> bool:
    """Return whether `messages` and `tools` begin with what the provider has cached.

    They do not if the client has shortened the conversation, for example by a summary or by removing old tool results.
    """
    n_results, _, _ = row.prefix.partition(" ")
    if not n_results or len(messages) <= row.n_messages:
        return False
    later = [result for message in messages[row.n_messages :] for result in message.tool_results]
    return _prefix_of(messages[: row.n_messages], later[: int(n_results)], tools) == row.prefix


def n_messages_read(row: PromptCacheRow, messages: Sequence[Message]) -> int:
    """Return how many of `messages` the row's `tokens` count. The messages are unchanged (see `is_unchanged`).

    They do not count later turns that have left no row, such as those that another model or application answered.
    """
    n_results, n_messages = int(row.prefix.partition(" ")[0]), row.n_messages
    while n_results > 0:
        n_results -= len(messages[n_messages].tool_results)
        n_messages += n_results >= 0
    return n_messages


COLUMNS = [field.name for field in fields(PromptCacheRow)]
VALUES = attrgetter(*COLUMNS)
PUT = RowInsert(
    prompt_cache,
    COLUMNS,
    update=[name for name in COLUMNS if name not in ("id", "worker")],
    where=lambda new: prompt_cache.c.written_us <= new.written_us,
)


def _keep(connection: Connection, rows: Sequence[PromptCacheRow]) -> list[None]:
    newest = {(row.id, row.worker): row for row in sorted(rows, key=lambda row: row.written_us)}
    PUT.execute(connection, [VALUES(row) for _, row in sorted(newest.items())])  # no deadlock
    return [None] * len(rows)


KEEP_PROMPT: Operation[PromptCacheRow, None] = Operation("prompt cache of a conversation", _keep)
"""Operation that stores a row. An older row of the same conversation and worker is replaced."""


class PromptCaches:
    """Rows of this replica in memory, and of all replicas in the store.

    Args:
        store: database connections of this replica, or None to use memory only.
        patience_s: seconds within which the store must respond to a read.
    """

    def __init__(self, store: ReplicaStore | None = None, patience_s: float = PATIENCE_S) -> None:
        self._store = store
        self._patience_s = patience_s
        self._rows = FairDict[tuple[str, str], dict[str, PromptCacheRow]](lambda key, _: key[0])
        """Rows by key and id, and then by worker. The id that was used last is at the end."""
        self._writing = set[asyncio.Task[None]]()

    async def find(self, id: str, key_id: str) -> list[PromptCacheRow]:
        """Return the newest row of each worker, or nothing if the conversation is unknown.

        If the store does not respond in time, only the rows in memory are returned.

        Args:
            id: id of the rows.
            key_id: key that has sent the request.
        """
        self._remember(await self._read(id) if self._store is not None else (), key_id)
        rows = self._rows.pop((key_id, id), {})
        if rows:
            self._rows[key_id, id] = rows  # at the end
        at_us = now_us()
        return [row for row in rows.values() if row.drop_us > at_us]

    def keep(self, row: PromptCacheRow, key_id: str, *, stores: bool = True) -> None:
        """Remember a row, and store it in the background.

        Args:
            row: row of the conversation's last answer.
            key_id: key of its run.
            stores: whether the row may be stored. Otherwise it stays in memory.
        """
        self._remember([row], key_id)
        if self._store is None or self._store.is_away or not stores:
            return
        writing = asyncio.create_task(_write(self._store, row), name="prompt cache of a conversation")
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def flush(self) -> None:
        """Wait until all rows are stored, but at most `FLUSH_S` seconds."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=FLUSH_S)

    async def _read(self, id: str) -> Iterable[PromptCacheRow]:
        assert self._store is not None
        query = select(*prompt_cache.c[*COLUMNS]).where(prompt_cache.c.id == id)
        try:
            async with asyncio.timeout(self._patience_s):
                return [PromptCacheRow(*row) for row in await self._store.read(query)]
        except OUTAGES as exc:
            logger.debug("Cannot read the prompt cache of a conversation: %s", getattr(exc, "detail", exc))
            return ()

    def _remember(self, rows: Iterable[PromptCacheRow], key_id: str) -> None:
        for row in rows:
            of_id = self._rows.pop((key_id, row.id), {})
            before = of_id.get(row.worker)
            if before is None or before.written_us <= row.written_us:
                of_id[row.worker] = row
            self._rows[key_id, row.id] = of_id
        self._rows.pop_down_to(MOST_IDS)


async def _write(store: ReplicaStore, row: PromptCacheRow) -> None:
    try:
        await store.write(KEEP_PROMPT, row)
    except OUTAGES as exc:
        logger.debug("Cannot store the prompt cache of a conversation: %s", getattr(exc, "detail", exc))
