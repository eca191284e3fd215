"""From one warm-started conductor, the same minutes of each way of learning, on one plot.

A finished run gives the start, the questions and the team. Each way goes on from its warm start by itself:
more of the warm start, the exact expected reward, or GRPO; every few minutes it is measured on held-out
questions, which does not count as its time. Writes `stages.json` and `stages.png`; a way that was measured
to its end is not run again.
"""
# The types of matplotlib, torch and transformers are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import TrainerCallback, set_seed

from training import grpo
from training.callbacks import ProgressBar
from training.config import Config, GrpoConfig, load
from training.data import assign_teams, eval_questions, training_questions
from training.examples import examples
from training.models import model_for, tokenizer_for
from training.policy_eval import evaluate_policy
from training.reward import PlanReward
from training.run import TrainingRun
from training.run_dir import RunDir, write_atomically
from training.supervised import learn
from training.team_question import TeamQuestion

WAYS = ("warm start", "expected reward", "GRPO")
EXAMPLES = 4_000
"""Drawn for a supervised way; more than it learns from in the minutes that it has."""
GRPO = GrpoConfig(
    steps=10_000,
    questions=4,
    completions=8,
    micro_batch=16,
    learning_rate=5e-5,
    schedule="constant_with_warmup",
    warmup_steps=2,
    loss="dapo",
    max_plan_tokens=64,
)
"""A batch that two cores sample and learn from in a minute or two."""


class Stopwatch(TrainerCallback):
    """Measures every so many minutes of training, and ends it after the last time.

    Args:
        every_s: seconds of training between two measurements.
        times: how many.
        measure: returns the share that is right.
    """

    def __init__(self, every_s: float, times: int, measure: Callable[[], float]) -> None:
        self.points: list[tuple[float, float]] = []
        self._every_s, self._times, self._measure = every_s, times, measure
        self._trained_s, self._since = 0.0, time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `TrainerCallback`."""
        self._since = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `TrainerCallback`."""
        trained_s = self._trained_s + time.monotonic() - self._since
        if trained_s >= self._every_s * (len(self.points) + 1):
            self.points.append((trained_s / 60, self._measure()))
            self._trained_s, self._since = trained_s, time.monotonic()
            control.should_training_stop = len(self.points) == self._times


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _parser().parse_args(argv)
    console, config = Console(), load(options.config)
    if not (options.run / "warm" / "weights.pt").exists():
        console.print(f"[red]{options.run} has no warm start; run `make train-conductor` first.[/red]")
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "stages.json"
    curves: dict[str, list[tuple[float, float]]] = (
        json.loads(file.read_text("utf-8")) if file.exists() else {}
    )
    for way in WAYS:
        if way not in curves:
            curves[way] = _curve(way, config, options)
            write_atomically(file, json.dumps(curves, indent=1) + "\n")
        console.print(way, *(f"{minutes:.1f} min {right:.3f}" for minutes, right in curves[way]), sep="  ")
    plot(curves, options.out / "stages.png")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.compare_stages", description=__doc__)
    add = parser.add_argument
    add("--config", default="training/configs/requests_and_recorded.yaml")
    add("--run", type=Path, default=Path("build/training/requests_and_recorded"), help="with a warm start")
    add("--out", type=Path, default=Path("build/stages"))
    add("--minutes", type=float, default=12, help="of training for each way")
    add("--times", type=int, default=3, help="measurements in these minutes")
    add("--questions", type=int, default=100, help="held out, of the recorded pool")
    return parser


def _curve(way: str, config: Config, options: argparse.Namespace) -> list[tuple[float, float]]:
    """What share of the held-out questions was right after how many minutes."""
    set_seed(config.seed)
    run = TrainingRun(config, RunDir(options.out))
    tokenizer = tokenizer_for(config.model, [])
    model: Any = model_for(config.model, tokenizer, config.seed)
    weights = torch.load(options.run / "warm" / "weights.pt", weights_only=True)
    model.load_state_dict(weights, strict=False)
    only = config.questions.also[0].model_copy(update={"share": 0.999})
    alone = config.model_copy(
        update={
            "questions": config.questions.model_copy(update={"also": (only,)}),
            "held_out": options.questions,
            "grpo": GRPO,
        }
    )
    held_out = [each for each in eval_questions(alone, run.runner().workers) if not each.members]

    def measure() -> float:
        found = evaluate_policy(model, tokenizer, run.runner(), held_out, GRPO.max_plan_tokens, batch=16)
        return found[held_out[0].question.source].right

    points = [(0.0, measure())]
    watch = Stopwatch(60 * options.minutes / options.times, options.times, measure)
    callbacks: list[TrainerCallback] = [ProgressBar(way), watch]
    if way == "GRPO":
        _sample(alone, run, model, tokenizer, options.out, callbacks)
    else:
        chosen = config.warm_start if way == "warm start" else config.expected_reward
        assert chosen is not None, "the config has all stages"
        drawn = examples(alone, run.runner(), EXAMPLES, f"compare {way}", with_rewards=way != "warm start")
        arguments = {
            "output_dir": str(options.out / "trainer"),
            "seed": config.seed,
            "bf16": config.model.mixed_precision,
            "use_cpu": not torch.cuda.is_available(),
            "save_strategy": "no",
            "disable_tqdm": True,
            "report_to": "none",
        }
        per_row = config.questions.requests_per_team
        learn(model, tokenizer, drawn, chosen, arguments, callbacks, per_row=per_row)
    return points + watch.points


def _sample(
    config: Config,
    run: TrainingRun,
    model: Any,
    tokenizer: Any,
    folder: Path,
    callbacks: Sequence[TrainerCallback],
) -> None:
    """GRPO on the same mix of questions, until a callback ends it."""
    runner = run.runner()
    count = 400 * config.grpo.questions
    prompts: list[TeamQuestion] = assign_teams(
        config, runner.workers, training_questions(config.questions, count), "compare"
    )
    reward = PlanReward(run.runner, prompts, [tokenizer.eos_token_id], 0.0, config.grpo.concurrency)
    trainer = grpo.trainer(
        config, model, tokenizer, reward, runner, grpo.rows(runner, prompts), folder, callbacks
    )
    try:
        trainer.train()
    finally:
        asyncio.run_coroutine_threadsafe(reward.aclose(), trainer.async_loop).result()


def plot(curves: dict[str, list[tuple[float, float]]], target: Path) -> None:
    """The share of right answers over minutes of training."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for way, points in curves.items():
        axes.plot([minutes for minutes, _ in points], [right for _, right in points], marker="o", label=way)
    axes.set(xlabel="minutes of training after the same warm start", ylabel="held-out questions right")
    axes.legend()
    figure.tight_layout()
    figure.savefig(target, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
