"""One request at the edge: its body, which the edge has read, and its answer, on the way to a client that may read slowly.

Only the socket knows what a client has not taken yet. ASGI says nothing of that, so the replica's protocol puts a `Reader` into
the scope of each request, as an extension of the name `READER`. Serve's proxy does not: its scopes go to another process, and
it reads everything itself.
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
"""`SO_LINGER`: what was not taken is dropped, and the client receives a reset."""
EXCHANGE = "podium.exchange"
"""In a scope: its `HttpExchange`, until the request has ended. A line of a batch has none."""
PIECE_BYTES = 65_536
"""An answer is sent in pieces of this size."""


class Reader:
    """The client's end of a connection."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    @property
    def unread_bytes(self) -> int:
        """Sent, and not acknowledged by the client's machine, which does so only while its program reads: the server's own
        buffer, and the kernel's.
        """
        waiting = self._transport.get_write_buffer_size()
        sock = self._transport.get_extra_info("socket")
        try:
            in_kernel = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        except (OSError, AttributeError):  # closed; or a kernel that does not say
            return waiting
        return waiting + struct.unpack("i", in_kernel)[0]

    def drop(self) -> None:
        """End the connection, with all that it has not taken: an orderly end would wait for that to be read."""
        sock = self._transport.get_extra_info("socket")
        with suppress(OSError, AttributeError), socket.fromfd(sock.fileno(), sock.family, sock.type) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)  # the kernel would go on offering it
        self._transport.abort()


class HttpExchange:
    """A request and its answer.

    Args:
        scope, receive, send: of ASGI.

    Attributes:
        body: all of it, until it is received; None if the edge has not read it.
        is_reading: true until the body is whole.
        is_head: true if only the head of what GET answers is sent.
        added_headers: sent with the answer.
        is_cancelled: true once `cancel` was called.
        task: answers the request; None once it has ended.
        on_give_up: called with the reason if the client is given up, before what answers it is cancelled; one for each
            choice.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        extensions: dict[str, Any] = scope.get("extensions") or {}
        self._receive, self._send, self.task = receive, send, asyncio.current_task()
        self._reader: Reader | None = extensions.get(READER)
        self._n_sent = self._n_sending = 0
        self._seen: tuple[int, int] | None = None
        self._since_s = 0.0
        self._is_over = self.is_cancelled = self.is_reading = self.is_head = False
        self.body: bytes | None = None
        self.added_headers: Sequence[tuple[bytes, bytes]] = ()
        self.on_give_up = list[Callable[[PodiumError], None]]()

    async def receive(self) -> Message:
        """Receive as in ASGI. The body is one message. It is held until then, and not for as long as the answer takes."""
        body, self.body = self.body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Send as in ASGI. Wait for the client after each piece."""
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
        if not message.get("more_body"):  # this waits for the last piece too
            await self.send({"type": "http.response.body", "body": b""})

    def check_progress(self, now_s: float, limit_s: float) -> None:
        """Give the client up if it has taken nothing for `limit_s` while something waits for it. Whatever it takes, however
        slowly, the time begins again. Called a few times in `limit_s`.
        """
        seen = (self._n_sent, self._reader.unread_bytes if self._reader and self._n_sending else 0)
        if not self._n_sending or seen != self._seen:
            self._seen, self._since_s = seen, now_s
        elif now_s - self._since_s >= limit_s and not self.is_cancelled:
            for tell in self.on_give_up:
                tell(Cancelled(f"The client has read nothing of its answer for {limit_s:g} s."))
            self.cancel()

    def cancel(self) -> None:
        """Cancel what answers the request."""
        if self.task is not None and not self.is_cancelled:
            self.is_cancelled = True
            self.task.cancel()

    async def end_cancelled(self) -> bool:
        """Return True if `cancel` alone has ended the task. End the connection of a client that was given up."""
        if not self.is_cancelled or self.task is None or self.task.uncancel():
            return False
        if not self._is_over:
            if self._reader is not None:
                self._reader.drop()
            await asyncio.sleep(0)  # until the server knows that its client is gone
        return True


def when_given_up(scope: Scope, tell: Callable[[PodiumError], None]) -> None:
    """Call `tell` with the reason if the client is given up. A line of a batch never is."""
    exchange: HttpExchange | None = scope.get(EXCHANGE)
    if exchange is not None:
        exchange.on_give_up.append(tell)


def count_body_bytes(scope: Scope) -> int:
    """Return the length of the body that waits to be received, or 0."""
    exchange: HttpExchange | None = scope.get(EXCHANGE)
    return len(exchange.body or b"") if exchange is not None else 0
