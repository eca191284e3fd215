"""Admission of requests: applies the table of `route_access.py` to every route.

Runs have their own slots (`serving/sessions/run_admission.py`). All other requests that last long or have large
answers are counted here, by key, by team and for the whole router, until the client has received the whole
answer. The total stays below `router.max_ongoing_requests`, beyond which Ray Serve would delay its own health
checks.
"""

import asyncio
import copy
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conductor.errors import Overloaded
from conductor.model.terms import Priority
from conductor.run.record import Account
from serving.accounts.caller import Caller
from serving.accounts.caller import Scope as KeyScope
from serving.api.authentication import CALLER, caller_in
from serving.api.respond import failure
from serving.api.route_access import RUN, UPLOAD, Cost, RouteAccess, Who
from serving.dispatch.slots import FairQueue
from serving.edge.exchange import PIECE_BYTES, PROBES, body_lease, count_body_bytes
from serving.fairness import Room, Share
from serving.sessions.run_admission import SMALL_BYTES
from serving.sessions.service import Service

READS_AT_ONCE = 4
"""Number of reads to process at once. One of the places is reserved for teams that have no read in progress.
"""
TURN_S = 1.0
"""Seconds after which the next read may begin. A longer one waits for a store or a run, not for CPU."""
CHANGES = 4
"""Divisor of `limits.max_reads`: a quarter as many changes as reads may be open."""
Rows = dict[str, tuple[RouteAccess, KeyScope | None]]
"""Access rule by HTTP method, and the scope that a key needs, or None if it needs none."""
ANONYMOUS = Account("-")
"""Account of a request without a key on a public route."""


class Admission:
    """Applies the access table to all routes of a router."""

    def __init__(self, service: Service, table: Mapping[str, RouteAccess]) -> None:
        def most_reads() -> int:
            return service.settings().limits.max_reads

        def most_bytes() -> int:
            return service.settings().limits.max_unread_bytes

        self._service, self._table = service, table
        self.reads = Room("limits.max_reads", most_reads, "open reads")
        self.changes = Room("limits.max_reads", lambda: most_reads() // CHANGES, "open changes")
        self.unread = Room("limits.max_unread_bytes", most_bytes, "response bytes that clients have not read")
        self.turns = FairQueue(READS_AT_ONCE)

    def guard(self, routes: Sequence[BaseRoute]) -> list[BaseRoute]:
        """Return `routes`, guarded by their access rules. Raise LookupError if one has none."""
        return [self._guard(route) for route in routes]

    def _guard(self, route: Any) -> BaseRoute:
        rows: Rows = {}
        for method in (getattr(route, "methods", None) or {"GET"}) - {"HEAD"}:
            place = f"{method} {route.path}"
            if place not in self._table:
                raise LookupError(f"{place} has no row in serving/api/route_access.py. Add one.")
            access = self._table[place]
            takes_any = access.who in (Who.PUBLIC, Who.ANY_KEY)
            rows[method] = access, None if takes_any else KeyScope(access.who.value)
        guarded = copy.copy(route)  # the original is shared by all applications of the process
        guarded.app = _Guarded(route.app, rows, self)
        return guarded

    def check_read(self, scope: Scope) -> None:
        """Check that the caller of a GET request may have one more open read, or raise Overloaded.

        The edge calls this before the route is known, because finding the route costs more than the check. Every
        route that needs a key and takes GET counts as a read.
        """
        caller: Caller | None = scope.get(CALLER)
        if caller is not None and scope["method"] in ("GET", "HEAD") and scope["path"] not in PROBES:
            self.reads.check(caller.account)

    @asynccontextmanager
    async def admit(
        self, access: RouteAccess, account: Account, n_body_bytes: int = 0
    ) -> AsyncGenerator["Lease"]:
        """Hold the resources of an answer and of the request's body in the block, or raise Overloaded."""
        cost = access.cost
        lease = Lease(self, account)
        with ExitStack() as resources:
            if cost.counted:
                room = self.reads if cost.counted == "reads" else self.changes
                resources.enter_context(room.holding(account))
            if cost.n_bytes:
                resources.enter_context(self.unread.holding(account, cost.n_bytes))
            if n_body_bytes > SMALL_BYTES:
                resources.enter_context(self.hold_body(cost, account, n_body_bytes))
            resources.callback(lease.close)
            if cost.in_turn:
                await lease.wait_for_turn()
            yield lease

    def hold_body(self, cost: Cost, account: Account, n_bytes: int) -> AbstractContextManager[None]:
        """Count a body, which is in memory while its request waits, against the memory for runs."""
        priority: Priority = "batch" if cost is UPLOAD else "interactive"
        return self._service.sessions.admission.memory.hold(account, n_bytes, priority)


class Lease:
    """Resources that one request holds, in addition to its place among the open requests."""

    def __init__(self, admission: Admission, account: Account) -> None:
        self._admission, self._account = admission, account
        self._turn: asyncio.TimerHandle | None = None
        self.unread = Share(admission.unread, account)
        """Number of bytes of the answer that the client has not read."""

    async def wait_for_turn(self) -> None:
        """Wait until fewer than `READS_AT_ONCE` other reads are being processed."""
        await self._admission.turns.take("interactive", self._account.tenant, self._account.key_id)
        self._turn = asyncio.get_running_loop().call_later(TURN_S, self.end_turn)

    def end_turn(self) -> None:
        """End the turn of this read, so that the next one can begin. Do nothing if it has ended already."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
            self._admission.turns.give_back(self._account.tenant)

    def close(self) -> None:
        self.end_turn()
        self.unread.resize(0)


class _Guarded:
    """Route that checks its access rules before it answers."""

    def __init__(self, app: ASGIApp, rows: Rows, admission: Admission) -> None:
        self._app, self._rows, self._admission = app, rows, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access, key_scope = self._rows.get(scope["method"]) or self._rows["GET"]  # a mounted folder: GET only
        caller = scope.get(CALLER) if access.who is Who.PUBLIC else caller_in(scope)
        if key_scope is not None and caller is not None:
            caller.require(key_scope)
        account, n_body_bytes = caller.account if caller else ANONYMOUS, count_body_bytes(scope)
        if not access.cost.counted:
            with body_lease(scope) as lease_of_body:  # the run's admission closes it
                if n_body_bytes > SMALL_BYTES:
                    lease_of_body.enter_context(self._admission.hold_body(access.cost, account, n_body_bytes))
                return await self._app(scope, receive, send)
        async with self._admission.admit(access, account, n_body_bytes) as lease:
            answer = _Answer(scope, receive, send, lease)
            return await self._app(scope, receive, answer.send)


class _Answer:
    """Response to one client. The turn of its request ends when the response begins. A response larger than
    `PIECE_BYTES` counts as unread.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, lease: Lease) -> None:
        self._scope, self._receive, self._send, self._lease = scope, receive, send, lease
        self._start: Message | None = None
        """Start of a large response, held until the body, because it may still be rejected."""
        self._is_refused = False

    async def send(self, message: Message) -> None:
        if self._is_refused:
            return None
        if message["type"] == "http.response.start":
            self._lease.end_turn()
            if _is_large(message):
                self._start = message
                return None
        start, self._start = self._start, None
        if start is not None:
            n_bytes = len(message.get("body", b""))
            if n_bytes > PIECE_BYTES and not message.get("more_body"):
                try:
                    self._lease.unread.resize(n_bytes)
                except Overloaded as exc:
                    self._is_refused = True
                    return await failure(Request(self._scope), exc)(self._scope, self._receive, self._send)
            await self._send(start)
        return await self._send(message)


def _is_large(start: Message) -> bool:
    lengths = [value for name, value in start.get("headers", ()) if name.lower() == b"content-length"]
    return any(int(length) > PIECE_BYTES for length in lengths)


def paths_of_runs(table: Mapping[str, RouteAccess]) -> set[str]:
    """Return the paths at which a `POST` starts a run."""
    return {place.partition(" ")[2] for place, access in table.items() if access.cost is RUN}
