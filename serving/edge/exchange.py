"""HTTP exchanges at the edge: places for incomplete requests, load shedding, and responses to slow readers.

An overloaded router rejects requests before it looks anything up for them. It also rejects requests shortly
before Ray Serve's limit of open requests is reached. A Serve actor handles at most `max_ongoing_requests`
calls at once, and its own health check is one of them. A router that has no place for its health check counts
as dead after 90 s and is stopped.

A request that starts a run first waits for a few turns of the event loop. If each turn takes long, thousands
of requests are waiting. Everything that needs many turns, such as answers and key lookups, would then exceed
its client's timeout.

Requests without a shedding rule of their own start a few at a time (`StartQueue`), so that a burst of them
makes no iteration of the event loop long.

Only the socket shows how much of a response a client has read, and ASGI cannot report it. The replica's protocol
therefore adds a `Reader` to the scope of each request, as the extension `READER`. Serve's proxy does not: it
sends its scopes to another process, and it reads each response completely.
"""

import asyncio
import fcntl
import logging
import socket
import struct
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson
from starlette.types import Message, Receive, Scope, Send

from conductor.errors import Cancelled, Overloaded, PodiumError
from serving import errors
from serving.fairness import RoundRobin

logger = logging.getLogger("podium")

ALIVE, READY = "/healthz", "/readyz"
PROBES = (ALIVE, READY)
"""Paths that are never rejected for load."""
AT_ONCE_PATHS = {*PROBES, "/-/healthz", "/-/routes"}
"""Paths of Podium's and Ray Serve's probes, whose requests never wait in a `StartQueue`."""
STARTS = 8
"""Number of requests that a `StartQueue` starts in one iteration of the event loop. A read takes about 1 ms
of CPU in 10 iterations, so that thousands of reads make an iteration about 10 ms long.
"""
MOST_WAITING = 256
"""Maximum number of requests of one sender in a `StartQueue`. It equals the number of reads that one key may have
open with the default settings, so that a queue does not delay the others for seconds.
"""
TURNS, LONG_S, SHORT_S = 4, 0.25, 0.01
"""Rule for load shedding. A turn is one iteration of the event loop.

A request is admitted after a turn shorter than `SHORT_S`. It is rejected after `TURNS` longer turns that take
more than `LONG_S` on average. The longest turn is not counted, because a burst of requests makes one turn
long. Even with thousands of waiting requests, some turns are short.
"""
OPEN = 15 / 16
"""Fraction of `router.max_ongoing_requests` that may be open at once. Health probes are not counted."""
LOG_EVERY_S = 10.0
MAX_ONGOING, OPEN_RETRY_S = "router.max_ongoing_requests", 2.0
TOO_MANY = f"This server has reached its limit of open requests ({MAX_ONGOING}). Try again soon."
TOO_MANY_WAITING = (
    f"Too many requests of this key or address are waiting ({MAX_ONGOING}). Send fewer at once."
)
BEHIND = "The CPU of this router is overloaded. Retry soon, or add routers (router.max_replicas)."
READER = "podium.reader"
AT_ONCE = struct.pack("ii", 1, 0)
"""`SO_LINGER` value that discards unread data and resets the connection."""
EXCHANGE = "podium.exchange"
"""Key in an ASGI scope for its `HttpExchange` until the request ends. A line of a batch has none."""
PIECE_BYTES = 65_536
"""Size of the pieces in which a response is sent."""
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(slots=True, eq=False)
class Ticket:
    """Slot of one connection in the waiting room."""

    peer: str
    evict: Callable[[], None]
    """Function that is called once, after the connection has lost its slot."""
    size_bytes: int = 0
    """Number of body bytes that the connection has sent so far."""


class WaitingRoom:
    """Waiting room for connections with an incomplete request, by client address, oldest first.

    If it is full, it evicts the oldest connection of the client address that has the most connections. An
    attacker therefore evicts its own connections first, whether it uses one address or many. A client that
    sends its whole request at once is never the oldest. nginx makes room in the same way: it closes its
    oldest reusable connections. The room knows nothing about sockets; a callback closes the connection.
    """

    def __init__(self, places: int, room_bytes: int) -> None:
        self.evicted = 0
        self._places, self._room_bytes = places, room_bytes
        self._by_peer: dict[str, dict[Ticket, None]] = {}
        self._by_count: dict[int, dict[str, None]] = {}
        self._most = self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, peer: str, evict: Callable[[], None]) -> Ticket:
        """Add a connection and return its ticket. If the room is full, evict another connection first."""
        while self._count >= self._places:
            self._evict(next(iter(self._by_count[self._most])))
        ticket = Ticket(peer, evict)
        tickets = self._by_peer.setdefault(peer, {})
        tickets[ticket] = None
        self._count += 1
        self._recount(peer, len(tickets) - 1, len(tickets))
        return ticket

    def grow(self, ticket: Ticket, size_bytes: int) -> None:
        """Add `size_bytes` to the size of a connection's body. While all bodies together exceed the limit,
        evict connections of the address with the most bytes, possibly including this one.
        """
        if ticket not in self._by_peer.get(ticket.peer, ()):
            return
        ticket.size_bytes += size_bytes
        self._bytes += size_bytes
        while self._bytes > self._room_bytes:
            self._evict(max(self._by_peer, key=self._bytes_of))

    def leave(self, ticket: Ticket) -> None:
        """Release a slot. Do nothing if the connection was already evicted."""
        tickets = self._by_peer.get(ticket.peer, {})
        if ticket not in tickets:
            return
        del tickets[ticket]
        self._count -= 1
        self._bytes -= ticket.size_bytes
        self._recount(ticket.peer, len(tickets) + 1, len(tickets))
        if not tickets:
            del self._by_peer[ticket.peer]

    def evict_one(self) -> bool:
        """Evict one connection to make room for a complete request. Return False if the room is empty."""
        if self._count:
            self._evict(next(iter(self._by_count[self._most])))
            return True
        return False

    def _bytes_of(self, peer: str) -> int:
        return sum(ticket.size_bytes for ticket in self._by_peer[peer])

    def _evict(self, peer: str) -> None:
        """Evict the oldest connection of an address. If the limit for bytes is exceeded, evict the oldest one
        that has sent any.
        """
        tickets = self._by_peer[peer]
        short = self._bytes > self._room_bytes
        oldest = next(ticket for ticket in tickets if ticket.size_bytes or not short)
        self.leave(oldest)
        self.evicted += 1
        oldest.evict()

    def _recount(self, peer: str, before: int, after: int) -> None:
        """Index addresses by their number of places, so that eviction finds the one with the most without a search."""
        if before:
            del self._by_count[before][peer]
        if after:
            self._by_count.setdefault(after, {})[peer] = None
        if before and not self._by_count[before]:
            del self._by_count[before]
        top_is_empty = before == self._most and before not in self._by_count
        if after > self._most or top_is_empty:
            self._most = after


class StartQueue:
    """Starts at most `STARTS` requests in each iteration of the event loop. Senders take turns.

    If thousands of requests started at once, each iteration would execute one step of each of them. A probe or
    a stream needs several iterations, and would wait for thousands of steps each time.
    """

    def __init__(self) -> None:
        self._waiting = RoundRobin[Callable[[], None]]()
        self._n_left = STARTS
        """Number of requests that may still start in this iteration."""

    def add(self, sender: str, start: Callable[[], None]) -> bool:
        """Call `start` for a sender, such as a key or an address, now or in a later iteration. Return False, and do
        not call it, if `MOST_WAITING` requests of the sender are waiting.
        """
        if self._n_left == STARTS:
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        if self._n_left and not self._waiting:
            self._n_left -= 1
            start()
        elif self._waiting.count(sender) < MOST_WAITING:
            self._waiting.add(sender, start)
        else:
            return False
        return True

    def _begin_iteration(self) -> None:
        self._n_left = STARTS
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        while self._n_left and self._waiting:
            self._n_left -= 1
            self._waiting.pop()()


class SparseWarning:
    """Warning that is logged once for many events, so that an attack cannot fill the disk."""

    def __init__(self, text: str) -> None:
        self._text, self._logged_s = text, float("-inf")

    def log(self, *facts: object) -> bool:
        """Log the warning, unless one was logged within `LOG_EVERY_S`. Return whether it was logged."""
        now_s = time.monotonic()
        if now_s - self._logged_s <= LOG_EVERY_S:
            return False
        logger.warning(self._text, *facts)
        self._logged_s = now_s
        return True


def check_open(n_open: int, most: int, room: WaitingRoom) -> None:
    """Check the open requests. If too many, evict one whose body is incomplete, or raise Overloaded."""
    if n_open + 1 > OPEN * most and not (n_open < most and room.evict_one()):
        raise Overloaded(TOO_MANY, param=MAX_ONGOING, retry_after_s=OPEN_RETRY_S)


async def falls_behind() -> bool:
    """Return whether the event loop is overloaded, by the CPU time of this thread. If not, it takes one turn."""
    turns_s = list[float]()
    for _ in range(TURNS):
        began_s = time.thread_time()
        await asyncio.sleep(0)
        turns_s.append(time.thread_time() - began_s)
        if turns_s[-1] < SHORT_S:
            return False
    return sum(turns_s) - max(turns_s) > LONG_S * (TURNS - 1)


def error_bytes(error: PodiumError, content: dict[str, Any], status: int | None = None) -> bytes:
    """Return the bytes of an error response. Its `connection: close` header tells the client that the
    connection ends.
    """
    status = status or errors.row(error).status
    body = orjson.dumps(content)
    extra = "".join(f"{name}: {value}\r\n" for name, value in errors.headers(error).items())
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n{extra}"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


async def send_response(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a whole response with its length."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def send_error(
    send: Send, error: PodiumError, content: dict[str, Any], more: Headers = (), status: int | None = None
) -> None:
    """Send the response for an error, with the headers of every error and `more`."""
    headers = [(name.encode(), value.encode()) for name, value in errors.headers(error).items()]
    headers += [(b"content-type", b"application/json"), *more]
    await send_response(send, status or errors.row(error).status, headers, orjson.dumps(content))


class Reader:
    """Reports how much of a response a client has read, and can reset its connection."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    @property
    def unread_bytes(self) -> int:
        """Bytes in the buffers of server and kernel that the client has not acknowledged by reading."""
        waiting = self._transport.get_write_buffer_size()
        sock = self._transport.get_extra_info("socket")
        try:
            in_kernel = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        except (OSError, AttributeError):  # closed, or a kernel without this information
            return waiting
        return waiting + struct.unpack("i", in_kernel)[0]

    def drop(self) -> None:
        """Reset the connection and discard unread data, for which an orderly close would wait."""
        sock = self._transport.get_extra_info("socket")
        with suppress(OSError, AttributeError), socket.fromfd(sock.fileno(), sock.family, sock.type) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)  # or the kernel keeps trying to send
        self._transport.abort()


class HttpExchange:
    """One HTTP request and its response.

    Args:
        scope, receive, send: the ASGI arguments.

    Attributes:
        body: the whole request body, until the application receives it. None if the edge has not read it.
        body_lease: what the body occupies, to be released once its run counts the conversation.
        is_reading: true while the body is being received.
        is_head: true for a HEAD request, whose response is that of GET without a body.
        on_drop: functions that are called with the reason before the task of a dropped client is cancelled.
            There is one for each choice of the answer.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        extensions: dict[str, Any] = scope.get("extensions") or {}
        self._receive, self._send, self.task = receive, send, asyncio.current_task()
        self._reader: Reader | None = extensions.get(READER)
        self._n_sent = self._n_sending = 0
        self._progress: tuple[int, int] | None = None
        self._since_s = 0.0
        self._is_over = self.is_cancelled = self.is_reading = self.is_head = False
        self.body: bytes | None = None
        self.body_lease = ExitStack()
        self.added_headers: Sequence[tuple[bytes, bytes]] = ()
        self.on_drop = list[Callable[[PodiumError], None]]()

    async def receive(self) -> Message:
        """Receive a message (ASGI). It has the whole body, which is not kept until the response."""
        body, self.body = self.body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Send a message (ASGI), a large one in pieces, each after the client has read enough of the others."""
        if self._is_over:
            return None
        if message["type"] == "http.response.body":
            if self.is_head:
                self._is_over = True
                if message.get("more_body"):
                    asyncio.get_running_loop().call_soon(self.cancel)
                message = {"type": "http.response.body", "body": b""}
            elif len(message.get("body", b"")) > PIECE_BYTES:
                return await self._send_pieces(message)
        elif self.added_headers and message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *self.added_headers]
        self._n_sending += 1
        try:
            await self._send(message)
            self._n_sent += 1
        finally:
            self._n_sending -= 1
        return None

    async def _send_pieces(self, message: Message) -> None:
        body: bytes = message["body"]
        for at in range(0, len(body), PIECE_BYTES):
            piece = body[at : at + PIECE_BYTES]
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        if not message.get("more_body"):  # the loop has waited for the last piece too
            await self.send({"type": "http.response.body", "body": b""})

    def check_progress(self, now_s: float, limit_s: float) -> None:
        """Drop the client if it has read nothing for `limit_s` seconds while data is waiting for it.

        Any progress restarts the time. Call it a few times per `limit_s`.
        """
        progress = (self._n_sent, self._reader.unread_bytes if self._reader and self._n_sending else 0)
        if not self._n_sending or progress != self._progress:
            self._progress, self._since_s = progress, now_s
        elif now_s - self._since_s >= limit_s and not self.is_cancelled:
            for notify in self.on_drop:
                notify(Cancelled(f"The client has not read its response for {limit_s:g} s."))
            self.cancel()

    def cancel(self) -> None:
        if self.task is not None and not self.is_cancelled:
            self.is_cancelled = True
            self.task.cancel()

    async def end_cancelled(self) -> bool:
        """Return whether `cancel` alone ended the task. If so, reset a connection with an incomplete
        response.
        """
        if not self.is_cancelled or self.task is None or self.task.uncancel():
            return False
        if not self._is_over:
            if self._reader is not None:
                self._reader.drop()
            await asyncio.sleep(0)  # let the server notice that the client is gone
        return True


def notify_on_drop(scope: Scope, notify: Callable[[PodiumError], None]) -> None:
    """Call `notify` with the reason if the client is dropped. Do nothing for a line of a batch."""
    exchange: HttpExchange | None = scope.get(EXCHANGE)
    if exchange is not None:
        exchange.on_drop.append(notify)


def count_body_bytes(scope: Scope) -> int:
    exchange: HttpExchange | None = scope.get(EXCHANGE)
    return len(exchange.body or b"") if exchange is not None else 0


def body_lease(scope: Scope) -> ExitStack:
    """Return the lease of a request's body. A line of a batch has an empty one."""
    exchange: HttpExchange | None = scope.get(EXCHANGE)
    return exchange.body_lease if exchange is not None else ExitStack()
