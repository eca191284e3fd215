"""cluster/gpu.serve.yaml by Ray's own schema, and against the settings and machines that it is for."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.settings.keys import absent_workers, without_workers
from serving.settings.patch import apply_patch
from serving.settings.settings import Settings, load
from serving.settings.workers import VllmSettings

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "cluster" / "gpu.serve.yaml"


@pytest.fixture
def config() -> dict[str, Any]:
    return yaml.safe_load(PATH.read_text())


@pytest.fixture
def settings(config: dict[str, Any]) -> Settings:
    return load(ROOT / config["applications"][0]["args"]["settings"])


def checked(config: dict[str, Any]) -> Any:
    """Return `config` as `serve deploy` reads it. Raise ValueError for unknown keys of deployments, which Ray's
    schema accepts.
    """
    from ray.serve.config import AutoscalingConfig
    from ray.serve.schema import DeploymentSchema, HTTPOptionsSchema, RayActorOptionsSchema, ServeDeploySchema

    parsed = ServeDeploySchema.model_validate(config)
    check_fields(config["http_options"], HTTPOptionsSchema)
    check_fields(config, ServeDeploySchema)
    for deployment in config["applications"][0]["deployments"]:
        check_fields(deployment, DeploymentSchema)
        check_fields(deployment.get("ray_actor_options", {}), RayActorOptionsSchema)
        if scaling := deployment.get("autoscaling_config"):
            check_fields(scaling, AutoscalingConfig)
            AutoscalingConfig(**scaling)
    return parsed


def check_fields(fields: dict[str, Any], schema: Any) -> None:
    unknown = fields.keys() - schema.model_fields.keys()
    if unknown:
        raise ValueError(f"{schema.__name__} has no {sorted(unknown)}")


def test_ray_serve_accepts_the_file(config: dict[str, Any]) -> None:
    parsed = checked(config)
    assert parsed.tracing_config.enabled
    assert parsed.tracing_config.sampling_ratio == 1.0


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (("tracing_config", "sampling_rate"), 1.0),
        (("http_options", "hots"), "127.0.0.1"),
        (("applications", 0, "deployments", 0, "num_replica"), 2),
        (("applications", 0, "deployments", 0, "max_ongoing_requests"), 0),
        (("applications", 0, "deployments", 1, "autoscaling_config", "min_replica"), 1),
    ],
)
def test_a_wrong_key_is_an_error(config: dict[str, Any], place: tuple[str | int, ...], wrong: object) -> None:
    inner: Any = config
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = wrong
    with pytest.raises(ValueError):
        checked(config)


def test_the_deployments_match_the_settings(config: dict[str, Any], settings: Settings) -> None:
    engines = [w.name for w in settings.workers if isinstance(w, VllmSettings) and not w.deployment]
    expected = {"router", *(f"vllm-{name}" for name in engines)}
    assert {deployment["name"] for deployment in config["applications"][0]["deployments"]} == expected


def test_no_deployment_loses_its_environment_to_the_serve_config(config: dict[str, Any]) -> None:
    """Ray Serve replaces the code's `ray_actor_options`, whose environment has the service's name.
    tests/live/test_two_nodes.py checks that environment.
    """
    assert not any("ray_actor_options" in each for each in config["applications"][0]["deployments"])


def test_replica_bounds_are_in_order(config: dict[str, Any]) -> None:
    for deployment in config["applications"][0]["deployments"]:
        scaling = deployment.get("autoscaling_config", {"min_replicas": 0, "max_replicas": 1})
        assert scaling["min_replicas"] <= scaling["max_replicas"], deployment["name"]


def test_the_user_config_is_a_patch_of_the_settings(config: dict[str, Any], settings: Settings) -> None:
    patch = config["applications"][0]["deployments"][0]["user_config"]
    for served in (settings, without_workers(settings, set(absent_workers(settings, {})))):
        assert apply_patch(served, patch).worker("qwen3-32b").max_concurrency == 128


def test_a_draining_router_outlives_the_longest_run(config: dict[str, Any], settings: Settings) -> None:
    router = config["applications"][0]["deployments"][0]
    assert router["graceful_shutdown_timeout_s"] > settings.limits.default_deadline_s


def test_every_scaled_deployment_scales_by_load(config: dict[str, Any]) -> None:
    from serving.deployments.autoscaling import POLICY

    scaled = [
        d["autoscaling_config"] for d in config["applications"][0]["deployments"] if "autoscaling_config" in d
    ]
    assert {scaling["policy"]["policy_function"] for scaling in scaled} == {POLICY}


def test_import_paths_can_be_imported(config: dict[str, Any]) -> None:
    from serving.deployments.autoscaling import POLICY

    named = (
        config["applications"][0]["import_path"],
        config["tracing_config"]["exporter_import_path"],
        POLICY,
    )
    for path in named:
        module, name = path.split(":")
        assert callable(getattr(importlib.import_module(module), name))
