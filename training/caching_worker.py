"""A layer for training, not for serving: the same call to the same worker is made once.

A group of completions often holds the same plan many times. A cached reply is billed again in the ledger and
the record, so that a plan's cost does not depend on earlier calls.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Hashable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from conductor.errors import WorkerError
from conductor.model.call import Call
from conductor.model.reply import Delta, Reply, open_reply
from conductor.model.worker import Worker


@dataclass(frozen=True, slots=True)
class CachedReply:
    """One whole reply."""

    deltas: tuple[Delta, ...]
    reply: Reply


@dataclass(slots=True)
class CallCache:
    """The newest replies of all workers.

    Args:
        max_entries: 0 keeps none, but still joins concurrent calls.
        lookups: how often a reply was looked up.
        hits: how often it was there.
    """

    max_entries: int = 50_000
    lookups: int = 0
    hits: int = 0
    _entries: OrderedDict[Hashable, "asyncio.Future[CachedReply]"] = field(default_factory=OrderedDict)

    def get(self, key: Hashable) -> "asyncio.Future[CachedReply] | None":
        """The reply, or the future of a call in progress."""
        self.lookups += 1
        entry = self._entries.get(key)
        if entry is not None:
            self.hits += 1
            self._entries.move_to_end(key)
        return entry

    def reserve(self, key: Hashable) -> "asyncio.Future[CachedReply]":
        """A future for a call that begins."""
        entry = self._entries[key] = asyncio.get_running_loop().create_future()
        while len(self._entries) > max(self.max_entries, 1):
            self._entries.popitem(last=False)
        return entry

    def drop(self, key: Hashable) -> None:
        """Remove it: the call failed, or nothing is kept."""
        self._entries.pop(key, None)


class CachingWorker:
    """`worker` behind a cache. Failures are not cached."""

    def __init__(self, worker: Worker, cache: CallCache) -> None:
        self._worker, self._cache = worker, cache

    @property
    def name(self) -> str:
        """See `Worker.name`."""
        return self._worker.name

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`. The reply is replayed delta by delta."""
        cached = await self._fetch(call)
        source = cached.reply

        async def replay() -> AsyncGenerator[Delta]:
            for delta in cached.deltas:
                yield delta

        async with open_reply(source.worker, source.model, replay(), source.price) as reply:
            reply.attempts = source.attempts
            yield reply

    async def _fetch(self, call: Call) -> CachedReply:
        """The whole reply, from the cache or from the worker.

        Raises:
            WorkerError: of the call that was made; the next one calls again.
        """
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
                    raise  # this task is cancelled, not the one that makes the call
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
