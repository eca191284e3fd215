"""Slots: no more calls at once than the one behind it can take."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext

from conductor.model.worker import Call, Reply, Worker
from serving.layers.turns import Turns


class Limited:
    """`worker` with `slots` places. A call waits for one before it is opened, and holds it until it is
    closed; who is next is told by `turns.py`.
    """

    def __init__(self, worker: Worker, slots: int) -> None:
        self._worker, self._turns = worker, Turns(slots)
        self.n_slots = slots
        """Calls at once, at most."""
        self.queued = 0
        """Calls that wait for a place now."""
        self.open_calls = 0
        """Calls that hold one now."""

    @property
    def name(self) -> str:
        """See `Worker.name`."""
        return self._worker.name

    @property
    def is_full(self) -> bool:
        """Whether one more call would wait."""
        return self.open_calls >= self.n_slots

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`."""
        async with self._place(call), self._worker.open(call) as reply:
            yield reply

    @asynccontextmanager
    async def _place(self, call: Call) -> AsyncGenerator[None]:
        self.queued += 1
        try:
            with call.on_wait() if call.on_wait else nullcontext():
                await self._turns.take(call.priority, call.payer)
        finally:
            self.queued -= 1
        self.open_calls += 1
        try:
            yield
        finally:
            self.open_calls -= 1
            self._turns.give_back()
