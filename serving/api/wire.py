"""Sending side of a response that owns a run: JSON, an error, or a stream."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

from starlette.types import Message, Send

from conductor.errors import PodiumError
from conductor.run.run import Run
from serving import errors
from serving.api.dialect import Dialect
from serving.api.encode import dumps
from serving.api.error_json import caller_failure
from serving.api.siblings import Siblings
from serving.sessions.deduplication import has_called

Json = dict[str, Any]
CACHE_HEADER = "x-podium-cache"
WORKFLOW_HEADER = "x-podium-workflow-id"


class Wire:
    """Sends a response over ASGI, and keeps track of what was sent."""

    def __init__(
        self,
        send: Send,
        dialect: Dialect,
        siblings: Siblings | None = None,
        budget: Callable[[], Awaitable[dict[str, str]]] | None = None,
    ) -> None:
        self._send, self._dialect, self._siblings = send, dialect, siblings
        self._budget = budget
        """Function that returns the headers with the caller's remaining budget."""
        self.run: Run | None = None
        """The run, once there is one. Its id is in the headers and in errors."""
        self.extra: dict[str, str] = {}
        """Additional headers."""
        self.is_cached = False
        """True if the answer comes from the cache. A header says so."""
        self.is_joined = True
        """True if a retry of the request joins the run."""
        self.is_left = False
        """True if `leave` was called."""
        self.has_begun = False
        self.sent_s = 0.0
        """Time of the last byte of the stream, or of its start (the loop's clock)."""

    def leave(self) -> None:
        """Stop sending: the client has disconnected."""
        self.is_left, self._send = True, _send_nothing

    async def json(self, status: int, body: Json, extra: dict[str, str] | None = None) -> None:
        """Send the whole response as JSON."""
        content = dumps(body)
        await self._start(
            status, {"content-type": "application/json", "content-length": str(len(content)), **(extra or {})}
        )
        await self._send({"type": "http.response.body", "body": content})

    @property
    def workflow_id(self) -> str | None:
        """Id of the run, or None if there is none yet."""
        return self.run.record.id if self.run else None

    async def error(self, error: PodiumError) -> None:
        """Send an error before the first byte.

        If a model was called, or the dialect reports the failure as final, a header tells SDKs not to retry.
        """
        was_paid = self.run is not None and has_called(self.run.record)
        was_paid = was_paid or (self._siblings is not None and self._siblings.have_called)
        status = self._dialect.status(error, is_paid=was_paid, is_joined=self.is_joined)
        headers = errors.headers(error)
        is_final = status != errors.row(error).status and status == errors.FINAL
        if is_final or was_paid:  # a retry would be billed again, or fail in the same way
            headers["x-should-retry"] = "false"
        failure = caller_failure(error, self.run.record) if self.run else error
        await self.json(status, self._dialect.error_body(failure, self.workflow_id), headers)

    async def begin_stream(self) -> None:
        """Send the headers of a stream of server-sent events."""
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
        }
        await self._start(200, headers)
        self.sent_s = asyncio.get_running_loop().time()

    async def send(self, data: bytes) -> None:
        """Send a piece of the stream, unless it is empty."""
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self.sent_s = asyncio.get_running_loop().time()

    @contextmanager
    def beats(self, every_s: float, beat: Callable[[], None]) -> Generator[None]:
        """Call `beat` whenever nothing was sent for `every_s` seconds, until the end of the block. One timer
        serves the whole stream: a new one for each event would cost more than the event.
        """
        loop = asyncio.get_running_loop()

        def look() -> None:
            nonlocal timer
            due_s = self.sent_s + every_s
            if loop.time() >= due_s:
                beat()
                due_s = loop.time() + every_s
            timer = loop.call_at(due_s, look)

        timer = loop.call_at(self.sent_s + every_s, look)
        try:
            yield
        finally:
            timer.cancel()

    def is_silent(self, for_s: float) -> bool:
        """Return whether nothing was sent for `for_s` seconds."""
        return asyncio.get_running_loop().time() >= self.sent_s + for_s

    async def end(self) -> None:
        """End the stream."""
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        self.has_begun = True
        headers = self.extra | (await self._budget() if self._budget else {}) | headers
        if self.workflow_id:
            headers = {WORKFLOW_HEADER: self.workflow_id, **headers}
        if self.is_cached:
            headers = {CACHE_HEADER: "hit", **headers}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


async def _send_nothing(message: Message) -> None:
    pass
