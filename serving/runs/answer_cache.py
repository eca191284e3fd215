"""Answers given again to equal requests of the same team, without a call to any model.

What is kept is which run answered; its answer is read from its record, so it goes when that goes. Equal is what
makes the same task, asked of the same settings; whether the answer is streamed does not matter.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from conductor.errors import StoreUnavailable
from conductor.model.reply import FinishReason
from conductor.run.event_log import EventLog
from conductor.run.record import Account, Record, RunRecords
from conductor.run.run import Run
from conductor.run.task import Task
from serving.database.address import StoreError
from serving.runs.cached_answers import CachedAnswer
from serving.runs.content import kept_part
from serving.runs.rows import now_us
from serving.runs.same_request import hash_task
from serving.runs.store import RecordStore
from serving.settings.settings import Settings

logger = logging.getLogger("podium")


class AnswerCache:
    """Finds and keeps answers.

    Args:
        store: of the records.
        settings: those that hold now.
    """

    def __init__(self, store: RecordStore, settings: Callable[[], Settings]) -> None:
        self._store, self._settings = store, settings
        self._writing = set[asyncio.Task[None]]()
        self._fingerprint: tuple[Settings | None, str] = (None, "")

    async def find(self, task: Task, account: Account) -> Record | None:
        """The run that has answered `task` for the account's team; None where none has, or not any more."""
        key = self._key(task, account)
        if key is None:
            return None
        try:
            run_id = await self._store.find_answer(*key)
            found = await self._store.get(run_id) if run_id else None
        except (StoreUnavailable, StoreError):  # then it is asked as without a cache
            return None
        if found is None or not found.has_content or not _may_be_kept(found.record):
            return None
        return found.record if _owner(found.record.account) == key[0] else None

    @asynccontextmanager
    async def keeping(self, opened: AbstractAsyncContextManager[Run]) -> AsyncGenerator[Run]:
        """A run, whose answer is kept when it has ended."""
        run: Run | None = None
        try:
            async with opened as run:
                yield run
        finally:
            if run is not None:
                self.keep(run.record)

    def keep(self, record: Record) -> None:
        """Keep the answer of a run that has ended, where it is one to be given again. It is written soon: its
        client may leave with the last byte.
        """
        key = self._key(record.task, record.account)
        if key is None or not _may_be_kept(record) or record.cached_from:
            return
        if kept_part(RunRecords(record)).record.answer != record.answer:
            return  # something was taken out of it: its record has another answer than its client had
        keep_s = self._settings().cache.keep_s
        assert keep_s is not None, "there is a key"
        answer = CachedAnswer(*key, record.id, now_us() + int(keep_s * 1e6))
        task = asyncio.create_task(self._write(answer), name="answer kept for equal requests")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, answer: CachedAnswer) -> None:
        try:
            await self._store.keep_answer(answer)
        except (StoreUnavailable, StoreError) as exc:
            logger.error("an answer is not kept for equal requests: %s", getattr(exc, "detail", exc))

    def _key(self, task: Task, account: Account) -> tuple[str, str] | None:
        """Whose answer it is, and what was asked; None where nothing is kept for them."""
        settings = self._settings()
        cache = settings.cache
        if cache.keep_s is None or task.plan_only or not task.permit.stores:
            return None
        if task.sampling.options.top_logprobs is not None:  # an answer is kept without them
            return None
        if cache.teams is not None and account.team_id not in cache.teams:
            return None
        words = replace(task, echo={})  # the asker's own run repeats its request
        return _owner(account), hash_task(words, self._of(settings))

    def _of(self, settings: Settings) -> str:
        """What stands for `settings`: with others, the same task may be answered in another way."""
        known, digest = self._fingerprint
        if known is not settings:
            digest = hashlib.sha256(settings.model_dump_json().encode()).hexdigest()
            self._fingerprint = settings, digest
        return digest


@asynccontextmanager
async def replay(run: Record) -> AsyncGenerator[Run]:
    """A run that has ended, told to its reader."""
    log = EventLog(run)
    await log.replay()
    yield Run(log)


def answered_by(found: Record, task: Task, id: str, account: Account) -> Record:
    """The record of a run that was answered by an earlier one: nobody was asked, and nothing is paid."""
    return Record(
        id=id,
        task=task,
        created=time.time(),
        status="finished",
        answer=found.answer,
        finish=found.finish,
        account=account,
        cached_from=found.id,
    )


def _owner(account: Account) -> str:
    """Who shares answers: a team, or one key without a team; empty where no key is asked for."""
    if account.team_id:
        return f"team:{account.team_id}"
    return f"key:{account.key_id}" if account.key_id else ""


def _may_be_kept(record: Record) -> bool:
    """Whether the answer is whole, and by whom it should be."""
    is_whole = record.status == "finished" and record.finish is FinishReason.STOP and bool(record.answer)
    return is_whole and record.fallback is None
