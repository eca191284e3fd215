"""What each deployment needs: the settings say it, and the Serve config overrides it, as Ray Serve would
read them.
"""

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
"""Ray Serve's own."""
RAYS_SCALING: Mapping[str, Any] = {
    "min_replicas": 1,
    "max_replicas": 1,
    "target_ongoing_requests": 2,
    "look_back_period_s": 30.0,
    "metrics_interval_s": 10.0,
}
"""What an `autoscaling_config` without them has (ray/serve/config.py, 2.60)."""
AUTO: Mapping[str, Any] = {"max_replicas": 100}
"""What `num_replicas: auto` changes of it."""
Amounts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Deployment:
    """One deployment. `needs` is what one replica takes on its node, all bundles together."""

    name: str
    min_replicas: int
    max_replicas: int
    needs: Amounts
    drain_s: float
    """How long a replica that is taken away may go on."""
    worker: VllmSettings | None = None
    """Whose engine it is; None is the router."""
    scaling: Mapping[str, Any] | None = None
    """The Serve config's own `autoscaling_config`, which takes the place of the settings' whole one; None
    where theirs holds.
    """
    max_ongoing_requests: int = 0
    target_ongoing_requests: float = 0.0
    """What one replica is meant to have at once, where there is a choice of how many there are."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """A Serve config's first application."""

    file: str
    settings: str | None
    deployments: Mapping[str, Mapping[str, Any]]
    import_path: str = ""
    port: int = PORT
    model: str | None = None
    conductor: str | None = None


def read(path: Path) -> ServeConfig:
    """The Serve config in `path`, or inside it where it is a RayService manifest.

    Raises:
        CheckError: it is missing, or is not one.
    """
    data = _parse(path)
    if fault := _fault(data):
        raise CheckError(f"{path} is not a Serve config: {fault}. cluster/gpu.serve.yaml is one.")
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
        raise CheckError(f"{path} is not a Serve config: there is nothing in it, or no mapping.")
    return data


def _fault(data: dict[str, Any]) -> str:
    """Why there is no application to be read, in a line; empty where there is one. Ray's own schema would
    import what it names.
    """
    applications = items(data.get("applications"))
    if not (application := mapping(applications[0]) if applications else {}):
        return f"it has no `applications`, but {', '.join(map(str, data))}"
    if not isinstance(application.get("import_path"), str):
        return "applications[0].import_path is not set"
    for index, each in enumerate(application.get("deployments") or []):
        if not isinstance(mapping(each).get("name"), str):
            return f"applications[0].deployments[{index}] has no name"
    return ""


def engines(settings: Settings) -> dict[str, VllmSettings]:
    """Deployment name to the worker whose engine it is, as `serving.app` makes them."""
    own = [w for w in settings.workers if isinstance(w, VllmSettings) and w.deployment is None]
    return {f"vllm-{worker.name}": worker for worker in own}


def deployments_of(settings: Settings, config: ServeConfig) -> list[Deployment]:
    """Every deployment that `settings` make, with what `config` overrides."""
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
    given = dict(config.deployments.get(name, {}))
    merged = defaults | given
    fixed: Any = given.get("num_replicas")
    scaling: dict[str, Any] | None = given.get("autoscaling_config")
    if fixed == "auto":
        fixed, scaling = None, {**AUTO, **(scaling or {})}
    counts: dict[str, Any] = merged["autoscaling_config"] if scaling is None else {**RAYS_SCALING, **scaling}
    return Deployment(
        name=name,
        min_replicas=int(counts["min_replicas"] if fixed is None else fixed),
        max_replicas=int(counts["max_replicas"] if fixed is None else fixed),
        needs=together(merged["placement_group_bundles"]),
        drain_s=float(merged["graceful_shutdown_timeout_s"]),
        worker=worker,
        scaling=scaling if fixed is None else None,
        max_ongoing_requests=int(merged["max_ongoing_requests"]),
        target_ongoing_requests=float(counts["target_ongoing_requests"]),
    )


def together(bundles: list[Amounts]) -> dict[str, float]:
    """The bundles of one replica as one sum: they share a node."""
    keys = reduce(lambda seen, bundle: seen | bundle.keys(), bundles, set[str]())
    return {key: sum(float(bundle.get(key, 0)) for bundle in bundles) for key in sorted(keys)}
