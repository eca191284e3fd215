"""A request that is sent again because its answer failed or was cut off: clients do so by themselves, up to 30 times,
and what was paid is not paid again. The second asking joins the first one's run.

Which run that is stands beside the kept answers in the store, so that every replica finds it. What makes two requests
the same is in `same_request.py`; which requests the rule holds for is their dialect's business.
"""

import asyncio
import logging
from collections.abc import Callable

from conductor.errors import PodiumError
from conductor.run.record import Account, Record
from conductor.run.run import Run
from conductor.run.task import Task
from serving.database.address import StoreError
from serving.runs.cached_answers import CachedAnswer
from serving.runs.claims import Claim
from serving.runs.rows import now_us
from serving.runs.same_request import has_called, hash_task
from serving.runs.store import RecordStore
from serving.settings.settings import Settings

logger = logging.getLogger("podium")


class SecondAskings:
    """Finds the run that a request joins, and lets runs go on whose clients were cut off; see `aclose`.

    Args:
        store: of the records.
        settings: those that hold now.
    """

    def __init__(self, store: RecordStore, settings: Callable[[], Settings]) -> None:
        self._store, self._settings = store, settings
        self._going_on = set[asyncio.Task[None]]()

    async def find(self, task: Task, account: Account) -> Claim | None:
        """The run that `task` joins, by then watched; None: it begins one of its own."""
        if not self._joins_s or not task.permit.stores:
            return None
        owner, asked = _key(task, account)
        try:
            run_id = await self._store.find_answer(owner, asked)
            if run_id is None:
                return None
            await self._store.watch(run_id)
            records = await self._store.get(run_id)
        except (PodiumError, StoreError):  # then nobody knows
            return None
        if records is not None and (
            not records.has_content or records.record.status in ("lost", "cancelled")
        ):
            return None
        return Claim(account.key_id, "", asked, run_id, self._store.owner)

    async def note(self, record: Record) -> bool:
        """From now on, and for a while, the same request joins this run: it has failed, or lost its client. Whether
        it does.
        """
        return self._may_join(record) and await self._keep(record, now_us() + int(self._joins_s * 1e6))

    async def forget(self, record: Record) -> None:
        """Its client has the answer: the same request is a new one."""
        await self._keep(record, 0)

    def goes_on(self, record: Record) -> bool:
        """Whether a run is not ended with its client."""
        return record.status == "running" and self._may_join(record)

    def go_on(self, answering: asyncio.Task[None], run: Run) -> None:
        """Let the response of a client that is gone run to its end, for a bounded time, for the same request to join."""
        task = asyncio.create_task(self._wait(answering, run), name="answer without its client")
        self._going_on.add(task)
        task.add_done_callback(self._going_on.discard)

    @property
    def going_on(self) -> int:
        """Answers whose clients are gone."""
        return len(self._going_on)

    async def aclose(self) -> None:
        """End what goes on."""
        for task in self._going_on:
            task.cancel()
        if self._going_on:
            await asyncio.wait(self._going_on)

    @property
    def _joins_s(self) -> float:
        return self._settings().store.asked_again_s

    def _may_join(self, record: Record) -> bool:
        return bool(self._joins_s) and record.task.permit.stores and has_called(record)

    async def _wait(self, answering: asyncio.Task[None], run: Run) -> None:
        try:
            await self.note(run.record)
            await asyncio.wait([answering], timeout=self._joins_s)
        finally:
            answering.cancel()
            await asyncio.wait([answering])
        if not answering.cancelled() and (error := answering.exception()) is not None:
            logger.info(
                "an answer whose client was gone ended: %s of %s", type(error).__name__, run.record.id
            )

    async def _keep(self, record: Record, drop_us: int) -> bool:
        """Whether that could be written down."""
        try:
            await self._store.keep_answer(
                CachedAnswer(*_key(record.task, record.account), record.id, drop_us)
            )
        except (PodiumError, StoreError) as exc:
            logger.error("a request that is sent again may run again: %s", getattr(exc, "detail", exc))
            return False
        return True


def _key(task: Task, account: Account) -> tuple[str, str]:
    """Whose request it is, apart from the owners of kept answers, and what it asks."""
    return f"again:{account.key_id}", hash_task(task)
