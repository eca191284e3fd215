"""Checks of the host, origin, content type and body of a request.

They use only the headers that `read_fields` returns.
"""

import asyncio
import ipaddress
import re
import resource
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.types import Receive, Scope

from conductor.errors import NotAllowed, Overloaded, TooLarge, TooSlow, WrongContentType, quote
from serving.edge.exchange import WaitingRoom
from serving.edge.policy import HttpPolicy

RETRY_AFTER_S = 5.0
WHOLE = "podium.whole"
"""Key in an ASGI scope: the protocol has received the whole request, so reading its body does not wait."""
HOST, ORIGIN, TYPE, UPGRADE = b"host", b"origin", b"content-type", b"upgrade"
LENGTH, FRAMING, ENCODING = b"content-length", b"transfer-encoding", b"content-encoding"
ASKED_HEADERS, IDEMPOTENCY_KEY = b"access-control-request-headers", b"idempotency-key"
FIELDS = {HOST, ORIGIN, TYPE, UPGRADE, LENGTH, FRAMING, ENCODING, ASKED_HEADERS, IDEMPOTENCY_KEY}
"""Headers that the edge reads, apart from credentials."""
SERVE_ID, SERVE_TRACE = re.compile(rb"[\w.-]{1,64}"), re.compile(rb"[ -~]{1,512}")
SERVE_FORMATS = {
    b"x-request-id": SERVE_ID,
    b"x-session-id": SERVE_ID,
    b"session-id": SERVE_ID,
    b"serve-multiplexed-model-id": SERVE_ID,
    b"traceparent": SERVE_TRACE,
    b"tracestate": SERVE_TRACE,
    b"x-request-timeout-seconds": None,
    b"x-request-disconnect-disabled": None,
}
"""Formats of the headers that Ray Serve reads, in lower case, with `-` for `_`. None: no client may send it.

Serve decodes these values, and some after it has stored the request, so an invalid one would leak the body. It
also logs and returns ids. The last two would switch off the operator's timeout, or the detection of clients that
are gone. The limit for a run is `podium.deadline_s`.
"""
Fields = Mapping[bytes, Sequence[str]]
"""Header values by name."""
BODY = "limits.max_body_bytes"
UNREAD = "(limit for methods without a body). Send the request without a body"
PACKED_MARK = "podium1."
"""Start of a conversation that `POST /v1/responses/compact` packed."""
PICTURE = re.compile(rb'data(?::[a-z]|"\s{0,9}+:\s{0,9}+")|' + re.escape(PACKED_MARK).encode())
"""Start of a picture or file in JSON, in OpenAI's or Anthropic's format, or of a packed conversation. They may
fill the whole body, but text may not. Text that looks like one of them here is counted once the body is parsed.
"""
PICTURE_BEGIN_BYTES = 32
"""Upper bound for the length of such a start."""
MOST_PICTURES = 10_000
"""Maximum pictures to look for in one body, because the search blocks the router. Others count as text."""


class BodyBound(NamedTuple):
    """Size limit of a body, and the name of the setting that defines it; see `too_large`."""

    max_bytes: int
    setting: str = BODY


class ClientGoneError(Exception):
    """The client disconnected before its body was complete."""


def read_fields(headers: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Return the headers that the edge uses, with names in lower case."""
    fields: dict[bytes, list[str]] = {}
    for name, value in headers:
        if name in FIELDS:
            fields.setdefault(name, []).append(value.decode("latin-1").strip())
    return fields


async def read_body(
    scope: Scope, receive: Receive, fields: Fields, policy: HttpPolicy, room: WaitingRoom, bound: BodyBound
) -> bytes:
    """Receive the body and return it. Until it is complete, its connection occupies a slot in `room`.

    Raise TooLarge beyond `bound`, TooSlow, Overloaded if the room evicted the connection, or ClientGoneError.
    """
    if content_length(fields) > bound.max_bytes:
        raise too_large(*bound)
    if WHOLE not in scope:
        return await _read_pieces((scope.get("client") or ("",))[0], receive, policy, room, bound)
    body = await read_rest(receive)
    if len(body) > bound.max_bytes:
        raise too_large(*bound)
    return body


def is_safe_for_serve(name: bytes, value: bytes) -> bool:
    """Return whether Ray Serve may see this header. Without a header, it generates an id or uses its default."""
    name = name.lower().replace(b"_", b"-")
    pattern = SERVE_FORMATS.get(name)
    return pattern.fullmatch(value) is not None if pattern else name not in SERVE_FORMATS


def content_length(fields: Fields) -> int:
    """Return the size of the body that the Content-Length header announces, or 0 without one."""
    lengths = [value for value in fields.get(LENGTH, ()) if value.isascii() and value.isdigit()]
    return max((int(value[:20]) for value in lengths), default=0)


async def _read_pieces(
    peer: str, receive: Receive, policy: HttpPolicy, room: WaitingRoom, bound: BodyBound
) -> bytes:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + policy.body_s
    evicted = False

    def evict() -> None:
        nonlocal evicted
        evicted = True
        if not timer.expired():
            timer.reschedule(loop.time())

    body = bytearray()
    ticket = room.enter(peer, evict)
    try:
        async with asyncio.timeout_at(min(deadline_s, loop.time() + policy.stall_s)) as timer:
            more = True
            while more:
                piece, more = await _next_piece(receive)
                if len(body) + len(piece) > bound.max_bytes:
                    raise too_large(*bound)
                body += piece
                room.grow(ticket, len(piece))
                if not evicted:
                    timer.reschedule(min(deadline_s, loop.time() + policy.stall_s))
    except TimeoutError:
        if evicted:
            raise overload_error() from None
        raise body_too_slow(policy) from None
    finally:
        room.leave(ticket)
    return bytes(body)


async def _next_piece(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message.get("body", b""), message.get("more_body", False)


async def read_rest(receive: Receive) -> bytes:
    """Receive a body whose length was checked, or raise ClientGoneError."""
    body, more = bytearray(), True
    while more:
        piece, more = await _next_piece(receive)
        body += piece
    return bytes(body)


def encodings(fields: Fields) -> list[str]:
    """Return the content encodings in the order of application, or none for a plain body."""
    names = [name.strip().lower() for value in fields.get(ENCODING, ()) for name in value.split(",")]
    return [name for name in names if name not in ("", "identity")]


def check_text(body: bytes, max_text_bytes: int) -> None:
    """Check, without parsing, the length of a JSON body's text apart from pictures. Raise TooLarge."""
    if len(body) <= max_text_bytes:
        return
    left_bytes, end = max_text_bytes, 0
    for _ in range(MOST_PICTURES):
        # The search may stop where the text is too long: a later picture would not change the result.
        match = PICTURE.search(body, end, end + left_bytes + PICTURE_BEGIN_BYTES)
        if match is None:
            break
        left_bytes -= match.start() - end
        end = body.find(b'"', match.end())
        if end < 0:
            end = len(body)
    if len(body) - end > left_bytes:
        raise too_much_text(max_text_bytes)


def too_large(max_body_bytes: int, setting: str = BODY) -> TooLarge:
    """Return the error for a body beyond the limit `setting`, empty if the method has no body."""
    why = f"({setting}). Send less text, or smaller images and files" if setting else UNREAD
    return TooLarge(f"The request body is longer than {max_body_bytes} bytes {why}.", param="body")


def too_much_text(max_text_bytes: int) -> TooLarge:
    return TooLarge(
        f"The text of the request, without images and files, is longer than {max_text_bytes} bytes "
        "(limits.max_text_bytes). Send less text.",
        param="messages",
    )


def body_too_slow(policy: HttpPolicy) -> TooSlow:
    return TooSlow(
        f"The request body was not received in time. The limits are {policy.stall_s:g} s between two chunks (http.stall_s) "
        f"and {policy.body_s:g} s in total (http.body_s).",
        param="body",
    )


def overload_error() -> Overloaded:
    """Return the error for an incomplete request that was closed to make room for others."""
    message = (
        "Too many requests are incomplete (http.max_waiting, http.max_unfinished_bytes, "
        "router.max_ongoing_requests), so this one was closed to make room for others. "
        "Try again soon."
    )
    return Overloaded(message, retry_after_s=RETRY_AFTER_S)


WITH_BODY = "POST"
"""Only method whose requests have a body that is used."""
ANY = "*"


def check_host(fields: Fields, policy: HttpPolicy, server: str) -> None:
    """Check that the Host header names this server: a loopback name, or one of the policy's `hosts`. Raise
    NotAllowed.
    """
    if policy.hosts is None and not is_loopback(server):
        return
    served = {*(policy.hosts or ()), server}
    for host in fields.get(HOST, ()):
        name = _host_name(host)
        if not (is_loopback(name) or name in served or ANY in served):
            raise NotAllowed(
                f"The Host header {quote(host)} is not allowed. Add the name to the setting `http.hosts`.",
                param="Host",
            )


def check_origin(fields: Fields, policy: HttpPolicy, server: str) -> str | None:
    """Check that no foreign page sends the request, or raise NotAllowed. Return an origin that `http.origins`
    allows, or None if it needs no permission.
    """
    for origin in fields.get(ORIGIN, ()):
        if origin in policy.origins or ANY in policy.origins:
            return origin
        page = urlsplit(origin) if origin.count("://") == 1 else urlsplit("")
        if page.netloc and page.netloc in fields.get(HOST, ()):
            continue  # same origin; `check_host` has checked the host
        if not (page.netloc and is_loopback(server) and is_loopback(_host_name(page.netloc))):
            raise NotAllowed(
                f"The origin {quote(origin)} is not allowed to call this server. Add it to the setting `http.origins`.",
                param="Origin",
            )
    return None


def check_content_type(method: str, fields: Fields, *, is_upload: bool = False) -> None:
    """Check that the Content-Type of a body is JSON, which no web form or page without a preflight can send,
    or raise WrongContentType.

    An upload must be a form. A foreign page cannot send one, because `check_origin` runs first. Without a
    body, as in a cancel request, the type is not checked.
    """
    if method != WITH_BODY or not has_body(fields):
        return
    types = fields.get(TYPE, ())
    media_type = "multipart/form-data" if is_upload else "application/json"
    if [value.split(";")[0].strip().lower() for value in types] != [media_type]:
        actual = quote(types[0]) if types else "missing"
        raise WrongContentType(
            f"The Content-Type header is {actual}. Send `Content-Type: {media_type}`.", param="Content-Type"
        )


def asks_for_websocket(fields: Fields) -> bool:
    return UPGRADE in fields and "websocket" in [value.lower() for value in fields[UPGRADE]]


def has_body(fields: Fields) -> bool:
    """Return whether the request has a body, by its length or its framing (RFC 9112, section 6.3)."""
    return FRAMING in fields or bool({*fields.get(LENGTH, ())} - {"0"})


def _host_name(host: str) -> str:
    """Return a host without its port, and an IPv6 address without its brackets."""
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return address.lower() if not port or (port[0] == ":" and port[1:].isdigit()) else host
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).rstrip(".").lower()


@lru_cache(maxsize=256)
def is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def raise_file_limit() -> int:
    """Raise this process's limit of open files to its maximum, and return it. A connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 2**20 if hard == resource.RLIM_INFINITY else hard
