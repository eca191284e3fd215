"""Checks of a request before anything else runs: host, origin, content type, body."""

import asyncio
import ipaddress
import re
import resource
from collections.abc import Iterable, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import Receive, Scope

from conductor.errors import NotAllowed, Overloaded, TooLarge, TooSlow, WrongContentType, quote
from serving.edge.policy import Policy
from serving.edge.waiting import WaitingRoom

RETRY_AFTER_S = 5.0
ENCODING = b"content-encoding"
BODY = "limits.max_body_bytes"
UNREAD = "and its method has none here. Send the request without it"
PICTURE = re.compile(rb'data(?::[a-z]|"\s{0,9}+:\s{0,9}+")')
"""What a picture or a file in JSON begins with, OpenAI's and Anthropic's. It may be as long as the body; text may not:
what poses as a picture here is counted once the body is parsed."""
PICTURE_BEGIN_BYTES = 32
"""No beginning of one is longer."""
MOST_PICTURES = 10_000
"""That are looked for in one body; what follows them is text. Anybody may send one, and the router does nothing else
meanwhile.
"""


class ClientGoneError(Exception):
    """The client left before its body was whole."""


async def read_body(
    scope: Scope, receive: Receive, policy: Policy, room: WaitingRoom, setting: str = BODY
) -> bytes:
    """The body. `setting` says how long it may be; see `too_large`.

    Raises:
        TooLarge: it is, or announces itself, larger than is taken.
        TooSlow: it is not whole in time.
        Overloaded: others needed its place.
        ClientGoneError: nobody is there any more.
    """
    check_announced(scope["headers"], policy.max_body_bytes, setting)
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + policy.body_s
    evicted = False

    def evict() -> None:
        nonlocal evicted
        evicted = True
        if not timer.expired():
            timer.reschedule(loop.time())

    body = bytearray()
    ticket = room.enter((scope.get("client") or ("",))[0], evict)
    try:
        async with asyncio.timeout_at(min(deadline_s, loop.time() + policy.stall_s)) as timer:
            more = True
            while more:
                piece, more = await _next_piece(receive)
                if len(body) + len(piece) > policy.max_body_bytes:
                    raise too_large(policy.max_body_bytes, setting)
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


def check_announced(headers: Sequence[tuple[bytes, bytes]], max_body_bytes: int, setting: str = BODY) -> None:
    """By the length it announces, before it is read.

    Raises:
        TooLarge: it announces more than is taken.
    """
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > max_body_bytes:
            raise too_large(max_body_bytes, setting)


def encodings(headers: Sequence[tuple[bytes, bytes]]) -> list[str]:
    """Return the encodings of the body, in the order in which they were applied; none for a body as it is."""
    values = [value.decode("latin-1") for name, value in headers if name == ENCODING]
    names = [name.strip().lower() for value in values for name in value.split(",")]
    return [name for name in names if name not in ("", "identity")]


def check_text(body: bytes, max_text_bytes: int) -> None:
    """The part of a JSON body that is no picture and no file, found without parsing it.

    Raises:
        TooLarge: that is more than any model of the pool is meant to read.
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
    """Return the error for a body. `setting`: that bounds it; empty: its method has no body here."""
    why = f"({setting}). Send less, or smaller pictures and files" if setting else UNREAD
    return TooLarge(f"The body is longer than {max_body_bytes} bytes {why}.", param="body")


def too_much_text(max_text_bytes: int) -> TooLarge:
    """The error for its text."""
    return TooLarge(
        f"The text of the request, pictures aside, is longer than {max_text_bytes} bytes "
        "(limits.max_text_bytes). Send less text.",
        param="messages",
    )


def body_too_slow(policy: Policy) -> TooSlow:
    """The error for a body that stops, or drips."""
    return TooSlow(
        f"The body was not whole in time: {policy.stall_s:g} s may pass between two pieces of it, {policy.body_s:g} s in all.",
        param="body",
    )


def overload_error() -> Overloaded:
    """The error for a request whose place others needed."""
    message = (
        "Too many requests here are unfinished (http.max_waiting, http.max_unfinished_bytes, "
        "router.max_ongoing_requests), and this one made room for others. "
        "Try again soon."
    )
    return Overloaded(message, retry_after_s=RETRY_AFTER_S)


Headers = Iterable[tuple[bytes, bytes]]
WITH_BODY = {"POST", "PUT", "PATCH"}
ANY = "*"


def check_host(headers: Headers, policy: Policy, server: str) -> None:
    """The request names a host that this is.

    Args:
        headers: of the request, names in lower case.
        policy: whose `hosts` are served beside the loopback's names.
        server: the address that the connection came in on.

    Raises:
        NotAllowed: a foreign name.
    """
    if policy.hosts is None and not is_loopback(server):
        return
    served = {*(policy.hosts or ()), server}
    for host in _values(headers, b"host"):
        name = _host_name(host)
        if not (is_loopback(name) or name in served or ANY in served):
            raise NotAllowed(
                f"The Host header names {quote(host)}, which is not served here. Add the name to `http.hosts` of the settings.",
                param="Host",
            )


def check_origin(headers: Headers, policy: Policy, server: str) -> str | None:
    """The request comes from no foreign web page; gives its origin where the settings name it.

    Raises:
        NotAllowed: a foreign origin.
    """
    headers = list(headers)
    hosts = _values(headers, b"host")
    for origin in _values(headers, b"origin"):
        if origin in policy.origins or ANY in policy.origins:
            return origin
        page = urlsplit(origin) if origin.count("://") == 1 else urlsplit("")
        if page.netloc and page.netloc in hosts:
            continue  # the same origin; what `hosts` may be was checked before
        if not (page.netloc and is_loopback(server) and is_loopback(_host_name(page.netloc))):
            raise NotAllowed(
                f"Web pages of {quote(origin)} may not call this server. Add the origin to `http.origins` of the settings.",
                param="Origin",
            )
    return None


def check_content_type(method: str, headers: Headers, *, is_upload: bool = False) -> None:
    """A body is JSON: what a form, or a page without a preflight, can send is not. An upload is a form; a foreign
    page cannot send one here, because `check_origin` came first. Where there is no body, such as of a cancel, its
    type is nobody's business.

    Raises:
        WrongContentType: it says that it is something else, or nothing.
    """
    if method not in WITH_BODY or not has_body(headers):
        return
    given = _values(headers, b"content-type")
    wanted = "multipart/form-data" if is_upload else "application/json"
    if [value.split(";")[0].strip().lower() for value in given] != [wanted]:
        said = quote(given[0]) if given else "missing"
        raise WrongContentType(
            f"The Content-Type header is {said}. Send `Content-Type: {wanted}`.", param="Content-Type"
        )


def asks_for_websocket(headers: Headers) -> bool:
    """Return whether the request is a WebSocket's handshake."""
    return "websocket" in [value.lower() for value in _values(headers, b"upgrade")]


def has_body(headers: Headers) -> bool:
    """Return whether the request has a body, by its length or its framing (RFC 9112, section 6.3)."""
    lengths = {*_values(headers, b"content-length")}
    return bool(lengths - {"0"} or _values(headers, b"transfer-encoding"))


def _values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in headers if key == name]


def _host_name(host: str) -> str:
    """Without the port; an IPv6 address without its brackets."""
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return address.lower() if not port or (port[0] == ":" and port[1:].isdigit()) else host
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).rstrip(".").lower()


@lru_cache(maxsize=256)
def is_loopback(name: str) -> bool:
    """Whether a host's name or address is this machine's loopback."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def raise_file_limit() -> int:
    """Let this process open as many files as it may: a connection is one. Gives how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 2**20 if hard == resource.RLIM_INFINITY else hard
