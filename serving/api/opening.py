"""Which run answers a request: one of its own, one that outlives its client, or that of an earlier sending of it.

Knows how long a run lives; does not know what its client is sent.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from conductor.errors import StoreUnavailable
from conductor.run.run import Run
from serving.accounts.caller import Caller
from serving.api.keeping import Keeping
from serving.api.request import ApiRequest
from serving.api.resolve import ResolvedTask
from serving.api.siblings import Siblings
from serving.runs.claims import Claim
from serving.runs.following import follow, wait_until_begun
from serving.runs.journal import NOT_WRITTEN
from serving.runs.service import Service


class RunOpener:
    """Opens the run of one request, once.

    Args:
        service: that runs it.
        request: what was asked.
        headers: of the request, for its trace.
        caller: who asks.
        id: of the run, where it is one of its own.
        keeping: how it outlives its client; None: it ends with the response.
        siblings: it is one of several that answer the request, and that end with the response; None: the only one.
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
        self._service, self._request, self._incoming = service, request, headers
        self._caller, self._id, self._keeping, self._siblings = caller, id, keeping, siblings
        self.is_left = False
        """Whether the client left before a run that outlives it had begun."""
        self.is_joined = True
        """Whether the same request, sent again, gets the failure of the run and no new run."""
        self.own: Run | None = None
        """The run, where it is this response's, or a view of an earlier one's; one that outlives it is not."""
        self.joinable: Run | None = None
        """The run, where the same request would join it."""

    @asynccontextmanager
    async def open(self, resolved: ResolvedTask, *, may_join: bool) -> AsyncGenerator[Run]:
        """The run that answers: one that ends with this response, one that outlives it, or an earlier one.

        Args:
            resolved: what is asked.
            may_join: whether that may be the run of an earlier sending of it, which failed or was cut off.

        Raises:
            PodiumError: there is none.
        """
        keeping = self._keeping
        if keeping is None:
            opened = self._open_earlier_or_own if may_join else self._open_own
            async with opened(resolved) as run:
                self.own = run
                yield run
            return
        beginning = asyncio.create_task(self._begin(keeping, resolved), name="run begins")
        try:
            found = await asyncio.shield(beginning)
        except asyncio.CancelledError:  # the client left; what was claimed is run
            beginning.add_done_callback(_close_answer)
            self.is_left = True
            raise
        if isinstance(found, Claim):
            async with self._follow(found) as run:
                yield run
            return
        try:
            yield found
        finally:
            found.answer.close()

    @asynccontextmanager
    async def _open_earlier_or_own(self, resolved: ResolvedTask) -> AsyncGenerator[Run]:
        """The run of an earlier sending of the same request that failed or was cut off; else one that ends with this
        response, unless its client is cut off.
        """
        askings = self._service.second_askings
        earlier = await askings.find(resolved.task, self._caller.account)
        if earlier is not None:
            async with self._follow(earlier) as run:
                yield run
            if run.record.status == "finished":
                await askings.forget(run.record)
            return
        async with self._open_own(resolved) as run:
            self.joinable = run
            try:
                yield run
            finally:
                if run.record.status == "failed":
                    self.is_joined = await askings.note(run.record)

    def _open_own(self, resolved: ResolvedTask) -> AbstractAsyncContextManager[Run]:
        """A run that ends with this response."""
        return self._service.run(
            resolved.task,
            resolved.team,
            self._id,
            self._incoming,
            self._caller,
            of_cache=self._request.podium.cache,
            let_in=self._siblings.wait_until_let_in if self._siblings else None,
            n_beside=self._request.n_beside,
        )

    def _follow(self, claim: Claim) -> AbstractAsyncContextManager[Run]:
        """The run that an earlier request has claimed, for one more reader."""
        opened = follow(self._service.store, claim)
        return self._service.followers.follow(claim.run_id, self._caller.account, opened)

    async def _wait_until_begun(self, claim: Claim) -> bool:
        """See `wait_until_begun`; who waits there looks into the store as often as who follows."""
        with self._service.followers.enter(claim.run_id, self._caller.account):
            return await wait_until_begun(self._service.store, claim)

    async def _begin(self, keeping: Keeping, resolved: ResolvedTask) -> Run | Claim:
        """A run that outlives this response, or the claim of the earlier one that is to answer."""
        store = self._service.store
        claim = await keeping.claim(store, self._id)
        while claim and claim.run_id != self._id and not await self._wait_until_begun(claim):
            claim = await keeping.claim(store, self._id)
        self.is_joined = claim is not None
        if claim is not None and claim.run_id != self._id:
            return claim
        try:
            task = replace(resolved.task, may_change=keeping.may_change)
            if self._request.podium.background and store.is_away:
                raise StoreUnavailable(NOT_WRITTEN)
            run = await self._service.keep(task, resolved.team, self._id, self._incoming, self._caller)
            if self._request.podium.background:
                await self._wait_until_written(run)
            return run
        except Exception:  # nothing was run
            if claim is not None:
                await store.release(claim)
            raise

    async def _wait_until_written(self, run: Run) -> None:
        """Wait until the beginning of a run in the background is written: what is accepted survives this replica.

        Raises:
            StoreUnavailable: it cannot be written. The run is cancelled.
        """
        try:
            await self._service.store.wait_until_written(self._id)
        except StoreUnavailable:
            run.answer.close()
            run.cancel()
            raise


def _close_answer(beginning: "asyncio.Task[Run | Claim]") -> None:
    """Nobody reads the answer of the run that has begun."""
    if not beginning.cancelled() and beginning.exception() is None:
        found = beginning.result()
        if isinstance(found, Run):
            found.answer.close()
