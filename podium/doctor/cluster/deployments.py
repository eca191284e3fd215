"""Resources and replica counts of each deployment, from the settings and the Serve config."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from podium.doctor.cluster.machines import ACCELERATOR
from podium.doctor.cluster.reading import CheckError, items, mapping, section
from serving.deployments.autoscaling import autoscaling
from serving.deployments.build import gpus_of
from serving.settings.scale import Scaling
from serving.settings.settings import Settings
from serving.settings.workers import VllmSettings

ROUTER = "router"
PORT = 8000
"""Default port of Ray Serve."""
RAYS_SCALING: Mapping[str, Any] = {
    "min_replicas": 1,
    "max_replicas": 1,
    "target_ongoing_requests": 2,
    "look_back_period_s": 30.0,
    "metrics_interval_s": 10.0,
}
"""Ray's defaults for an `autoscaling_config` (ray/serve/config.py, 2.60)."""
AUTO: Mapping[str, Any] = {"max_replicas": 100}
"""Defaults that are different with `num_replicas: auto`."""
Amounts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Deployment:
    """Deployment of a cluster. `needs` are the resources of one replica, which runs on a single node."""

    name: str
    min_replicas: int
    max_replicas: int
    needs: Amounts
    drain_s: float
    """Seconds for which a replica may continue after it was asked to stop."""
    worker: VllmSettings | None = None
    """Worker whose engine this is, or None for the router."""
    scaling: Mapping[str, Any] | None = None
    """`autoscaling_config` of the Serve config, which replaces that of the settings, or None."""
    max_ongoing_requests: int = 0
    target_ongoing_requests: float = 0.0
    """Target number of concurrent requests per replica, if the replica count varies."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    file: str
    settings: str | None
    deployments: Mapping[str, Mapping[str, Any]]
    import_path: str = ""
    port: int = PORT
    model: str | None = None
    conductor: str | None = None


def read(path: Path) -> ServeConfig:
    """Read a Serve config, or the one in a RayService manifest, or raise CheckError."""
    data = _parse(path)
    if fault := _fault(data):
        raise CheckError(f"{path} is not a Serve config: {fault}. See cluster/gpu.serve.yaml for an example.")
    application = mapping(data["applications"][0])
    args = section(application, "args")
    return ServeConfig(
        file=str(path),
        settings=args.get("settings"),
        deployments={each["name"]: each for each in items(application.get("deployments"))},
        import_path=application["import_path"],
        port=section(data, "http_options").get("port", PORT),
        model=args.get("model"),
        conductor=args.get("conductor"),
    )


def _parse(path: Path) -> dict[str, Any]:
    try:
        documents: list[Any] = [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]
        services = [each for each in map(mapping, documents) if each.get("kind") == "RayService"]
        if services:
            documents = [yaml.safe_load(section(services[0], "spec").get("serveConfigV2") or "")]
    except (OSError, yaml.YAMLError) as exc:
        raise CheckError(f"{path} cannot be read: {exc}") from exc
    if not (data := mapping(documents[0]) if documents else {}):
        raise CheckError(f"{path} is not a Serve config: it is empty or not a mapping.")
    return data


def _fault(data: dict[str, Any]) -> str:
    """Return why `data` has no valid application, or "". Ray's own schema would import the named modules."""
    applications = items(data.get("applications"))
    if not (application := mapping(applications[0]) if applications else {}):
        return f"it has no `applications`. Its keys are {', '.join(map(str, data))}"
    if not isinstance(application.get("import_path"), str):
        return "applications[0].import_path is not set"
    for index, each in enumerate(application.get("deployments") or []):
        if not isinstance(mapping(each).get("name"), str):
            return f"applications[0].deployments[{index}] has no name"
    return ""


def engines(settings: Settings) -> dict[str, VllmSettings]:
    """Return the worker whose engine each deployment runs, by the deployment's name as in `serving.app`."""
    own = [w for w in settings.workers if isinstance(w, VllmSettings) and w.deployment is None]
    return {f"vllm-{worker.name}": worker for worker in own}


def deployments_of(settings: Settings, config: ServeConfig) -> list[Deployment]:
    """Return all deployments of the settings, with the values that `config` overrides."""
    router = _deployment(ROUTER, _router_defaults(settings), config)
    return [
        router,
        *(_deployment(name, _engine_defaults(w), config, w) for name, w in engines(settings).items()),
    ]


def _router_defaults(settings: Settings) -> dict[str, Any]:
    router = settings.router
    return {
        **_scaling_defaults(router),
        "placement_group_bundles": [{"CPU": router.num_cpus}],
        "graceful_shutdown_timeout_s": 30,
    }


def _engine_defaults(worker: VllmSettings) -> dict[str, Any]:
    scale, gpus = worker.scale, gpus_of(worker)
    kind = {f"{ACCELERATOR}{scale.accelerator_type}": 0.001} if scale.accelerator_type else {}
    first = {"CPU": scale.num_cpus} | ({"GPU": 1.0} if gpus else {}) | kind
    return {
        **_scaling_defaults(scale),
        "placement_group_bundles": [first, *({"GPU": 1.0} | kind for _ in range(gpus - 1))],
        "graceful_shutdown_timeout_s": scale.drain_s,
    }


def _scaling_defaults(scale: Scaling) -> dict[str, Any]:
    counts = autoscaling(scale)
    return {
        "autoscaling_config": {name: getattr(counts, name) for name in RAYS_SCALING},
        "max_ongoing_requests": scale.max_ongoing_requests,
    }


def _deployment(
    name: str, defaults: dict[str, Any], config: ServeConfig, worker: VllmSettings | None = None
) -> Deployment:
    overrides = dict(config.deployments.get(name, {}))
    merged = defaults | overrides
    fixed: Any = overrides.get("num_replicas")
    scaling: dict[str, Any] | None = overrides.get("autoscaling_config")
    if fixed == "auto":
        fixed, scaling = None, {**AUTO, **(scaling or {})}
    counts: dict[str, Any] = merged["autoscaling_config"] if scaling is None else {**RAYS_SCALING, **scaling}
    return Deployment(
        name=name,
        min_replicas=int(counts["min_replicas"] if fixed is None else fixed),
        max_replicas=int(counts["max_replicas"] if fixed is None else fixed),
        needs=sum_amounts(merged["placement_group_bundles"]),
        drain_s=float(merged["graceful_shutdown_timeout_s"]),
        worker=worker,
        scaling=scaling if fixed is None else None,
        max_ongoing_requests=int(merged["max_ongoing_requests"]),
        target_ongoing_requests=float(counts["target_ongoing_requests"]),
    )


def sum_amounts(bundles: list[Amounts]) -> dict[str, float]:
    """Add the resources of a replica's bundles, which are all on the same node."""
    keys = reduce(lambda names, bundle: names | bundle.keys(), bundles, set[str]())
    return {key: sum(float(bundle.get(key, 0)) for bundle in bundles) for key in sorted(keys)}
