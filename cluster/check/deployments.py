"""What each deployment needs: the settings say it, and the Serve config overrides it, as Ray Serve would read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from cluster.check.findings import CheckError, section
from cluster.check.machines import ACCELERATOR
from serving.deployments.build import gpus_of
from serving.settings import Settings
from serving.worker_settings import VllmSettings

ROUTER = "router"
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


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """A Serve config's first application."""

    file: str
    settings: str | None
    deployments: Mapping[str, Mapping[str, Any]]


def read(path: Path) -> ServeConfig:
    """The Serve config in `path`, or inside it where it is a RayService manifest.

    Raises:
        CheckError: it is not there, or is none.
    """
    try:
        documents = [
            each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if isinstance(each, dict)
        ]
        services = [each for each in documents if each.get("kind") == "RayService"]
        data = yaml.safe_load(services[0]["spec"]["serveConfigV2"]) if services else documents[0]
        application = data["applications"][0]
    except (OSError, yaml.YAMLError, KeyError, IndexError, TypeError) as exc:
        raise CheckError(f"{path} is not a Serve config with an application: {exc!r}") from exc
    return ServeConfig(
        file=str(path),
        settings=section(application, "args").get("settings"),
        deployments={each["name"]: each for each in application.get("deployments", [])},
    )


def engines(settings: Settings) -> dict[str, VllmSettings]:
    """Deployment name to the worker whose engine it is, as `serving.app` makes them."""
    own = [w for w in settings.workers if isinstance(w, VllmSettings) and w.deployment is None]
    return {f"vllm-{worker.name}": worker for worker in own}


def made(settings: Settings, config: ServeConfig) -> list[Deployment]:
    """Every deployment that `settings` make, with what `config` overrides."""
    router = _deployment(ROUTER, _router_defaults(settings), config)
    return [
        router,
        *(_deployment(name, _engine_defaults(w), config, w) for name, w in engines(settings).items()),
    ]


def _router_defaults(settings: Settings) -> dict[str, Any]:
    router = settings.router
    return {
        "autoscaling_config": {"min_replicas": router.min_replicas, "max_replicas": router.max_replicas},
        "placement_group_bundles": [{"CPU": router.num_cpus}],
        "graceful_shutdown_timeout_s": 30,
    }


def _engine_defaults(worker: VllmSettings) -> dict[str, Any]:
    scale, gpus = worker.scale, gpus_of(worker)
    kind = {f"{ACCELERATOR}{scale.accelerator_type}": 0.001} if scale.accelerator_type else {}
    first = {"CPU": scale.num_cpus} | ({"GPU": 1.0} if gpus else {}) | kind
    return {
        "autoscaling_config": {"min_replicas": scale.min_replicas, "max_replicas": scale.max_replicas},
        "placement_group_bundles": [first, *({"GPU": 1.0} | kind for _ in range(gpus - 1))],
        "graceful_shutdown_timeout_s": scale.drain_s,
    }


def _deployment(
    name: str, defaults: dict[str, Any], config: ServeConfig, worker: VllmSettings | None = None
) -> Deployment:
    given = dict(config.deployments.get(name, {}))
    merged = defaults | given
    scaling = merged["autoscaling_config"]
    fixed = given.get("num_replicas")
    return Deployment(
        name=name,
        min_replicas=int(scaling.get("min_replicas", 1) if fixed is None else fixed),
        max_replicas=int(scaling.get("max_replicas", 1) if fixed is None else fixed),
        needs=together(merged["placement_group_bundles"]),
        drain_s=float(merged["graceful_shutdown_timeout_s"]),
        worker=worker,
    )


def together(bundles: list[Amounts]) -> dict[str, float]:
    """The bundles of one replica as one sum: they share a node."""
    keys = reduce(lambda seen, bundle: seen | bundle.keys(), bundles, set[str]())
    return {key: sum(float(bundle.get(key, 0)) for bundle in bundles) for key in sorted(keys)}
