"""The edge as ASGI: the one entry of all requests.

It runs in Serve's proxy and in the router replica behind it. Both reject a request that is foreign, unfinished or too large.
The first one leaves a mark in the scope, which Serve passes on and no client can write, and the second does not check again.

A router checks more (`RouterChecks`). A client receives the error of the first check that fails:

1. Number of open requests.
2. Host, origin, content type, and the body: whole, in time, not too large.
3. For a run: a free slot, and an event loop that keeps up.
4. Key.
5. Encoding of the body.

While a router answers, it gives up clients that read nothing (`exchange.py`).
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from conductor.errors import BadTask, Overloaded, PodiumError, TooSlow, WrongContentType
from serving import errors
from serving.edge.checks import (
    ASKED_HEADERS,
    ENCODING,
    IDEMPOTENCY_KEY,
    LENGTH,
    WITH_BODY,
    BodyBound,
    ClientGoneError,
    Fields,
    asks_for_websocket,
    check_content_type,
    check_host,
    check_origin,
    check_text,
    encodings,
    has_body,
    read_body,
    read_fields,
    read_rest,
)
from serving.edge.decoding import FIELD, SERVED, decode, find_decoder
from serving.edge.exchange import EXCHANGE, HttpExchange
from serving.edge.load_shedding import BEHIND, LONG_S, PROBES, SparseWarning, check_open, falls_behind
from serving.edge.policy import UPLOAD, ErrorBody, Policy
from serving.edge.waiting import WaitingRoom
from serving.redaction.slices import turn
from serving.settings.settings import Settings

logger = logging.getLogger("podium")

PASSED = "podium.edge"
"""In a scope: the request is whole, and came past an edge."""
HEALTH = {"/healthz", "/-/healthz"}
"""Answered under any host name: probes use addresses. The answer says only that the process lives."""
PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-max-age", b"600"),
)
ALLOWED_HEADERS = "authorization, content-type, idempotency-key, traceparent, tracestate, x-api-key"
"""Headers that a page may send if its preflight names none: the SDKs name a dozen more, which change nothing here."""
EXPOSED = (
    "x-podium-workflow-id, x-podium-cache, x-should-retry, retry-after, x-ratelimit-limit-requests, "
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
    "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, x-podium-budget-left-usd, x-podium-budget-window"
)
"""Headers of an answer that a page may read."""
FILE = "batches.max_file_bytes"
UNREAD_BYTES = 8192
"""The longest body of a request whose method has none here, such as GET and DELETE: some clients send `{}`."""
LARGE_BYTES = 262_144
"""Longer bodies are passed on one at a time, and everything else has its turn before the next one: many may become whole in
the same moment.
"""
HEADER_NAMES = re.compile(r"^[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,2000}$")
JSON = (b"content-type", b"application/json")
NO_WEBSOCKET = "WebSocket is not served here. Send the request as a POST; `stream: true` streams its answer."
UPGRADE_REQUIRED = 426
UPGRADE_HEADERS = (
    (b"upgrade", b"HTTP/1.1"),
    (b"connection", b"upgrade, close"),
    (b"x-should-retry", b"false"),
    JSON,
)
"""Headers of the answer to a WebSocket's handshake: clients such as Codex then speak HTTP (RFC 9110, section 15.5.22)."""
POLICY_VIOLATION = 1008
LOOKS = 6
"""At each answer, in the time for which its client may take nothing."""
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class RouterChecks:
    """Checks that a router makes, and Serve's proxy does not.

    Args:
        settings: returns the current settings.
        run_paths: a `POST` to one of these asks for a run.
        check_slots: raises `Overloaded` if no further run is admitted.
        authenticate: takes the key out of a scope and leaves the caller there, or raises an error.
    """

    settings: Callable[[], Settings]
    run_paths: Collection[str]
    check_slots: Callable[[], None]
    authenticate: Callable[[Scope], Awaitable[None]]


class Edge:
    """ASGI middleware that checks each request before `app` receives it.

    Args:
        app: the application to guard.
        policy: the limits.
        room: where unfinished requests wait. In the proxy the protocol that accepts the connections shares it.
        error_body: writes the body of an error.
        router: further checks; None in Serve's proxy.
    """

    def __init__(
        self,
        app: ASGIApp,
        policy: Policy,
        room: WaitingRoom,
        error_body: ErrorBody,
        router: RouterChecks | None = None,
    ) -> None:
        self._app, self._policy, self._room, self._error_body = app, policy, room, error_body
        self._router = router
        self._n_evicted = self._n_shed = self._n_open = 0
        self._eviction_warning = SparseWarning(
            "%d connections without a whole request were closed to make room"
        )
        self._load_warning = SparseWarning(
            "turns of the event loop are more than %g s of work: %d requests were refused since the start"
        )
        self._decoding = asyncio.Lock()
        self._exchanges = set[HttpExchange]()
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        router = self._router
        if scope["type"] != "http":
            if router is None or scope["type"] == "lifespan":
                return await self._app(scope, receive, send)
            return await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        exchange = HttpExchange(scope, receive, send)
        if router is None:
            if await self._admit(scope, exchange):
                await self._app(scope, exchange.receive, exchange.send if exchange.added_headers else send)
            return None
        is_counted = scope["path"] not in PROBES
        scope[EXCHANGE] = exchange
        self._exchanges.add(exchange)
        self._n_open += is_counted
        try:
            if self._timer is None:
                self._look()
            if await self._admit(scope, exchange):
                exchange.is_head = scope["method"] == "HEAD"
                as_get = {**scope, "method": "GET"} if exchange.is_head else scope
                await self._app(as_get, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if not await exchange.end_cancelled():
                raise
        finally:
            self._n_open -= is_counted
            self._exchanges.discard(exchange)
            exchange.task = None
            del scope[EXCHANGE]
        return None

    def _look(self) -> None:
        """Give up the clients that take nothing, and look again while any request is open."""
        assert self._router is not None
        loop, limit_s = asyncio.get_running_loop(), self._router.settings().limits.unread_s
        self._timer = loop.call_later(limit_s / LOOKS, self._look) if self._exchanges else None
        for exchange in self._exchanges:
            exchange.check_progress(loop.time(), limit_s)

    async def _admit(self, scope: Scope, exchange: HttpExchange) -> bool:
        """Return whether the request goes to `app`. Else it has its answer."""
        if self._room.evicted != self._n_evicted:
            self._log_evictions()
        router = self._router
        try:
            if router is not None and scope["path"] not in PROBES:
                most = router.settings().router.max_ongoing_requests
                check_open(self._n_open - 1, most, self._room)
            fields = read_fields(scope["headers"])
            if PASSED not in scope:
                if not await self._check(scope, fields, exchange):
                    return False
                scope[PASSED] = True
            if router is not None:
                await self._check_for_router(router, scope, fields, exchange)
        except ClientGoneError:
            return False
        except PodiumError as exc:
            await self._refuse(scope, exchange, exc)
            return False
        return True

    async def _check(self, scope: Scope, fields: Fields, exchange: HttpExchange) -> bool:
        """Return False if the edge itself has answered the request."""
        method, is_upload = scope["method"], scope["method"] == "POST" and scope["path"] == UPLOAD
        if scope["path"] not in HEALTH:
            server = (scope.get("server") or ("",))[0]
            check_host(fields, self._policy, server)
            origin = check_origin(fields, self._policy, server)
            check_content_type(method, fields, is_upload=is_upload)
            if origin is not None:
                exchange.added_headers = _allow(origin)
                if method == "OPTIONS":
                    allowed = (b"access-control-allow-headers", _allowed_headers(fields))
                    await _answer(exchange, 204, [*PREFLIGHT, allowed], b"")
                    return False
        if asks_for_websocket(fields):
            body = self._error_body(BadTask(NO_WEBSOCKET, param="Upgrade"), scope["path"])
            await _answer(exchange, UPGRADE_REQUIRED, UPGRADE_HEADERS, orjson.dumps(body))
            return False
        if method in WITH_BODY or has_body(fields):
            await self._read_body(scope, fields, exchange, is_upload=is_upload)
        return True

    async def _read_body(
        self, scope: Scope, fields: Fields, exchange: HttpExchange, *, is_upload: bool
    ) -> None:
        """Read the body. The text of an encoded one is bounded when it is decoded, once the caller is known."""
        policy, bound = self._policy, BodyBound(UNREAD_BYTES, "")
        if is_upload:
            bound = BodyBound(policy.max_upload_bytes, FILE)
        elif scope["method"] in WITH_BODY:
            bound = BodyBound(policy.max_body_bytes)
        exchange.is_reading = True
        body = await read_body(scope, exchange.receive, fields, policy, self._room, bound)
        exchange.is_reading = False
        if len(body) > LARGE_BYTES:
            async with turn((scope.get("client") or ("",))[0]):
                pass  # what parses it comes right after, in the same turn of the loop
        if not is_upload and not (ENCODING in fields and encodings(fields)):
            check_text(body, policy.max_text_bytes)
        exchange.body = body

    async def _check_for_router(
        self, router: RouterChecks, scope: Scope, fields: Fields, exchange: HttpExchange
    ) -> None:
        method = scope["method"]
        if method == "POST" and scope["path"] in router.run_paths:
            if IDEMPOTENCY_KEY not in fields:  # else it may join a run, which has its slot
                router.check_slots()
            if await falls_behind():
                self._n_shed += 1
                self._load_warning.log(LONG_S, self._n_shed)
                raise Overloaded(BEHIND)
        await router.authenticate(scope)
        if method in WITH_BODY:
            if exchange.body is None:
                exchange.body = await read_rest(exchange.receive)
            if ENCODING in fields and (names := encodings(fields)):
                await self._decode(router, scope, exchange, names)

    async def _decode(
        self, router: RouterChecks, scope: Scope, exchange: HttpExchange, names: Sequence[str]
    ) -> None:
        pieces, body = find_decoder(names), exchange.body
        policy, is_upload = Policy.of(router.settings()), scope["path"] == UPLOAD
        most = policy.max_upload_bytes if is_upload else policy.max_body_bytes
        exchange.body = await decode(pieces(body), most, self._decoding) if body else b""
        if not is_upload:
            check_text(exchange.body, policy.max_text_bytes)
        scope["headers"] = [each for each in scope["headers"] if each[0] not in (ENCODING, LENGTH)]
        scope["headers"].append((LENGTH, b"%d" % len(exchange.body)))

    async def _refuse(self, scope: Scope, exchange: HttpExchange, error: PodiumError) -> None:
        """Answer with the error. The connection of a request that is not going to be whole ends with it."""
        headers = [(name.encode(), value.encode()) for name, value in errors.headers(error).items()]
        headers.append(JSON)
        if exchange.is_reading and isinstance(error, TooSlow | Overloaded):
            headers.append((b"connection", b"close"))
        if isinstance(error, WrongContentType) and error.param == FIELD:
            headers.append((b"accept-encoding", SERVED.encode()))
        body = orjson.dumps(self._error_body(error, scope["path"]))
        await _answer(exchange, errors.row(error).status, headers, body)

    def _log_evictions(self) -> None:
        if self._eviction_warning.log(self._room.evicted - self._n_evicted):
            self._n_evicted = self._room.evicted


def _allowed_headers(fields: Fields) -> bytes:
    """Return the headers that a preflight asks for: a page that may call may send any; what they mean is checked where
    they are read. No cookie is among them: credentials are never allowed.
    """
    asked = fields.get(ASKED_HEADERS, [""])[-1]
    return (asked if HEADER_NAMES.match(asked) else ALLOWED_HEADERS).encode("latin-1")


def _allow(origin: str) -> Headers:
    """Return the headers that tell browsers that pages of `origin` may read the answer."""
    return (
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", EXPOSED.encode()),
        (b"vary", b"origin"),
    )


async def _answer(exchange: HttpExchange, status: int, headers: Headers, body: bytes) -> None:
    length = (LENGTH, b"%d" % len(body))
    await exchange.send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await exchange.send({"type": "http.response.body", "body": body})
