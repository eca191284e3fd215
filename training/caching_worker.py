"""The same question to the same worker is asked once. A layer for training and evaluation, not for serving.

A group of completions often holds the same plan many times. What is remembered is paid for again in the ledger and the record,
so that a plan's cost does not depend on who asked before.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Hashable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field

from conductor.errors import WorkerError
from conductor.worker import Call, Delta, Reply, Worker, opened


@dataclass(frozen=True, slots=True)
class _Heard:
    """One whole answer."""

    worker: str
    model: str
    deltas: tuple[Delta, ...]
    reply: Reply


@dataclass(slots=True)
class CallCache:
    """The newest answers of all workers.

    Args:
        answers: at most so many are kept; 0 keeps none.
    """

    answers: int = 50_000
    asked: int = 0
    remembered: int = 0
    _kept: OrderedDict[Hashable, "asyncio.Future[_Heard]"] = field(default_factory=OrderedDict)

    def get(self, key: Hashable) -> "asyncio.Future[_Heard] | None":
        """The answer, or the promise of one that is being given."""
        self.asked += 1
        found = self._kept.get(key)
        if found is not None:
            self.remembered += 1
            self._kept.move_to_end(key)
        return found

    def promise(self, key: Hashable) -> "asyncio.Future[_Heard]":
        """A place for an answer that is being asked for."""
        made = self._kept[key] = asyncio.get_running_loop().create_future()
        while len(self._kept) > max(self.answers, 1):
            self._kept.popitem(last=False)
        return made

    def forget(self, key: Hashable) -> None:
        """Drop it: the call failed, or nothing is to be kept."""
        self._kept.pop(key, None)


class CachingWorker:
    """`worker`, asked only what it was not asked before. Failures are not remembered."""

    def __init__(self, worker: Worker, memory: CallCache) -> None:
        self._worker, self._memory = worker, memory

    @property
    def name(self) -> str:
        """See `Worker.name`."""
        return self._worker.name

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `Worker.open`."""
        return _Opened(self, call)

    async def heard(self, call: Call) -> _Heard:
        """The whole answer, asked for now or before.

        Raises:
            WorkerError: of whoever asked; the next one asks anew.
        """
        key = (
            self.name,
            call.messages,
            call.max_output_tokens,
            call.temperature,
            call.top_p,
            call.stop,
            call.seed,
            call.effort,
        )
        while (known := self._memory.get(key)) is not None:
            try:
                return await asyncio.shield(known)
            except (WorkerError, asyncio.CancelledError):
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # we are cancelled, not the one who asks
        promise = self._memory.promise(key)
        try:
            answer = await self._ask(call)
        except BaseException:
            self._memory.forget(key)
            promise.cancel()
            raise
        promise.set_result(answer)
        if not self._memory.answers:
            self._memory.forget(key)
        return answer

    async def _ask(self, call: Call) -> _Heard:
        async with self._worker.open(call) as reply, aclosing(aiter(reply)) as deltas:
            said = tuple([delta async for delta in deltas])
            return _Heard(reply.worker, reply.model, said, reply)


class _Opened:
    """An answer, replayed piece by piece as it came."""

    def __init__(self, layer: CachingWorker, call: Call) -> None:
        self._layer, self._call = layer, call
        self._inner: AbstractAsyncContextManager[Reply] | None = None

    async def __aenter__(self) -> Reply:
        heard = await self._layer.heard(self._call)

        async def deltas() -> AsyncGenerator[Delta]:
            for delta in heard.deltas:
                yield delta

        self._inner = opened(heard.worker, heard.model, deltas(), heard.reply.price)
        reply = await self._inner.__aenter__()
        reply.attempts = heard.reply.attempts
        return reply

    async def __aexit__(self, *exc: object) -> bool | None:
        assert self._inner is not None
        return await self._inner.__aexit__(*exc)  # type: ignore[arg-type]
