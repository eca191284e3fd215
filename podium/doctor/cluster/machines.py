"""Node types of a cluster, from `ray up`'s YAML (AWS, GCP, local) or from a KubeRay RayService manifest.

This module knows where each format declares resources, node counts and instance types. It does not depend on
prices or models.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from podium.doctor.cluster.reading import CheckError, mapping, section

HEAD = "head"
ACCELERATOR = "accelerator_type:"


@dataclass(frozen=True, slots=True)
class NodeType:
    """Node type. `resources` are as Ray counts them, and `instance` is the cloud's instance type or None."""

    name: str
    resources: Mapping[str, float]
    min_nodes: int
    max_nodes: int
    instance: str | None = None
    spot: bool = False

    @property
    def gpu(self) -> str | None:
        """Ray's name for the node's type of GPU, or None if it declares no type."""
        names = [key.removeprefix(ACCELERATOR) for key in self.resources if key.startswith(ACCELERATOR)]
        return names[0] if names else None


@dataclass(frozen=True, slots=True)
class Machines:
    """All node types of a cluster file, and the environment variables of its containers."""

    file: str
    head: NodeType
    workers: tuple[NodeType, ...]
    max_nodes: int | None
    """Maximum number of worker nodes of all types together, or None if the file sets no limit."""
    environment: Mapping[str, str]
    """Environment variables with their values, or "" for a value that is not in the file."""
    open_ports: tuple[range, ...] | None = None
    """Ports that are open to the outside, or None if the file does not say which."""
    images: Mapping[str, str] = field(default_factory=dict[str, str])
    """Container image by node type."""


def read(path: Path) -> Machines:
    """Read the machines of a cluster file of either format, or raise CheckError."""
    try:
        documents = [
            each for each in map(mapping, yaml.safe_load_all(path.read_text(encoding="utf-8"))) if each
        ]
    except (OSError, yaml.YAMLError) as exc:
        raise CheckError(f"{path} cannot be read: {exc}") from exc
    for document in documents:
        if document.get("kind") == "RayService":
            return _of_rayservice(document, str(path))
        if section(document, "provider"):
            return _of_launcher(document, str(path))
    raise CheckError(
        f"{path} is neither a cluster file of `ray up` (no `provider`) nor a RayService manifest."
    )


# -------------------------------------------------------------------------------- ray up


def _of_launcher(data: dict[str, Any], file: str) -> Machines:
    types = section(data, "available_node_types") or section(data["provider"], "node_types")
    if not types:
        raise CheckError(
            f"{file} has no `available_node_types`. With the local provider, add them under `provider.node_types`."
        )
    head = data.get("head_node_type", HEAD)
    nodes = [_launcher_node(name, node) for name, node in types.items() if name != head]
    ips = data["provider"].get("worker_ips")
    return Machines(
        file=file,
        head=_launcher_node(head, types.get(head, {"resources": {"CPU": 0}})),
        workers=tuple(nodes),
        max_nodes=len(ips) if ips is not None else data.get("max_workers"),
        environment=_launcher_environment(data),
        open_ports=_let_in(section(data["provider"], "security_group").get("IpPermissions")),
        images=_launcher_images(data, head, types),
    )


def _let_in(permissions: list[dict[str, Any]] | None) -> tuple[range, ...] | None:
    if permissions is None:
        return None
    return tuple(range(each.get("FromPort", 0), each.get("ToPort", 65535) + 1) for each in permissions)


def _launcher_images(data: dict[str, Any], head: str, types: dict[str, Any]) -> dict[str, str]:
    docker = section(data, "docker")
    named: dict[str, str | None] = {}
    for name in {head: None} | types:
        role, own = "head_image" if name == head else "worker_image", section(types.get(name), "docker")
        named[name] = own.get(role) or docker.get(role) or docker.get("image")
    return {name: image for name, image in named.items() if image}


def _launcher_node(name: str, node: dict[str, Any]) -> NodeType:
    config = section(node, "node_config")
    spot = "spot" in str(section(config, "InstanceMarketOptions").get("MarketType", "")).lower() or (
        section(config, "scheduling").get("provisioningModel") == "SPOT"
    )
    return NodeType(
        name=name,
        resources={key: float(amount) for key, amount in section(node, "resources").items()},
        min_nodes=int(node.get("min_workers", 0)),
        max_nodes=int(node.get("max_workers", 0)),
        instance=config.get("InstanceType") or config.get("machineType"),
        spot=spot,
    )


def _launcher_environment(data: dict[str, Any]) -> dict[str, str]:
    options = " ".join(section(data, "docker").get("run_options", []))
    fetched = " ".join(data.get("initialization_commands", []))
    values = dict(re.findall(r"-e ([A-Z][A-Z0-9_]+)=(\S+)", options))
    return dict.fromkeys(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", fetched), "") | values


# -------------------------------------------------------------------------------- KubeRay


def _of_rayservice(data: dict[str, Any], file: str) -> Machines:
    config = section(section(data, "spec"), "rayClusterConfig")
    head = section(config, "headGroupSpec")
    groups = config.get("workerGroupSpecs", [])
    return Machines(
        file=file,
        head=_pod(HEAD, head, 1, 1),
        workers=tuple(
            _pod(g["groupName"], g, g.get("minReplicas", 0), g.get("maxReplicas", 0)) for g in groups
        ),
        max_nodes=None,
        environment={
            entry["name"]: entry.get("value", "")
            for entry in _container(head).get("env", [])
            if "name" in entry
        },
        open_ports=_service_ports(section(section(data, "spec"), "serveService")),
        images={
            name: image
            for name, group in {HEAD: head, **{g["groupName"]: g for g in groups}}.items()
            if (image := _container(group).get("image"))
        },
    )


def _service_ports(service: dict[str, Any]) -> tuple[range, ...] | None:
    ports = [each.get("targetPort", each.get("port")) for each in section(service, "spec").get("ports", [])]
    return tuple(range(port, port + 1) for port in ports if isinstance(port, int)) or None


def _pod(name: str, group: dict[str, Any], least: int, most: int) -> NodeType:
    limits = section(_container(group).get("resources", {}), "limits")
    start_params = section(group, "rayStartParams")
    custom = json.loads(str(start_params.get("resources", "{}")).strip("'\"").replace('\\"', '"') or "{}")
    pod = section(section(group, "template"), "spec")
    selector = section(pod, "nodeSelector")
    resources = {"CPU": float(start_params.get("num-cpus", limits.get("cpu", 0)))}
    if gpus := float(limits.get("nvidia.com/gpu", 0)):
        resources["GPU"] = gpus
    return NodeType(
        name=name,
        resources=resources | {key: float(amount) for key, amount in custom.items()},
        min_nodes=least,
        max_nodes=most,
        instance=selector.get("node.kubernetes.io/instance-type"),
        spot="spot" in " ".join(map(str, selector.values())).lower(),
    )


def _container(group: dict[str, Any]) -> dict[str, Any]:
    containers = section(section(group, "template"), "spec").get("containers", [])
    return containers[0] if containers else {}
