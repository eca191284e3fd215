"""`python -m training.stages`: what each stage of a run teaches in equal minutes, on one plot.

All begin with the same look-ups, where the config has such, and the same warm start. From there one goes on
with the warm start, one learns the exact expected reward of each choice, one learns by GRPO. The clock is this
process's CPU time, so that other work on the machine does not count; it includes drawing and running the
examples, and leaves out measuring. Writes `NAME.json` and `NAME.png` into `--out`. Knows no model but that of
its config.
"""
# The types of matplotlib, torch and transformers are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import torch
from rich.console import Console
from transformers import TrainerCallback, set_seed

from serving.settings.settings import SettingsError
from training.branch_attention import attend_plainly
from training.config import Config, load, parse
from training.curriculum.questions import RequestQuestion
from training.examples import Example, examples
from training.models import model_for, tokenizer_for
from training.policy_eval import score_policy
from training.report import stands_for
from training.run import TrainingRun
from training.run_dir import RunDir, write_atomically
from training.scoring import Score
from training.supervised import learn
from training.supervised_config import StageConfig
from training.team_question import TeamQuestion

Arm = Literal["warm", "expected", "grpo"]
ARMS: dict[Arm, str] = {"warm": "more of the warm start", "expected": "exact expected reward", "grpo": "GRPO"}
"""The stages, and what the plot calls them."""
Curves = dict[str, dict[Arm, list[dict[str, Any]]]]
"""By seed, the points of each stage's curve."""
ALL = "all held-out questions"
SKILLS = {1: "one skill", 2: "two skills"}
"""Kinds of the synthetic questions, by how many they take."""
COLUMNS = 3
"""Plots beside each other."""
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
    """One start, and each stage from it.

    Args:
        config: with all stages (`check`).
        folder: where the run is begun.
        minutes: of CPU time, for each stage.
        every_s: between two measurements.
    """

    config: Config
    folder: Path
    minutes: float
    every_s: float
    workers: str = field(default="", init=False)
    """What those of the held-out questions are, once it has run."""

    def run(self) -> dict[Arm, list[dict[str, Any]]]:
        """The points of each stage's curve; the first of each is the start.

        Raises:
            SettingsError: the config cannot be used.
        """
        config = self.config
        set_seed(config.seed)
        run = TrainingRun(config, RunDir.begin(self.folder, config, resume=False))
        run.check()
        held_out = run.eval_questions()
        kinds = {kind for found in run.provenance(held_out).values() for kind in found}
        self.workers = stands_for(sorted(kinds))
        shown = self._examples(run, "warm start", config.warm_start)
        tokenizer = tokenizer_for(config.model, texts(shown))
        model = model_for(config.model, tokenizer, config.seed)
        assert config.warm_start is not None, "`check` sees to it"
        if config.look_up:
            self._learn(run, model, tokenizer, run.examples("look_up"), config.look_up, [])
        self._learn(run, model, tokenizer, shown, config.warm_start, [])
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}

        def measure() -> dict[str, Any]:
            with attend_plainly(model):  # a supervised stage is in the middle of its rows
                scores = score_policy(model, tokenizer, run.runner(), held_out, config.grpo.max_plan_tokens)
            return figures(held_out, scores)

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
        self._learn(run, model, tokenizer, drawn, chosen, [clock])

    def _examples(
        self, run: TrainingRun, salt: str, chosen: StageConfig | None, *, with_rewards: bool = False
    ) -> list[Example]:
        assert chosen is not None, "`check` sees to it"
        return examples(self.config, run.runner(), chosen.examples, salt, with_rewards=with_rewards)

    def _learn(
        self,
        run: TrainingRun,
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
        per_row = run.examples_per_row(chosen)
        learn(model, tokenizer, shown, chosen, arguments, callbacks, per_row=per_row)


def figures(questions: Sequence[TeamQuestion], scores: Sequence[Score]) -> dict[str, Any]:
    """A point of a curve: the shares of rewarded plans, of all questions and of each kind, and of plans that run."""
    kinds: dict[str, list[bool]] = {}
    for each, found in zip(questions, scores, strict=True):
        kinds.setdefault(kind_of(each), []).append(found.right)
    return {
        "right": mean(each.right for each in scores),
        "parsed": mean(each.parsed for each in scores),
        "questions": len(scores),
        "kinds": {kind: mean(rights) for kind, rights in sorted(kinds.items())},
    }


def kind_of(question: TeamQuestion) -> str:
    """Of a request its kind, of a synthetic question how many skills it takes, of another one its source."""
    if isinstance(question, RequestQuestion):
        return question.request.kind.replace("_", " ")
    skills = len(question.question.facts.get("chain", ()))
    return SKILLS[min(skills, 2)] if skills else question.question.source


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


def plot(curves: Curves, workers: str, target: Path) -> None:
    """The shares of held-out questions that are right, over the minutes; a line a seed. All of them first, then
    each kind where there are several.

    Args:
        curves: by seed.
        workers: what they are, in words.
        target: the picture.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    kinds = sorted({kind for each in curves.values() for kind in each["warm"][0]["kinds"]})
    titles = [ALL, *(kinds if len(kinds) > 1 else [])]
    columns = min(len(titles), COLUMNS)
    rows = math.ceil(len(titles) / columns)
    size = (5 * columns, 4 * rows)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, sharey=True, squeeze=False)
    for axis, title in zip(grid.flat, titles, strict=False):
        for number, (arm, label) in enumerate(ARMS.items()):
            for first, each in enumerate(curves.values()):
                # A seed may have drawn none of a kind.
                points = [(point["minutes"], share(point, title)) for point in each[arm]]
                times, shares = zip(*points, strict=True)
                axis.plot(times, shares, color=f"C{number}", alpha=0.8, label=None if first else label)
        axis.set(title=title, xlabel="minutes of one core after the same warm start", ylim=(0, 1.05))
    for axis in grid.flat[len(titles) :]:
        axis.remove()
    grid[0, 0].set(ylabel="held-out questions answered rightly")
    grid[0, 0].legend()
    figure.suptitle(f"The three stages at equal minutes, a line a seed\n{workers}", fontsize="medium")
    figure.tight_layout()
    figure.savefig(target, dpi=120)
    pyplot.close(figure)


def share(point: Mapping[str, Any], title: str) -> float:
    """What a point says of all questions or of one kind; not a number where there was none of the kind."""
    return point["right"] if title == ALL else point["kinds"].get(title, math.nan)


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
    curves: Curves = {}
    workers = ""
    try:
        config = load(options.config)
        check(config)
        for seed in options.seeds:
            seeded = parse(config.model_dump(mode="json") | {"seed": seed}, "--seeds")
            with tempfile.TemporaryDirectory() as folder:
                comparison = Comparison(seeded, Path(folder) / "run", options.minutes, options.every_s)
                curves[str(seed)], workers = comparison.run(), comparison.workers
            show(console, seed, curves[str(seed)])
    except SettingsError as exc:
        console.print(f"[red]{exc.message}[/red]", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    options.out.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out / f"{config.name}.json", json.dumps(curves, indent=1) + "\n")
    plot(curves, workers, options.out / f"{config.name}.png")
    return 0


def show(console: Console, seed: int, curves: dict[Arm, list[dict[str, Any]]]) -> None:
    """Print where each stage of a seed ended."""
    for arm, points in curves.items():
        first, last = points[0], points[-1]
        kinds = ", ".join(f"{kind} {right:.3f}" for kind, right in last["kinds"].items())
        console.print(
            f"seed {seed}, {ARMS[arm]}: right {first['right']:.3f} to {last['right']:.3f} in "
            f"{last['minutes']:.1f} minutes ({kinds})",
            highlight=False,
        )


if __name__ == "__main__":
    sys.exit(main())
