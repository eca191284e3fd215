"""Placement of deployments on machines. Starts none."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conductor.model.call import Call
from conductor.model.messages import Message
from serving.edge import HOOK, VARIABLE
from serving.settings.settings import SettingsError, load, parse
from serving.settings.workers import VllmSettings
from tests.conftest import ROOT
from tests.serving.adapter_files import adapter


@pytest.fixture(scope="module")
def deployments() -> dict[str, Any]:
    """Return the deployments of the GPU pool by name."""
    from serving.deployments.build import engine_deployment

    settings = load(ROOT / "cluster/gpu.yaml")
    owners = [w for w in settings.workers if isinstance(w, VllmSettings) and w.deployment is None]
    bound = [engine_deployment(worker, settings)._bound_deployment for worker in owners]
    return {deployment.name: deployment for deployment in bound}


def test_a_model_on_one_gpu_gets_it_in_its_own_process(deployments: dict[str, Any]) -> None:
    conductor = deployments["vllm-conductor"]
    assert conductor.ray_actor_options["num_gpus"] == 1
    assert conductor._replica_config.placement_group_bundles is None


def test_a_model_on_two_gpus_gets_two_bundles_on_one_machine(
    deployments: dict[str, Any],
) -> None:
    deepseek = next(
        d for name, d in deployments.items() if "r1" in name.lower() or "deepseek" in name.lower()
    )
    bundles = deepseek._replica_config.placement_group_bundles
    assert [bundle["GPU"] for bundle in bundles] == [1, 1]
    assert deepseek._replica_config.placement_group_strategy == "STRICT_PACK"
    assert not deepseek.ray_actor_options.get("num_gpus")
    _, arguments, _ = deepseek.init_args
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["distributed_executor_backend"] == "ray"


def test_every_engine_caches_prefixes_and_records_every_trace(deployments: dict[str, Any]) -> None:
    for name, deployment in deployments.items():
        assert deployment.init_args[1]["enable_prefix_caching"] is True
        environment = deployment.ray_actor_options["runtime_env"]["env_vars"]
        assert environment["OTEL_SERVICE_NAME"] == f"podium-{name.removeprefix('vllm-')}"
        assert environment["RAY_SERVE_TRACING_SAMPLING_RATIO"] == "1.0"


def test_rays_record_of_a_deployment_contains_no_environment_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from serving.deployments.build import engine_deployment, router_deployment

    settings = load(ROOT / "cluster/gpu.yaml")
    for name in (
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "HF_HOME",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "VLLM_API_KEY",
    ):
        monkeypatch.setenv(name, f"planted in {name}")
    owner = next(w for w in settings.workers if isinstance(w, VllmSettings))
    for bound in (router_deployment(settings, {}), engine_deployment(owner, settings)):
        deployment = bound._bound_deployment
        variables = deployment.ray_actor_options["runtime_env"]["env_vars"]
        assert variables.keys() - owner.scale.env.keys() <= {
            "OTEL_SERVICE_NAME", "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH", "RAY_SERVE_TRACING_SAMPLING_RATIO",
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS", HOOK, VARIABLE,
        }  # fmt: skip
        assert "planted" not in repr((variables, deployment.init_args, deployment.init_kwargs))


def test_the_prefix_router_finds_the_prompt_in_an_engine_call() -> None:
    from types import SimpleNamespace

    from serving.deployments.build import by_prefix_and_load
    from serving.deployments.prefix_router import PrefixRouter
    from serving.settings.scale import Scale
    from serving.workers.vllm import VllmWorker

    config = by_prefix_and_load(Scale(target_ongoing_requests=16))
    assert config.get_request_router_class() is PrefixRouter
    assert (
        config.request_router_kwargs.keys()
        <= inspect.signature(PrefixRouter.initialize_state).parameters.keys()
    )
    assert config.request_router_kwargs["imbalanced_threshold"] == 8
    call = VllmWorker("w", "m", None)._engine_call(
        Call((Message.of("system", "Static."), Message.of("user", "Why?")))
    )  # type: ignore[arg-type]
    router: Any = PrefixRouter.__new__(PrefixRouter)
    assert router._extract_text_from_request(SimpleNamespace(args=[call])) == "Static.Why?"


@pytest.mark.parametrize(
    ("workers", "started_with"),
    [
        ([{}], {}),
        ([{"adapter": "a/x@00000000"}], {"enable_lora": True, "max_loras": 2}),
        (
            [{}, {"adapter": "a/x@00000000"}, {"adapter": "a/x@11111111"}],
            {"enable_lora": True, "max_loras": 4},
        ),
        ([{"engine": {"enable_lora": True}}], {"enable_lora": True, "max_loras": 2}),
        ([{"engine": {"max_loras": 1}, "adapter": "a/x@00000000"}], {"enable_lora": True, "max_loras": 1}),
    ],
)
def test_an_engine_reserves_space_for_all_adapters_and_later_ones(
    workers: list[dict[str, Any]], started_with: dict[str, Any]
) -> None:
    from serving.deployments.build import engine_arguments

    owner, *sharing = workers
    named = [{"name": "v", "kind": "vllm", "model": "m"} | owner]
    named += [
        {"name": f"v{n}", "kind": "vllm", "deployment": "v"} | worker for n, worker in enumerate(sharing)
    ]
    settings = parse({"workers": named})
    arguments = engine_arguments(settings.worker("v"), settings)  # type: ignore[arg-type]
    assert {
        name: arguments[name] for name in ("enable_lora", "max_loras") if name in arguments
    } == started_with


def test_a_local_adapter_is_checked_before_the_start(tmp_path: Path) -> None:
    from serving.app import _check_local_adapters
    from serving.lora.adapters import publish

    def settings(address: object) -> Any:
        return parse({"workers": [{"name": "w", "kind": "vllm", "model": "m", "adapter": str(address)}]})

    published = publish(adapter(tmp_path / "made"), tmp_path, "conductor")
    for fine in (published, "s3://elsewhere/conductor@1a2b3c4d"):
        _check_local_adapters(settings(fine))
    adapter(published, fill=1)
    for wrong in (published, tmp_path / "conductor@1a2b3c4d"):
        with pytest.raises(SettingsError, match="Worker 'w'"):
            _check_local_adapters(settings(wrong))
    too_large = publish(adapter(tmp_path / "large", r=32), tmp_path, "conductor")
    with pytest.raises(SettingsError, match="max_lora_rank"):
        _check_local_adapters(settings(too_large))


@pytest.mark.parametrize(
    ("model", "remedy"),
    [("models/absent", "make setup"), ("/nowhere/model", "neither a local folder"), ("./absent", "neither a local folder"), ("~/absent", "neither a local folder"),
     ("a/b/c", "neither a local folder")],
)  # fmt: skip
def test_a_missing_model_is_an_error_with_the_remedy(model: str, remedy: str) -> None:
    from serving.app import _with_local_folder

    worker = parse({"workers": [{"name": "w", "kind": "vllm", "model": model}]}).workers[0]
    with pytest.raises(SettingsError, match=remedy) as caught:
        _with_local_folder(worker)  # type: ignore[arg-type]
    assert model in caught.value.message


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-1.5B-Instruct", "google/gemma-3-27b-it", "gpt2"])
def test_a_hub_name_is_left_to_the_hub(model: str) -> None:
    from serving.app import _with_local_folder

    worker: Any = parse({"workers": [{"name": "w", "kind": "vllm", "model": model}]}).workers[0]
    assert _with_local_folder(worker) == worker


def test_an_unknown_argument_of_build_app_is_rejected() -> None:
    from serving.app import build_app

    with pytest.raises(SettingsError, match="settigns"):
        build_app({"settigns": "cluster/local.yaml"})


@pytest.mark.slow
def test_a_pool_without_any_key_names_the_variables_before_ray_starts() -> None:
    """Runs in a subprocess: if Ray already runs here, its nodes have their own environment."""
    keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")
    start = "from serving.app import build_app; build_app({'settings': 'cluster/api.yaml'})"
    ended = subprocess.run(
        [sys.executable, "-c", start],
        env={name: value for name, value in os.environ.items() if name not in keys},
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert ended.returncode == 1
    assert re.search("SettingsError.*" + ".*".join(keys), ended.stderr), ended.stderr


@pytest.mark.slow
def test_a_replacement_for_a_conductor_without_a_key_is_chosen_before_ray_starts(
    tmp_path: Path,
) -> None:
    """Uses the prices of the price table. Runs in a subprocess, as above."""
    led = {"name": "lead", "kind": "openai", "model": "gpt-5", "api_key_env": "NONE", "optional": True}
    there = {"name": "b", "kind": "anthropic", "model": "claude-sonnet-4-5", "api_key_env": "B_KEY"}
    data = {"conductor": {"worker": "lead"}, "workers": [led | {"fallbacks": "auto"}, there]}
    file = tmp_path / "settings.yaml"
    file.write_text(json.dumps(data))
    start = f"from serving.app import build_app; build_app({{'settings': '{file}'}})"
    environment = {name: value for name, value in os.environ.items() if name != "NONE"} | {"B_KEY": "sk-1"}
    ended = subprocess.run(
        [sys.executable, "-c", start],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert ended.returncode == 0, ended.stderr
