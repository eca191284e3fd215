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
from typing import Any, cast

from rich.console import Console
from safetensors import SafetensorError

from conductor.errors import PodiumError
from serving.lora import adapters
from serving.settings.settings import SettingsError
from training.config import LORA_RANKS, Config, load
from training.published_pool import published_pool
from training.report import stands_for, tables
from training.run_dir import write_error
from training.supervised_config import StageConfig, WarmStartConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
COPIES = (
    *("config.yaml", "inputs.json", "report.json", "versions.json"),
    *("curves.jsonl", "look_up_curves.jsonl", "warm_curves.jsonl", "expected_curves.jsonl"),
)
"""Files of the run that go with the adapter as they are; of its pool goes what everybody may read (`published_pool`)."""
POOL = "pool.yaml"
AGAIN = "Train the run to its end again (podium train --resume)."
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
            (folder / POOL).write_text(published_pool(pool), "utf-8")
        name = adapters.name_with_digest(LABEL, folder)
        (folder / "README.md").write_text(_card(report, config, name, model), "utf-8")
        return adapters.publish(folder, into, LABEL)


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON file's object; empty where there is no file."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise SettingsError(f"{path} is not whole: {exc}. {AGAIN}") from exc
    if not isinstance(found, dict):
        raise SettingsError(f"{path} is no JSON object. {AGAIN}")
    return cast(dict[str, Any], found)


def _write_bfloat16(source: Path, target: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    try:
        found = load_file(source)
    except SafetensorError as exc:
        raise SettingsError(f"{source} is not whole: {exc}. {AGAIN}") from exc
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in found.items()}
    save_file(tensors, target, metadata={"format": "pt"})


def _card(report: Mapping[str, Any], config: Config, name: str, base: str) -> str:
    rank = config.model.lora.rank if config.model.lora else "?"
    kinds = [f"{source}: {stands_for(kinds)}" for source, kinds in report.get("provenance", {}).items()]
    return f"""---
base_model: {base}
license: {LICENCE}
library_name: peft
tags: [{", ".join(_tags(config))}]
---
# {name}

A LoRA adapter (rank {rank}, bfloat16) that makes {base} write plans for Podium.

* **Questions**: {_questions(config)}; seed {config.questions.seed}.
* **Pool**: {Path(config.pool.settings).name} (pool.yaml here), model {config.pool.model}; \
the workers' order is drawn anew for each question.
* **Workers**: {"; ".join(kinds) or "not said"}.
* **Training**: {_stages(config)}; all of it in config.yaml. {report.get("minutes", "?")} minutes.
* **Measured**: {_held_out_figures(report)}
"""


def _held_out_figures(report: Mapping[str, Any]) -> str:
    """The report's figures; where the run held no questions out, where others are."""
    count = sum(int(figures["questions"]) for figures in report.get("after", {}).values())
    if not count:
        return "not by the run, which held no questions out."
    how = "plans unconstrained, nothing repaired, greedy where not said otherwise"
    return f"{count} questions held out, {how}.\n\n{tables(report)}"


def _tags(config: Config) -> list[str]:
    """The stages that there were, in the hub's words where it has some."""
    stages = {
        "sft": config.look_up or config.warm_start,
        "expected-reward": config.expected_reward,
        "grpo": config.grpo.steps,
    }
    return ["podium", "conductor", "lora", *(name for name, found in stages.items() if found)]


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
        rows = look_up.examples * look_up.epochs / look_up.per_team
        beside = (
            f" and up to {rows * count:,.0f} requests of {what}"
            for what, count in (("one part", look_up.named_per_team), ("several", look_up.of_parts_per_team))
            if count
        )
        stages.append(f"{_count(look_up)} look-ups of a card by a few words{''.join(beside)}")
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
    if lora and lora.kept:
        stages.append(f"the mean of all this, weight by weight, with the start, {lora.kept:g} of it")
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
    console = Console(stderr=True, soft_wrap=True)
    try:
        published = publish(options.run, options.into, base=options.base)
    except PodiumError as exc:
        console.print(exc.message, style="red", markup=False, highlight=False)
        return 1
    except (OSError, SafetensorError) as exc:
        told = (
            f"The adapter of {options.run} cannot be published in {options.into}: {write_error(exc) or exc}. "
            "Give --into a folder that can be made and written to, and that has room."
        )
        console.print(told, style="red", markup=False, highlight=False)
        return 1
    sys.stdout.write(f"{published}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
