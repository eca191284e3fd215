"""The only place where classes become deployments.

Every deployment says how many CPUs it takes: Ray's default of one each does not fit a small machine, where
the next replica would wait for ever.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from ray import serve
from ray.serve.config import RequestRouterConfig

from serving import edge
from serving.deployments.autoscaling import autoscaling
from serving.deployments.draining import timeout_s
from serving.edge.policy import Policy
from serving.settings.scale import Scale
from serving.settings.settings import Settings
from serving.settings.source import SettingsSource
from serving.settings.workers import VllmSettings
from serving.telemetry.spans import EXPORTER

PREFIX_ROUTER = "serving.deployments.prefix_router.PrefixRouter"
"""Calls that begin alike go to the replica whose cache holds their beginning; a conductor's do. Named and not
imported: who reads a configuration needs nothing of it.
"""
ENGINE = "serving.deployments.engine.Engine"
"""Named and not imported: whoever builds the application would need vLLM's ten seconds for nothing."""
NO_MEDIA_HOST = "none.invalid"
"""A host that no address has (RFC 2606): vLLM takes an empty `allowed_media_domains` for every host there
is."""
NO_REDIRECTS = {"VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0"}
"""An allowed host does not send vLLM on to one that is not."""
ADAPTERS_A_WORKER = 2
"""Room in an engine, for each worker with an adapter: the one that answers, and the one before, whose
requests are under way. With room for one, vLLM would let requests of the new one wait until the last of the
old one has ended."""


def engine_deployment(worker: VllmSettings, settings: Settings, engine: type | None = None) -> Any:
    """The deployment of a vllm worker that has an engine; `.bind`ed, ready to be handed to the router.

    Args:
        worker: whose engine it is.
        settings: all of them.
        engine: the class of its replicas in place of `Engine`.
    """
    scale = worker.scale
    options: dict[str, Any] = {
        "name": f"vllm-{worker.name}",
        "max_ongoing_requests": scale.max_ongoing_requests,
        "health_check_period_s": 10,
        "graceful_shutdown_timeout_s": scale.drain_s,
        "autoscaling_config": autoscaling(scale),
        **_machines(worker),
    }
    environment = environment_of(f"{settings.telemetry.service_prefix}-{worker.name}", dict(os.environ))
    options["ray_actor_options"]["runtime_env"] = {"env_vars": environment | NO_REDIRECTS | scale.env}
    if scale.max_replicas > 1:
        options["request_router_config"] = by_prefix_and_load(scale)
    if worker.stand_in:
        from serving.deployments.fake_engine import FakeEngine

        return _deployment(FakeEngine, options).bind(worker.stand_in.model_dump())
    return _deployment(engine or ENGINE, options).bind(
        worker.model, engine_arguments(worker, settings), scale.messages_per_s
    )


def by_prefix_and_load(scale: Scale) -> RequestRouterConfig:
    """Calls go where their beginning is cached, until that replica has half a replica's load more than the
    least busy one.

    Ray's default would let calls that begin alike, as all with one system prompt do, pile up on one
    replica.
    """
    chosen = {"imbalanced_threshold": scale.target_ongoing_requests / 2}
    return cast(Any, RequestRouterConfig)(request_router_class=PREFIX_ROUTER, request_router_kwargs=chosen)


def gpus_of(worker: VllmSettings) -> int:
    """GPUs of one replica: what its parallelism takes, if it runs on GPUs at all."""
    return worker.scale.gpus and max(worker.scale.gpus, _parallel(worker))


def _parallel(worker: VllmSettings) -> int:
    return int(worker.engine.get("tensor_parallel_size", 1)) * int(
        worker.engine.get("pipeline_parallel_size", 1)
    )


def engine_arguments(worker: VllmSettings, settings: Settings) -> dict[str, Any]:
    """What vLLM is started with: what the settings say, and what follows from them."""
    # By its worker's name it is known in metrics: several engines may have the same model.
    arguments = {"enable_prefix_caching": True, "served_model_name": worker.name, **worker.engine}
    arguments["allowed_media_domains"] = arguments.get("allowed_media_domains") or [NO_MEDIA_HOST]
    if gpus_of(worker) > 1:
        arguments.setdefault("distributed_executor_backend", "ray")
    if adapters := settings.adapters_of(worker.name):
        arguments.setdefault("enable_lora", True)
    if arguments.get("enable_lora"):
        arguments.setdefault("max_loras", ADAPTERS_A_WORKER * max(1, len(adapters)))
    return arguments


def _machines(worker: VllmSettings) -> dict[str, Any]:
    """Where a replica runs: one GPU beside its process, or a placement group whose bundles vLLM's Ray
    workers fill.
    """
    scale, gpus = worker.scale, gpus_of(worker)
    actor: dict[str, Any] = {"num_cpus": scale.num_cpus}
    if scale.accelerator_type:
        actor["accelerator_type"] = scale.accelerator_type
    if gpus <= 1:
        return {"ray_actor_options": actor | ({"num_gpus": gpus} if gpus else {})}
    bundles = [_bundle(scale, cpus=scale.num_cpus)] + [_bundle(scale, cpus=0.0) for _ in range(gpus - 1)]
    return {
        "ray_actor_options": {"num_cpus": scale.num_cpus},
        "placement_group_bundles": bundles,
        "placement_group_strategy": "STRICT_PACK",
    }


def _bundle(scale: Scale, cpus: float) -> dict[str, float]:
    kind = {f"accelerator_type:{scale.accelerator_type}": 0.001} if scale.accelerator_type else {}
    return {"GPU": 1.0} | ({"CPU": cpus} if cpus else {}) | kind


def router_deployment(
    settings: Settings, engines: dict[str, Any], source: SettingsSource | None = None
) -> Any:
    """The HTTP ingress: plans, runs and streams. API workers are called from inside it, engines over one
    handle each. It follows `source`, the file that the settings came from.
    """
    from serving.deployments.router import Router

    router = settings.router
    environment = environment_of(f"{settings.telemetry.service_prefix}-router", dict(os.environ))
    environment[edge.HOOK] = edge.IN_REPLICA
    environment[edge.VARIABLE] = Policy.of(settings).model_dump_json()
    options: dict[str, Any] = {
        "name": "router",
        "max_ongoing_requests": router.max_ongoing_requests,
        "ray_actor_options": {"num_cpus": router.num_cpus, "runtime_env": {"env_vars": environment}},
        "autoscaling_config": autoscaling(router),
        "graceful_shutdown_timeout_s": timeout_s(router.drain_s),
    }
    ingress: Any = cast(Any, serve).ingress()(Router)
    return _deployment(ingress, options).bind(
        settings.model_dump(mode="json", exclude_unset=True), engines, asdict(source) if source else None
    )


def _deployment(target: type | str, options: dict[str, Any]) -> Any:
    return cast(Any, serve).deployment(**options)(target)


def environment_of(service: str, outer: Mapping[str, str]) -> dict[str, str]:
    """What Ray is to set in a deployment's replicas: their name in traces, and every trace kept (Serve's
    default is 1 %).

    Ray writes this into its logs and its store in clear, so nothing else is in it: everything that may be a
    secret (keys, `HF_TOKEN`, `OTEL_EXPORTER_OTLP_HEADERS`, addresses with a password) reaches replicas as
    the environment that they inherit from their node.

    Args:
        service: the name in traces.
        outer: the environment of the process that builds the application.
    """
    return {
        "OTEL_SERVICE_NAME": service,
        "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH": outer.get(
            "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH", EXPORTER
        ),
        "RAY_SERVE_TRACING_SAMPLING_RATIO": outer.get("RAY_SERVE_TRACING_SAMPLING_RATIO", "1.0"),
    }
