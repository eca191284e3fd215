"""Bind Serve's replicas to loopback if the rest of the local Ray listens there.

Each replica has a gRPC server for calls from other replicas. It unpickles what it receives and only checks
Ray's token (`RAY_AUTH_MODE=token`). Ray Serve 2.60 binds it to all interfaces and has no setting for the
address. On a cluster, the network also blocks outside access (docs/security.md); on a single machine there is
no such network. The address is the node's own, usually 127.0.0.1, because callers connect to the node's
address. Several nodes on one machine have different loopback addresses.
"""

from functools import partial
from ipaddress import ip_address
from typing import Any, cast

import ray.util
from ray.serve._private import replica

ALL_INTERFACES = "[::]:0"
_replica = cast(Any, replica)
_add_port = _replica.add_port_to_grpc_server


def listen_on_loopback() -> None:
    """Bind this replica's gRPC server to its node's address if that is a loopback address. Call it in the
    replica's constructor, before the server listens.
    """
    address = ip_address(cast(Any, ray.util).get_node_ip_address())
    if address.is_loopback:
        own = f"[{address}]:0" if address.version == 6 else f"{address}:0"
        _replica.add_port_to_grpc_server = partial(_add_port_at, own)


def _add_port_at(own: str, server: Any, address: str) -> int:
    return _add_port(server, own if address == ALL_INTERFACES else address)
