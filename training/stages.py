"""`python -m training.stages`: what each stage of a run teaches in equal minutes, on one plot.

All begin with the same warm start. From there one goes on with the warm start, one learns the exact expected
reward of each choice, one learns by GRPO. The clock is this process's CPU time, so that other work on the
machine does not count; it includes drawing and running the examples, and leaves out measuring. Writes
`NAME.json` and `NAME.png` into `--out`. Knows no model but that of its config.
"""
# The types of matplotlib, torch and transformers are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from transformers import TrainerCallback, set_seed

from serving.settings.settings import SettingsError
from training.config import Config, load, parse
from training.examples import Example, examples
from training.models import model_for, tokenizer_for
from training.policy_eval import evaluate_policy
from training.run import TrainingRun
from training.run_dir import RunDir, write_atomically
from training.supervised import learn
from training.supervised_config import StageConfig

Arm = Literal["warm", "expected", "grpo"]
ARMS: dict[Arm, str] = {"warm": "more of the warm start", "expected": "exact expected reward", "grpo": "GRPO"}
"""The stages, and what the plot calls them."""
SHARES = {"single": "questions of one skill", "composite": "questions of two skills"}
MOST_EPOCHS = 1000
"""The clock ends a supervised stage, not its examples; so the learning rate is as good as constant."""


@dataclass(slots=True)
class Clock(TrainerCallback):
    """Measures a policy every so often, and ends its training when the time is over.

    Args:
        minutes: of CPU time.
        every_s: between two measurements, likewise.
        measure: the figures of the policy as it is.
    """

    minutes: float
    every_s: float
    measure: Callable[[], dict[str, Any]]
    points: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _began_s: float = field(default_factory=time.process_time)

    def note(self) -> None:
        """Add a point; the time that it takes does not count."""
        start = time.process_time()
        self.points.append({"minutes": round((start - self._began_s) / 60, 3)} | self.measure())
        self._began_s += time.process_time() - start

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `TrainerCallback`."""
        spent_s = time.process_time() - self._began_s
        if spent_s - 60 * self.points[-1]["minutes"] >= self.every_s:
            self.note()
        control.should_training_stop |= spent_s >= 60 * self.minutes


@dataclass(slots=True)
class Comparison:
    """One start, and each stage from it."""

    config: Config
    folder: Path
    minutes: float
    every_s: float

    def run(self) -> dict[Arm, list[dict[str, Any]]]:
        """The points of each stage's curve; the first of each is the start.

        Raises:
            SettingsError: the config cannot be used.
        """
        config = self.config
        set_seed(config.seed)
        run = TrainingRun(config, RunDir.begin(self.folder, config, resume=False))
        shown = self._examples(run, "warm start", config.warm_start)
        tokenizer = tokenizer_for(config.model, texts(shown))
        model = model_for(config.model, tokenizer, config.seed)
        assert config.warm_start is not None, "`check` sees to it"
        self._learn(model, tokenizer, shown, config.warm_start, [])
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        held_out = run.eval_questions()

        def measure() -> dict[str, Any]:
            found = evaluate_policy(model, tokenizer, run.runner(), held_out, config.grpo.max_plan_tokens)
            (figures,) = found.values()
            return figures.asdict()

        curves: dict[Arm, list[dict[str, Any]]] = {}
        for arm in ARMS:
            model.load_state_dict(start)
            set_seed(config.seed)
            clock = Clock(self.minutes, self.every_s, measure)
            clock.note()
            self._train(arm, run, model, tokenizer, clock)
            clock.note()
            curves[arm] = clock.points
        return curves

    def _train(self, arm: Arm, run: TrainingRun, model: Any, tokenizer: Any, clock: Clock) -> None:
        if arm == "grpo":
            run.train_by_grpo(model, tokenizer, run.prompts(), [clock])
            return
        chosen = self.config.warm_start if arm == "warm" else self.config.expected_reward
        assert chosen is not None, "`check` sees to it"
        drawn = self._examples(run, f"{arm} at equal minutes", chosen, with_rewards=arm == "expected")
        chosen = chosen.model_copy(update={"epochs": MOST_EPOCHS})
        self._learn(model, tokenizer, drawn, chosen, [clock])

    def _examples(
        self, run: TrainingRun, salt: str, chosen: StageConfig | None, *, with_rewards: bool = False
    ) -> list[Example]:
        assert chosen is not None, "`check` sees to it"
        return examples(self.config, run.runner(), chosen.examples, salt, with_rewards=with_rewards)

    def _learn(
        self,
        model: Any,
        tokenizer: Any,
        shown: Sequence[Example],
        chosen: StageConfig,
        callbacks: list[TrainerCallback],
    ) -> None:
        arguments = {
            "output_dir": str(self.folder / "supervised"),
            "seed": self.config.seed,
            "bf16": self.config.model.mixed_precision,
            "use_cpu": not torch.cuda.is_available(),
            "save_strategy": "no",
            "disable_tqdm": True,
            "report_to": "none",
        }
        per_row = self.config.questions.requests_per_team
        learn(model, tokenizer, shown, chosen, arguments, callbacks, per_row=per_row)


def texts(shown: Sequence[Example]) -> list[str]:
    """What a tokenizer from nothing is made of."""
    return [text for each in shown[:2000] for text in (*(turn["content"] for turn in each.prompt), each.plan)]


def check(config: Config) -> None:
    """Whether all stages can be compared.

    Raises:
        SettingsError: one is missing, or there is nothing to measure by.
    """
    missing = [name for name in ("warm_start", "expected_reward", "held_out") if not getattr(config, name)]
    missing += [] if config.grpo.steps else ["grpo.steps"]
    if missing:
        raise SettingsError(
            f"Stages are compared where a config has all of them; this one lacks {missing[0]}."
        )


def plot(curves: dict[str, dict[Arm, list[dict[str, Any]]]], target: Path) -> None:
    """The shares of held-out questions that are right, over the minutes; a line a seed."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(SHARES), figsize=(10, 4), sharey=True)
    for axis, (share, title) in zip(axes, SHARES.items(), strict=True):
        for number, (arm, label) in enumerate(ARMS.items()):
            for first, each in enumerate(curves.values()):
                times = [point["minutes"] for point in each[arm]]
                shares = [point[share] for point in each[arm]]
                axis.plot(times, shares, color=f"C{number}", alpha=0.8, label=None if first else label)
        axis.set(title=title, xlabel="minutes of one core after the same warm start", ylim=(0, 1.05))
    axes[0].set(ylabel="held-out questions answered rightly")
    axes[0].legend()
    figure.suptitle("The three stages at equal minutes, a line a seed; synthetic questions and workers")
    figure.tight_layout()
    figure.savefig(target, dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare; the exit code: 0 done, 1 it cannot be done as asked, 130 stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m training.stages", description="Compare a run's stages at equal minutes."
    )
    parser.add_argument("--config", default="training/configs/stages.yaml")
    parser.add_argument("--minutes", type=float, default=2.0, help="of CPU time, a stage (%(default)s)")
    parser.add_argument("--every-s", type=float, default=10.0, help="between measurements (%(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--out", type=Path, default=Path("build"))
    options, console = parser.parse_args(argv), Console(stderr=True)
    curves: dict[str, dict[Arm, list[dict[str, Any]]]] = {}
    try:
        config = load(options.config)
        check(config)
        for seed in options.seeds:
            seeded = parse(config.model_dump(mode="json") | {"seed": seed}, "--seeds")
            with tempfile.TemporaryDirectory() as folder:
                curves[str(seed)] = Comparison(
                    seeded, Path(folder) / "run", options.minutes, options.every_s
                ).run()
            show(console, seed, curves[str(seed)])
    except SettingsError as exc:
        console.print(f"[red]{exc.message}[/red]", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    options.out.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out / f"{config.name}.json", json.dumps(curves, indent=1) + "\n")
    plot(curves, options.out / f"{config.name}.png")
    return 0


def show(console: Console, seed: int, curves: dict[Arm, list[dict[str, Any]]]) -> None:
    """Print where each stage of a seed ended."""
    for arm, points in curves.items():
        first, last = points[0], points[-1]
        console.print(
            f"seed {seed}, {ARMS[arm]}: right {first['right']:.3f} to {last['right']:.3f} in "
            f"{last['minutes']:.1f} minutes (one skill {last['single']:.3f}, two {last['composite']:.3f})",
            highlight=False,
        )


if __name__ == "__main__":
    sys.exit(main())
