"""What a client has not taken yet of what it was sent: only its socket knows.

An ASGI server says nothing of that. So the replica's protocol puts a `Reader` into the scope of each request, as an
extension of the name `READER`. Not in Serve's proxy: its scopes go to another process, and it reads everything itself.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from contextlib import suppress
from typing import Any

from serving.edge.protocol import EdgeProtocol

READER = "podium.reader"
AT_ONCE = struct.pack("ii", 1, 0)
"""`SO_LINGER`: what was not taken is forgotten, and the client is told of a reset."""
UNSENT_BYTES = 65_536
"""The kernel's buffer for what a client does not take would grow to megabytes (`tcp_wmem`): a long answer would be made to
its end for a client that reads none of it. So no more than this waits there unsent.
"""


class ReaderProtocol(EdgeProtocol):
    """The edge's protocol, which says who reads."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound what the kernel keeps unsent."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        with suppress(OSError, AttributeError):  # no TCP, or a kernel without it
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    def on_message_begin(self) -> None:
        """The scope is new with each request."""
        super().on_message_begin()
        self.scope["extensions"] = {READER: Reader(self.transport)}  # type: ignore[typeddict-item]


class Reader:
    """The client's end of a connection."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    @property
    def unread_bytes(self) -> int:
        """Sent, and not acknowledged by the client's machine, which does so only while somebody reads there: the server's
        own buffer, and the kernel's.
        """
        waiting = self._transport.get_write_buffer_size()
        sock = self._transport.get_extra_info("socket")
        try:
            in_kernel = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        except (OSError, AttributeError):  # closed; or a kernel that does not say
            return waiting
        return waiting + struct.unpack("i", in_kernel)[0]

    def drop(self) -> None:
        """End the connection, with all that it has not taken: an orderly end would wait for that to be read."""
        sock = self._transport.get_extra_info("socket")
        with suppress(OSError, AttributeError), socket.fromfd(sock.fileno(), sock.family, sock.type) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)  # the kernel would go on offering it
        self._transport.abort()
