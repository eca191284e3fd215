"""Whether an engine can serve a LoRA adapter: checked before vLLM loads it, because vLLM does not report
all of it.

A tensor that is smaller than the model's is copied into a corner of its place without a word, rank and
alpha patterns are read by nobody, and an adapter of a base that PiSSA and its kin had changed gives wrong
answers. Standard library only.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from serving.lora.adapters import WEIGHTS, AdapterError, read_config

MAX_LORA_RANK = 16
"""vLLM's own `max_lora_rank`, where an engine's settings name none."""
HARMLESS_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of PEFT's `init_lora_weights` that leave the base model as it was."""
VARIANTS = (
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "lora_bias",
    "alora_invocation_tokens",
    "trainable_token_indices",
    "target_parameters",
    "arrow_config",
    "use_qalora",
    "use_bdlora",
    "kasa_config",
    "velora_config",
    "monteclora_config",
)
"""Fields of PEFT's LoRA that change what it computes, or how much it holds."""
PARTS = (".lora_A.weight", ".lora_B.weight")
PREFIX = "base_model.model."
NOT_SERVED = ("embed_tokens", "lm_head")


class Tensor(NamedTuple):
    """What a safetensors header says of one."""

    dtype: str
    shape: tuple[int, ...]


def check(folder: Path, max_rank: int, base: Mapping[str, Tensor] | None = None) -> None:
    """See that an engine can serve the adapter in `folder`.

    Args:
        folder: the adapter.
        max_rank: the engine's `max_lora_rank`.
        base: the tensors of the model under it, by name (`tensors_of_model`); None where they are not known.

    Raises:
        AdapterError: why it cannot, and what to do.
    """
    config = read_config(folder)
    faults = [*_reasons_against(config), *_too_large(config, max_rank)]
    if not faults:
        faults = _misfits(tensors(folder / WEIGHTS), config["r"], base)
    if faults:
        raise AdapterError(f"The adapter {folder.name} cannot be served: {'; '.join(faults[:3])}.")


def _reasons_against(config: Mapping[str, Any]) -> list[str]:
    """What it asks for that vLLM does not do, or does wrong in silence."""
    start = config.get("init_lora_weights", True)
    variants = [name for name in VARIANTS if config.get(name)]
    asked = {
        f"its peft_type is {config.get('peft_type')!r}, not 'LORA'": config.get("peft_type") != "LORA",
        "it uses DoRA (train with use_dora=False)": config.get("use_dora"),
        f"it trains biases (bias={config.get('bias')!r}; train with bias='none')": config.get("bias", "none")
        != "none",
        f"it brings whole modules (modules_to_save={config.get('modules_to_save')}); only LoRA can be served": config.get(
            "modules_to_save"
        ),
        f"it uses {', '.join(variants)}, which vLLM does not read": variants,
        f"init_lora_weights={start!r} changed the base model it was trained on; convert it with PEFT's "
        "path_initial_model_for_weight_conversion": not any(
            start is each or start == each for each in HARMLESS_STARTS
        ),
    }
    return [fault for fault, is_so in asked.items() if is_so]


def _too_large(config: Mapping[str, Any], max_rank: int) -> list[str]:
    rank = config.get("r")
    if not isinstance(rank, int) or rank < 1:
        return [f"its rank r is {rank!r}"]
    if rank > max_rank:
        return [
            f"its rank is {rank} and the engine takes up to {max_rank}: set `max_lora_rank` in the worker's `engine` and deploy again"
        ]
    return []


def _misfits(adapter: Mapping[str, Tensor], rank: int, base: Mapping[str, Tensor] | None) -> list[str]:
    """Tensors that are no LoRA of rank `rank`, or of another model."""
    if not adapter:
        return ["it has no weights"]
    known = {name.rpartition(".")[0] for name in base or ()}
    some_known = any(_module(name) in known for name in adapter)
    faults: list[str] = []
    for name, tensor in adapter.items():
        module, is_b = _module(name), name.endswith(PARTS[1])
        if not name.endswith(PARTS) or module.rpartition(".")[2] in NOT_SERVED or len(tensor.shape) != 2:
            faults.append(f"{name} is no LoRA of a linear layer")
        elif tensor.shape[is_b] != rank:
            faults.append(f"{name} has the shape {list(tensor.shape)}, and the rank is {rank}")
        elif some_known and module not in known:
            faults.append(f"the base model has no {module}: it was trained on another model")
        elif (under := (base or {}).get(f"{module}.weight")) and not _fits(tensor, under, is_b):
            faults.append(
                f"{name} has the shape {list(tensor.shape)} over a layer of {list(under.shape)}: it was trained on another model"
            )
    return faults


def _fits(tensor: Tensor, under: Tensor, is_b: bool) -> bool:
    """Whether A reads, and B writes, as many numbers as the layer. Of quantised weights, which are packed,
    nothing is known.
    """
    packed = len(under.shape) != 2 or not under.dtype.startswith(("F", "BF"))
    return packed or tensor.shape[not is_b] == under.shape[not is_b]


def _module(name: str) -> str:
    for part in PARTS:
        name = name.removesuffix(part)
    return name.removeprefix(PREFIX)


def tensors(path: Path) -> dict[str, Tensor]:
    """What the header of a safetensors file says, with a look whether the file is as long as it says.

    Raises:
        AdapterError: it is no such file, or ends too early.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = cast(dict[str, Any], json.loads(file.read(size)))
        header.pop("__metadata__", None)
        found = {name: Tensor(each["dtype"], tuple(each["shape"])) for name, each in header.items()}
        end = 8 + size + max((each["data_offsets"][1] for each in header.values()), default=0)
        whole = path.stat().st_size == end
    except OSError as exc:
        raise AdapterError(f"{path} cannot be read: {exc.strerror}.") from exc
    except (ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError) as exc:
        raise AdapterError(f"{path} is no safetensors file, or is cut off.") from exc
    if not whole:
        raise AdapterError(f"{path} is not as long as its header says: it is cut off.")
    return found


def tensors_of_model(folder: Path) -> dict[str, Tensor] | None:
    """Every tensor of a model's folder; None where it keeps none in safetensors files.

    Raises:
        AdapterError: a file of it cannot be read.
    """
    found = [tensors(path) for path in sorted(folder.glob("*.safetensors"))]
    return {name: tensor for each in found for name, tensor in each.items()} or None
