"""What makes a vLLM engine on a CPU start sooner (docs/decisions/0023 has the profile), and compute in the type that the CPU has.

An engine is three processes (replica, engine core, worker), each of which takes ten seconds of a core to
import vLLM and torch.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from vllm import ModelRegistry, envs
from vllm.platforms import current_platform
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from serving.cpu_types import computes_bfloat16


def prepare(arguments: dict[str, Any]) -> None:
    """Change the engine arguments, and this process, so that the engine starts soon and is quick. Does nothing where
    there is an accelerator.
    """
    if not current_platform.is_cpu():
        return
    if arguments.get("dtype", "auto") == "auto" and not is_quantised(arguments) and not computes_bfloat16():
        arguments["dtype"] = "float32"  # of a model in bfloat16, or float16: twice the memory
    arguments.setdefault("distributed_executor_backend", ForkedWorkers)
    if not can_compile():  # inductor, which compiles the sampler in spite of `enforce_eager`, needs it
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    register(Path(arguments["model"]))


def is_quantised(arguments: dict[str, Any]) -> bool:
    """Whether the weights are: few methods have kernels for float32."""
    return bool(arguments.get("quantization")) or "quantization_config" in config_of(Path(arguments["model"]))


def config_of(folder: Path) -> dict[str, Any]:
    """The model's own; empty for what is no folder with one."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config


def can_compile() -> bool:
    """Whether the C++ compiler that torch's inductor uses is here."""
    return (
        shutil.which(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")) is not None
    )


def register(folder: Path) -> None:
    """Import the model's class here. vLLM would start a process that imports all of vLLM to look at the
    class, so that the one that asks never touches a GPU; that is where most of a first start went.

    Args:
        folder: the model; what is no folder here is left to vLLM.
    """
    for name in config_of(folder).get("architectures", []):
        if (known := ModelRegistry.models.get(name)) is not None:
            ModelRegistry.register_model(name, known.load_model_cls())


class ForkedWorkers(MultiprocExecutor):
    """Workers begin as a copy of the engine core, which has imported everything, where that is safe.

    vLLM does so itself where Ray has not started it. A replica has threads and connections that must not be
    copied, so it spawns the engine core, and what that starts follows its example.
    """

    def _init_executor(self) -> None:
        if can_fork(self.vllm_config.observability_config.otlp_traces_endpoint):
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        super()._init_executor()


def can_fork(traces_endpoint: str | None) -> bool:
    """Whether the engine core has no threads before it starts its workers (those that export traces), and
    none of the workers' are bound to cores, which is done by variables that only a new process reads.
    """
    return traces_endpoint is None and envs.VLLM_CPU_OMP_THREADS_BIND == "nobind"
