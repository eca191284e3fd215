"""Uvicorn's HTTP protocol with the bounds it lacks: bytes and number of headers, time for them, what frames a body
(chunk sizes, chunk extensions, trailers), pipelined requests, and connections that send nothing.

With httptools, Uvicorn parses headers and trailers of any length, adds trailers to the headers, and waits without end
for the first request of a connection. All of it is bounded here, in a subclass that is put in the place of Uvicorn's
own default (`uvicorn.config.HTTP_PROTOCOLS`): in Serve's proxy, and in the replicas that HAProxy speaks to.
"""

import asyncio
import random
import re
import socket
from contextlib import suppress
from http import HTTPStatus
from typing import Any, ClassVar, NoReturn

import orjson
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from conductor.errors import BadTask, Overloaded, PodiumError, TooLarge, TooSlow
from serving import errors
from serving.edge.checks import RETRY_AFTER_S, WHOLE, body_too_slow, has_body, overload_error, read_fields
from serving.edge.exchange import READER, Reader
from serving.edge.policy import ErrorBody, Policy
from serving.edge.waiting import Ticket, WaitingRoom

LINGER_S = 1.0
MAX_HEADERS = 100
"""Fields of one request, as in Apache, nginx and HAProxy: each costs a callback and an object, however short it is."""
MAX_PIPELINED = 8
"""Requests that may wait on a connection behind the one that is being answered."""
FREE_PIECES = 4096
BYTES_PER_PIECE = 128
"""A body may come in `FREE_PIECES` chunks and packets, and one more for each of so many bytes. Each costs the loop a
callback, so that without a bound a body of one-byte chunks costs 100 times its bytes."""
FRAME_BYTES = 20
"""What the framing of a chunk may take: 16 digits, and two line ends. More of it is a chunk extension."""
UNSENT_BYTES = 65_536
"""What may wait unsent in the kernel at a replica. Its buffer would grow to megabytes (`tcp_wmem`) for a client that reads
nothing, and a long answer would be made to its end.
"""
LOGGED = {b"x-request-id", b"x-session-id", b"session-id", b"serve-multiplexed-model-id"}
"""Headers whose values Ray Serve writes to its logs, sends back or routes by, in lower case and with `-` for `_`."""
PLAIN = re.compile(rb"[\w.-]{1,64}")
"""What such a value must be. Another one is dropped, and Ray Serve makes an id of its own."""


class RejectedError(Exception):
    """Ends the parser; the answer is written where the parser is fed."""


def guard_protocol(
    policy: Policy, room: WaitingRoom, error_body: ErrorBody, base: type["EdgeProtocol"] | None = None
) -> type["EdgeProtocol"]:
    """The protocol for one process.

    Args:
        policy: the bounds.
        room: where connections without a whole request wait.
        error_body: what a rejected request is answered.
        base: the protocol to bound; `EdgeProtocol` by default.
    """
    bounds = {"policy": policy, "room": room, "error_body": staticmethod(error_body)}
    base = base or EdgeProtocol
    return type(base.__name__, (base,), bounds)


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
        self._in_head, self._in_body = True, False
        self._head_bytes = self._field_bytes = 0
        self._body_bytes = self._fed_body_bytes = self._pieces = self._frame_bytes = 0
        self._is_new, self._is_refused = True, False
        self._rejection = b""
        self._running: RequestResponseCycle | None = None
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
        """Forget the request. Uvicorn leaves the timer of an idle connection that was reset, which would keep the protocol and its
        last request for as long as a connection may be idle (`keep_alive_timeout_s`, 75 s).
        """
        self._held = None
        self._stop_waiting()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and look whether the headers have become too long, or go on after a pause."""
        if self._is_refused:
            return None
        is_head = self._in_head or self._is_idle()
        request, frame_bytes, self._fed_body_bytes = self.scope, self._frame_bytes, 0
        is_body = self._in_body
        super().data_received(data)
        if self.transport.get_protocol() is not self:  # a WebSocket's
            self._stop_waiting()
        elif not (self._is_refused or self.transport.is_closing()):
            if is_body and self._in_body and self.scope is request:
                self._frame_bytes = frame_bytes + len(data) - self._fed_body_bytes
                self._pieces += 1
                if excess := self._excess():
                    return self._refuse(excess)
            self._look(len(data) if is_head else 0)
        return None

    def _look(self, head_bytes: int) -> None:
        self._head_bytes = self._head_bytes + head_bytes if self._in_head else 0
        if self._head_bytes > self.policy.max_header_bytes:
            self._refuse(self._long_head("headers"))
        elif self._held is not None:
            self._wait()
            self._start_body_timer()
            if self._ticket is not None:
                self.room.grow(self._ticket, self._fed_body_bytes)
        elif self._is_idle():
            self._wait()
            self._start_timer()

    def _excess(self) -> bytes:
        """Return the answer to a body that is framed too finely or at too great a length, or b"" if it is not."""
        if self._pieces > FREE_PIECES + self._body_bytes // BYTES_PER_PIECE:
            message = f"The body comes in too many small pieces. Send chunks of {BYTES_PER_PIECE} bytes or more, or a Content-Length."
            return self._response(BadTask(message, param="body"))
        if self._frame_bytes > self.policy.max_header_bytes + FRAME_BYTES * self._pieces:
            return self._long_head("trailers and chunk extensions")
        return b""

    def _reject(self, answer: bytes) -> NoReturn:
        """End the parser from one of its callbacks."""
        self._rejection = answer
        raise RejectedError

    def _unsupported_upgrade_warning(self) -> None:
        """Read nothing behind a request to upgrade: the edge answers it, and the parser would take what follows for
        a request. Do not advise to install a WebSocket library.
        """
        self._is_refused = True

    def on_message_begin(self) -> None:
        """The first bytes of a request."""
        self._in_head, self._field_bytes = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header to the request. Drop trailers: a load balancer that strips a header does not see those
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
            message = f"The request has more than {MAX_HEADERS} headers. Send fewer."
            self._reject(self._response(TooLarge(message, param="headers"), 431))
        if name.lower().replace(b"_", b"-") not in LOGGED or PLAIN.fullmatch(value):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The request may begin, unless its headers are too long or too many requests wait before it."""
        assert self.parser is not None  # until the connection is lost
        self._in_head, self._in_body = False, True
        self._body_bytes = self._pieces = self._frame_bytes = 0
        if self._field_bytes + len(self.url) > self.policy.max_header_bytes:
            self._reject(self._long_head("headers"))
        if self.parser.get_method() == b"CONNECT":
            message = "CONNECT is not served here: this server is no proxy. Send a GET or a POST."
            self._reject(self._response(BadTask(message, param="method")))
        if self.parser.should_upgrade() and has_body(read_fields(self.headers)):
            message = "A request with an Upgrade header may have no body here. Send it without `Connection: Upgrade`."
            self._reject(self._response(BadTask(message, param="Upgrade")))
        if len(self.pipeline) >= MAX_PIPELINED:
            message = f"More than {MAX_PIPELINED} requests wait on this connection. Send the next one once an answer has come."
            self._reject(self._response(Overloaded(message, retry_after_s=RETRY_AFTER_S)))
        super().on_headers_complete()
        self._is_new = False
        if self.expect_100_continue or self.parser.should_upgrade():
            # Whether a body comes after an answer in place of "100 Continue", and what comes after an Upgrade, is unknown.
            self.cycle.keep_alive = False

    def on_chunk_header(self) -> None:
        """The size of one more chunk."""
        self._pieces += 1
        if excess := self._excess():
            self._reject(excess)

    def on_body(self, body: bytes) -> None:
        """What is large is read by the application, which makes the client wait. What comes after the answer is
        dropped, no more of it than a body may have.
        """
        self._body_bytes += len(body)
        self._fed_body_bytes += len(body)
        if self.cycle.response_complete:
            if self._body_bytes > max(self.policy.max_body_bytes, self.policy.max_upload_bytes):
                self.transport.abort()
            return
        super().on_body(body)
        if len(self.cycle.body) > HIGH_WATER_LIMIT:
            self._release()

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._in_body = False
        super().on_message_complete()
        self._release()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Not before the request is whole, or large: one that is never whole costs no task."""
        if cycle.more_body and not cycle.waiting_for_100_continue and len(cycle.body) <= HIGH_WATER_LIMIT:
            self._held, self._held_s = (cycle, app), self.loop.time()
            self._wait()  # also where it came behind another request, in the same packet
            self._start_body_timer()
        else:
            self._run(cycle, app)

    def _run(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._stop_waiting()
        self._running = cycle
        if not cycle.more_body:
            cycle.scope[WHOLE] = True  # type: ignore[typeddict-unknown-key]
        super()._start_asgi_task(cycle, app)

    def _release(self) -> None:
        if self._held is not None and self._held[0] is self.cycle:
            (cycle, app), self._held = self._held, None
            self._run(cycle, app)

    def on_response_complete(self) -> None:
        """Between two requests it waits like a new one; Uvicorn's own timer bounds how long."""
        super().on_response_complete()
        if self._is_idle() and not self.transport.is_closing():
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser, or a callback of it, rejected."""
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

    def _long_head(self, part: str) -> bytes:
        message = f"The {part} are longer than {self.policy.max_header_bytes} bytes (`http.max_header_bytes`). Send less."
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
        self._is_refused, self._held = True, None
        self.pipeline.clear()
        running = self._running
        if running is not None and not running.response_complete:
            if not running.more_body:  # it is whole, and what came behind it is at fault
                running.keep_alive = False
                return None
            if running.response_started:
                return self.transport.abort()  # there is no room for another answer in the one on its way
            running.disconnected = True
            running.message_event.set()
        elif running is not None and running.more_body:
            return self.transport.abort()  # it has its answer
        self.transport.write(answer)
        self.transport.pause_reading()
        self._wait()
        self._stop_timer()
        self._timer = self.loop.call_later(LINGER_S, self.transport.abort)
        return None


class ReaderProtocol(EdgeProtocol):
    """The edge's protocol in a replica: each request's scope says who reads its answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound what the kernel keeps unsent."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        with suppress(OSError, AttributeError):  # no TCP, or a kernel without it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def on_message_begin(self) -> None:
        """Add the reader to the request's scope, which is new."""
        super().on_message_begin()
        self.scope["extensions"] = {READER: Reader(self.transport)}  # type: ignore[typeddict-item]
