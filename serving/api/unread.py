"""Notices that a client takes nothing of its answer. It holds a worker's slot as long as it is waited for."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import Message, Scope, Send

from conductor.errors import Cancelled, PodiumError
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
