"""How the edge gets into the processes of Ray Serve: `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`.

Serve calls the function of that name in every process that is about to accept HTTP, before it makes
Uvicorn's server: its proxies, and the replicas that HAProxy speaks to. What it returns is put around
Serve's own ASGI application.
"""

import os

import uvicorn.config
from starlette.middleware import Middleware

from serving.api.dialects.table import DIALECTS
from serving.edge.checks import raise_file_limit
from serving.edge.middleware import Edge
from serving.edge.policy import Policy
from serving.edge.protocol import EdgeProtocol, ReaderProtocol, guard_protocol
from serving.edge.waiting import WaitingRoom

FILES_PER_CONNECTION = 2
"""Kept free for each connection that may wait: as many may be answered, and Ray needs files of its own."""


def in_proxy() -> list[Middleware]:
    """For Serve's proxy: connections and requests. What is not whole never becomes a request of the
    router.
    """
    policy, room = _bound_connections(EdgeProtocol)
    return [Middleware(Edge, policy=policy, room=room, error_body=DIALECTS.error_body)]


def in_replica() -> list[Middleware]:
    """For a replica behind HAProxy, whose port anybody may speak to who reaches it: connections. The application
    has its edge inside. The protocol says who reads.
    """
    _bound_connections(ReaderProtocol)
    return []


def _bound_connections(base: type[EdgeProtocol]) -> tuple[Policy, WaitingRoom]:
    """Put the protocol where Uvicorn looks. Let the edge answer a WebSocket's handshake like any request: with 426."""
    policy = Policy.from_environment(os.environ)
    room = WaitingRoom(
        min(policy.max_waiting, raise_file_limit() // FILES_PER_CONNECTION), policy.max_unfinished_bytes
    )
    uvicorn.config.WS_PROTOCOLS["auto"] = None
    uvicorn.config.HTTP_PROTOCOLS["auto"] = guard_protocol(policy, room, DIALECTS.error_body, base)  # type: ignore[assignment]
    return policy, room
