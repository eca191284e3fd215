"""Installs the edge in the processes of Ray Serve, through `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`.

Serve calls the function named there in every process that accepts HTTP, before it creates the Uvicorn server.
These are its proxies, and the replicas behind HAProxy. Serve wraps its ASGI application in the middlewares that
the function returns.
"""

import os
import socket

import uvicorn
import uvicorn.config
from starlette.middleware import Middleware

from serving.api.dialects.table import DIALECTS
from serving.edge import HAPROXY_ADDRESS
from serving.edge.checks import raise_file_limit
from serving.edge.exchange import WaitingRoom
from serving.edge.middleware import Edge
from serving.edge.policy import HttpPolicy
from serving.edge.protocol import EdgeProtocol, ReaderProtocol, guard_protocol
from serving.gc_tuning import trim_when_idle, tune_garbage_collection

ACCEPTS = 64
"""Number of connections that a server accepts in one iteration of the event loop. uvloop accepts one per listening
socket, so that in a burst a probe would wait for thousands of iterations before it is accepted.
"""
FILES_PER_CONNECTION = 2
"""File descriptors per waiting connection. As many are needed for answers, and Ray needs files too."""


class BurstServer(uvicorn.Server):
    """Uvicorn's server with `ACCEPTS` copies of each listening socket."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        if sockets is not None:
            sockets = [each for sock in sockets for each in (sock, *(sock.dup() for _ in range(1, ACCEPTS)))]
        await super().startup(sockets)


def in_proxy() -> list[Middleware]:
    """Limit connections in Serve's proxy, and return the middleware that keeps incomplete requests away. The
    proxy returns the memory of a burst, as routers do.
    """
    tune_garbage_collection()
    trim_when_idle()
    policy, room = _bound_connections(EdgeProtocol)
    address = os.environ.get(HAPROXY_ADDRESS, "")  # HAProxy uses this proxy until it knows a replica
    return [Middleware(Edge, policy=policy, room=room, error_body=DIALECTS.error_body, address=address)]


def in_replica() -> list[Middleware]:
    """Install the connection limits in a replica behind HAProxy, whose port is reachable from outside.

    The application has its own edge. The protocol tells it how much each client has read.
    """
    _bound_connections(ReaderProtocol)
    return []


def _bound_connections(base: type[EdgeProtocol]) -> tuple[HttpPolicy, WaitingRoom]:
    """Replace Uvicorn's protocol by a limited `base`, without WebSockets, which the edge answers with 426, and its
    server by a `BurstServer`.
    """
    policy = HttpPolicy.from_environment(os.environ)
    room = WaitingRoom(
        min(policy.max_waiting, raise_file_limit() // FILES_PER_CONNECTION), policy.max_unfinished_bytes
    )
    uvicorn.Server = BurstServer  # type: ignore[misc]
    uvicorn.config.WS_PROTOCOLS["auto"] = None
    uvicorn.config.HTTP_PROTOCOLS["auto"] = guard_protocol(policy, room, DIALECTS.error_body, base)  # type: ignore[assignment]
    return policy, room
