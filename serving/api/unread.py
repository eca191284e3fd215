"""Clients that read slowly or nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conductor.errors import Cancelled, PodiumError
from serving.api.access import PIECE_BYTES
from serving.edge.reader import READER, Reader

TIMER = "podium.unread"
"""In a scope: the `UnreadTimer` of whatever is answered."""
LOOKS = 6
"""In the time for which nothing may be taken."""


def when_given_up(scope: Scope, tell: Callable[[PodiumError], None]) -> None:
    """Call `tell` with the reason where the client is given up; what answers it is cancelled after that. Whoever asks
    from within this process is never given up.
    """
    timer: UnreadTimer | None = scope.get(TIMER)
    if timer is not None:
        timer.is_over.add_done_callback(lambda over: None if over.cancelled() else tell(timer.error))


class UnreadTimer:
    """Looks after what is sent to one client; see `stop`.

    Args:
        scope: of the request.
        send: of ASGI.
        limit_s: for which a client may take nothing while something waits for it. Whatever it takes, however slowly,
            the time begins again.
    """

    def __init__(self, scope: Scope, send: Send, limit_s: float) -> None:
        self._send, self._limit_s = send, limit_s
        extensions: dict[str, Any] = scope.get("extensions") or {}
        self._reader: Reader | None = extensions.get(READER)
        self._loop = asyncio.get_running_loop()
        self.is_over: asyncio.Future[None] = self._loop.create_future()
        """Done once the time is over."""
        self._n_sent, self._n_sending = 0, 0
        self._seen, self._since_s = (0, 0), self._loop.time()
        self._timer = self._loop.call_later(limit_s / LOOKS, self._look)

    async def send(self, message: Message) -> None:
        """ASGI's `send`; it waits for the client."""
        self._n_sending += 1
        try:
            await self._send(message)
            self._n_sent += 1
        finally:
            self._n_sending -= 1

    @property
    def error(self) -> PodiumError:
        """Why the client is given up."""
        return Cancelled(f"The client has read nothing of its answer for {self._limit_s:g} s.")

    def drop(self) -> None:
        """End the connection of a client that takes nothing."""
        if self._reader is not None:
            self._reader.drop()

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()
        self.is_over.cancel()

    def _look(self) -> None:
        now_s = self._loop.time()
        seen = (self._n_sent, self._reader.unread_bytes if self._reader and self._n_sending else 0)
        if not self._n_sending or seen != self._seen:
            self._seen, self._since_s = seen, now_s
        elif now_s - self._since_s >= self._limit_s and not self.is_over.done():
            return self.is_over.set_result(None)
        self._timer = self._loop.call_later(self._limit_s / LOOKS, self._look)
        return None


class SlowClients:
    """Stands before `app`.

    Args:
        app: what answers.
        unread_s: for how long a client may take nothing, as it is now.
    """

    def __init__(self, app: ASGIApp, unread_s: Callable[[], float]) -> None:
        self._app, self._unread_s = app, unread_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. A client that takes nothing is treated as one that has left: what answers it is cancelled."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        timer = scope[TIMER] = UnreadTimer(scope, send, self._unread_s())
        patience = asyncio.timeout(None)
        try:
            async with patience:
                timer.is_over.add_done_callback(lambda over: _end(patience, over))
                await self._app(scope, receive, Pieces(timer.send).send)
        except TimeoutError:
            if not patience.expired():
                raise
            timer.drop()
            await asyncio.sleep(0)  # until the server knows that its client is gone
        finally:
            timer.stop()
        return None


class Pieces:
    """What is sent to one client, in pieces.

    Args:
        send: of ASGI.
    """

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, message: Message) -> None:
        """ASGI's `send`, of a body in pieces."""
        body: bytes = message.get("body", b"") if message["type"] == "http.response.body" else b""
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
