"""Choice of the store by the machines of the Ray cluster."""

from pathlib import Path
from typing import Any

import pytest

from podium.doctor.cluster.machines import read as read_machines
from serving.database.address import StoreError
from serving.deployments.store_reach import find_shared_address
from serving.settings.sections import StoreSettings
from serving.settings.settings import load
from tests.conftest import ROOT

CLUSTERS = [
    ROOT / "ray_cluster.yaml",
    *(
        ROOT / f"cluster/{name}"
        for name in ("ray_cluster.gcp.yaml", "ray_cluster.onprem.yaml", "kubernetes/gpu/rayservice.yaml")
    ),
]

URL = {"PODIUM_STORE_URL": "postgresql://u:p@db/podium"}


def node(address: str, *, alive: bool = True) -> dict[str, Any]:
    return {"NodeManagerAddress": address, "Alive": alive}


def test_a_database_file_suffices_for_one_machine() -> None:
    for nodes in ([node("127.0.0.1")] * 2, [node("10.0.0.1"), node("10.0.0.2", alive=False)]):
        assert find_shared_address(StoreSettings(), {}, lambda nodes=nodes: nodes).kind == "sqlite"


def test_several_machines_need_a_database_and_the_error_names_the_variable() -> None:
    def nodes() -> list[dict[str, Any]]:
        return [node("10.0.0.1"), node("10.0.0.2")]

    with pytest.raises(StoreError, match="PODIUM_STORE_URL"):
        find_shared_address(StoreSettings(), {}, nodes)
    assert find_shared_address(StoreSettings(), URL, nodes).kind == "postgresql"


@pytest.mark.parametrize("file", CLUSTERS, ids=lambda path: path.name)
def test_no_shipped_cluster_uses_a_database_file(file: Path) -> None:
    """The head and the router are on separate nodes, even if no other node is up."""
    machines = read_machines(file)
    (router,) = [each for each in machines.workers if "router_node" in each.resources]
    assert router.min_nodes >= 1
    nodes = [node(f"10.0.0.{number}") for number, _ in enumerate((machines.head, router), 1)]
    settings = load(ROOT / "cluster/gpu.yaml").store
    with pytest.raises(StoreError, match="PODIUM_STORE_URL"):
        find_shared_address(settings, {}, lambda: nodes)
    assert settings.url_env in machines.environment, "the file passes the database's address on"
    assert find_shared_address(settings, URL, lambda: nodes).kind == "postgresql"
