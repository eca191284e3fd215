"""Every router must reach the store: a file of one machine will not do where Ray runs on several."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import ray

from serving.database.address import Address, find_address, require_shared
from serving.settings.sections import StoreSettings

Nodes = Callable[[], list[dict[str, Any]]]


def find_shared_address(
    settings: StoreSettings, environment: Mapping[str, str], nodes: Nodes | None = None
) -> Address:
    """The store of a router in this cluster.

    Args:
        settings: which variable or file names it.
        environment: of the router.
        nodes: tells Ray's nodes; `ray.nodes` where None.

    Raises:
        StoreError: it cannot be used, or only from one of the machines.
    """
    address = find_address(settings, environment)
    alive = [node for node in (nodes or cast(Nodes, cast(Any, ray).nodes))() if node["Alive"]]
    if len({node["NodeManagerAddress"] for node in alive}) > 1:
        require_shared(address)
    return address
