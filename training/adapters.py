"""Publish the adapter of a finished run for serving: check it, name it after its content, and write its model
card.

Each name identifies one content and is never reused (`serving.lora.adapters`).
"""
# The types of safetensors are partial.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from safetensors import SafetensorError
from typer import Argument, Option

from conductor.errors import PodiumError
from podium.command_line.program import CommandError, Program
from serving.lora import adapters
from serving.settings.settings import SettingsError
from training.config import LORA_RANKS, Config, load
from training.published_pool import dump_public_pool
from training.report import stands_for, tables
from training.run_dir import write_error

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
COPIES = (
    *("config.yaml", "inputs.json", "report.json", "versions.json"),
    *("curves.jsonl", "look_up_curves.jsonl", "warm_curves.jsonl", "expected_curves.jsonl"),
)
"""Files of the run that are copied. The copy of the pool has only its public part (`dump_public_pool`)."""
POOL = "pool.yaml"
AGAIN = "Finish the run with podium train --resume."
LABEL = "conductor"
LICENCE = "apache-2.0"


def unservable(config: Mapping[str, Any]) -> list[str]:
    """Return the reasons why vLLM 0.29 cannot serve an adapter with this PEFT config."""
    get, rank = config.get, config.get("r")
    modules: str | list[str] = get("target_modules") or []
    targets = {modules} if isinstance(modules, str) else {*modules}
    faults = {
        f"its type is {get('peft_type')} instead of LORA": get("peft_type") != "LORA",
        f"its rank {rank} is not one of {', '.join(map(str, LORA_RANKS))}": rank not in LORA_RANKS,
        f"it trains biases ({get('bias')})": get("bias", "none") != "none",
        f"it replaces whole modules ({get('modules_to_save')})": get("modules_to_save"),
        "it uses DoRA": get("use_dora"),
        "it uses rsLoRA, which older servers read as plain LoRA": get("use_rslora"),
        "its rank or alpha differs between modules": get("rank_pattern") or get("alpha_pattern"),
        "it changes the embeddings or the output head": {"lm_head", "embed_tokens"} & targets,
    }
    return [fault for fault, applies in faults.items() if applies]


def publish(run: Path, into: Path, *, base: str | None = None) -> Path:
    """Export the adapter of a finished run to a new folder `into/conductor@xxxxxxxx`, completely or not at
    all. `base` is the base model's name for the card. The SettingsError lists every reason.
    """
    source, config = run / "final", load(run / "config.yaml")
    if not (source / CONFIG).exists() or not (source / WEIGHTS).exists():
        raise SettingsError(f"{source} has no adapter. Set `model.lora` in the config, and finish the run.")
    adapter, report = _read_object(source / CONFIG), _read_object(run / "report.json")
    if faults := unservable(adapter):
        raise SettingsError(f"The adapter in {source} cannot be served: {'; '.join(faults)}.")
    with tempfile.TemporaryDirectory(prefix="podium-adapter-") as temporary:
        folder, model = Path(temporary), base or str(config.model.path)
        _write_bfloat16(source / WEIGHTS, folder / WEIGHTS)
        text = json.dumps(adapter | {"base_model_name_or_path": model}, indent=1) + "\n"
        (folder / CONFIG).write_text(text, "utf-8")
        for file in filter(Path.exists, (run / name for name in COPIES)):
            shutil.copyfile(file, folder / file.name)
        if (pool := run / POOL).exists():
            (folder / POOL).write_text(dump_public_pool(pool), "utf-8")
        name = adapters.name_with_digest(LABEL, folder)
        (folder / "README.md").write_text(_card(report, config, name, model), "utf-8")
        return adapters.publish(folder, into, LABEL)


def _read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or {} if there is no file."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise SettingsError(f"{path} is not valid JSON: {exc}. {AGAIN}") from exc
    if not isinstance(value, dict):
        raise SettingsError(f"{path} is not a JSON object. {AGAIN}")
    return cast(dict[str, Any], value)


def _write_bfloat16(source: Path, target: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    try:
        weights = load_file(source)
    except SafetensorError as exc:
        raise SettingsError(f"{source} is corrupt: {exc}. {AGAIN}") from exc
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_file(tensors, target, metadata={"format": "pt"})


def _card(report: Mapping[str, Any], config: Config, name: str, base: str) -> str:
    lora = config.model.lora
    start = [f"starting from {lora.start}"] if lora and lora.start else []
    sources = [config.questions.source, *(each.train for each in config.questions.also)]
    kinds = [f"{source}: {stands_for(kinds)}" for source, kinds in report.get("provenance", {}).items()]
    return f"""---
base_model: {base}
license: {LICENCE}
library_name: peft
tags: [{", ".join(["podium", "conductor", "lora", *_stages(config)])}]
---
# {name}

A LoRA adapter (rank {lora.rank if lora else "?"}, bfloat16) that makes {base} write plans for Podium.

* **Questions**: {", ".join(sources)}; seed {config.questions.seed}.
* **Pool**: {Path(config.pool.settings).name} (pool.yaml here), model {config.pool.model}; \
the workers are in a new random order for each question.
* **Workers**: {"; ".join(kinds) or "unknown"}.
* **Training**: {", then ".join([*start, *_stages(config)])}; details in config.yaml. {report.get("minutes", "?")} minutes.
* **Measured**: {_format_figures(report)}
"""


def _format_figures(report: Mapping[str, Any]) -> str:
    """Return the report's figures, or a note if the run had no held-out questions."""
    count = sum(int(figures["questions"]) for figures in report.get("after", {}).values())
    if not count:
        return "the run held no questions out."
    how = "unconstrained decoding, no repair of plans, greedy unless stated otherwise"
    return f"{count} questions held out, {how}.\n\n{tables(report)}"


def _stages(config: Config) -> list[str]:
    """Return the run's stages, by the names that the Hugging Face hub uses."""
    stages = {
        "sft": config.look_up or config.warm_start,
        "expected-reward": config.expected_reward,
        "grpo": config.grpo.steps,
    }
    return [name for name, present in stages.items() if present]


main = Program("python -m training.adapters")


@main.command()
def publish_run(
    run: Annotated[Path, Argument(help="folder of the run, such as build/training/requests")],
    into: Annotated[Path, Option(help="folder from which the server loads adapters")],
    base: Annotated[str | None, Option(help="public name of the base model, for the model card")] = None,
) -> int:
    """Publish the adapter of a finished run."""
    try:
        published = publish(run, into, base=base)
    except PodiumError as exc:
        raise CommandError(exc.message) from exc
    except (OSError, SafetensorError) as exc:
        raise CommandError(
            f"The adapter of {run} cannot be published in {into}: {write_error(exc) or exc}. "
            "Set --into to a writable folder on a disk with enough free space."
        ) from exc
    sys.stdout.write(f"{published}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
