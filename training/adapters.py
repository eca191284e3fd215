"""From a trained run to an adapter that serves: checked, named after its weights, published with its card.

The name stands for this content and is never reused (`serving.lora.adapters`).
"""
# The types of safetensors are partial.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from serving.lora import adapters
from serving.settings.settings import SettingsError
from training.config import LORA_RANKS, Config, load
from training.report import stands_for, tables
from training.supervised_config import StageConfig, WarmStartConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
COPIES = (
    *("config.yaml", "pool.yaml", "inputs.json", "report.json", "versions.json"),
    *("curves.jsonl", "look_up_curves.jsonl", "warm_curves.jsonl", "expected_curves.jsonl"),
)
"""Files of the run that go with the adapter."""
LABEL = "conductor"
LICENCE = "apache-2.0"


def unservable(config: Mapping[str, Any]) -> list[str]:
    """Why vLLM 0.29 cannot serve an adapter with this PEFT config; empty where it can."""
    get, rank = config.get, config.get("r")
    modules: str | list[str] = get("target_modules") or []
    targets = {modules} if isinstance(modules, str) else {*modules}
    faults = {
        f"it is of type {get('peft_type')}, not LORA": get("peft_type") != "LORA",
        f"its rank is {rank}, not one of {', '.join(map(str, LORA_RANKS))}": rank not in LORA_RANKS,
        f"it trains biases ({get('bias')})": get("bias", "none") != "none",
        f"it replaces whole modules ({get('modules_to_save')})": get("modules_to_save"),
        "it is a DoRA": get("use_dora"),
        "it is scaled by rsLoRA, which older servers read as plain LoRA": get("use_rslora"),
        "its ranks differ from module to module": get("rank_pattern") or get("alpha_pattern"),
        "it changes the embeddings or the head": {"lm_head", "embed_tokens"} & targets,
    }
    return [why for why, found in faults.items() if found]


def publish(run: Path, into: Path, *, base: str | None = None) -> Path:
    """Export the adapter of a finished run to the folder `into/conductor@xxxxxxxx`.

    Args:
        run: the run's folder.
        into: where adapters are served from. The new one appears there whole or not at all.
        base: the base model's name on the card; the config's path where not given.

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
    with tempfile.TemporaryDirectory(prefix="podium-adapter-") as temporary:
        folder, model = Path(temporary), base or str(config.model.path)
        _write_bfloat16(source / WEIGHTS, folder / WEIGHTS)
        text = json.dumps(adapter | {"base_model_name_or_path": model}, indent=1) + "\n"
        (folder / CONFIG).write_text(text, "utf-8")
        for file in filter(Path.exists, (run / name for name in COPIES)):
            shutil.copyfile(file, folder / file.name)
        name = adapters.name_with_digest(LABEL, folder)
        (folder / "README.md").write_text(_card(run, config, name, model), "utf-8")
        return adapters.publish(folder, into, LABEL)


def _write_bfloat16(source: Path, target: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in load_file(source).items()}
    save_file(tensors, target, metadata={"format": "pt"})


def _card(run: Path, config: Config, name: str, base: str) -> str:
    file = run / "report.json"
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    rank = config.model.lora.rank if config.model.lora else "?"
    kinds = [f"{source}: {stands_for(kinds)}" for source, kinds in report.get("provenance", {}).items()]
    measured = sum(int(figures["questions"]) for figures in report.get("after", {}).values())
    return f"""---
base_model: {base}
license: {LICENCE}
library_name: peft
tags: [podium, conductor, lora, grpo]
---
# {name}

A LoRA adapter (rank {rank}, bfloat16) that makes {base} write plans for Podium.

* **Questions**: {_questions(config)}; seed {config.questions.seed}.
* **Pool**: {Path(config.pool.settings).name} (pool.yaml here), model {config.pool.model}; \
the workers' order is drawn anew for each question.
* **Workers**: {"; ".join(kinds) or "not said"}.
* **Training**: {_stages(config)}; all of it in config.yaml. {report.get("minutes", "?")} minutes.
* **Measured**: {measured} questions held out, plans unconstrained, nothing repaired, \
greedy where not said otherwise.

{tables(report) if report else "Not measured."}
"""


def _questions(config: Config) -> str:
    """Every source, with its share."""
    also = config.questions.also
    own = {
        "skills": "SYNTHETIC questions about small skills (evaluation/synthetic)",
        "requests": "SYNTHETIC requests, each to a team of its own (training/curriculum)",
        "jsonl": f"questions from {Path(str(config.questions.path)).name}",
    }[config.questions.source]
    shares = [f"{1 - sum(each.share for each in also):.0%} {own}"]
    for each in also:
        limit = f" of at most {each.max_chars} characters" if each.max_chars else ""
        shares.append(f"{each.share:.0%} {each.train}{limit}")
    return "; ".join(shares)


def _stages(config: Config) -> str:
    """What it learned from, in the order of the stages."""
    warm, expected, grpo = config.warm_start, config.expected_reward, config.grpo
    lora = config.model.lora
    stages = [f"what {lora.start} had learned"] if lora and lora.start else []
    if config.look_up:
        look_up = config.look_up
        named = " and, as often, requests whose field is named" if look_up.named_per_team else ""
        stages.append(f"{_count(look_up)} look-ups of a card by a few words{named}")
    if warm:
        origin = (
            "the worker worth most, by how often it is right less its dollars"
            if config.worth
            else _drawn(warm)
        )
        if config.questions.source == "requests":
            best = "the best plan of each request, known to the program that drew its team"
            origin = f"{best}; of the others, {origin}" if config.questions.also else best
        stages.append(f"a warm start on {_count(warm)} plans ({origin})")
    if expected:
        stages.append(f"the exact expected reward of each choice on {_count(expected)} more")
    if grpo.steps:
        stages.append(
            f"GRPO, {grpo.steps} steps of {grpo.questions} questions x {grpo.completions} completions"
        )
    return ", then ".join(stages)


def _count(stage: StageConfig) -> str:
    """Examples that were learned from, each as often as it was."""
    return f"{stage.examples * stage.epochs:,.0f}"


def _drawn(warm: WarmStartConfig) -> str:
    """Where plans that were drawn at random came from."""
    kinds = {
        f"the {warm.choose} right one of at most {warm.best_of} that were drawn and run": warm.rewarded_share,
        "drawn and never run": 1 - warm.rewarded_share,
    }
    return ", ".join(f"{share:.0%} {what}" for what, share in kinds.items() if share)


def main(argv: Sequence[str] | None = None) -> int:
    """Publish a run's adapter; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.adapters", description="Publish a run's adapter."
    )
    parser.add_argument("run", type=Path, help="the run's folder, such as build/training/requests")
    parser.add_argument(
        "--into", type=Path, required=True, help="the folder that the server loads adapters from"
    )
    parser.add_argument("--base", help="the base model's public name, for the card")
    options = parser.parse_args(argv)
    console = Console()
    try:
        console.print(str(publish(options.run, options.into, base=options.base)), highlight=False)
    except SettingsError as exc:
        console.print(f"[red]{exc.message}[/red]")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
