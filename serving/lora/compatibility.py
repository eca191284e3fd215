"""Check that an engine can serve a LoRA adapter, before vLLM loads it.

The check is needed because vLLM does not report every fault. It silently copies a tensor that is too small
into a corner of the larger one, and it ignores rank patterns and alpha patterns. PiSSA and similar methods
change the base model during training, so their adapters give wrong answers on the original one.

This module imports only the standard library.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from serving.lora.adapters import WEIGHTS, AdapterError, read_config

MAX_LORA_RANK = 16
"""Default of vLLM's `max_lora_rank`."""
HARMLESS_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of PEFT's `init_lora_weights` that leave the base model unchanged."""
VARIANTS = (
    "rank_pattern", "alpha_pattern", "layer_replication", "lora_bias", "alora_invocation_tokens",
    "trainable_token_indices", "target_parameters", "arrow_config", "use_qalora", "use_bdlora", "kasa_config",
    "velora_config", "monteclora_config",
)  # fmt: skip
"""Fields of PEFT's LoRA configuration that change how the adapter is computed, or its size."""
PARTS = (".lora_A.weight", ".lora_B.weight")
PREFIX = "base_model.model."
NOT_SERVED = ("embed_tokens", "lm_head")


class Tensor(NamedTuple):
    """Type and shape of a tensor, from the header of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]


def check(folder: Path, max_rank: int, base: Mapping[str, Tensor] | None = None) -> None:
    """Check that an engine with `max_lora_rank` can serve an adapter, also on the tensors of `base` if known.
    The AdapterError says why not and what to do.
    """
    config = read_config(folder)
    faults = [*_reasons_against(config), *_too_large(config, max_rank)]
    if not faults:
        faults = _misfits(tensors(folder / WEIGHTS), config["r"], base)
    if faults:
        raise AdapterError(f"The adapter {folder.name} cannot be served. {' '.join(faults[:3])}")


def _reasons_against(config: Mapping[str, Any]) -> list[str]:
    """Return the features of the adapter that vLLM does not support or silently computes wrongly."""
    start = config.get("init_lora_weights", True)
    variants = [name for name in VARIANTS if config.get(name)]
    unsupported = {
        f"Its peft_type must be 'LORA', but is {config.get('peft_type')!r}.": config.get("peft_type")
        != "LORA",
        "It uses DoRA, which vLLM does not support. Train it with use_dora=False.": config.get("use_dora"),
        f"It contains biases (bias={config.get('bias')!r}), which vLLM does not support. Train it with bias='none'.": config.get(
            "bias", "none"
        )
        != "none",
        f"It contains whole modules (modules_to_save={config.get('modules_to_save')}), which vLLM does not support.": config.get(
            "modules_to_save"
        ),
        f"It uses {', '.join(variants)}, which vLLM does not support.": variants,
        f"Its training changed the base model (init_lora_weights={start!r}). Convert it with PEFT's "
        "path_initial_model_for_weight_conversion.": not any(
            start is each or start == each for each in HARMLESS_STARTS
        ),
    }
    return [fault for fault, applies in unsupported.items() if applies]


def _too_large(config: Mapping[str, Any], max_rank: int) -> list[str]:
    rank = config.get("r")
    if not isinstance(rank, int) or rank < 1:
        return [f"Its rank r must be a positive integer, but is {rank!r}."]
    if rank > max_rank:
        return [
            f"Its rank is {rank}, but the engine supports at most {max_rank}. Set `max_lora_rank` in the worker's `engine` and redeploy."
        ]
    return []


def _misfits(adapter: Mapping[str, Tensor], rank: int, base: Mapping[str, Tensor] | None) -> list[str]:
    """Return a fault for each tensor that is not a LoRA of this rank or was made for a different model."""
    if not adapter:
        return ["It contains no weights."]
    modules = {name.rpartition(".")[0] for name in base or ()}
    shares_modules = any(_module(name) in modules for name in adapter)
    faults: list[str] = []
    for name, tensor in adapter.items():
        module, is_b = _module(name), name.endswith(PARTS[1])
        if not name.endswith(PARTS) or module.rpartition(".")[2] in NOT_SERVED or len(tensor.shape) != 2:
            faults.append(f"Its tensor {name} is not a LoRA matrix of a linear layer.")
        elif tensor.shape[is_b] != rank:
            faults.append(
                f"Its tensor {name} has the shape {list(tensor.shape)}, which does not match the rank {rank}."
            )
        elif shares_modules and module not in modules:
            faults.append(
                f"It was trained on a different model, because the base model has no module {module}."
            )
        elif (under := (base or {}).get(f"{module}.weight")) and not _fits(tensor, under, is_b):
            faults.append(
                f"It was trained on a different model, because its tensor {name} has the shape {list(tensor.shape)} for a layer of the shape {list(under.shape)}."
            )
    return faults


def _fits(tensor: Tensor, under: Tensor, is_b: bool) -> bool:
    """Return whether the input of A, or the output of B, fits the layer. Packed quantised weights count as
    fitting.
    """
    packed = len(under.shape) != 2 or not under.dtype.startswith(("F", "BF"))
    return packed or tensor.shape[not is_b] == under.shape[not is_b]


def _module(name: str) -> str:
    for part in PARTS:
        name = name.removesuffix(part)
    return name.removeprefix(PREFIX)


def tensors(path: Path) -> dict[str, Tensor]:
    """Read the header of a complete safetensors file, or raise AdapterError."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = cast(dict[str, Any], json.loads(file.read(size)))
        header.pop("__metadata__", None)
        in_file = {name: Tensor(each["dtype"], tuple(each["shape"])) for name, each in header.items()}
        end = 8 + size + max((each["data_offsets"][1] for each in header.values()), default=0)
        is_complete = path.stat().st_size == end
    except OSError as exc:
        raise AdapterError(f"{path} cannot be read: {exc.strerror}.") from exc
    except (ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError) as exc:
        raise AdapterError(f"{path} is not a valid safetensors file, or is truncated.") from exc
    if not is_complete:
        raise AdapterError(f"The length of {path} does not match its header. The file may be truncated.")
    return in_file


def tensors_of_model(folder: Path) -> dict[str, Tensor] | None:
    """Return the tensors of a model by name, or None without safetensors files."""
    files = [tensors(path) for path in sorted(folder.glob("*.safetensors"))]
    return {name: tensor for each in files for name, tensor in each.items()} or None
