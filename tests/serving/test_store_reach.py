"""Which store a router takes, by the machines that its Ray runs on."""

from typing import Any

import pytest

from serving.database.address import StoreError
from serving.deployments.store_reach import find_shared_address
from serving.settings.sections import StoreSettings

URL = {"PODIUM_STORE_URL": "postgresql://u:p@db/podium"}


def node(address: str, *, alive: bool = True) -> dict[str, Any]:
    return {"NodeManagerAddress": address, "Alive": alive}


def test_a_file_serves_one_machine_however_many_nodes_it_has() -> None:
    for nodes in ([node("127.0.0.1")] * 2, [node("10.0.0.1"), node("10.0.0.2", alive=False)]):
        assert find_shared_address(StoreSettings(), {}, lambda nodes=nodes: nodes).kind == "sqlite"


def test_several_machines_need_a_database_and_are_told_how_it_is_named() -> None:
    def nodes() -> list[dict[str, Any]]:
        return [node("10.0.0.1"), node("10.0.0.2")]

    with pytest.raises(StoreError, match="PODIUM_STORE_URL"):
        find_shared_address(StoreSettings(), {}, nodes)
    assert find_shared_address(StoreSettings(), URL, nodes).kind == "postgresql"
