"""A request's body: read whole before anything behind the edge is asked, within bounds of size and time."""

import asyncio
import re
from collections.abc import Sequence

from starlette.types import Receive, Scope

from conductor.errors import Overloaded, TooLarge, TooSlow
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
