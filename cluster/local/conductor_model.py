"""The embedded default's conductor: the local model with the adapter that Podium ships merged into its weights.

`python -m cluster.local.conductor_model` writes `models/smollm2-135m-conductor` from `models/smollm2-135m` and the adapter under `adapters/`.
vLLM can also load the adapter by its name, beside other models (docs/operations.md, "Adapters"); on a CPU that costs most of the
speed (decision 0014), so here it is merged once, at set-up: W + (alpha / r) B A for each matrix it has (LoRA, arXiv 2106.09685, 4.1).

Idempotent; a change of adapter makes the folder anew, whole or not at all. Knows weights; knows nothing of Ray, vLLM or plans.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.local import model

if TYPE_CHECKING:
    import torch

FOLDER = model.ROOT / "models" / "smollm2-135m-conductor"
ADAPTERS = model.ROOT / "adapters"
WEIGHTS = "model.safetensors"
PREFIX = "base_model.model."
MADE_FROM = "podium.json"
"""Says which adapter is in the weights."""


def shipped() -> Path:
    """The adapter that Podium ships.

    Raises:
        ModelError: there is none, or more than one.
    """
    found = sorted(folder for folder in ADAPTERS.glob("conductor@*") if (folder / "shipped").exists())
    if len(found) != 1:
        names = ", ".join(folder.name for folder in found) or "none"
        raise model.ModelError(
            f"adapters/ must have one folder with a file `shipped` in it; it has {names}. Check the checkout out again."
        )
    return found[0]


def is_ready(folder: Path, adapter: Path) -> bool:
    """Whether `folder` holds the finished model with this adapter."""
    if any(not (folder / name).is_file() for name in (*model.NEEDED_FILES, MADE_FROM)):
        return False
    try:
        return json.loads((folder / MADE_FROM).read_text("utf-8")).get("adapter") == adapter.name
    except (ValueError, AttributeError):  # cut off, or something else: it is made anew
        return False


def merged(
    base: dict[str, torch.Tensor], adapter: dict[str, torch.Tensor], scale: float
) -> dict[str, torch.Tensor]:
    """The base's weights, with the adapter's products added; in the base's type.

    Args:
        base: by name; each adapted matrix is (out, in).
        adapter: as PEFT saves it: `base_model.model.NAME.lora_A.weight` (r, in) and `.lora_B.weight` (out, r).
        scale: alpha / r.

    Raises:
        ModelError: the adapter is for another model.
    """
    result = dict(base)
    for name, a in adapter.items():
        if not name.endswith(".lora_A.weight"):
            continue
        target = name.removeprefix(PREFIX).replace(".lora_A.weight", ".weight")
        b = adapter[name.replace(".lora_A.", ".lora_B.")]
        if target not in base or base[target].shape != (b.shape[0], a.shape[1]):
            raise model.ModelError(
                f"the adapter changes {target}, which the base model does not have in that shape"
            )
        whole = base[target].float() + scale * (b.float() @ a.float())
        result[target] = whole.to(base[target].dtype)
    return result


def make(base: Path, adapter: Path, folder: Path) -> None:
    """Write the merged model to `folder`.

    Raises:
        ModelError: base and adapter do not fit, or one of them is not there or not whole.
        OSError: it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    for file in (base / WEIGHTS, adapter / "adapter_config.json", adapter / "adapter_model.safetensors"):
        if not file.is_file():
            raise model.ModelError(f"{file} is not there")
    config = json.loads((adapter / "adapter_config.json").read_text("utf-8"))
    try:
        tensors, products = load_file(base / WEIGHTS), load_file(adapter / "adapter_model.safetensors")
    except SafetensorError as error:
        raise model.ModelError(f"the weights of {base} or {adapter} cannot be read: {error}") from error
    weights = merged(tensors, products, config["lora_alpha"] / config["r"])
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for file in base.iterdir():
            if file.is_file() and file.name != WEIGHTS:
                shutil.copy2(file, work / file.name)
        save_file(weights, work / WEIGHTS, metadata={"format": "pt"})
        (work / MADE_FROM).write_text(
            json.dumps({"base": base.name, "adapter": adapter.name}) + "\n", encoding="utf-8"
        )
        if folder.exists():
            shutil.rmtree(folder)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main() -> int:
    """Command line: make the model where it is missing; 0 when it is there at the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, default=model.FOLDER)
    parser.add_argument("--adapter", type=Path, help="a folder; the shipped one where not given")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    try:
        adapter = given.adapter or shipped()
        if not is_ready(given.folder, adapter):
            make(given.base, adapter, given.folder)
    except model.ModelError as error:
        print(f"\nThe conductor's model could not be made: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"\nThe conductor's model could not be written to {given.folder}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; nothing half-made was left.", file=sys.stderr)
        return 130
    model.say(f"{given.folder.name} has {adapter.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
