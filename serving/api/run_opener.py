"""Find or start the run that answers a request: its own, one that outlives its client, or an earlier
request's.
"""

import asyncio
import dataclasses
import hashlib
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager

from msgspec.structs import replace
from starlette.requests import Request

from conductor.errors import BadTask, StoreUnavailable
from conductor.run.run import Run
from serving.accounts.caller import Caller
from serving.accounts.rates import NO_RATES, RateReservation
from serving.api.choices import Siblings
from serving.api.request import ApiRequest, Podium
from serving.api.resolve import ResolvedTask
from serving.redaction.personal import name_on_record
from serving.sessions.deduplication import HEADER, IdempotencyKey, Match, Outcome
from serving.sessions.following import follow, wait_until_begun
from serving.sessions.service import Service
from serving.sessions.session import RunSpec
from serving.store.idempotency import Claim
from serving.store.journal import NOT_WRITTEN

MOST_CHARS = 255


@dataclasses.dataclass(frozen=True, slots=True)
class Keeping:
    """Options of a run that continues if its client disconnects.

    Args:
        key: the client's idempotency key, or None if the request always starts a new run.
        may_change: whether an answer that is written again may differ from the first one. False if the client
            receives numbered events.
    """

    key: IdempotencyKey | None
    may_change: bool = True


class RunOpener:
    """Finds or starts the run that answers one request.

    Args:
        keeping: options of a run that continues without its client, or None if the run ends with the response.
        siblings: the other runs that answer the request, or None if this is the only one.
    """

    def __init__(
        self,
        service: Service,
        request: ApiRequest,
        headers: dict[str, str],
        caller: Caller,
        id: str,
        keeping: Keeping | None,
        siblings: Siblings | None,
    ) -> None:
        self._service, self._request, self._headers = service, request, headers
        self._caller, self._id, self._keeping, self._siblings = caller, id, keeping, siblings
        self._sessions = service.sessions
        self.rate: RateReservation = NO_RATES
        """Part of the caller's rate limits that this request uses."""
        self.body_lease = ExitStack()
        """Memory of the request's body. It closes when a new run is admitted, which counts the same texts. A
        request that reads or resumes another run has texts of its own, which count until its end.
        """
        self.is_left = False
        """True if the client disconnected before a run that continues without its client had begun."""
        self.is_joined = True
        """True if a retry of the request gets the failure of this run instead of a new run."""
        self.own: Run | None = None
        """The run, if it ends with this response or is an earlier request's, or else None."""
        self.joinable: Run | None = None
        """The run, if a retry would join it."""

    def open(self, resolved: ResolvedTask, *, may_join: bool) -> AbstractAsyncContextManager[Run]:
        """Open the run that answers. With `may_join`, it may be the run of an equal request that failed or
        broke.
        """
        return self._open_kept(resolved) if self._keeping else self._open_unnamed(resolved, may_join=may_join)

    @asynccontextmanager
    async def _open_unnamed(self, resolved: ResolvedTask, *, may_join: bool) -> AsyncGenerator[Run]:
        """Open a new run that ends with this response, or the run of an equal earlier request."""
        earlier, is_cached = self._sessions.requests, self._request.podium.cache
        match = await earlier.find(
            resolved.task, self._caller.account, may_join=may_join, may_be_cached=is_cached
        )
        if match.outcome is Outcome.RETRIED:
            async with self._follow(match) as run:
                self.own = run
                yield run
            if run.record.status == "finished":
                await earlier.forget_retry(run.record)
            return
        spec = dataclasses.replace(
            self._spec(resolved),
            cached=match.record,
            is_cached=is_cached,
            n_beside=self._request.n_beside,
            before_calls=self._siblings.wait_until_admitted if self._siblings else None,
        )
        self.body_lease.close()
        async with self._sessions.start(spec, self._caller) as session:
            run = self.own = session.run
            self.joinable = run if may_join else None
            try:
                yield run
            finally:
                if may_join and run.record.status == "failed":
                    self.is_joined = await earlier.expect_retry(run.record)

    @asynccontextmanager
    async def _open_kept(self, resolved: ResolvedTask) -> AsyncGenerator[Run]:
        """Open a run that outlives its client, or the one with the same idempotency key."""
        # The task uses the pool before this one can be cancelled, because asyncio runs tasks in order.
        beginning = asyncio.create_task(self._begin(resolved), name="run begins")
        try:
            result = await asyncio.shield(beginning)
        except asyncio.CancelledError:  # the client disconnected, but the claimed run must still begin
            beginning.add_done_callback(_close_answer)
            self.is_left = True
            raise
        if isinstance(result, Match):
            async with self._follow(result) as run:
                yield run
            return
        try:
            yield result
        finally:
            result.answer.close()

    def _spec(self, resolved: ResolvedTask) -> RunSpec:
        return RunSpec(self._id, resolved.task, resolved.team, resolved.pool, self._headers, self.rate)

    def _follow(self, match: Match) -> AbstractAsyncContextManager[Run]:
        """Read the run of an earlier request."""
        claim = _claim_of(match)
        account = self._caller.account
        opened = follow(self._service.store, claim, self._sessions.admission.loading, account)
        return self._sessions.follow(claim.run_id, account, opened)

    async def _wait_until_begun(self, match: Match) -> bool:
        """Wait until an earlier request's run has begun, which counts as a reader (`wait_until_begun`)."""
        claim = _claim_of(match)
        with self._sessions.read(claim.run_id, self._caller.account):
            return await wait_until_begun(self._service.store, claim)

    async def _begin(self, resolved: ResolvedTask) -> Run | Match:
        """Start a run that outlives this response, or return the earlier request whose run answers."""
        keeping, store, earlier = self._keeping, self._service.store, self._sessions.requests
        assert keeping is not None, "the run outlives its client"
        async with self._service.use_pool(resolved.pool):
            match = await earlier.claim(keeping.key, self._id) if keeping.key else None
            while keeping.key and match and match.outcome is Outcome.CLAIMED:
                if await self._wait_until_begun(match):
                    return match
                match = await earlier.claim(keeping.key, self._id)
            self.is_joined = match is not None
            spec = self._spec(resolved)
            try:
                if self._request.podium.background and store.is_away:
                    raise StoreUnavailable(NOT_WRITTEN)
                spec = dataclasses.replace(spec, task=replace(spec.task, may_change=keeping.may_change))
                self.body_lease.close()
                run = await self._sessions.start_kept(spec, self._caller)
                if self._request.podium.background:
                    await self._wait_until_written(run)
                return run
            except Exception:  # the run did not start
                if match is not None:
                    await store.release(_claim_of(match))
                raise

    async def _wait_until_written(self, run: Run) -> None:
        """Wait until a background run's start is stored. Otherwise it is cancelled, and StoreUnavailable
        raised.
        """
        try:
            await self._service.store.wait_until_written(self._id)
        except StoreUnavailable:
            run.answer.close()
            run.cancel()
            raise


def _claim_of(match: Match) -> Claim:
    assert match.claim is not None, "a match of an earlier or a keyed request has a claim"
    return match.claim


def _close_answer(beginning: "asyncio.Task[Run | Match]") -> None:
    """Close the answer of a run whose client disconnected before it had begun."""
    if not beginning.cancelled() and beginning.exception() is None:
        result = beginning.result()
        if isinstance(result, Run):
            result.answer.close()


async def keeping_of(request: Request, caller: Caller, podium: Podium, *, may_change: bool) -> Keeping | None:
    """Return the options of a run that continues without its client, or None. See `Keeping` for `may_change`."""
    name = request.headers.get(HEADER)
    if name is not None and not (0 < len(name) <= MOST_CHARS and name.isascii() and name.isprintable()):
        raise BadTask(f"{HEADER} must have 1 to {MOST_CHARS} printable ASCII characters.", param=HEADER)
    if name is None and not (podium.keep or podium.background):
        return None
    if name is None:
        return Keeping(None, may_change)
    body_hash = hashlib.sha256(request.scope["path"].encode() + b"\0" + await request.body()).hexdigest()
    return Keeping(IdempotencyKey(caller.account.key_id, name_on_record(name), body_hash), may_change)
