"""Estimate whether the weights and the KV cache of each engine fit into the memory of its GPUs.

The weights need parameters x bytes. The keys and values of one token need 2 x layers x kv_heads x head_dim x
bytes. `OVERHEAD_GIB` is added per GPU for activations and CUDA graphs. vLLM measures the real values when it
starts, and it does not start unless the cache has room for one request of `max_model_len` tokens.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from podium.doctor.cluster.deployments import Deployment
from podium.doctor.cluster.files import ClusterFiles, ModelSize
from podium.doctor.cluster.placing import node_type_of
from podium.doctor.finding import Finding, warning, wrong
from serving.deployments.build import gpus_of
from serving.settings.workers import VllmSettings

GIB = 2**30
OVERHEAD_GIB = 2.0
UTILIZATION = 0.92
"""vLLM's default `gpu_memory_utilization` (vllm/config/cache.py, 0.29)."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Estimated memory of an engine, summed over all GPUs of a replica."""

    deployment: str
    gpu: str
    gpus: int
    weights_gib: float
    usable_gib: float
    kv_gib: float
    kv_tokens: int
    context_tokens: int


def fit(files: ClusterFiles, deployment: Deployment) -> Fit | None:
    """Estimate the memory of an engine, or return None if its GPU, node or model size is unknown."""
    worker, node = deployment.worker, node_type_of(deployment, files.machines.workers)
    if worker is None or node is None or node.gpu is None or not gpus_of(worker):
        return None
    size, memory_gib = size_of(worker.model, files.models), files.prices.gpu_memory_gib.get(node.gpu)
    if size is None or memory_gib is None:
        return None
    gpus = gpus_of(worker)
    weights_gib = (size.weight_bytes or size.parameters * _weight_bytes(worker)) / GIB
    usable_gib = memory_gib * gpus * float(worker.engine.get("gpu_memory_utilization", UTILIZATION))
    kv_gib = usable_gib - weights_gib - OVERHEAD_GIB * gpus
    return Fit(
        deployment=deployment.name,
        gpu=node.gpu,
        gpus=gpus,
        weights_gib=weights_gib,
        usable_gib=usable_gib,
        kv_gib=kv_gib,
        kv_tokens=max(0, int(kv_gib * GIB / _token_bytes(size, worker))),
        context_tokens=int(worker.engine.get("max_model_len", 0)),
    )


def memory(files: ClusterFiles) -> list[Finding]:
    """Check that the GPUs of each engine have room for its weights and one request of maximum length."""
    findings: list[Finding] = []
    for deployment in files.deployments:
        worker = deployment.worker
        if worker is None or not gpus_of(worker) or node_type_of(deployment, files.machines.workers) is None:
            continue
        fitted = fit(files, deployment)
        if fitted is None:
            findings.append(_warn_of_unknown_size(files, deployment, worker))
        elif fitted.kv_gib <= 0:
            findings.append(
                wrong(
                    (
                        f"needs {fitted.weights_gib:.0f} GiB for weights and {OVERHEAD_GIB * fitted.gpus:.0f} GiB for overhead, but has only "
                        f"{fitted.usable_gib:.0f} GiB on {fitted.gpus} {fitted.gpu}."
                    ),
                    "Use a larger tensor_parallel_size, larger GPUs, or `quantization: fp8`.",
                    file=files.settings_file,
                    field=f"worker {worker.name!r}: engine",
                )
            )
        elif fitted.kv_tokens < fitted.context_tokens:
            findings.append(
                wrong(
                    f"is {fitted.context_tokens}, but the KV cache holds only {fitted.kv_tokens} tokens. vLLM will not start.",
                    "Lower max_model_len, or use more or larger GPUs.",
                    file=files.settings_file,
                    field=f"worker {worker.name!r}: engine.max_model_len",
                )
            )
    return findings


def _warn_of_unknown_size(files: ClusterFiles, deployment: Deployment, worker: VllmSettings) -> Finding:
    node = node_type_of(deployment, files.machines.workers)
    gpu = node.gpu if node else None
    if size_of(worker.model, files.models) is None:
        return warning(
            f"is {worker.model}, whose size is unknown.",
            "Add its size to cluster/models.yaml, or use a folder that contains its config.json.",
            file=files.settings_file,
            field=f"worker {worker.name!r}: model",
        )
    return warning(
        f"declare a GPU of unknown memory ({gpu}).",
        "Declare the GPU as `accelerator_type:<Ray's name>`, and add its memory under `gpu_memory_gib` in cluster/prices.yaml.",
        file=files.machines.file,
        field=f"{node.name if node else '?'}.resources",
    )


# -------------------------------------------------------------------------------- sizes


def size_of(model: str, sizes: dict[str, ModelSize]) -> ModelSize | None:
    """Return the size of `model` from its folder's files or the table `sizes`, or None."""
    folder = Path(model)
    return _of_folder(folder) if (folder / "config.json").is_file() else sizes.get(model)


def _of_folder(folder: Path) -> ModelSize | None:
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    heads = text.get("num_attention_heads")
    if not weights or not heads:
        return None
    return ModelSize(
        parameters=weights // 2,
        layers=text["num_hidden_layers"],
        kv_heads=text.get("num_key_value_heads") or heads,
        head_dim=text.get("head_dim") or text["hidden_size"] // heads,
        weight_bytes=weights,
    )


def _weight_bytes(worker: VllmSettings) -> int:
    return {"float32": 4, "float": 4}.get(
        worker.engine.get("dtype", ""), 1 if worker.engine.get("quantization") else 2
    )


def _token_bytes(size: ModelSize, worker: VllmSettings) -> int:
    value_bytes = 1 if str(worker.engine.get("kv_cache_dtype", "")).startswith("fp8") else 2
    return 2 * size.layers * size.kv_heads * size.head_dim * value_bytes
