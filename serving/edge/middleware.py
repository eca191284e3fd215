"""The edge as ASGI: nothing behind it sees a request that is foreign, unfinished or too large.

It may stand twice before the same request: in Serve's proxy and in the router replica behind it. The first
one leaves a mark in the scope, which Serve passes on and no client can write, and the second steps aside.
"""

import logging
import re
import time
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conductor.errors import BadTask, Overloaded, PodiumError, TooSlow
from serving import errors
from serving.edge.checks import (
    BODY,
    WITH_BODY,
    ClientGoneError,
    asks_for_websocket,
    check_content_type,
    check_host,
    check_origin,
    check_text,
    encodings,
    has_body,
    read_body,
)
from serving.edge.policy import UPLOAD, ErrorBody, Policy
from serving.edge.waiting import WaitingRoom
from serving.redaction.slices import turn

logger = logging.getLogger("podium")

PASSED = "podium.edge"
"""In a scope: the request is whole, and came past an edge."""
HEALTH = {"/healthz", "/-/healthz"}
"""Answered whoever asks by whatever name: probes use addresses. They tell nothing but that the process
lives."""
PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-max-age", b"600"),
)
ALLOWED_HEADERS = b"authorization, content-type, idempotency-key, traceparent, tracestate, x-api-key"
"""What a page may send where it does not ask: the SDKs ask for a dozen of their own, which change nothing here."""
EXPOSED = (
    "x-podium-workflow-id, x-podium-cache, x-should-retry, retry-after, x-ratelimit-limit-requests, "
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
    "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens, x-podium-budget-left-usd, x-podium-budget-window"
)
"""What a page may read of an answer's headers."""
FILE = "batches.max_file_bytes"
UNREAD_BYTES = 8192
"""The longest body of a request whose method has none here, such as GET and DELETE: some clients send `{}`."""
LARGE_BYTES = 262_144
"""Of longer bodies one at a time is passed on, and everything else has its turn before the next one: many may be whole
in the same moment.
"""
HEADER_NAMES = re.compile(rb"^[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,2000}$")
LOG_EVERY_S = 10.0
JSON = (b"content-type", b"application/json")
NO_WEBSOCKET = "WebSocket is not served here. Send the request as a POST; `stream: true` streams its answer."
UPGRADE_REQUIRED, UPGRADE = (
    426,
    ((b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade, close"), (b"x-should-retry", b"false")),
)
"""The answer to a WebSocket's handshake: clients such as Codex then speak HTTP (RFC 9110, section 15.5.22)."""


class Edge:
    """Guards `app`.

    Args:
        app: what is behind.
        policy: what is let through.
        room: where unfinished requests wait; shared with the protocol that accepts the connections.
        error_body: what a rejected request is answered.
    """

    def __init__(self, app: ASGIApp, policy: Policy, room: WaitingRoom, error_body: ErrorBody) -> None:
        self._app, self._policy, self._room, self._error_body = app, policy, room, error_body
        self._evicted, self._logged_s = 0, float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or PASSED in scope:
            return await self._app(scope, receive, send)
        self._log_evictions()
        try:
            origin = self._check_caller(scope)
            if origin is not None:
                send = _allowing(send, origin)
                if scope["method"] == "OPTIONS":
                    allowed = (b"access-control-allow-headers", _allowed_headers(scope))
                    return await _answer(send, 204, [*PREFLIGHT, allowed], b"")
            if asks_for_websocket(scope["headers"]):
                body = self._error_body(BadTask(NO_WEBSOCKET, param="Upgrade"), scope["path"])
                return await _answer(send, UPGRADE_REQUIRED, [*UPGRADE, JSON], orjson.dumps(body))
            if scope["method"] in WITH_BODY or has_body(scope["headers"]):
                receive = await self._whole(scope, receive)
        except ClientGoneError:
            return None
        except PodiumError as exc:
            return await _refuse(send, exc, self._error_body(exc, scope["path"]))
        scope[PASSED] = True
        return await self._app(scope, receive, send)

    def _check_caller(self, scope: Scope) -> str | None:
        if scope["path"] in HEALTH:
            return None
        headers, server = scope["headers"], (scope.get("server") or ("",))[0]
        check_host(headers, self._policy, server)
        origin = check_origin(headers, self._policy, server)
        check_content_type(scope["method"], headers, is_upload=_is_upload(scope))
        return origin

    async def _whole(self, scope: Scope, receive: Receive) -> Receive:
        """Read the body. Return a `receive` that gives it as one message, and then what else is received. The text of an
        encoded body is bounded where it is decoded (`serving/api/semantics.py`), once the caller is known.
        """
        policy, is_upload, setting = self._policy, _is_upload(scope), BODY
        if is_upload:
            policy, setting = policy.model_copy(update={"max_body_bytes": policy.max_upload_bytes}), FILE
        elif scope["method"] not in WITH_BODY:
            policy, setting = policy.model_copy(update={"max_body_bytes": UNREAD_BYTES}), ""
        body = await read_body(scope, receive, policy, self._room, setting)
        if len(body) > LARGE_BYTES:
            async with turn((scope.get("client") or ("",))[0]):
                pass  # what parses it comes right after, in the same turn of the loop
        if not is_upload and not encodings(scope["headers"]):
            check_text(body, policy.max_text_bytes)
        first: Message | None = {"type": "http.request", "body": body, "more_body": False}
        del body  # it is held until it is read, and not for as long as the answer takes

        async def replay() -> Message:
            nonlocal first
            message, first = first, None
            return await receive() if message is None else message

        return replay

    def _log_evictions(self) -> None:
        """One line for many: an attack must not fill the disk."""
        now_s = time.monotonic()
        if (more := self._room.evicted - self._evicted) and now_s - self._logged_s > LOG_EVERY_S:
            logger.warning("%d connections without a whole request were closed to make room", more)
            self._evicted, self._logged_s = self._room.evicted, now_s


def _is_upload(scope: Scope) -> bool:
    return scope["method"] == "POST" and scope["path"] == UPLOAD


def _allowed_headers(scope: Scope) -> bytes:
    """The headers that a preflight asks for: whose pages may call may send any; what they mean is checked where
    they are read. No cookie is among them: credentials are never allowed.
    """
    asked = dict(scope["headers"]).get(b"access-control-request-headers", b"")
    return asked if HEADER_NAMES.match(asked) else ALLOWED_HEADERS


def _allowing(send: Send, origin: str) -> Send:
    """`send`, telling browsers that pages of `origin` may read the answer."""
    allow = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", EXPOSED.encode()),
        (b"vary", b"origin"),
    ]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *allow]
        await send(message)

    return sending


async def _refuse(send: Send, error: PodiumError, body: dict[str, Any]) -> None:
    """Answer with `body`. The connection of a request that is not going to be whole ends with it."""
    headers = [(name.encode(), value.encode()) for name, value in errors.headers(error).items()]
    headers.append(JSON)
    if isinstance(error, TooSlow | Overloaded):
        headers.append((b"connection", b"close"))
    await _answer(send, errors.row(error).status, headers, orjson.dumps(body))


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
