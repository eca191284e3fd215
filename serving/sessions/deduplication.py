"""Detection of repeated requests.

A request repeats an earlier one in these cases:

* It has the same `Idempotency-Key`.
* It is equal to a request whose answer failed or was interrupted, so it is a retry.
* It is equal to a request whose answer is cached.
* It contains tool results that their run has already received.

SDKs resend a failed request up to 30 times. A retry joins the run of the first request, so that nothing is
paid twice. The claims are in the store, so that every replica finds them. For a cached answer, the store has
only the id of the run. The answer is therefore deleted together with the record of the run.
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
from conductor.plan.prompt_parts import with_stable_system
from conductor.run import codec
from conductor.run.record import Account, Record
from conductor.run.task import Task
from serving.database.address import StoreError
from serving.database.clock import now_us
from serving.redaction.texts import redactor_of
from serving.sessions.run_admission import Loading
from serving.settings.settings import Settings
from serving.store.idempotency import CachedAnswer, Claim
from serving.store.store import RecordStore

logger = logging.getLogger("podium")

HEADER = "Idempotency-Key"


class Outcome(Enum):
    """Relation of a request to earlier requests."""

    NEW = auto()
    """The request is new and starts a run."""
    CLAIMED = auto()
    """An earlier request with the same `Idempotency-Key` has a run."""
    RETRIED = auto()
    """The answer to an equal request failed or was interrupted."""
    CACHED = auto()
    """An equal request of the same team has a cached answer."""
    AWAITED = auto()
    """The request has tool results for which a run waits."""
    REPEATED = auto()
    """The request has tool results that the run has already received."""


@dataclass(frozen=True, slots=True)
class Match:
    """Result of the lookup of earlier requests.

    Args:
        outcome: relation of the request to earlier requests.
        claim: claim of the earlier request, or None. For a new request with an `Idempotency-Key`, it is the
            claim of the request itself.
        record: record of the run with the cached answer, or None.
        segment: index of the part of the run that ended with the wait for the repeated tool results.
    """

    outcome: Outcome
    claim: Claim | None = None
    record: Record | None = None
    segment: int = 0


NEW = Match(Outcome.NEW)


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Idempotency key of a request.

    Args:
        account: id of the client's API key. The idempotency keys of different API keys are independent.
        name: idempotency key as the client sent it, or its digest if it contains a secret or personal data.
        body_hash: hash of the request.
    """

    account: str
    name: str
    body_hash: str


class RequestDeduplicator:
    """Finds the runs and answers of earlier requests, and stores what later lookups need."""

    def __init__(self, store: RecordStore, settings: Callable[[], Settings], loading: Loading) -> None:
        self._store, self._settings, self._loading = store, settings, loading
        self._fingerprint: tuple[Settings | None, str] = (None, "")

    async def find(
        self, task: Task, account: Account, *, may_join: bool = False, may_be_cached: bool = False
    ) -> Match:
        """Look up earlier requests that are equal to one without an idempotency key, for their run
        (`may_join`) or their cached answer.

        The run of a retry is watched from now on, so that the answer can be followed.
        """
        claim = await self._find_retried(task, account) if may_join else None
        if claim is not None:
            return Match(Outcome.RETRIED, claim)
        record = await self._find_cached(task, account) if may_be_cached else None
        return Match(Outcome.CACHED, record=record) if record else NEW

    async def claim(self, key: IdempotencyKey, run_id: str) -> Match:
        """Look up the earlier request with a key, or claim the key for a run. Raise NotTheSame if it was used
        for another request.

        A run that has failed before it called a model, with an error that may be retried, loses its claim.
        """
        own_claim = Claim(key.account, key.name, key.body_hash, run_id, self._store.owner)
        claim = await self._store.claim(own_claim)
        is_earlier = claim.run_id != run_id and claim.body_hash == key.body_hash
        if is_earlier and await self._has_failed_unpaid(claim):
            await self._store.release(claim)
            claim = await self._store.claim(own_claim)
        if claim.body_hash != key.body_hash:
            raise NotTheSame(
                f"This {HEADER} was already used for a different request. Use another key.", param=HEADER
            )
        return Match(Outcome.NEW if claim.run_id == run_id else Outcome.CLAIMED, claim)

    async def _has_failed_unpaid(self, claim: Claim) -> bool:
        """Return whether the run of a claim has failed without a call, with an error that may be retried."""
        info = await self._store.info(claim.run_id)
        records = await self._store.get(claim.run_id) if info and info.status == "failed" else None
        if records is None or records.record.failure is None:
            return False
        return records.record.failure.retryable and not has_called(records.record)

    def may_join(self, record: Record) -> bool:
        """Return whether a retry may join a run.

        It may if the settings enable it, the run may be stored, and the run has called a model.
        """
        return bool(self.joins_s) and record.task.permit.stores and has_called(record)

    @property
    def joins_s(self) -> float:
        """Seconds for which a retry joins the run of the first request."""
        return self._settings().store.asked_again_s

    async def expect_retry(self, record: Record) -> bool:
        """Let a retry join a failed or interrupted run for `joins_s` seconds. Return False if none may."""
        return self.may_join(record) and await self._keep_retry(record, now_us() + int(self.joins_s * 1e6))

    async def forget_retry(self, record: Record) -> None:
        """Undo `expect_retry`, because the client has the answer. An equal request then gets a new run."""
        await self._keep_retry(record, 0)

    def answer_of(self, record: Record, settings: Settings) -> CachedAnswer | None:
        """Return the cache entry for the answer of a run with `settings`, or None if the answer may not be
        reused.
        """
        key = self._cache_key(record.task, record.account, settings)
        if key is None or not _is_reusable(record) or record.cached_from:
            return None
        permit = record.task.permit
        if not permit.stores or redactor_of(permit)(record.answer) != record.answer:
            return None  # the stored answer would be redacted, unlike the client's
        keep_s = settings.cache.keep_s
        assert keep_s is not None, "a cache key implies keep_s"
        return CachedAnswer(*key, record.id, now_us() + int(keep_s * 1e6))

    async def keep_answer(self, answer: CachedAnswer) -> None:
        """Store a cache entry for an answer. If this fails, log it."""
        try:
            await self._store.keep_answer(answer)
        except (PodiumError, StoreError) as exc:
            logger.error("Cannot cache an answer: %s", getattr(exc, "detail", exc))

    async def _find_retried(self, task: Task, account: Account) -> Claim | None:
        if not self.joins_s or not task.permit.stores:
            return None
        owner, digest = _retry_key(task, account)
        try:
            run_id = await self._store.find_answer(owner, digest)
            if run_id is None:
                return None
            await self._store.watch(run_id)
            info = await self._store.info(run_id)
        except (PodiumError, StoreError):
            return None
        if info is not None and (not info.has_content or info.status in ("lost", "cancelled")):
            return None
        return Claim(account.key_id, "", digest, run_id, self._store.owner)

    async def _find_cached(self, task: Task, account: Account) -> Record | None:
        key = self._cache_key(task, account, self._settings())
        if key is None:
            return None
        try:
            run_id = await self._store.find_answer(*key)
            if run_id is None:
                return None
            async with self._loading(run_id, account):
                records = await self._store.get(run_id)
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
            logger.error(
                "Cannot store a retry claim, so a retry may start a second run: %s",
                getattr(exc, "detail", exc),
            )
            return False
        return True

    def _cache_key(self, task: Task, account: Account, settings: Settings) -> tuple[str, str] | None:
        """Return the owner and the hash of a request for the answer cache, or None if it may not be cached."""
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
        """Return a hash of the settings. Answers are cached per settings, because other settings change them."""
        hashed_settings, digest = self._fingerprint
        if hashed_settings is not settings:
            digest = hashlib.sha256(settings.model_dump_json().encode()).hexdigest()
            self._fingerprint = settings, digest
        return digest


def match_results(record: Record, numbers: Collection[int]) -> Match:
    """Return whether a run waits for the results of tool calls, or has them. `NEW` means neither."""
    if any(call.number in numbers for call in record.pending):
        return Match(Outcome.AWAITED)
    for index in range(len(record.segments) - 1, -1, -1):
        results = record.segments[index].given
        if results is not None and any(each.number in numbers for each in results.results):
            return Match(Outcome.REPEATED, segment=index)
    return NEW


def request_hash(task: Task, settings: str = "") -> str:
    """Return a hash of a request, and of the settings if their hash is given. Equal requests have the same
    hash.

    `stream` and cache marks do not matter. The fields that the answer repeats (`Task.echo`) do.
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
    """Return whether the run has called a model, even at unknown cost, so that another one would cost again."""
    is_paid = bool(record.usage.total_tokens or record.cost_usd)
    return is_paid or any(True for _ in record.unmetered_calls)


def to_cached_record(earlier: Record, task: Task, id: str, account: Account) -> Record:
    """Create the record of a run that reuses an earlier answer, without calls and costs."""
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
    """Return the owner and the hash under which a failed or interrupted request is stored for its retry.

    The prefix keeps these entries apart from those of cached answers.
    """
    return f"again:{account.key_id}", request_hash(task)


def _cache_owner(account: Account) -> str:
    """Return the owner of cached answers: the team, or the key if it has no team, or "" if there are no keys."""
    if account.team_id:
        return f"team:{account.team_id}"
    return f"key:{account.key_id}" if account.key_id else ""


def _is_reusable(record: Record) -> bool:
    """Return whether the answer of a run is complete and does not come from a fallback."""
    is_whole = record.status == "finished" and record.finish is FinishReason.STOP and bool(record.answer)
    return is_whole and record.fallback is None
