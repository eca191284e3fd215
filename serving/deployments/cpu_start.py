"""Make a vLLM engine on a CPU start faster, and choose a data type that the CPU supports.

An engine consists of three processes (replica, engine core, worker). Each of them uses ten seconds of CPU
time to import vLLM and torch. Profile: docs/decisions/0023.
"""

import json
import os
from pathlib import Path
from typing import Any

from vllm import ModelRegistry, envs
from vllm.platforms import current_platform
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from serving.cpu_features import can_compile, computes_bfloat16


def prepare(arguments: dict[str, Any]) -> None:
    """Change the engine arguments and this process so that an engine on a CPU starts and runs faster."""
    if not current_platform.is_cpu():
        return
    if arguments.get("dtype", "auto") == "auto" and not is_quantised(arguments) and not computes_bfloat16():
        arguments["dtype"] = "float32"  # takes twice the memory of bfloat16 or float16
    arguments.setdefault("distributed_executor_backend", ForkedWorkers)
    if not can_compile():  # torch's inductor compiles the sampler even with `enforce_eager`
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    register(Path(arguments["model"]))


def is_quantised(arguments: dict[str, Any]) -> bool:
    """Return whether the weights are quantised. Few quantisation methods have kernels for float32."""
    return bool(arguments.get("quantization")) or "quantization_config" in config_of(Path(arguments["model"]))


def config_of(folder: Path) -> dict[str, Any]:
    """Return the model's `config.json`, or {} if `folder` has none that can be read."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config


def register(folder: Path) -> None:
    """Import the class of the model in `folder` in this process. vLLM would start a process for that, which
    took most of a first start.
    """
    for name in config_of(folder).get("architectures", []):
        if (entry := ModelRegistry.models.get(name)) is not None:
            ModelRegistry.register_model(name, entry.load_model_cls())


class ForkedWorkers(MultiprocExecutor):
    """Executor that forks its workers from the engine core if that is safe, so that they need not import
    anything.

    vLLM forks by default, but not under Ray. A replica has threads and connections that must not be copied,
    so it starts the engine core as a new process. By default, the core would then start its workers as new
    processes as well.
    """

    def _init_executor(self) -> None:
        if can_fork(self.vllm_config.observability_config.otlp_traces_endpoint):
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        super()._init_executor()


def can_fork(traces_endpoint: str | None) -> bool:
    """Return whether the engine core may fork its workers: it has no threads, which exporting traces would
    start, and workers are not bound to CPU cores, which needs new processes.
    """
    return traces_endpoint is None and envs.VLLM_CPU_OMP_THREADS_BIND == "nobind"
