"""Clients that take their answers slowly, or not at all: what waits for them is bounded, whatever route it is of.

A server keeps what was sent until its client takes it, and waits only before it is sent more. So what is large is sent in
pieces, and each waits until the ones before are nearly gone. A client that takes nothing for too long is given up. What
waits behind the pieces, such as a body that was made whole, is counted by `admission.py`.
"""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.access import PIECE_BYTES
from serving.api.unread import TIMER, UnreadTimer


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
