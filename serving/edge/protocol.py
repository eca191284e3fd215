"""Uvicorn's HTTP protocol with additional limits.

With httptools, Uvicorn accepts headers and trailers of any length, adds trailers to the headers, and waits
forever for the first request of a connection. This subclass bounds the number, bytes and time of headers, the
framing of bodies (chunk sizes, chunk extensions, trailers), pipelined requests, and idle connections. It
replaces Uvicorn's default (`uvicorn.config.HTTP_PROTOCOLS`) in Serve's proxy, and in the replicas behind
HAProxy.
"""

import asyncio
import random
import socket
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, NoReturn

from uvicorn._types import ASGI3Application, HTTPScope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from conductor.errors import BadTask, Overloaded, PodiumError, TooLarge, TooSlow
from serving.edge.checks import (
    RETRY_AFTER_S,
    WHOLE,
    body_too_slow,
    content_length,
    has_body,
    is_safe_for_serve,
    overload_error,
    read_fields,
)
from serving.edge.exchange import (
    AT_ONCE_PATHS,
    MAX_ONGOING,
    OPEN_RETRY_S,
    READER,
    TOO_MANY_WAITING,
    Reader,
    StartQueue,
    Ticket,
    WaitingRoom,
    error_bytes,
    send_error,
)
from serving.edge.policy import ErrorBody, HttpPolicy

LINGER_S = 1.0
MAX_HEADERS = 100
"""Maximum headers of a request, as in Apache, nginx and HAProxy. Each costs a callback and an object."""
MAX_PIPELINED = 8
"""Maximum number of requests that may wait on one connection for the current response."""
FREE_PIECES = 4096
BYTES_PER_PIECE = 128
"""A body may have `FREE_PIECES` chunks and packets, and one more for every `BYTES_PER_PIECE` bytes. Each
costs a callback. Without this limit, a body of one-byte chunks would cost 100 times its bytes.
"""
FRAME_BYTES = 20
"""Bytes that may frame a chunk: 16 digits and two line ends. Anything more is a chunk extension."""
UNSENT_BYTES = 65_536
"""Limit for unsent bytes in the kernel of a replica. For a client that does not read, the kernel's buffer
would grow to megabytes (`tcp_wmem`), and a long answer would be generated to its end.
"""


class RejectedError(Exception):
    """Raised in a callback to stop the parser. `send_400_response` then writes the response."""


def guard_protocol(
    policy: HttpPolicy, room: WaitingRoom, error_body: ErrorBody, base: type["EdgeProtocol"]
) -> type["EdgeProtocol"]:
    """Return a subclass of `base` that applies the limits in this process."""
    bounds = {
        "policy": policy,
        "room": room,
        "starts": StartQueue(),
        "error_body": staticmethod(error_body),
    }
    return type(base.__name__, (base,), bounds)


def _sender(scope: HTTPScope) -> str:
    """Return the header with the key of a request, or the client's address if it has none."""
    keys = [value for name, value in scope["headers"] if name in (b"authorization", b"x-api-key")]
    return repr(keys or scope["client"])


def _jitter(seconds: float) -> float:
    """Add up to a quarter at random, so that thousands of connections do not end at the same moment."""
    return seconds * random.uniform(1, 1.25)


class EdgeProtocol(HttpToolsProtocol):
    """One client connection. Until its next request is complete or large, it may be evicted from the room."""

    policy: ClassVar[HttpPolicy]
    room: ClassVar[WaitingRoom]
    starts: ClassVar[StartQueue]
    error_body: ClassVar[ErrorBody]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.url = b""  # Uvicorn sets it only with the first bytes of a request
        self._in_head, self._in_body = True, False
        self._head_bytes = self._field_bytes = 0
        self._body_bytes = self._fed_body_bytes = self._pieces = self._frame_bytes = 0
        self._is_new, self._is_refused = True, False
        self._rejection = b""
        self._running: RequestResponseCycle | None = None
        self._pending_cycle: tuple[RequestResponseCycle, ASGI3Application] | None = None
        self._pending_since_s = 0.0
        self._ticket: Ticket | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a slot in the waiting room, and start the timer for the first request."""
        super().connection_made(transport)
        self._wait()
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection's slot and its timers.

        Uvicorn does not stop the timer of an idle connection that was reset. The timer would keep the
        protocol and its last request in memory for as long as a connection may be idle
        (`keep_alive_timeout_s`, 75 s).
        """
        self._pending_cycle = None
        self._stop_waiting()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, then check the size of the headers and update the timers."""
        if self._is_refused:
            return
        is_head = self._in_head or self._is_idle()
        request, frame_bytes, self._fed_body_bytes = self.scope, self._frame_bytes, 0
        is_body = self._in_body
        super().data_received(data)
        if self.transport.get_protocol() is not self:  # replaced by a WebSocket protocol
            self._stop_waiting()
        elif not (self._is_refused or self.transport.is_closing()):
            if is_body and self._in_body and self.scope is request:
                self._frame_bytes = frame_bytes + len(data) - self._fed_body_bytes
                self._pieces += 1
                if excess := self._excess():
                    self._refuse(excess)
                    return
            self._look(len(data) if is_head else 0)

    def _look(self, head_bytes: int) -> None:
        self._head_bytes = self._head_bytes + head_bytes if self._in_head else 0
        if self._head_bytes > self.policy.max_header_bytes:
            self._refuse(self._long_head("headers"))
        elif self._pending_cycle is not None:
            self._wait()
            self._start_body_timer()
            if self._ticket is not None:
                self.room.grow(self._ticket, self._fed_body_bytes)
        elif self._is_idle():
            self._wait()
            self._start_timer()

    def _excess(self) -> bytes:
        """Return the error response for a body with too many or too long frames, or b""."""
        if self._pieces > FREE_PIECES + self._body_bytes // BYTES_PER_PIECE:
            message = f"The request body arrives in too many small chunks. Send chunks of at least {BYTES_PER_PIECE} bytes, or a Content-Length header."
            return self._response(BadTask(message, param="body"))
        if self._frame_bytes > self.policy.max_header_bytes + FRAME_BYTES * self._pieces:
            return self._long_head("trailers and chunk extensions")
        return b""

    def _reject(self, answer: bytes) -> NoReturn:
        """Stop the parser from within one of its callbacks."""
        self._rejection = answer
        raise RejectedError

    def _unsupported_upgrade_warning(self) -> None:
        """Stop reading after an upgrade request, because the data that follows is not a request. Overrides
        Uvicorn's advice to install a library.
        """
        self._is_refused = True

    def on_message_begin(self) -> None:
        self._in_head, self._field_bytes = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header to the request. Drop trailers: a load balancer that removes a header does not see them
        (RFC 9110, section 6.5.1).
        """
        if not self._in_head:
            self._frame_bytes += len(name) + len(value) + len(b": \r\n")
            if excess := self._excess():
                self._reject(excess)
            return
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > self.policy.max_header_bytes:
            self._reject(self._long_head("headers"))
        if len(self.headers) >= MAX_HEADERS:
            message = f"The request has more than {MAX_HEADERS} headers. Send fewer headers."
            self._reject(self._response(TooLarge(message, param="headers"), 431))
        if is_safe_for_serve(name, value):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin the request, or reject it if its headers are not accepted or too many requests are waiting."""
        assert self.parser is not None  # None only after the connection is lost
        self._in_head, self._in_body = False, True
        self._body_bytes = self._pieces = self._frame_bytes = 0
        if self._field_bytes + len(self.url) > self.policy.max_header_bytes:
            self._reject(self._long_head("headers"))
        if self.parser.get_method() == b"CONNECT":
            message = (
                "The method CONNECT is not supported, because this server is not a proxy. Send GET or POST."
            )
            self._reject(self._response(BadTask(message, param="method")))
        if self.parser.should_upgrade() and has_body(read_fields(self.headers)):
            message = "A request with an Upgrade header must not have a body. Remove `Connection: Upgrade`."
            self._reject(self._response(BadTask(message, param="Upgrade")))
        if len(self.pipeline) >= MAX_PIPELINED:
            message = f"More than {MAX_PIPELINED} requests are waiting on this connection. Wait for a response before you send more."
            self._reject(self._response(Overloaded(message, retry_after_s=RETRY_AFTER_S)))
        super().on_headers_complete()
        self._is_new = False
        if self.expect_100_continue or self.parser.should_upgrade():
            # It is unknown whether a body follows after a response instead of "100 Continue", or what follows
            # an Upgrade.
            self.cycle.keep_alive = False

    def on_chunk_header(self) -> None:
        self._pieces += 1
        if excess := self._excess():
            self._reject(excess)

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on. The application reads at its own pace, and the client waits. After the
        response, drop the rest, and close the connection beyond the limit.
        """
        self._body_bytes += len(body)
        self._fed_body_bytes += len(body)
        if self.cycle.response_complete:
            if self._body_bytes > self.policy.most_bytes:
                self.transport.abort()
            return
        super().on_body(body)
        if len(self.cycle.body) > HIGH_WATER_LIMIT:
            self._release()

    def on_message_complete(self) -> None:
        """Finish the request, and start its task unless that has already started."""
        self._in_body = False
        super().on_message_complete()
        self._release()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Start the task once the request is complete or large, so that an incomplete one costs no task. Send
        "100 Continue", unless the announced body is so large that the edge rejects the request at once.
        """
        expects = cycle.waiting_for_100_continue
        is_rejected = expects and content_length(read_fields(cycle.scope["headers"])) > self.policy.most_bytes
        if cycle.more_body and len(cycle.body) <= HIGH_WATER_LIMIT and not is_rejected:
            if expects:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                cycle.waiting_for_100_continue = False
            self._pending_cycle, self._pending_since_s = (cycle, app), self.loop.time()
            self._wait()  # needed if the request came in one packet with the one before
            self._start_body_timer()
        else:
            self._run(cycle, app)

    def _run(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._stop_waiting()
        self._running = cycle
        if not cycle.more_body:
            cycle.scope[WHOLE] = True  # type: ignore[typeddict-unknown-key]
        start = partial(super()._start_asgi_task, cycle, app)
        # Requests that start a run are rejected if the event loop is overloaded, and the others wait.
        if cycle.scope["method"] == "POST" or cycle.scope["path"] in AT_ONCE_PATHS:
            start()
        elif not self.starts.add(_sender(cycle.scope), start):
            super()._start_asgi_task(cycle, self._reject_waiting)

    async def _reject_waiting(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer 429 in place of the application, which takes a fifth of the CPU time."""
        error = Overloaded(TOO_MANY_WAITING, param=MAX_ONGOING, retry_after_s=OPEN_RETRY_S)
        await send_error(send, error, self.error_body(error, scope["path"]))

    def _release(self) -> None:
        if self._pending_cycle is not None and self._pending_cycle[0] is self.cycle:
            (cycle, app), self._pending_cycle = self._pending_cycle, None
            self._run(cycle, app)

    def on_response_complete(self) -> None:
        """Take a slot in the waiting room again until the next request. Uvicorn's timer limits the wait."""
        super().on_response_complete()
        if self._is_idle() and not self.transport.is_closing():
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that the parser or one of its callbacks has rejected."""
        self._refuse(self._rejection or self._response(BadTask(msg)))

    def _is_idle(self) -> bool:
        return self._is_new or (self.cycle.response_complete and not self.pipeline)

    def _wait(self) -> None:
        if self._ticket is None:
            self._ticket = self.room.enter(self.client[0] if self.client else "", self._evict)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(_jitter(self.policy.header_s), self._time_is_up)

    def _start_body_timer(self) -> None:
        """Start the timer for the next part of the body, within the time that is left for the whole body."""
        left_s = self._pending_since_s + self.policy.body_s - self.loop.time()
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
        if self._pending_cycle is not None and not self._is_refused:
            self.transport.write(self._response(overload_error()))
        self.transport.close()

    def _time_is_up(self) -> None:
        """Close the connection of a client that is too slow. A client that has sent nothing gets no response,
        because browsers open connections in advance.
        """
        self._timer = None
        if self._pending_cycle is not None:
            self._end(self._response(body_too_slow(self.policy)))
        elif self._in_head and self._head_bytes:
            message = f"The headers were not received within {self.policy.header_s:g} s (`http.header_s`)."
            self._end(self._response(TooSlow(message, param="headers")))
        else:
            self._end(b"")

    def _response(self, error: PodiumError, status: int | None = None) -> bytes:
        """Return the response for `error`, in the dialect of the path if the path is known."""
        path = self.url.partition(b"?")[0].decode("latin-1")
        return error_bytes(error, self.error_body(error, path), status)

    def _long_head(self, part: str) -> bytes:
        message = f"The {part} are longer than {self.policy.max_header_bytes} bytes (`http.max_header_bytes`). Send shorter {part}."
        return self._response(TooLarge(message, param="headers"), 431)

    def _end(self, answer: bytes) -> None:
        """Send `answer` and close the connection. Do not linger, because the client is not sending anything that
        could reset the connection before it reads the response.
        """
        self._stop_waiting()
        self._is_refused = True
        self.transport.write(answer)
        self.transport.close()

    def _refuse(self, answer: bytes) -> None:
        """Send `answer` and close the connection after `LINGER_S` seconds. Before that, data that the
        client is still sending could reset the connection, and the response would be lost.
        """
        self._is_refused, self._pending_cycle = True, None
        self.pipeline.clear()
        running = self._running
        if running is not None and not running.response_complete:
            if not running.more_body:  # the running request is complete; a later one is at fault
                running.keep_alive = False
                return
            if running.response_started:
                self.transport.abort()  # a second response cannot follow inside the first
                return
            running.disconnected = True
            running.message_event.set()
        elif running is not None and running.more_body:
            self.transport.abort()  # it has its response already
            return
        self.transport.write(answer)
        self.transport.pause_reading()
        self._wait()
        self._stop_timer()
        self._timer = self.loop.call_later(LINGER_S, self.transport.abort)


class ReaderProtocol(EdgeProtocol):
    """Protocol for a replica, which adds a `Reader` to the scope of each request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Limit the unsent bytes in the kernel."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        with suppress(OSError, AttributeError):  # not TCP, or the kernel lacks the option
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def on_message_begin(self) -> None:
        """Add a `Reader` to the new scope."""
        super().on_message_begin()
        self.scope["extensions"] = {READER: Reader(self.transport)}  # type: ignore[typeddict-item]
