"""From a trained run to an adapter that serves: checked, named after its weights, published whole, with its card.

The name says what is in it, and is never used for anything else (`serving.adapters`).
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from serving import adapters
from serving.settings import SettingsError
from training.config import LORA_RANKS, Config, load
from training.report import stands_for, tables

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LABEL = "conductor"
LICENCE = "apache-2.0"


def unservable(config: Mapping[str, Any]) -> list[str]:
    """Why vLLM 0.29 could not serve an adapter with this PEFT config; empty where it can."""
    rank = config.get("r")
    faults = [
        (config.get("peft_type") != "LORA", f"it is of type {config.get('peft_type')}, not LORA"),
        (rank not in LORA_RANKS, f"its rank is {rank}, not one of {', '.join(map(str, LORA_RANKS))}"),
        (config.get("bias", "none") != "none", f"it trains biases ({config.get('bias')})"),
        (bool(config.get("modules_to_save")), f"it replaces whole modules ({config.get('modules_to_save')})"),
        (bool(config.get("use_dora")), "it is a DoRA"),
        (bool(config.get("use_rslora")), "it is scaled by rsLoRA, which older servers read as plain LoRA"),
        (
            bool(config.get("rank_pattern")) or bool(config.get("alpha_pattern")),
            "its ranks differ from module to module",
        ),
        (bool({"lm_head", "embed_tokens"} & set(_targets(config))), "it changes the embeddings or the head"),
    ]
    return [why for is_so, why in faults if is_so]


def _targets(config: Mapping[str, Any]) -> list[str]:
    targets = config.get("target_modules") or []
    return [targets] if isinstance(targets, str) else list(targets)


def publish(run: Path, into: Path, *, base: str | None = None) -> Path:
    """Export the adapter of a finished run to the folder `into/conductor@xxxxxxxx`.

    Args:
        run: the run's folder.
        into: where adapters are served from. The new one appears there whole or not at all.
        base: what the card calls the base model; the config's path where not given.

    Raises:
        SettingsError: the run has no adapter, or one that cannot be served; every reason is named.
    """
    source, config = run / "final", load(run / "config.yaml")
    if not (source / CONFIG).exists() or not (source / WEIGHTS).exists():
        raise SettingsError(f"{source} holds no adapter. Finish the run, and give its config `model.lora`.")
    try:
        adapter = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    except ValueError as exc:
        raise SettingsError(
            f"{source / CONFIG} is not whole: {exc}. Train the run to its end again (--resume)."
        ) from exc
    if faults := unservable(adapter):
        raise SettingsError(f"The adapter in {source} cannot be served: {'; '.join(faults)}.")
    with tempfile.TemporaryDirectory(prefix="podium-adapter-") as folder:
        made = Path(folder)
        _as_bfloat16(source / WEIGHTS, made / WEIGHTS)
        named = base or str(config.model.path)
        (made / CONFIG).write_text(
            json.dumps(adapter | {"base_model_name_or_path": named}, indent=1) + "\n", "utf-8"
        )
        for kept in (
            "config.yaml",
            "pool.yaml",
            "inputs.json",
            "report.json",
            "versions.json",
            "curves.jsonl",
            "warm_curves.jsonl",
        ):
            if (run / kept).exists():
                shutil.copyfile(run / kept, made / kept)
        name = adapters.versioned(LABEL, made)
        (made / "README.md").write_text(_card(run, name, named), "utf-8")
        return adapters.publish(made, into, LABEL)


def _as_bfloat16(source: Path, target: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in load_file(source).items()}
    save_file(tensors, target, metadata={"format": "pt"})


def _card(run: Path, name: str, base: str) -> str:
    config, report = load(run / "config.yaml"), _json(run / "report.json")
    rank = config.model.lora.rank if config.model.lora else "?"
    return f"""---
base_model: {base}
license: {LICENCE}
library_name: peft
tags: [podium, conductor, lora, grpo]
---
# {name}

A LoRA adapter (rank {rank}, bfloat16) that makes {base} write plans for Podium.

* **Questions**: {_questions(config)}; seed {config.questions.seed}.
* **Pool**: {Path(config.pool.settings).name} (pool.yaml here), model {config.pool.model}; the workers' order is drawn anew for each question.
* **Workers**: {"; ".join(f"{source}: {stands_for(kinds)}" for source, kinds in report.get("provenance", {}).items()) or "not said"}.
* **Training**: {_warm_start(config)}GRPO, {config.grpo.steps} steps of {config.grpo.questions} questions x {config.grpo.completions} \
completions; all of it in config.yaml. {report.get("minutes", "?")} minutes.
* **Measured**: {_held_out(report)} questions held out, plans unconstrained, nothing repaired, greedy where not said otherwise.

{tables(report) if report else "Not measured."}
"""


def _held_out(report: Mapping[str, Any]) -> int:
    """How many questions were measured, of all sources."""
    return sum(int(figures["questions"]) for figures in report.get("after", {}).values())


def _questions(config: Config) -> str:
    """Every source, with its share."""
    also = config.questions.also
    own = (
        "SYNTHETIC questions about small skills (evaluation/synthetic)"
        if config.questions.source == "skills"
        else f"questions from {Path(str(config.questions.path)).name}"
    )
    rest = 1 - sum(each.share for each in also)
    return "; ".join(
        [f"{rest:.0%} {own}"]
        + [
            f"{each.share:.0%} {each.train}"
            + (f" of at most {each.max_chars} characters" if each.max_chars else "")
            for each in also
        ]
    )


def _warm_start(config: Config) -> str:
    """How the examples of the warm start were come by."""
    warm = config.warm_start
    if warm is None:
        return ""
    kinds = [
        f"{share:.0%} {what}"
        for share, what in (
            (
                warm.rewarded_share,
                f"the {warm.choose} right one of at most {warm.best_of} that were drawn and run",
            ),
            (1 - warm.rewarded_share, "drawn and never run"),
        )
        if share
    ]
    return f"a warm start on {warm.examples} plans ({', '.join(kinds)}), then "


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def main(arguments: list[str] | None = None) -> int:
    """`python -m training.adapters RUN --into FOLDER`."""
    parser = argparse.ArgumentParser(
        prog="python -m training.adapters", description="Publish a run's adapter."
    )
    parser.add_argument("run", type=Path, help="the run's folder, such as build/training/cpu")
    parser.add_argument(
        "--into", type=Path, required=True, help="the folder that the server loads adapters from"
    )
    parser.add_argument("--base", help="the base model's public name, for the card")
    given = parser.parse_args(arguments)
    console = Console()
    try:
        console.print(str(publish(given.run, given.into, base=given.base)), highlight=False)
    except SettingsError as exc:
        console.print(f"[red]{exc.message}[/red]")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
