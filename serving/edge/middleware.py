"""The edge as ASGI middleware, through which all requests enter.

It runs in Serve's proxy and in the router replica behind it. Both reject foreign, incomplete and oversized
requests. The proxy marks a checked request in its scope. Serve passes the mark on, no client can set it, and
the replica skips those checks.

A router makes further checks (`RouterChecks`). The first check that fails determines the error:

1. Number of open requests.
2. Host, origin, content type, and the body: complete, in time, not too large.
3. For a run: a free slot, and an event loop that keeps up.
4. Key.
5. Encoding of the body.

While a router answers, it drops clients that do not read (`exchange.py`).
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conductor.errors import BadTask, Overloaded, PodiumError, TooSlow, WrongContentType
from conductor.run.record import Account
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
from serving.edge.exchange import (
    AT_ONCE_PATHS,
    BEHIND,
    EXCHANGE,
    LONG_S,
    PROBES,
    Headers,
    HttpExchange,
    SparseWarning,
    WaitingRoom,
    check_open,
    falls_behind,
    send_error,
    send_response,
)
from serving.edge.policy import UPLOAD, ErrorBody, HttpPolicy
from serving.redaction.slices import turn
from serving.settings.settings import Settings

logger = logging.getLogger("podium")

PASSED = "podium.edge"
"""Key in an ASGI scope. True if the request is complete and another edge has checked it."""
HEALTH = {"/healthz", "/-/healthz"}
"""Paths under any host name, because probes use IP addresses. The response only says "alive"."""
PREFLIGHT = ((b"access-control-allow-methods", b"GET, POST, DELETE"), (b"access-control-max-age", b"600"))
ALLOWED_HEADERS = "authorization, content-type, idempotency-key, traceparent, tracestate, x-api-key"
"""Headers that a page may send if its preflight names none. SDKs send a dozen more, without effect."""
EXPOSED = (
    "x-podium-workflow-id, x-podium-cache, x-should-retry, retry-after, x-ratelimit-limit-requests, "
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
    "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, x-podium-budget-left-usd, x-podium-budget-window"
)
"""Response headers that a page may read."""
FILE = "batches.max_file_bytes"
UNREAD_BYTES = 8192
"""Maximum body of a method that takes none, such as GET and DELETE. Some clients send `{}`."""
LARGE_BYTES = 262_144
"""Size above which a proxy passes bodies on one at a time, so that other tasks can run."""
HEADER_NAMES = re.compile(r"^[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,2000}$")
NO_WEBSOCKET = (
    "WebSocket is not supported. Send a POST request with `stream: true` to get a streamed response."
)
UPGRADE_REQUIRED = 426
UPGRADE_HEADERS = (
    (b"upgrade", b"HTTP/1.1"),
    (b"connection", b"upgrade, close"),
)
"""Headers after a WebSocket handshake, by which clients such as Codex use HTTP (RFC 9110, 15.5.22)."""
PROBE_METHODS = ("GET", "HEAD")
METHOD_NOT_ALLOWED = 405
PROBE_HEADERS = (
    (b"allow", b"GET, HEAD"),
    (b"connection", b"close"),
)
"""Headers after another method on a probe's path. Its body is not read, because open probes are not counted."""
POLICY_VIOLATION = 1008
READS_AT_ONCE, READ_TURN_S = 8, 1.0
"""Number of GET requests that Serve's proxy passes on at once, each until its response begins or this many
seconds have passed. Serve needs milliseconds for each, and thousands at once would delay runs and probes.
"""
LOOKS = 6
"""Number of progress checks of each response within `limits.unread_s`."""


@dataclass(frozen=True, slots=True)
class RouterChecks:
    """Checks that a router makes and Serve's proxy does not: free slots for a `POST` to `run_paths`, and
    keys.
    """

    settings: Callable[[], Settings]
    run_paths: Collection[str]
    check_slots: Callable[[], None]
    authenticate: Callable[[Scope], Awaitable[None]]


class Edge:
    """ASGI middleware that checks each request before `app` receives it. Serve's proxy has no `router`
    checks, and shares `room` with the protocol. `address` is that of the HAProxy in front, if there is one.
    """

    def __init__(
        self,
        app: ASGIApp,
        policy: HttpPolicy,
        room: WaitingRoom,
        error_body: ErrorBody,
        router: RouterChecks | None = None,
        address: str = "",
    ) -> None:
        self._app, self._policy, self._room, self._error_body = app, policy, room, error_body
        self._router, self._address = router, address
        self._n_evicted = self._n_shed = self._n_open = 0
        self._eviction_warning = SparseWarning(
            "Closed %d connections with incomplete requests to make room for others"
        )
        self._load_warning = SparseWarning(
            "Event loop overloaded; its iterations take more than %g s. Rejected %d requests since the start"
        )
        self._decoding, self._reads = asyncio.Lock(), asyncio.Semaphore(READS_AT_ONCE)
        self._exchanges = set[HttpExchange]()
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        router = self._router
        if scope["type"] != "http":
            if router is None or scope["type"] == "lifespan":
                return await self._app(scope, receive, send)
            return await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        exchange = HttpExchange(scope, receive, send)
        if router is None:
            if await self._admit(scope, exchange):
                send = exchange.send if exchange.added_headers else send
                if scope["method"] != "GET" or scope["path"] in AT_ONCE_PATHS:
                    return await self._app(scope, exchange.receive, send)
                await self._pass_read(scope, exchange.receive, send)
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

    async def _pass_read(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a GET request on when it has a place, which it keeps until its response begins."""
        await self._reads.acquire()
        place = ExitStack()
        place.callback(self._reads.release)
        timer = asyncio.get_running_loop().call_later(READ_TURN_S, place.close)

        async def send_in_place(message: Message) -> None:
            place.close()
            await send(message)

        try:
            await self._app(scope, receive, send_in_place)
        finally:
            timer.cancel()
            place.close()

    def _look(self) -> None:
        """Drop clients that do not read their responses, and repeat this while any request is open."""
        assert self._router is not None
        loop, limit_s = asyncio.get_running_loop(), self._router.settings().limits.unread_s
        self._timer = loop.call_later(limit_s / LOOKS, self._look) if self._exchanges else None
        for exchange in self._exchanges:
            exchange.check_progress(loop.time(), limit_s)

    async def _admit(self, scope: Scope, exchange: HttpExchange) -> bool:
        """Return whether to pass the request to `app`. If not, it has been answered."""
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
        """Check a request that no edge has checked, and read its body. Return False if the edge answered."""
        method, is_upload = scope["method"], scope["method"] == "POST" and scope["path"] == UPLOAD
        if scope["path"] not in HEALTH:
            server = (scope.get("server") or ("",))[0]
            check_host(fields, self._policy, self._address or server)
            origin = check_origin(fields, self._policy, server)
            check_content_type(method, fields, is_upload=is_upload)
            if origin is not None:
                exchange.added_headers = _allow(origin)
                if method == "OPTIONS":
                    allowed = (b"access-control-allow-headers", _preflight_headers(fields))
                    await send_response(exchange.send, 204, [*PREFLIGHT, allowed], b"")
                    return False
        if asks_for_websocket(fields):
            await self._refuse(
                scope, exchange, BadTask(NO_WEBSOCKET, param="Upgrade"), UPGRADE_REQUIRED, UPGRADE_HEADERS
            )
            return False
        if scope["path"] in PROBES and method not in PROBE_METHODS:
            error = BadTask(f"{scope['path']} allows only GET and HEAD.", param="method")
            await self._refuse(scope, exchange, error, METHOD_NOT_ALLOWED, PROBE_HEADERS)
            return False
        if method == WITH_BODY or has_body(fields):
            await self._read_body(scope, fields, exchange, is_upload=is_upload)
        return True

    async def _read_body(
        self, scope: Scope, fields: Fields, exchange: HttpExchange, *, is_upload: bool
    ) -> None:
        """Read the body and check its text. An encoded body is checked once the caller is known."""
        policy, bound = self._policy, BodyBound(UNREAD_BYTES, "")
        if is_upload:
            bound = BodyBound(policy.max_upload_bytes, FILE)
        elif scope["method"] == WITH_BODY:
            bound = BodyBound(policy.max_body_bytes)
        exchange.is_reading = True
        body = await read_body(scope, exchange.receive, fields, policy, self._room, bound)
        exchange.is_reading = False
        if self._router is None and len(body) > LARGE_BYTES:
            async with turn(Account((scope.get("client") or ("",))[0])):
                pass  # the body is passed on in the same turn
        if not is_upload and not (ENCODING in fields and encodings(fields)):
            check_text(body, policy.max_text_bytes)
        exchange.body = body

    async def _check_for_router(
        self, router: RouterChecks, scope: Scope, fields: Fields, exchange: HttpExchange
    ) -> None:
        method = scope["method"]
        if method == "POST" and scope["path"] in router.run_paths:
            if IDEMPOTENCY_KEY not in fields:  # with a key, it may join a run that has a slot already
                router.check_slots()
            if await falls_behind():
                self._n_shed += 1
                self._load_warning.log(LONG_S, self._n_shed)
                raise Overloaded(BEHIND, param="router.max_replicas")
        await router.authenticate(scope)
        if method == WITH_BODY:
            if exchange.body is None:
                exchange.body = await read_rest(exchange.receive)
            if ENCODING in fields and (names := encodings(fields)):
                await self._decode(router, scope, exchange, names)

    async def _decode(
        self, router: RouterChecks, scope: Scope, exchange: HttpExchange, names: Sequence[str]
    ) -> None:
        pieces, body = find_decoder(names), exchange.body
        policy, is_upload = HttpPolicy.of(router.settings()), scope["path"] == UPLOAD
        most = policy.max_upload_bytes if is_upload else policy.max_body_bytes
        exchange.body = await decode(pieces(body), most, self._decoding) if body else b""
        if not is_upload:
            check_text(exchange.body, policy.max_text_bytes)
        scope["headers"] = [each for each in scope["headers"] if each[0] not in (ENCODING, LENGTH)]
        scope["headers"].append((LENGTH, b"%d" % len(exchange.body)))

    async def _refuse(
        self,
        scope: Scope,
        exchange: HttpExchange,
        error: PodiumError,
        status: int | None = None,
        more: Headers = (),
    ) -> None:
        """Answer with the error. Close the connection if the rest of the request will not be read."""
        if exchange.is_reading and isinstance(error, TooSlow | Overloaded):
            more = (*more, (b"connection", b"close"))
        if isinstance(error, WrongContentType) and error.param == FIELD:
            more = (*more, (b"accept-encoding", SERVED.encode()))
        content = self._error_body(error, scope["path"])
        await send_error(exchange.send, error, content, more, status)

    def _log_evictions(self) -> None:
        if self._eviction_warning.log(self._room.evicted - self._n_evicted):
            self._n_evicted = self._room.evicted


def _preflight_headers(fields: Fields) -> bytes:
    """Return the header names that the response to a preflight allows. An allowed page may send any header,
    because values are checked where they are used. Cookies are not among these headers, because credentials
    are never allowed.
    """
    names = fields.get(ASKED_HEADERS, [""])[-1]
    return (names if HEADER_NAMES.match(names) else ALLOWED_HEADERS).encode("latin-1")


def _allow(origin: str) -> Headers:
    """Return the headers that let pages of `origin` read the response."""
    return (
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", EXPOSED.encode()),
        (b"vary", b"origin"),
    )
