"""Runs that answer one request together, one for each of its `n` answers."""

import asyncio

from conductor.run.run import Run
from serving.sessions.deduplication import has_called


class Siblings:
    """The `n` runs of a request. No run starts before all of them are admitted. Otherwise, the rejection of
    one run would waste the calls of the others.
    """

    def __init__(self, n: int) -> None:
        self._admitted = asyncio.Barrier(n)
        self.runs: list[Run] = []
        """Runs that have begun."""

    async def wait_until_admitted(self) -> None:
        """Wait until every run has called this."""
        await self._admitted.wait()

    @property
    def have_called(self) -> bool:
        """True if any of the runs has called a model."""
        return any(has_called(run.record) for run in self.runs)
