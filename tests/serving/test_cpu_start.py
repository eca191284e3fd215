"""Faster starts of engines on a CPU, and when to skip them. tests/live starts such engines."""

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.lazy import lazy

cpu_start = lazy("serving.deployments.cpu_start")
ModelRegistry = lazy("vllm:ModelRegistry")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    import vllm  # noqa: F401 (before a test replaces the environment)

    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    return tmp_path


def test_without_a_compiler_nothing_is_compiled(model: Path) -> None:
    compiler = model / "g++"
    compiler.touch(0o755)
    for disabled in (None, "1"):
        with patch.dict(os.environ, {"PATH": str(model)}, clear=True):
            cpu_start.prepare({"model": str(model)})
            assert os.environ.get("TORCH_COMPILE_DISABLE") == disabled
        compiler.unlink(missing_ok=True)


def test_a_configured_executor_is_not_changed(model: Path) -> None:
    arguments: dict[str, Any] = {"model": str(model), "distributed_executor_backend": "mp"}
    with patch.dict(os.environ, clear=True):
        cpu_start.prepare(arguments)
    assert arguments["distributed_executor_backend"] == "mp"


def test_the_models_class_is_imported_without_a_new_process(model: Path) -> None:
    cpu_start.register(model)
    model_class = ModelRegistry.models["LlamaForCausalLM"]
    assert model_class.load_model_cls() is model_class.model_cls


@pytest.mark.parametrize("folder", ["Qwen/Qwen2.5-1.5B-Instruct", "/dev/null"])
def test_a_path_without_a_config_is_left_to_vllm(folder: str) -> None:
    cpu_start.register(Path(folder))


@pytest.mark.parametrize(
    ("bind", "endpoint", "forks"),
    [
        ("nobind", None, True),
        ("auto", None, False),
        ("0-1", None, False),
        ("nobind", "http://127.0.0.1:4317", False),
    ],
)
def test_workers_are_forked_only_without_threads_and_core_binding(
    monkeypatch: pytest.MonkeyPatch, bind: str, endpoint: str | None, forks: bool
) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", bind)
    assert cpu_start.can_fork(endpoint) is forks


@pytest.mark.parametrize(
    ("dtype", "has_it", "used"),
    [
        (None, False, "float32"),
        ("auto", False, "float32"),
        (None, True, None),
        ("bfloat16", False, "bfloat16"),
    ],
)
def test_a_cpu_without_bfloat16_uses_float32_unless_a_type_is_configured(
    model: Path, monkeypatch: pytest.MonkeyPatch, dtype: str | None, has_it: bool, used: str | None
) -> None:
    monkeypatch.setattr("serving.deployments.cpu_start.computes_bfloat16", lambda: has_it)
    arguments: dict[str, Any] = {"model": str(model)} | ({"dtype": dtype} if dtype else {})
    cpu_start.prepare(arguments)
    assert arguments.get("dtype") == used


@pytest.mark.parametrize("quantization", ["arguments", "config"])
def test_quantised_weights_keep_their_type(
    model: Path, monkeypatch: pytest.MonkeyPatch, quantization: str
) -> None:
    monkeypatch.setattr("serving.deployments.cpu_start.computes_bfloat16", lambda: False)
    arguments: dict[str, Any] = {"model": str(model)}
    if quantization == "arguments":
        arguments["quantization"] = "awq"
    else:
        (model / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "gptq"}}))
    cpu_start.prepare(arguments)
    assert "dtype" not in arguments
