"""Sends a line of a batch to this router's own routes, without a socket. The line gets the same parsing,
policies, rate limits, budgets and runs as any other request.
"""

import asyncio
from typing import Any, cast

import orjson
from fastapi import FastAPI
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import Message

from serving.accounts.caller import Caller
from serving.api.authentication import CALLER
from serving.api.completions import IS_BATCH
from serving.api.run_response import WORKFLOW_HEADER
from serving.batches.lines import LineAnswer
from serving.batches.runner import AGAIN_S, LATER, SendLine
from serving.sessions.deduplication import HEADER


def line_sender(app: FastAPI) -> SendLine:
    """Return a function that sends lines to `app` without edge and authentication, as the caller is known."""

    async def send_line(path: str, body: bytes, caller: Caller, name: str) -> LineAnswer:
        headers = {"content-type": "application/json", HEADER.lower(): name}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
            "client": None,
            "server": None,
            "app": app,
            "state": {},
            CALLER: caller,
            IS_BATCH: True,
        }
        exchange = Exchange(body)
        routes = ExceptionMiddleware(app.router, cast(Any, app.exception_handlers))
        await routes(scope, exchange.receive, exchange.send)
        return exchange.answer()

    return send_line


class Exchange:
    """Client side of one request. It never disconnects."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status, self._headers, self._answer = 500, dict[str, str](), b""

    async def receive(self) -> Message:
        """Return the body, then wait forever: this client never disconnects."""
        body, self._body = self._body, None
        if body is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body or b"", "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {key.decode(): value.decode() for key, value in message.get("headers", ())}
        else:
            self._answer += message.get("body", b"")

    def answer(self) -> LineAnswer:
        body = orjson.loads(self._answer)
        return LineAnswer(self._status, self._headers.get(WORKFLOW_HEADER, ""), body, self._later_s(body))

    def _later_s(self, body: Any) -> float | None:
        if self._headers.get("x-should-retry") != "true":
            return None
        later_s = float(self._headers.get("retry-after", AGAIN_S))
        return later_s if body.get("error", {}).get("code") in LATER else None
