"""Make Serve's replicas listen only on loopback if the local Ray node does so.

Each replica has a gRPC server for calls from other replicas. It unpickles what it receives and only checks
Ray's token (`RAY_AUTH_MODE=token`). Ray Serve 2.60 binds it to all interfaces and has no setting for the
address. In a cluster, the network also blocks access from outside (docs/security.md), but a single machine
has no such protection. The replicas listen on the address of their node, usually 127.0.0.1, because callers
connect to that address. Several nodes on one machine have different loopback addresses.
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
    """Bind this replica's gRPC server to its node's address, if it is a loopback one, before it listens."""
    address = ip_address(cast(Any, ray.util).get_node_ip_address())
    if address.is_loopback:
        own = f"[{address}]:0" if address.version == 6 else f"{address}:0"
        _replica.add_port_to_grpc_server = partial(_add_port_at, own)


def _add_port_at(own: str, server: Any, address: str) -> int:
    return _add_port(server, own if address == ALL_INTERFACES else address)
