"""Serve's replicas listen where the rest of a local Ray does.

Each replica has a gRPC server for calls from other replicas. It unpickles what it is sent, asks for Ray's
token only (`RAY_AUTH_MODE=token`), and Ray Serve 2.60 binds it to every interface without a setting for the
address. On a cluster the network keeps strangers out as well (docs/security.md); on one machine, whose Ray
has an address of loopback, there is no such network. That is 127.0.0.1, or another one where several nodes
run on one machine; callers are told the node's, so it must be that one.
"""

from functools import partial
from ipaddress import ip_address
from typing import Any, cast

import ray.util
from ray.serve._private import replica

EVERYWHERE = "[::]:0"
_replica = cast(Any, replica)
_add_port = _replica.add_port_to_grpc_server


def listen_on_loopback() -> None:
    """Bind this replica's gRPC server to its node's address if that is one of loopback. Called while the
    replica is made, before it listens.
    """
    address = ip_address(cast(Any, ray.util).get_node_ip_address())
    if address.is_loopback:
        own = f"[{address}]:0" if address.version == 6 else f"{address}:0"
        _replica.add_port_to_grpc_server = partial(_add_port_at, own)


def _add_port_at(own: str, server: Any, address: str) -> int:
    return _add_port(server, own if address == EVERYWHERE else address)
