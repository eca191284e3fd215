"""ASGI's sending side of a response that owns a run: JSON, an error, or a stream."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Message, Send

from conductor.errors import PodiumError
from conductor.run.run import Run
from serving import errors
from serving.api.dialect import Dialect
from serving.api.encode import dumps
from serving.api.error_json import told_of
from serving.api.siblings import Siblings
from serving.sessions.deduplication import has_called

Json = dict[str, Any]
CACHE_HEADER = "x-podium-cache"
WORKFLOW_HEADER = "x-podium-workflow-id"


class Wire:
    """ASGI's sending side, and what was sent of it."""

    def __init__(
        self,
        send: Send,
        dialect: Dialect,
        siblings: Siblings | None = None,
        budget: Callable[[], Awaitable[dict[str, str]]] | None = None,
    ) -> None:
        self._send, self._dialect, self._siblings = send, dialect, siblings
        self._budget = budget
        """Reads the headers that say what is left of the caller's budgets."""
        self.run: Run | None = None
        """Its id is in headers and errors from the moment there is one."""
        self.extra: dict[str, str] = {}
        """More headers."""
        self.is_cached = False
        """Whether the answer is an earlier run's; then a header says so."""
        self.is_joined = True
        """Whether the same request, sent again, joins the run."""
        self.is_left = False
        """See `leave`."""
        self.begun = False
        self.sent_s = 0.0
        """When the newest byte of the stream was sent, or it was begun, by the loop's clock."""

    def leave(self) -> None:
        """Its client is gone: nothing is sent any more."""
        self.is_left, self._send = True, _send_nothing

    async def json(self, status: int, body: Json, extra: dict[str, str] | None = None) -> None:
        """All of the response."""
        content = dumps(body)
        await self._start(
            status, {"content-type": "application/json", "content-length": str(len(content)), **(extra or {})}
        )
        await self._send({"type": "http.response.body", "body": content})

    @property
    def workflow_id(self) -> str | None:
        """Of the run; None while there is none."""
        return self.run.record.id if self.run else None

    async def error(self, error: PodiumError) -> None:
        """A failure before the first byte; where models were paid for, or the dialect says that it is final, SDKs are
        told not to ask again.
        """
        was_paid = self.run is not None and has_called(self.run.record)
        was_paid = was_paid or (self._siblings is not None and self._siblings.have_called)
        status = self._dialect.status(error, is_paid=was_paid, is_joined=self.is_joined)
        headers = errors.headers(error)
        is_final = status != errors.row(error).status and status == errors.FINAL
        if is_final or was_paid:  # asked again, all of it would be paid again, or the same failure be told
            headers["x-should-retry"] = "false"
        told = told_of(error, self.run.record) if self.run else error
        await self.json(status, self._dialect.error_body(told, self.workflow_id), headers)

    async def begin_stream(self) -> None:
        """The headers of server-sent events."""
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
        }
        await self._start(200, headers)
        self.sent_s = asyncio.get_running_loop().time()

    async def send(self, data: bytes) -> None:
        """A piece of the stream; nothing, where it is empty."""
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self.sent_s = asyncio.get_running_loop().time()

    async def end(self) -> None:
        """The end of the stream."""
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        self.begun = True
        headers = self.extra | (await self._budget() if self._budget else {}) | headers
        if self.workflow_id:
            headers = {WORKFLOW_HEADER: self.workflow_id, **headers}
        if self.is_cached:
            headers = {CACHE_HEADER: "hit", **headers}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


async def _send_nothing(message: Message) -> None:
    pass
