"""Adapters in PEFT's format, written by hand so that no model library is needed."""

import json
from pathlib import Path
from typing import Any

CONFIG = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "bias": "none", "use_dora": False,
    "modules_to_save": None, "init_lora_weights": True,
}  # fmt: skip
MODULE = "base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight"
Shapes = dict[str, tuple[int, ...]]


def lora(hidden: int = 8, rank: int = 2, layer: int = 0) -> Shapes:
    """Return the shapes of the matrices A and B of one square layer."""
    return {
        MODULE.format(layer=layer, part="A"): (rank, hidden),
        MODULE.format(layer=layer, part="B"): (hidden, rank),
    }


def safetensors(shapes: Shapes, fill: int = 0, dtype: str = "BF16") -> bytes:
    """Return a safetensors file with these shapes, filled with the byte `fill`."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, size = end, 2
        for side in shape:
            size *= side
        end = begin + size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    header_bytes = json.dumps(header).encode()
    return len(header_bytes).to_bytes(8, "little") + header_bytes + bytes([fill]) * end


def adapter(folder: Path, shapes: Shapes | None = None, fill: int = 0, **config: Any) -> Path:
    """Write an adapter to `folder`, with `config` over the default configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    (folder / "adapter_model.safetensors").write_bytes(safetensors(shapes or lora(), fill))
    return folder
