"""Detection of repeated requests: by `Idempotency-Key`, as the retry of a failed or interrupted answer, as an
equal request with a cached answer, or by tool results that their run has received already.

SDKs resend a failed request up to 30 times. A retry joins the run of the first request, so that nothing is
paid twice. The store holds the claims, so that every replica finds them. For an answer it holds only the id
of the run, so the answer is deleted with its record.
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
from serving.settings.settings import Settings
from serving.store.cached_answers import CachedAnswer
from serving.store.claims import Claim
from serving.store.rows import now_us
from serving.store.store import RecordStore

logger = logging.getLogger("podium")

HEADER = "Idempotency-Key"


class Outcome(Enum):
    """Relation of a request to earlier ones."""

    NEW = auto()
    """A new request with a run of its own."""
    CLAIMED = auto()
    """An earlier request with the same `Idempotency-Key` has a run."""
    RETRIED = auto()
    """The answer to an equal request failed or was interrupted."""
    CACHED = auto()
    """An equal request of the same team has a cached answer."""
    AWAITED = auto()
    """It has tool results that a run waits for."""
    REPEATED = auto()
    """It has tool results that its run has received already."""


@dataclass(frozen=True, slots=True)
class Match:
    """The result of a lookup.

    Args:
        outcome: relation to earlier requests.
        claim: of the earlier request; of this one if it is new and has an `Idempotency-Key`.
        record: that has the cached answer.
        segment: segment of the run that the repeated tool results ended.
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
        account: key id of the client. Equal names of other keys are unrelated.
        name: as the client sent it, or its digest if it contains a secret or personal data.
        body_hash: of the request.
    """

    account: str
    name: str
    body_hash: str


class RequestDeduplicator:
    """Looks up earlier requests, and stores what later lookups need.

    Args:
        store: of the records.
        settings: returns the current settings.
    """

    def __init__(self, store: RecordStore, settings: Callable[[], Settings]) -> None:
        self._store, self._settings = store, settings
        self._fingerprint: tuple[Settings | None, str] = (None, "")

    async def find(
        self, task: Task, account: Account, *, may_join: bool = False, may_be_cached: bool = False
    ) -> Match:
        """Look up a request without an idempotency key. From then on, the run of a retried request is
        watched.

        Args:
            task: that is requested.
            account: of the client.
            may_join: whether the request may join the run of an earlier one.
            may_be_cached: whether the request may get the answer of an earlier one.
        """
        claim = await self._find_retried(task, account) if may_join else None
        if claim is not None:
            return Match(Outcome.RETRIED, claim)
        record = await self._find_cached(task, account) if may_be_cached else None
        return Match(Outcome.CACHED, record=record) if record else NEW

    async def claim(self, key: IdempotencyKey, run_id: str) -> Match:
        """Look up a request with an idempotency key, and claim the key for a run if it is new.

        Raises:
            NotTheSame: the key was used for a different request.
            StoreUnavailable: the store is unreachable. Nothing was run.
        """
        claim = await self._store.claim(
            Claim(key.account, key.name, key.body_hash, run_id, self._store.owner)
        )
        if claim.body_hash != key.body_hash:
            raise NotTheSame(
                f"This {HEADER} was already used for a different request. Use another key.",
                param=HEADER,
            )
        return Match(Outcome.NEW if claim.run_id == run_id else Outcome.CLAIMED, claim)

    def may_join(self, record: Record) -> bool:
        """Return whether a retry may join the run: joining is enabled, the run may be stored, and a model was
        called.
        """
        return bool(self.joins_s) and record.task.permit.stores and has_called(record)

    @property
    def joins_s(self) -> float:
        """Seconds during which a retry joins the first run."""
        return self._settings().store.asked_again_s

    async def expect_retry(self, record: Record) -> bool:
        """Let a retry join this failed or abandoned run for a while. Return False if that is not possible."""
        return self.may_join(record) and await self._keep_retry(record, now_us() + int(self.joins_s * 1e6))

    async def forget_retry(self, record: Record) -> None:
        """Undo `expect_retry` once the client has the answer. An equal request is then a new one."""
        await self._keep_retry(record, 0)

    def answer_of(self, record: Record) -> CachedAnswer | None:
        """Return what to store for equal requests, or None if the answer may not be reused."""
        key = self._cache_key(record.task, record.account)
        if key is None or not _is_reusable(record) or record.cached_from:
            return None
        permit = record.task.permit
        if not permit.stores or redactor_of(permit)(record.answer) != record.answer:
            return None  # the stored answer would be redacted, unlike the client's
        keep_s = self._settings().cache.keep_s
        assert keep_s is not None, "a cache key implies keep_s"
        return CachedAnswer(*key, record.id, now_us() + int(keep_s * 1e6))

    async def keep_answer(self, answer: CachedAnswer) -> None:
        """Store an answer for equal requests."""
        try:
            await self._store.keep_answer(answer)
        except (PodiumError, StoreError) as exc:
            logger.error("failed to cache an answer: %s", getattr(exc, "detail", exc))

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
            logger.error(
                "failed to store a retry claim, so a retry may start a second run: %s",
                getattr(exc, "detail", exc),
            )
            return False
        return True

    def _cache_key(self, task: Task, account: Account) -> tuple[str, str] | None:
        """Return the owner of a cached answer and the hash of its request, or None if the request is not cached."""
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
        """Return a hash of `settings`, because other settings may lead to other answers."""
        hashed_settings, digest = self._fingerprint
        if hashed_settings is not settings:
            digest = hashlib.sha256(settings.model_dump_json().encode()).hexdigest()
            self._fingerprint = settings, digest
        return digest


def match_results(record: Record, numbers: Collection[int]) -> Match:
    """Look up tool results in the record of their run. Return `NEW` if the record has neither asked for nor
    received them.

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
    """Return a hash that equal requests share.

    Streaming and marks for a provider's prompt cache are ignored. Request fields that the answer repeats,
    such as the client and its conversation, are included.

    Args:
        task: that is requested.
        settings: hash of the settings; "" to ignore them.
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
    """Return whether a model was called for the run, so that a second run would cost again. The usage may be
    unknown.
    """
    is_paid = bool(record.usage.total_tokens or record.cost_usd)
    return is_paid or any(True for _ in record.unmetered_calls)


def to_cached_record(earlier: Record, task: Task, id: str, account: Account) -> Record:
    """Return the record of a run that reuses an earlier answer. No model is called, and it costs nothing."""
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
    """Return the owner of a retried request, distinct from owners of cached answers, and the request's hash."""
    return f"again:{account.key_id}", request_hash(task)


def _cache_owner(account: Account) -> str:
    """Return the owner of cached answers: a team, or a key without a team; "" if there are no keys."""
    if account.team_id:
        return f"team:{account.team_id}"
    return f"key:{account.key_id}" if account.key_id else ""


def _is_reusable(record: Record) -> bool:
    """Return whether the answer is complete and does not come from a fallback."""
    is_whole = record.status == "finished" and record.finish is FinishReason.STOP and bool(record.answer)
    return is_whole and record.fallback is None
