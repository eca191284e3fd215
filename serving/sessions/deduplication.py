"""Requests that were sent before: by their `Idempotency-Key`, as the retry of a failed or cut answer, as an equal
request whose answer is kept, or with tool results that their run has got.

SDKs resend a failed request up to 30 times. A retry joins the run of the first request, so that nothing is paid twice.
The store has the claims, so that every replica finds them. Of an answer, only the id of its run is stored, so the answer
goes when its record goes.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto

from msgspec.structs import replace

from conductor.errors import NotTheSame, PodiumError
from conductor.model.messages import without_cache_marks
from conductor.model.reply import FinishReason
from conductor.plan.marks import with_stable_system
from conductor.run import codec
from conductor.run.record import Account, Record
from conductor.run.task import Task
from serving.database.address import StoreError
from serving.redaction.personal import redactor_of
from serving.runs.cached_answers import CachedAnswer
from serving.runs.claims import Claim
from serving.runs.rows import now_us
from serving.runs.store import RecordStore
from serving.settings.settings import Settings

logger = logging.getLogger("podium")

HEADER = "Idempotency-Key"


class Outcome(Enum):
    """Whether a request was seen before."""

    NEW = auto()
    """It gets a run of its own."""
    CLAIMED = auto()
    """An earlier request with its `Idempotency-Key` has a run."""
    RETRIED = auto()
    """The answer to an equal request failed or was cut off."""
    CACHED = auto()
    """An equal request of the same team was answered."""
    AWAITED = auto()
    """It brings tool results that a run waits for."""
    REPEATED = auto()
    """It brings tool results that its run has got already."""


@dataclass(frozen=True, slots=True)
class Match:
    """The result of a lookup.

    Args:
        outcome: whether the request was seen before.
        claim: of the earlier request; of this one, if it is new and has an `Idempotency-Key`.
        record: that has the cached answer.
        segment: of the run, which the repeated tool results ended.
    """

    outcome: Outcome
    claim: Claim | None = None
    record: Record | None = None
    segment: int = 0


NEW = Match(Outcome.NEW)


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The name that a client gave a request.

    Args:
        account: the key id of the client. Equal names of other keys are other names.
        name: as the client sent it, or its digest if a secret or personal data is in it.
        body_hash: of the request.
    """

    account: str
    name: str
    body_hash: str


class RequestDeduplicator:
    """Looks up earlier requests, and stores what later ones look up.

    Args:
        store: of the records.
        settings: return the current settings.
    """

    def __init__(self, store: RecordStore, settings: Callable[[], Settings]) -> None:
        self._store, self._settings = store, settings
        self._fingerprint: tuple[Settings | None, str] = (None, "")

    async def find(
        self, task: Task, account: Account, *, may_join: bool = False, may_be_cached: bool = False
    ) -> Match:
        """Look up an unnamed request. The run of a retried request is watched from then on.

        Args:
            task: that is requested.
            account: of the client.
            may_join: the request may join the run of an earlier one.
            may_be_cached: the request may get the answer of an earlier one.
        """
        claim = await self._find_retried(task, account) if may_join else None
        if claim is not None:
            return Match(Outcome.RETRIED, claim)
        record = await self._find_cached(task, account) if may_be_cached else None
        return Match(Outcome.CACHED, record=record) if record else NEW

    async def claim(self, key: IdempotencyKey, run_id: str) -> Match:
        """Look up a named request, and claim its name for a run if it is new.

        Raises:
            NotTheSame: the name was claimed for a different request.
            StoreUnavailable: the store is away. Nothing was run.
        """
        claim = await self._store.claim(
            Claim(key.account, key.name, key.body_hash, run_id, self._store.owner)
        )
        if claim.body_hash != key.body_hash:
            raise NotTheSame(
                f"{HEADER}: an earlier request of this name asked for something else. Take another name.",
                param=HEADER,
            )
        return Match(Outcome.NEW if claim.run_id == run_id else Outcome.CLAIMED, claim)

    def may_join(self, record: Record) -> bool:
        """Return whether a retry may join the run: retries are joined, and a model was called for the run."""
        return bool(self.joins_s) and record.task.permit.stores and has_called(record)

    @property
    def joins_s(self) -> float:
        """How long a retry joins the first run."""
        return self._settings().store.asked_again_s

    async def expect_retry(self, record: Record) -> bool:
        """Let a retry join this run for a while: it has failed, or lost its client. Return False if it cannot."""
        return self.may_join(record) and await self._keep_retry(record, now_us() + int(self.joins_s * 1e6))

    async def forget_retry(self, record: Record) -> None:
        """End `expect_retry`: the client has the answer, and an equal request is a new one."""
        await self._keep_retry(record, 0)

    def answer_of(self, record: Record) -> CachedAnswer | None:
        """Return what to store for equal requests, or None if the answer is not to be given again."""
        key = self._cache_key(record.task, record.account)
        if key is None or not _is_reusable(record) or record.cached_from:
            return None
        permit = record.task.permit
        if not permit.stores or redactor_of(permit)(record.answer) != record.answer:
            return None  # the record has another answer than the client got
        keep_s = self._settings().cache.keep_s
        assert keep_s is not None, "there is a key"
        return CachedAnswer(*key, record.id, now_us() + int(keep_s * 1e6))

    async def keep_answer(self, answer: CachedAnswer) -> None:
        """Store an answer for equal requests."""
        try:
            await self._store.keep_answer(answer)
        except (PodiumError, StoreError) as exc:
            logger.error("an answer is not kept for equal requests: %s", getattr(exc, "detail", exc))

    async def _find_retried(self, task: Task, account: Account) -> Claim | None:
        if not self.joins_s or not task.permit.stores:
            return None
        owner, digest = _retry_key(task, account)
        try:
            run_id = await self._store.find_answer(owner, digest)
            if run_id is None:
                return None
            await self._store.watch(run_id)
            records = await self._store.get(run_id)
        except (PodiumError, StoreError):
            return None
        if records is not None and (
            not records.has_content or records.record.status in ("lost", "cancelled")
        ):
            return None
        return Claim(account.key_id, "", digest, run_id, self._store.owner)

    async def _find_cached(self, task: Task, account: Account) -> Record | None:
        key = self._cache_key(task, account)
        if key is None:
            return None
        try:
            run_id = await self._store.find_answer(*key)
            records = await self._store.get(run_id) if run_id else None
        except (PodiumError, StoreError):
            return None
        if records is None or not records.has_content or not _is_reusable(records.record):
            return None
        return records.record if _cache_owner(records.record.account) == key[0] else None

    async def _keep_retry(self, record: Record, drop_us: int) -> bool:
        try:
            await self._store.keep_answer(
                CachedAnswer(*_retry_key(record.task, record.account), record.id, drop_us)
            )
        except (PodiumError, StoreError) as exc:
            logger.error("a request that is sent again may run again: %s", getattr(exc, "detail", exc))
            return False
        return True

    def _cache_key(self, task: Task, account: Account) -> tuple[str, str] | None:
        """Return the owner of a cached answer and the hash of its request, or None if it is not cached."""
        settings = self._settings()
        cache = settings.cache
        if cache.keep_s is None or task.plan_only or not task.permit.stores:
            return None
        if task.sampling.options.top_logprobs is not None:  # records have no log probabilities
            return None
        if cache.teams is not None and account.team_id not in cache.teams:
            return None
        words = replace(task, echo={})  # each run repeats its own request
        return _cache_owner(account), request_hash(words, self._hash_of(settings))

    def _hash_of(self, settings: Settings) -> str:
        """Return a hash of `settings`: with others, a task may be answered differently."""
        known, digest = self._fingerprint
        if known is not settings:
            digest = hashlib.sha256(settings.model_dump_json().encode()).hexdigest()
            self._fingerprint = settings, digest
        return digest


def match_results(record: Record, numbers: Collection[int]) -> Match:
    """Look up tool results in the record of their run. `NEW`: the record has neither asked for them nor got them yet.

    Args:
        record: of the run.
        numbers: of the calls that the results belong to.
    """
    if any(call.number in numbers for call in record.pending):
        return Match(Outcome.AWAITED)
    for index in range(len(record.segments) - 1, -1, -1):
        results = record.segments[index].given
        if results is not None and any(each.number in numbers for each in results.results):
            return Match(Outcome.REPEATED, segment=index)
    return NEW


def request_hash(task: Task, settings: str = "") -> str:
    """Return a hash that equal requests share. Streaming and marks for a provider's prompt cache make no difference; what
    the answer repeats of the request does, such as its client and its conversation.

    Args:
        task: that is requested.
        settings: a hash of the settings that answer it; empty: they make no difference.
    """
    tools = replace(task.tools, tools=tuple(replace(tool, cache="") for tool in task.tools.tools))
    options = replace(task.sampling.options, prompt_cache=None)
    content = codec.dump(
        replace(
            task,
            conversation=without_cache_marks(with_stable_system(task.conversation)),
            sampling=replace(task.sampling, options=options),
            tools=tools,
            stream=True,
            left_out=(),
        )
    )
    words = json.dumps([settings, content] if settings else content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()


def has_called(record: Record) -> bool:
    """Return whether a model was called for the run, so that a second run would be paid again. Its usage may be unknown."""
    is_paid = bool(record.usage.total_tokens or record.cost_usd)
    return is_paid or any(True for _ in record.unmetered_calls)


def cached_record(earlier: Record, task: Task, id: str, account: Account) -> Record:
    """Return the record of a run that gives the answer of an earlier one: no model is called, and nothing is paid."""
    return Record(
        id=id,
        task=task,
        created=time.time(),
        status="finished",
        answer=earlier.answer,
        finish=earlier.finish,
        account=account,
        cached_from=earlier.id,
    )


def _retry_key(task: Task, account: Account) -> tuple[str, str]:
    """Return the owner of a retried request, apart from the owners of cached answers, and its hash."""
    return f"again:{account.key_id}", request_hash(task)


def _cache_owner(account: Account) -> str:
    """Return who shares answers: a team, or one key without a team; empty if there are no keys."""
    if account.team_id:
        return f"team:{account.team_id}"
    return f"key:{account.key_id}" if account.key_id else ""


def _is_reusable(record: Record) -> bool:
    """Return whether the answer is whole and comes from the workers that should give it."""
    is_whole = record.status == "finished" and record.finish is FinishReason.STOP and bool(record.answer)
    return is_whole and record.fallback is None
