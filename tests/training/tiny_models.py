"""Conductor of a few thousand weights, for tests that train a step or two."""

from pathlib import Path
from typing import Any

import yaml

from training.config import Config, parse

POOL = """
conductor: {worker: conductor, constrained: false, max_plan_tokens: 32}
prompts: {conductor: "Plan.", steps: "", worker: "{number}: {card}"}
workers:
  - {name: conductor, kind: scripted, in_pool: false}
  - {name: adder, kind: python, factory: "evaluation.synthetic.skills:Skill", options: {families: [arithmetic]}, card: arithmetic}
  - {name: speller, kind: python, factory: "evaluation.synthetic.skills:Skill", options: {families: [strings]}, card: strings}
models: {m: {max_steps: 2}}
"""


def config(folder: Path, pool: str = POOL, **changes: Any) -> Config:
    """Return a config for a run of seconds. `changes` replaces values of its sections."""
    settings = folder / "pool.yaml"
    settings.write_text(pool, encoding="utf-8")
    data = yaml.safe_load(
        """
        name: test
        model: {scratch: {hidden: 32, layers: 1, heads: 1, vocabulary: 400}}
        questions: {families: [arithmetic, strings], composite_share: 0}
        warm_start: {examples: 2400, batch: 16, learning_rate: 0.01, prompt_weight: 0.0, step_shares: [1.0], subtask: "{card}"}
        grpo: {steps: 4, questions: 2, completions: 4, micro_batch: 8, learning_rate: 0.001, schedule: constant, warmup_steps: 0,
               loss: dapo, max_plan_tokens: 24}
        held_out: 0
        checkpoint_every: 2
        """
    )
    data["pool"] = {"settings": str(settings), "model": "m"}
    for name, value in changes.items():
        data[name] = (
            {**data[name], **value} if isinstance(value, dict) and isinstance(data.get(name), dict) else value
        )
    return parse(data)
