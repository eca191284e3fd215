"""One HTTP request at the edge and its response, which the client may read slowly.

Only the socket shows how much a client has read, and ASGI cannot report it. The replica's protocol therefore
adds a `Reader` to the scope of each request, as the extension `READER`. Serve's proxy does not: it sends its
scopes to another process, and it reads each response completely.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from conductor.errors import Cancelled, PodiumError

READER = "podium.reader"
AT_ONCE = struct.pack("ii", 1, 0)
"""`SO_LINGER` value that discards unread data and resets the connection."""
EXCHANGE = "podium.exchange"
"""Key in an ASGI scope for its `HttpExchange`, which is removed when the request ends. A line of a batch has
none.
"""
PIECE_BYTES = 65_536
"""Size of the pieces in which a response is sent."""


class Reader:
    """Reports how much of a response a client has read, and can reset its connection."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    @property
    def unread_bytes(self) -> int:
        """Number of bytes in the server's own buffer and the kernel's that the client has not acknowledged.

        The client's machine acknowledges data only while the client reads.
        """
        waiting = self._transport.get_write_buffer_size()
        sock = self._transport.get_extra_info("socket")
        try:
            in_kernel = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        except (OSError, AttributeError):  # closed, or a kernel without this information
            return waiting
        return waiting + struct.unpack("i", in_kernel)[0]

    def drop(self) -> None:
        """Reset the connection and discard unread data. An orderly close would wait until the client has read
        it.
        """
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
        is_reading: true while the body is being received.
        is_head: true for a HEAD request, whose response is that of GET without a body.
        added_headers: additional response headers.
        is_cancelled: true once `cancel` was called.
        task: task that handles the request; None once it has ended.
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
        self.added_headers: Sequence[tuple[bytes, bytes]] = ()
        self.on_drop = list[Callable[[PodiumError], None]]()

    async def receive(self) -> Message:
        """Receive a message (ASGI). The whole body is one message. It is not kept in memory until the
        response.
        """
        body, self.body = self.body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Send a message (ASGI). A body larger than `PIECE_BYTES` is sent in pieces, each after the client
        has read enough of the previous ones.
        """
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
        """Cancel the task that handles the request."""
        if self.task is not None and not self.is_cancelled:
            self.is_cancelled = True
            self.task.cancel()

    async def end_cancelled(self) -> bool:
        """Return whether `cancel` alone has ended the task. If so, reset the connection of a client that has
        not received its whole response.
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
    """Return the length of the body that is waiting to be received, or 0."""
    exchange: HttpExchange | None = scope.get(EXCHANGE)
    return len(exchange.body or b"") if exchange is not None else 0
