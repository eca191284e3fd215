"""Checks of a request before anything else runs: host, origin, content type, body.

They read the headers that `read_fields` has picked out of all the others.
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
from serving.edge.policy import Policy
from serving.edge.waiting import WaitingRoom

RETRY_AFTER_S = 5.0
WHOLE = "podium.whole"
"""In a scope: the protocol has all of the request, so that its body is received without waiting."""
HOST, ORIGIN, TYPE, UPGRADE = b"host", b"origin", b"content-type", b"upgrade"
LENGTH, FRAMING, ENCODING = b"content-length", b"transfer-encoding", b"content-encoding"
ASKED_HEADERS, IDEMPOTENCY_KEY = b"access-control-request-headers", b"idempotency-key"
FIELDS = {HOST, ORIGIN, TYPE, UPGRADE, LENGTH, FRAMING, ENCODING, ASKED_HEADERS, IDEMPOTENCY_KEY}
"""The headers that the edge reads, but for credentials."""
Fields = Mapping[bytes, Sequence[str]]
"""Values by name."""
BODY = "limits.max_body_bytes"
UNREAD = "and its method has none here. Send the request without it"
PICTURE = re.compile(rb'data(?::[a-z]|"\s{0,9}+:\s{0,9}+")')
"""Beginning of a picture or a file in JSON, OpenAI's and Anthropic's. It may be as long as the body; text may not. Text that
poses as a picture here is counted once the body is parsed."""
PICTURE_BEGIN_BYTES = 32
"""No beginning of one is longer."""
MOST_PICTURES = 10_000
"""Limit for the pictures that are looked for in one body. The rest counts as text: the search holds up the router, and any
client may send such a body.
"""


class BodyBound(NamedTuple):
    """Limit for a body, and the setting that holds it; see `too_large`."""

    max_bytes: int
    setting: str = BODY


class ClientGoneError(Exception):
    """The client left before its body was whole."""


def read_fields(headers: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Return the headers that the edge reads. Names are in lower case."""
    fields: dict[bytes, list[str]] = {}
    for name, value in headers:
        if name in FIELDS:
            fields.setdefault(name, []).append(value.decode("latin-1").strip())
    return fields


async def read_body(
    scope: Scope, receive: Receive, fields: Fields, policy: Policy, room: WaitingRoom, bound: BodyBound
) -> bytes:
    """Return the body, within `bound`. It waits in `room` until it is whole.

    Raises:
        TooLarge: it is, or announces itself, larger than is taken.
        TooSlow: it is not whole in time.
        Overloaded: others needed its place.
        ClientGoneError: the client has left.
    """
    for announced in fields.get(LENGTH, ()):
        if announced.isascii() and announced.isdigit() and int(announced[:20]) > bound.max_bytes:
            raise too_large(*bound)
    if WHOLE not in scope:
        return await _read_pieces((scope.get("client") or ("",))[0], receive, policy, room, bound)
    body = await read_rest(receive)
    if len(body) > bound.max_bytes:
        raise too_large(*bound)
    return body


async def _read_pieces(
    peer: str, receive: Receive, policy: Policy, room: WaitingRoom, bound: BodyBound
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
    """Return a body whose length was bounded before.

    Raises:
        ClientGoneError: the client has left.
    """
    body, more = bytearray(), True
    while more:
        piece, more = await _next_piece(receive)
        body += piece
    return bytes(body)


def encodings(fields: Fields) -> list[str]:
    """Return the encodings of the body, in the order in which they were applied; an empty list for a plain body."""
    names = [name.strip().lower() for value in fields.get(ENCODING, ()) for name in value.split(",")]
    return [name for name in names if name not in ("", "identity")]


def check_text(body: bytes, max_text_bytes: int) -> None:
    """Bound the part of a JSON body that is no picture and no file, without parsing it.

    Raises:
        TooLarge: the text is longer than `max_text_bytes`.
    """
    if len(body) <= max_text_bytes:
        return
    left_bytes, end = max_text_bytes, 0
    for _ in range(MOST_PICTURES):
        # A picture that begins where there is too much text before it changes nothing.
        begun = PICTURE.search(body, end, end + left_bytes + PICTURE_BEGIN_BYTES)
        if begun is None:
            break
        left_bytes -= begun.start() - end
        end = body.find(b'"', begun.end())
        if end < 0:
            end = len(body)
    if len(body) - end > left_bytes:
        raise too_much_text(max_text_bytes)


def too_large(max_body_bytes: int, setting: str = BODY) -> TooLarge:
    """Return the error for a body. `setting` bounds it; it is empty if the method has no body here."""
    why = f"({setting}). Send less, or smaller pictures and files" if setting else UNREAD
    return TooLarge(f"The body is longer than {max_body_bytes} bytes {why}.", param="body")


def too_much_text(max_text_bytes: int) -> TooLarge:
    """Return the error for the text of a body."""
    return TooLarge(
        f"The text of the request, pictures aside, is longer than {max_text_bytes} bytes "
        "(limits.max_text_bytes). Send less text.",
        param="messages",
    )


def body_too_slow(policy: Policy) -> TooSlow:
    """Return the error for a body that stops, or drips."""
    return TooSlow(
        f"The body was not whole in time: {policy.stall_s:g} s may pass between two pieces of it, {policy.body_s:g} s in all.",
        param="body",
    )


def overload_error() -> Overloaded:
    """Return the error for a request whose place others needed."""
    message = (
        "Too many requests here are unfinished (http.max_waiting, http.max_unfinished_bytes, "
        "router.max_ongoing_requests), and this one made room for others. "
        "Try again soon."
    )
    return Overloaded(message, retry_after_s=RETRY_AFTER_S)


WITH_BODY = {"POST", "PUT", "PATCH"}
ANY = "*"


def check_host(fields: Fields, policy: Policy, server: str) -> None:
    """Check that the request names a host that is served here.

    Args:
        fields: of the request.
        policy: its `hosts` are served, and the loopback's names.
        server: the address that the connection came in on.

    Raises:
        NotAllowed: a foreign name.
    """
    if policy.hosts is None and not is_loopback(server):
        return
    served = {*(policy.hosts or ()), server}
    for host in fields.get(HOST, ()):
        name = _host_name(host)
        if not (is_loopback(name) or name in served or ANY in served):
            raise NotAllowed(
                f"The Host header names {quote(host)}, which is not served here. Add the name to `http.hosts` of the settings.",
                param="Host",
            )


def check_origin(fields: Fields, policy: Policy, server: str) -> str | None:
    """Check that the request comes from no foreign web page. Return its origin if the settings name it.

    Raises:
        NotAllowed: a foreign origin.
    """
    for origin in fields.get(ORIGIN, ()):
        if origin in policy.origins or ANY in policy.origins:
            return origin
        page = urlsplit(origin) if origin.count("://") == 1 else urlsplit("")
        if page.netloc and page.netloc in fields.get(HOST, ()):
            continue  # the same origin; what `hosts` may be was checked before
        if not (page.netloc and is_loopback(server) and is_loopback(_host_name(page.netloc))):
            raise NotAllowed(
                f"Web pages of {quote(origin)} may not call this server. Add the origin to `http.origins` of the settings.",
                param="Origin",
            )
    return None


def check_content_type(method: str, fields: Fields, *, is_upload: bool = False) -> None:
    """Check that a body is JSON: what a form, or a page without a preflight, can send is not. An upload is a form; a foreign
    page cannot send one here, because `check_origin` came first. If there is no body, such as of a cancel, its type is not
    read.

    Raises:
        WrongContentType: it says that it is something else, or nothing.
    """
    if method not in WITH_BODY or not has_body(fields):
        return
    given = fields.get(TYPE, ())
    wanted = "multipart/form-data" if is_upload else "application/json"
    if [value.split(";")[0].strip().lower() for value in given] != [wanted]:
        said = quote(given[0]) if given else "missing"
        raise WrongContentType(
            f"The Content-Type header is {said}. Send `Content-Type: {wanted}`.", param="Content-Type"
        )


def asks_for_websocket(fields: Fields) -> bool:
    """Return whether the request is a WebSocket's handshake."""
    return UPGRADE in fields and "websocket" in [value.lower() for value in fields[UPGRADE]]


def has_body(fields: Fields) -> bool:
    """Return whether the request has a body, by its length or its framing (RFC 9112, section 6.3)."""
    return FRAMING in fields or bool({*fields.get(LENGTH, ())} - {"0"})


def _host_name(host: str) -> str:
    """Without the port; an IPv6 address without its brackets."""
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return address.lower() if not port or (port[0] == ":" and port[1:].isdigit()) else host
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).rstrip(".").lower()


@lru_cache(maxsize=256)
def is_loopback(name: str) -> bool:
    """Return whether a host's name or address is this machine's loopback."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def raise_file_limit() -> int:
    """Let this process open as many files as it may, and return how many. A connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 2**20 if hard == resource.RLIM_INFINITY else hard
