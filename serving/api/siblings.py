"""The runs that answer one request together, each with one of its `n` answers."""

import asyncio

from conductor.run.run import Run
from serving.sessions.deduplication import has_called


class Siblings:
    """`n` runs. None begins before there is room for all: else what some have called would be paid for nothing."""

    def __init__(self, n: int) -> None:
        self._let_in = asyncio.Barrier(n)
        self.runs: list[Run] = []
        """Those that have begun."""

    async def wait_until_let_in(self) -> None:
        """Return once this has been awaited for each of them."""
        await self._let_in.wait()

    @property
    def have_called(self) -> bool:
        """Whether a model was at work for one of them."""
        return any(has_called(run.record) for run in self.runs)
