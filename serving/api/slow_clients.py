"""Clients that take their answers slowly, or not at all: what waits for them is bounded, whatever route it is of.

A server keeps what was sent until its client takes it, and waits only before it is sent more. So what is large is sent in
pieces, and each waits until the ones before are nearly gone. A body that was made whole is in memory until it is sent; so
there is room for so many bytes of these. A client that takes nothing for too long is given up.
"""

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conductor.errors import Overloaded
from serving.api.respond import failure
from serving.api.unread import TIMER, UnreadTimer

PIECE_BYTES = 65_536
MOST_WHOLE_BYTES = 268_435_456
"""Of bodies that were made whole, and are larger than a piece, at once."""


class SlowClients:
    """Stands before `app`.

    Args:
        app: what answers.
        unread_s: for how long a client may take nothing, as it is now.
    """

    def __init__(self, app: ASGIApp, unread_s: Callable[[], float]) -> None:
        self._app, self._unread_s, self._whole = app, unread_s, Room(MOST_WHOLE_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. A client that takes nothing is treated as one that has left: what answers it is cancelled."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        timer = scope[TIMER] = UnreadTimer(scope, send, self._unread_s())
        answer = Answer(scope, receive, timer.send, self._whole)
        patience = asyncio.timeout(None)
        try:
            async with patience:
                timer.is_over.add_done_callback(lambda over: _end(patience, over))
                await self._app(scope, receive, answer.send)
        except TimeoutError:
            if not patience.expired():
                raise
            timer.drop()
            await asyncio.sleep(0)  # until the server knows that its client is gone
        finally:
            timer.stop()
            answer.close()
        return None


class Room:
    """For so many bytes; one who comes while nobody is there may have more."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self.n_bytes = most_bytes, 0

    def take(self, n_bytes: int) -> bool:
        """Whether there was room."""
        has_room = not self.n_bytes or self.n_bytes + n_bytes <= self._most_bytes
        self.n_bytes += n_bytes if has_room else 0
        return has_room

    def leave(self, n_bytes: int) -> None:
        """There is room again."""
        self.n_bytes -= n_bytes


class Answer:
    """What is sent to one client.

    Args:
        scope, receive: of its request.
        send: of ASGI.
        whole: where bodies wait that were made whole.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, whole: Room) -> None:
        self._scope, self._receive, self._send, self._whole = scope, receive, send, whole
        self._start: Message | None = None
        """Waits for the body: it may be refused."""
        self._n_taken, self._is_refused = 0, False

    async def send(self, message: Message) -> None:
        """ASGI's `send`, of a body in pieces."""
        if self._is_refused:
            return None
        if message["type"] == "http.response.start" and self._may_be_refused(message):
            self._start = message
            return None
        if message["type"] != "http.response.body":
            return await self._send(message)
        start, self._start = self._start, None
        if start is not None:
            if not message.get("more_body") and not self._take(len(message.get("body", b""))):
                return await self._refuse()
            await self._send(start)
        return await self._in_pieces(message)

    def close(self) -> None:
        """It was sent, or never will be."""
        self._whole.leave(self._n_taken)

    def _may_be_refused(self, start: Message) -> bool:
        """Whether it can be asked for again, and is large."""
        lengths = [value for name, value in start.get("headers", ()) if name.lower() == b"content-length"]
        return self._scope["method"] == "GET" and any(int(length) > PIECE_BYTES for length in lengths)

    def _take(self, n_bytes: int) -> bool:
        has_room = self._whole.take(n_bytes)
        self._n_taken = n_bytes if has_room else 0
        return has_room

    async def _refuse(self) -> None:
        self._is_refused = True
        error = Overloaded("Too many large answers wait here for clients that read slowly. Try again soon.")
        await failure(Request(self._scope), error)(self._scope, self._receive, self._send)

    async def _in_pieces(self, message: Message) -> None:
        body: bytes = message.get("body", b"")
        if len(body) <= PIECE_BYTES:
            return await self._send(message)
        for at in range(0, len(body), PIECE_BYTES):
            piece = body[at : at + PIECE_BYTES]
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        if not message.get("more_body"):  # it waits for the last piece too
            await self._send({"type": "http.response.body", "body": b""})
        return None


def _end(patience: asyncio.Timeout, over: "asyncio.Future[None]") -> None:
    """Cancel who answers, where the time is over and it has not ended yet."""
    if not over.cancelled() and not patience.expired():
        try:
            patience.reschedule(0)
        except RuntimeError:  # it has just ended
            return
