"""How the edge gets into the processes of Ray Serve: `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`.

Serve calls the function of that name in every process that is about to accept HTTP, before it makes
Uvicorn's server: its proxies, and the replicas that HAProxy speaks to. What it returns is put around
Serve's own ASGI application.
"""

import os

import uvicorn.config
from starlette.middleware import Middleware

from serving.api.dialects.table import DIALECTS
from serving.edge.middleware import Edge
from serving.edge.open_files import raise_file_limit
from serving.edge.policy import Policy
from serving.edge.protocol import guard_protocol
from serving.edge.reader import ReaderProtocol
from serving.edge.waiting import WaitingRoom

FILES_PER_CONNECTION = 2
"""Kept free for each connection that may wait: as many may be answered, and Ray needs files of its own."""


def in_proxy() -> list[Middleware]:
    """For Serve's proxy: connections and requests. What is not whole never becomes a request of the
    router.
    """
    policy = Policy.from_environment(os.environ)
    room = WaitingRoom(
        min(policy.max_waiting, raise_file_limit() // FILES_PER_CONNECTION), policy.max_unfinished_bytes
    )
    error_body = DIALECTS.error_body
    _serve_no_websockets()
    uvicorn.config.HTTP_PROTOCOLS["auto"] = guard_protocol(policy, room, error_body)  # type: ignore[assignment]
    return [Middleware(Edge, policy=policy, room=room, error_body=error_body)]


def in_replica() -> list[Middleware]:
    """For a replica behind HAProxy, which bounds headers and connections itself: the application has its
    edge inside. The protocol says who reads.
    """
    raise_file_limit()
    _serve_no_websockets()
    uvicorn.config.HTTP_PROTOCOLS["auto"] = ReaderProtocol  # type: ignore[assignment]
    return []


def _serve_no_websockets() -> None:
    """Let the edge answer a WebSocket's handshake like any request: with 426."""
    uvicorn.config.WS_PROTOCOLS["auto"] = None
