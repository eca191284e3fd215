"""Make the default local conductor: the local model with Podium's LoRA adapter merged into its weights.

vLLM can also load the adapter at run time (docs/operations/live-changes.md). On a CPU that is several times
slower, so set-up merges the adapter once. Each matrix W that the adapter changes becomes W +
(alpha / r) B A (LoRA, arXiv 2106.09685, 4.1).

If the adapter changes, the folder of the merged model is replaced as a whole. This module does not depend on
Ray, vLLM or plans.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.local import model
from serving import DATA, IS_CHECKOUT, ROOT

if TYPE_CHECKING:
    from cluster.local.bfloat16 import Floats, Tensor

FOLDER = DATA / "models" / "smollm2-135m-conductor"
ADAPTERS = ROOT / "adapters" if IS_CHECKOUT else ROOT / "cluster" / "adapters"
PREFIX = "base_model.model."
MADE_FROM = "podium.json"
"""File in the model's folder that names the adapter merged into the weights."""


def default_adapter() -> Path:
    """Return the adapter that Podium ships. Raise ModelError unless there is exactly one."""
    folders = sorted(folder for folder in ADAPTERS.glob("conductor@*") if (folder / "shipped").exists())
    if len(folders) != 1:
        names = ", ".join(folder.name for folder in folders) or "none"
        raise model.ModelError(
            f"adapters/ must have exactly one folder with a file `shipped`, but it has {names}. Restore it with `git checkout adapters`."
        )
    return folders[0]


def is_ready(folder: Path, adapter: Path) -> bool:
    """Return whether `folder` contains the complete model with this adapter merged."""
    if not model.is_ready(folder):
        return False
    try:
        return json.loads((folder / MADE_FROM).read_text("utf-8")).get("adapter") == adapter.name
    except (OSError, ValueError, AttributeError):  # truncated or invalid: the model is made again
        return False


def merge(base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Merge an adapter into the weights of its base model. The result has the base model's number type.

    Raises:
        ModelError: the adapter was made for a different model.
    """
    import numpy as np

    from cluster.local.bfloat16 import floats_of, like

    result = dict(base)
    for name in (each for each in adapter if each.endswith(".lora_A.weight")):
        target = name.removeprefix(PREFIX).replace(".lora_A.weight", ".weight")
        a, b = floats_of(adapter[name]), floats_of(adapter[name.replace(".lora_A.", ".lora_B.")])
        if target not in base or base[target].shape != (b.shape[0], a.shape[1]):
            raise model.ModelError(
                f"the adapter changes the tensor {target}, which the base model does not have in this shape"
            )
        change: Floats = (b @ a) * np.float32(scale)
        result[target] = like(base[target], floats_of(base[target]) + change)
    return result


def make(base: Path, adapter: Path, folder: Path) -> None:
    """Merge the adapter into the base model, and write the result to `folder`."""
    from cluster.local import bfloat16

    files = (base / model.WEIGHTS, adapter / "adapter_config.json", adapter / "adapter_model.safetensors")
    if absent := [file for file in files if not file.is_file()]:
        raise model.ModelError(f"the file {absent[0]} is missing")
    config = json.loads((adapter / "adapter_config.json").read_text("utf-8"))
    try:
        tensors, products = bfloat16.load(files[0]), bfloat16.load(files[2])
    except ValueError as error:
        raise model.ModelError(f"the weights of {base} or {adapter} cannot be read: {error}") from error
    weights = merge(tensors, products, config["lora_alpha"] / config["r"])
    with model.replacing(folder) as work:
        for file in base.iterdir():
            if file.is_file() and file.name != model.WEIGHTS:
                shutil.copy2(file, work / file.name)
        bfloat16.save(work / model.WEIGHTS, weights)
        model.write_json(work / MADE_FROM, {"base": base.name, "adapter": adapter.name})
