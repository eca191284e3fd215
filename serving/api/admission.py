"""Admission: every route behind the table of `access.py`, which says who may call it and what answering it may hold.

Runs have their own slots (`serving/sessions/admission.py`). Everything else that lasts or is large is counted here, by key, by
team and for the router, until the client has all of its answer: whatever clients do, what is admitted together stays
below `router.max_ongoing_requests`, above which Ray Serve would let its own health checks wait.
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
from serving.accounts.caller import Scope as KeyScope
from serving.api.access import RUN, UPLOAD, Access, Cost, Who
from serving.api.authentication import CALLER, caller_in
from serving.api.respond import failure
from serving.dispatch.fair_queue import FairQueue
from serving.edge.exchange import PIECE_BYTES, count_body_bytes
from serving.sessions.memory_budget import SMALL_BYTES
from serving.sessions.service import Service
from serving.shares import Room, Share

READS_AT_ONCE = 4
"""Reads that are worked on at once. One place is kept for keys that have none."""
TURN_S = 1.0
"""A read that takes longer waits for a store or for a run, and not for this process: the next one begins."""
CHANGES = 4
"""A quarter as many changes as reads may be under way."""
Rows = dict[str, tuple[Access, KeyScope | None]]
"""By method: a row of the table, and the scope that a key needs, or None if any key is enough or none is needed."""
STRANGER = Account("-")
"""Whoever sends no key to a public route."""


class Admission:
    """What all routes of a router share.

    Args:
        service: with the limits.
        table: of all routes; see `access_table`.
    """

    def __init__(self, service: Service, table: Mapping[str, Access]) -> None:
        def most_reads() -> int:
            return service.pool.settings.limits.max_reads

        def most_bytes() -> int:
            return service.pool.settings.limits.max_unread_bytes

        self._service, self._table = service, table
        self.reads = Room("limits.max_reads", most_reads, "reads")
        self.changes = Room("limits.max_reads", lambda: most_reads() // CHANGES, "changes")
        self.unread = Room(
            "limits.max_unread_bytes", most_bytes, "bytes of answers that clients have not read yet"
        )
        self.turns = FairQueue(READS_AT_ONCE)

    def guard(self, routes: Sequence[BaseRoute]) -> list[BaseRoute]:
        """Return `routes`, each behind its rows of the table.

        Raises:
            LookupError: a route has no row.
        """
        return [self._guard(route) for route in routes]

    def _guard(self, route: Any) -> BaseRoute:
        rows: Rows = {}
        for method in (getattr(route, "methods", None) or {"GET"}) - {"HEAD"}:
            place = f"{method} {route.path}"
            if place not in self._table:
                raise LookupError(f"{place} has no row in serving/api/access.py: who may call it?")
            access = self._table[place]
            takes_any = access.who in (Who.PUBLIC, Who.ANY_KEY)
            rows[method] = access, None if takes_any else KeyScope(access.who.value)
        guarded = copy.copy(route)  # a router's own is shared by all applications of the process
        guarded.app = _Guarded(route.app, rows, self)
        return guarded

    @asynccontextmanager
    async def admit(self, access: Access, account: Account, n_body_bytes: int = 0) -> AsyncGenerator["Lease"]:
        """Hold what answering costs, and the request's body, until the end of the block.

        Raises:
            Overloaded: there is no more of it, for this key or for all.
        """
        cost = access.cost
        lease = Lease(self, account)
        with ExitStack() as held:
            if cost.counted:
                room = self.reads if cost.counted == "reads" else self.changes
                held.enter_context(room.holding(account))
            if cost.n_bytes:
                held.enter_context(self.unread.holding(account, cost.n_bytes))
            if n_body_bytes > SMALL_BYTES:
                held.enter_context(self._holding_body(cost, account, n_body_bytes))
            held.callback(lease.close)
            if cost.in_turn:
                await lease.wait_for_turn()
            yield lease

    def _holding_body(self, cost: Cost, account: Account, n_bytes: int) -> AbstractContextManager[None]:
        """Count a body with the conversations of runs: it is in memory while its request waits, and while it is read."""
        priority: Priority = "batch" if cost is UPLOAD else "interactive"
        return self._service.sessions.admission.memory.hold(account, n_bytes, priority)


class Lease:
    """What one request holds beside its place.

    Args:
        admission: where it is counted.
        account: whose request it is.
    """

    def __init__(self, admission: Admission, account: Account) -> None:
        self._admission, self._account = admission, account
        self._turn: asyncio.TimerHandle | None = None
        self.unread = Share(admission.unread, account)
        """Bytes of its answer."""

    async def wait_for_turn(self) -> None:
        """Wait until few enough others are worked on."""
        await self._admission.turns.take("interactive", self._account.key_id)
        self._turn = asyncio.get_running_loop().call_later(TURN_S, self.end_turn)

    def end_turn(self) -> None:
        """Let the next one be worked on: the answer is made, and waits for its client at most."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
            self._admission.turns.give_back(self._account.key_id)

    def close(self) -> None:
        """Give everything back."""
        self.end_turn()
        self.unread.resize(0)


class _Guarded:
    """A route behind its rows of the table.

    Args:
        app: of the route.
        rows: of the table.
        admission: where it is counted.
    """

    def __init__(self, app: ASGIApp, rows: Rows, admission: Admission) -> None:
        self._app, self._rows, self._admission = app, rows, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        access, key_scope = self._rows.get(scope["method"]) or self._rows["GET"]  # of a mounted folder
        caller = scope.get(CALLER) if access.who is Who.PUBLIC else caller_in(scope)
        if key_scope is not None and caller is not None:
            caller.require(key_scope)
        if not access.cost.counted:
            return await self._app(scope, receive, send)
        account = caller.account if caller else STRANGER
        async with self._admission.admit(access, account, count_body_bytes(scope)) as lease:
            answer = _Answer(scope, receive, send, lease)
            return await self._app(scope, receive, answer.send)


class _Answer:
    """What is sent to one client: its turn ends when the answer begins, and what is larger than a piece is counted.

    Args:
        scope, receive, send: of ASGI.
        lease: of the request.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, lease: Lease) -> None:
        self._scope, self._receive, self._send, self._lease = scope, receive, send, lease
        self._start: Message | None = None
        """Waits for the body: it may be refused."""
        self._is_refused = False

    async def send(self, message: Message) -> None:
        """ASGI's `send`."""
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


def paths_of_runs(table: Mapping[str, Access]) -> set[str]:
    """`POST` to one of these asks for a run."""
    return {place.partition(" ")[2] for place, access in table.items() if access.cost is RUN}
