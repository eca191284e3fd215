"""Cache of worker calls for training. It sends the same call to the same worker only once. It is not for
serving.

A group of completions often contains the same plan many times. The ledger and the record bill a cached reply
again, so that the cost of a plan does not depend on earlier calls.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Hashable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from conductor.errors import WorkerError
from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.reply import Delta, Reply
from conductor.model.worker import Worker


@dataclass(frozen=True, slots=True)
class CachedReply:
    deltas: tuple[Delta, ...]
    reply: Reply


@dataclass(slots=True)
class CallCache:
    """Cache of the most recent replies. With 0 entries, concurrent calls are still joined."""

    max_entries: int = 50_000
    _entries: OrderedDict[Hashable, "asyncio.Future[CachedReply]"] = field(default_factory=OrderedDict)

    def get(self, key: Hashable) -> "asyncio.Future[CachedReply] | None":
        """Return the future of a call that has finished or is running, or None if there is none."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def reserve(self, key: Hashable) -> "asyncio.Future[CachedReply]":
        """Add and return the future of a new call."""
        entry = self._entries[key] = asyncio.get_running_loop().create_future()
        while len(self._entries) > max(self.max_entries, 1):
            self._entries.popitem(last=False)
        return entry

    def drop(self, key: Hashable) -> None:
        """Remove an entry because its call failed, or because its reply is not to be kept."""
        self._entries.pop(key, None)


class CachingWorker:
    """Worker that calls `worker` through a cache. Failures are not cached."""

    def __init__(self, worker: Worker, cache: CallCache) -> None:
        self._worker, self._cache = worker, cache

    @property
    def name(self) -> str:
        return self._worker.name

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """Open a reply. A cached reply is replayed delta by delta."""
        cached = await self._fetch(call)
        source = cached.reply

        async def replay() -> AsyncGenerator[Delta]:
            for delta in cached.deltas:
                yield delta

        async with open_reply(source.worker, source.model, replay(), source.price) as reply:
            reply.attempts = source.attempts
            yield reply

    async def _fetch(self, call: Call) -> CachedReply:
        """Return the complete reply, from the cache or from the worker. Failures are not cached."""
        limits = (
            call.sampling.max_output_tokens,
            call.sampling.temperature,
            call.sampling.top_p,
            call.sampling.stop,
            call.sampling.seed,
            call.sampling.effort,
        )
        key = (self.name, call.messages, *limits)
        while (entry := self._cache.get(key)) is not None:
            try:
                return await asyncio.shield(entry)
            except (WorkerError, asyncio.CancelledError):
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # this task was cancelled, not the one that makes the call
        entry = self._cache.reserve(key)
        try:
            reply = await self._call(call)
        except BaseException:
            self._cache.drop(key)
            entry.cancel()
            raise
        entry.set_result(reply)
        if not self._cache.max_entries:
            self._cache.drop(key)
        return reply

    async def _call(self, call: Call) -> CachedReply:
        async with self._worker.open(call) as reply, aclosing(aiter(reply)) as deltas:
            return CachedReply(tuple([delta async for delta in deltas]), reply)
