"""Uvicorn's HTTP protocol with the bounds it lacks: bytes of headers, time for them, and connections that
send nothing.

With httptools, Uvicorn parses headers of any length, and waits without end for the first request of a
connection. Both are bounded here, in a subclass that is put in the place of Uvicorn's own default
(`uvicorn.config.HTTP_PROTOCOLS`).
"""

import asyncio
import random
from http import HTTPStatus
from typing import Any, ClassVar

import orjson
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from conductor.errors import BadTask, PodiumError, TooLarge, TooSlow
from serving import errors
from serving.edge.body import body_too_slow, overload_error
from serving.edge.policy import ErrorBody, Policy
from serving.edge.waiting import Ticket, WaitingRoom

LINGER_S = 1.0


class HeaderTooLongError(Exception):
    """Ends the parser; the answer is written where the parser is fed."""


def guard_protocol(policy: Policy, room: WaitingRoom, error_body: ErrorBody) -> type[HttpToolsProtocol]:
    """The protocol for one process.

    Args:
        policy: the bounds.
        room: where connections without a whole request wait.
        error_body: what a rejected request is answered.
    """
    bounds = {"policy": policy, "room": room, "error_body": staticmethod(error_body)}
    return type("EdgeProtocol", (EdgeProtocol,), bounds)


def _jitter(seconds: float) -> float:
    """Up to a quarter more: thousands that came together are not to end in one turn of the loop."""
    return seconds * random.uniform(1, 1.25)


def response(error: PodiumError, content: dict[str, Any], status: int | None = None) -> bytes:
    """A whole answer, after which the connection is closed."""
    status = status or errors.row(error).status
    body = orjson.dumps(content)
    extra = "".join(f"{name}: {value}\r\n" for name, value in errors.headers(error).items())
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n{extra}"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


class EdgeProtocol(HttpToolsProtocol):
    """One connection. It waits, and may be closed, until its next request's headers are whole."""

    policy: ClassVar[Policy]
    room: ClassVar[WaitingRoom]
    error_body: ClassVar[ErrorBody]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.url = b""  # Uvicorn sets it with the first bytes of a request, and not before
        self._in_head = True
        self._head_bytes = 0
        self._is_new, self._is_refused = True, False
        self._held: tuple[RequestResponseCycle, ASGI3Application] | None = None
        self._held_s = 0.0
        self._ticket: Ticket | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It waits from the start."""
        super().connection_made(transport)
        self._wait()
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits any more."""
        self._held = None
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and look whether the headers have become too long, or go on after a pause."""
        if self._is_refused:
            return
        is_head = self._in_head or self._is_idle()
        super().data_received(data)
        if self.transport.get_protocol() is not self:  # a WebSocket's
            self._stop_waiting()
        elif not (self._is_refused or self.transport.is_closing()):
            self._look(len(data) if is_head else 0)

    def _look(self, head_bytes: int) -> None:
        self._head_bytes = self._head_bytes + head_bytes if self._in_head else 0
        if self._head_bytes > self.policy.max_header_bytes:
            self._refuse(self._long_head())
        elif self._held is not None:
            self._wait()
            self._start_body_timer()
        elif self._is_idle():
            self._wait()
            self._start_timer()

    def _unsupported_upgrade_warning(self) -> None:
        """Do not advise to install a WebSocket library: the edge answers the handshake."""

    def on_message_begin(self) -> None:
        """The first bytes of a request."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The request may begin, unless all of its headers came at once and are too long."""
        self._in_head = False
        if (
            sum(len(name) + len(value) for name, value in self.headers) + len(self.url)
            > self.policy.max_header_bytes
        ):
            raise HeaderTooLongError
        self._is_new = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """What is large is read by the application, which makes the client wait."""
        super().on_body(body)
        if len(self.cycle.body) > HIGH_WATER_LIMIT:
            self._release()

    def on_message_complete(self) -> None:
        """The request is whole."""
        super().on_message_complete()
        self._release()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Not before the request is whole, or large: one that is never whole costs no task."""
        if cycle.more_body and not cycle.waiting_for_100_continue and len(cycle.body) <= HIGH_WATER_LIMIT:
            self._held, self._held_s = (cycle, app), self.loop.time()
            self._wait()  # also where it came behind another request, in the same packet
            self._start_body_timer()
        else:
            self._stop_waiting()
            super()._start_asgi_task(cycle, app)

    def _release(self) -> None:
        if self._held is not None and self._held[0] is self.cycle:
            self._stop_waiting()
            (cycle, app), self._held = self._held, None
            super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Between two requests it waits like a new one; Uvicorn's own timer bounds how long."""
        super().on_response_complete()
        if self._is_idle() and not self.transport.is_closing():
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """What the parser rejected."""
        if sum(len(name) + len(value) for name, value in self.headers or ()) > self.policy.max_header_bytes:
            return self._refuse(self._long_head())
        return self._refuse(self._response(BadTask(msg)))

    def _is_idle(self) -> bool:
        return self._is_new or (self.cycle.response_complete and not self.pipeline)

    def _wait(self) -> None:
        if self._ticket is None:
            self._ticket = self.room.enter(self.client[0] if self.client else "", self._evict)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(_jitter(self.policy.header_s), self._time_is_up)

    def _start_body_timer(self) -> None:
        """From one piece to the next, while there is time for the whole."""
        left_s = self._held_s + self.policy.body_s - self.loop.time()
        self._stop_timer()
        self._timer = self.loop.call_later(
            max(0.0, min(_jitter(self.policy.stall_s), left_s)), self._time_is_up
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_waiting(self) -> None:
        self._stop_timer()
        if self._ticket is not None:
            self.room.leave(self._ticket)
            self._ticket = None

    def _evict(self) -> None:
        self._ticket = None
        self._stop_waiting()
        if self._held is not None and not self._is_refused:
            self.transport.write(self._response(overload_error()))
        self.transport.close()

    def _time_is_up(self) -> None:
        """One that has sent nothing is closed without a word, as a browser that connects in advance
        expects.
        """
        self._timer = None
        if self._held is not None:
            self._end(self._response(body_too_slow(self.policy)))
        elif self._in_head and self._head_bytes:
            self._end(self._slow_head())
        else:
            self._end(b"")

    def _response(self, error: PodiumError, status: int | None = None) -> bytes:
        """`error` in the dialect of the path, as far as the path is known."""
        path = self.url.partition(b"?")[0].decode("latin-1")
        return response(error, self.error_body(error, path), status)

    def _slow_head(self) -> bytes:
        message = f"The headers were not whole after {self.policy.header_s:g} s."
        return self._response(TooSlow(message, param="headers"))

    def _long_head(self) -> bytes:
        message = f"The headers are longer than {self.policy.max_header_bytes} bytes."
        return self._response(TooLarge(message, param="headers"), 431)

    def _end(self, answer: bytes) -> None:
        """For one that sends nothing any more: nothing of it can reset the connection before the answer is
        read.
        """
        self._stop_waiting()
        self._is_refused = True
        self.transport.write(answer)
        self.transport.close()

    def _refuse(self, answer: bytes) -> None:
        """Answer and close; a moment later, because what the client still sends would reset the connection
        and lose the answer.
        """
        self._is_refused = True
        if not self._is_new and self.cycle.response_started and not self.cycle.response_complete:
            return self.transport.abort()  # an answer is on its way, and there is no room for another in it
        self.transport.write(answer)
        self.transport.pause_reading()
        self._wait()
        self._stop_timer()
        self._timer = self.loop.call_later(LINGER_S, self.transport.abort)
        return None
