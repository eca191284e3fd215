"""The only module that turns classes into Ray Serve deployments.

Every deployment sets its number of CPUs. With Ray's default of one CPU each, a small machine runs out and the
next replica waits forever.
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
from serving.edge.policy import HttpPolicy
from serving.settings.scale import Scale
from serving.settings.settings import Settings
from serving.settings.source import SettingsSource
from serving.settings.workers import VllmSettings
from serving.telemetry.spans import EXPORTER

PREFIX_ROUTER = "serving.deployments.prefix_router.PrefixRouter"
"""Request router that sends calls with a common prefix, such as a conductor's prompt, to the replica that has
the prefix in its cache. This is an import path, because a process that only reads a configuration should not
import Ray's router.
"""
ENGINE = "serving.deployments.engine.Engine"
"""Replica class of an engine, as a path, because importing vLLM takes ten seconds."""
NO_MEDIA_HOST = "none.invalid"
"""A host that never resolves (RFC 2606). vLLM would treat an empty `allowed_media_domains` as "any host"."""
NO_REDIRECTS = {"VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0"}
"""Environment variable that keeps vLLM from following a redirect from an allowed host to another host."""
ADAPTERS_A_WORKER = 2
"""LoRA slots in an engine for each worker with an adapter: the current adapter, and the previous one while
its requests finish. With one slot, requests for the new adapter would wait for the last request of the old
one.
"""


def engine_deployment(worker: VllmSettings, settings: Settings, engine: type | None = None) -> Any:
    """Build the bound Ray Serve deployment of a vLLM worker's engine, which is then passed to the router."""
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
    """Configure a request router that prefers the replica with the prompt's prefix in its cache.

    If that replica has many more calls than the least busy one, the load decides instead. The allowed
    difference is half of a replica's target load. With Ray's default, calls that share a prefix, such as a
    system prompt, would pile up on one replica.
    """
    arguments = {"imbalanced_threshold": scale.target_ongoing_requests / 2}
    return cast(Any, RequestRouterConfig)(request_router_class=PREFIX_ROUTER, request_router_kwargs=arguments)


def gpus_of(worker: VllmSettings) -> int:
    """Return the GPUs of one replica: at least as many as its parallelism needs, or 0 on CPUs."""
    return worker.scale.gpus and max(worker.scale.gpus, _parallel(worker))


def _parallel(worker: VllmSettings) -> int:
    return int(worker.engine.get("tensor_parallel_size", 1)) * int(
        worker.engine.get("pipeline_parallel_size", 1)
    )


def engine_arguments(worker: VllmSettings, settings: Settings) -> dict[str, Any]:
    """Return the engine arguments for vLLM: those in the worker's settings, and others that follow from them."""
    # Several engines may serve the same model; metrics tell them apart by the worker's name.
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
    """Return Ray's resource options. Several GPUs get a placement group, in whose bundles vLLM starts its
    workers.
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
    """Build the bound Ray Serve deployment of the router. `source` is the settings' file, if any, which it
    reloads.

    The router calls API workers from its own process, and each engine through a deployment handle.
    """
    from serving.deployments.router import Router

    router = settings.router
    environment = environment_of(f"{settings.telemetry.service_prefix}-router", dict(os.environ))
    environment[edge.HOOK] = edge.IN_REPLICA
    environment[edge.VARIABLE] = HttpPolicy.of(settings).model_dump_json()
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
    """Return the environment variables for tracing that Ray sets in a deployment's replicas.

    They set the service name, and a sampling ratio of 1.0 instead of Serve's default of 0.01.

    Ray writes these variables to its logs and its store in plain text, so they hold no secrets. Keys,
    `HF_TOKEN`, `OTEL_EXPORTER_OTLP_HEADERS` and addresses with a password reach replicas through the
    environment inherited from their node.
    """
    return {
        "OTEL_SERVICE_NAME": service,
        "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH": outer.get(
            "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH", EXPORTER
        ),
        "RAY_SERVE_TRACING_SAMPLING_RATIO": outer.get("RAY_SERVE_TRACING_SAMPLING_RATIO", "1.0"),
    }
