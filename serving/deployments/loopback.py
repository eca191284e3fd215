"""Serve's replicas listen where the rest of a local Ray does.

Each replica has a gRPC server for calls from other replicas. It unpickles what it is sent, asks for Ray's
token only (`RAY_AUTH_MODE=token`), and Ray Serve 2.60 binds it to every interface without a setting for the
address. On a cluster the network keeps strangers out as well (docs/security.md); on one machine, whose Ray
has the address 127.0.0.1, there is no such network.
"""

from ipaddress import ip_address
from typing import Any, cast

import ray.util
from ray.serve._private import replica

EVERYWHERE, LOOPBACK = "[::]:0", "127.0.0.1:0"
_replica = cast(Any, replica)
_add_port = _replica.add_port_to_grpc_server


def listen_on_loopback() -> None:
    """Bind this replica's gRPC server to 127.0.0.1 if its node is there. Called while the replica is made,
    before it listens.
    """
    if ip_address(cast(Any, ray.util).get_node_ip_address()).is_loopback:
        _replica.add_port_to_grpc_server = _add_loopback_port


def _add_loopback_port(server: Any, address: str) -> int:
    return _add_port(server, LOOPBACK if address == EVERYWHERE else address)
