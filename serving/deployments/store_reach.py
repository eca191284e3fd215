"""Check that every router can reach the store. If Ray runs on several machines, a local file is not enough."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import ray

from serving.database.address import Address, find_address, require_shared
from serving.settings.sections import StoreSettings

Nodes = Callable[[], list[dict[str, Any]]]


def find_shared_address(
    settings: StoreSettings, environment: Mapping[str, str], nodes: Nodes | None = None
) -> Address:
    """Return the address of this cluster's store, by Ray's `nodes`. Raise StoreError if only one of several
    machines could use it.
    """
    address = find_address(settings, environment)
    alive = [node for node in (nodes or cast(Nodes, cast(Any, ray).nodes))() if node["Alive"]]
    if len({node["NodeManagerAddress"] for node in alive}) > 1:
        require_shared(address)
    return address
