"""`python -m training.stages`: compare what each stage of a run teaches in equal time, in one plot.

All stages start from the same look-ups, if the config has any, and the same warm start. One then continues
the warm start, one learns the exact expected reward of each choice, and one learns by GRPO. Time is this
process's CPU time, so that other load on the machine does not count. It includes drawing and running the
examples, but not measuring. Writes `NAME.json` and `NAME.png` to `--out`.
"""
# The types of matplotlib, torch and transformers are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, Literal

import torch
from rich.console import Console
from transformers import TrainerCallback, set_seed
from typer import Option

from podium.command_line import terminal
from podium.command_line.program import CommandError, Program
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
"""Stages that are compared, with their labels in the plot."""
Curves = dict[str, dict[Arm, list[dict[str, Any]]]]
"""Points of each stage's curve, by seed and stage."""
ALL = "all held-out questions"
SKILLS = {1: "one skill", 2: "two skills"}
"""Kinds of synthetic questions, by the number of skills that they take."""
COLUMNS = 3
"""Number of plots per row."""
MOST_EPOCHS = 1000
"""Number of epochs that no supervised stage reaches. The clock ends a stage, so its learning rate is nearly
constant.
"""


@dataclass(slots=True)
class Clock(TrainerCallback):
    """Callback that measures a policy periodically, and ends the training when its time is over.

    Args:
        minutes: the CPU time of the training in minutes.
        every_s: the CPU seconds between two measurements.
        measure: a function that returns the figures of the current policy.
    """

    minutes: float
    every_s: float
    measure: Callable[[], dict[str, Any]]
    points: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _began_s: float = field(default_factory=time.process_time)

    def note(self) -> None:
        """Measure the policy and add a point to the curve. The time for measuring does not count."""
        start = time.process_time()
        self.points.append({"minutes": round((start - self._began_s) / 60, 3)} | self.measure())
        self._began_s += time.process_time() - start

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        spent_s = time.process_time() - self._began_s
        if spent_s - 60 * self.points[-1]["minutes"] >= self.every_s:
            self.note()
        control.should_training_stop |= spent_s >= 60 * self.minutes


@dataclass(slots=True)
class Comparison:
    """Trains each stage from the same start.

    Args:
        config: a config with all stages; see `check`.
        folder: the folder of the run.
        minutes: the CPU time for each stage in minutes.
        every_s: the CPU seconds between two measurements.
    """

    config: Config
    folder: Path
    minutes: float
    every_s: float
    workers: str = field(default="", init=False)
    """Description of the held-out questions' workers, set by `run`."""

    def run(self) -> dict[Arm, list[dict[str, Any]]]:
        """Return the points of each stage's curve. The first point of every curve is the common start.

        Raises:
            SettingsError: the config cannot be used.
        """
        config = self.config
        set_seed(config.seed)
        run = TrainingRun(config, RunDir.begin(self.folder, config, resume=False))
        run.check()
        held_out = run.eval_questions()
        kinds = {kind for of_source in run.provenance(held_out).values() for kind in of_source}
        self.workers = stands_for(sorted(kinds))
        warm_examples = self._examples(run, "warm start", config.warm_start)
        tokenizer = tokenizer_for(config.model, texts(warm_examples))
        model = model_for(config.model, tokenizer, config.seed)
        assert config.warm_start is not None, "checked by `check`"
        if config.look_up:
            self._learn(run, model, tokenizer, run.examples("look_up"), config.look_up, [])
        self._learn(run, model, tokenizer, warm_examples, config.warm_start, [])
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}

        def measure() -> dict[str, Any]:
            with attend_plainly(model):  # this runs within a supervised stage
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
        config = self.config.warm_start if arm == "warm" else self.config.expected_reward
        assert config is not None, "checked by `check`"
        drawn = self._examples(run, f"{arm} at equal minutes", config, with_rewards=arm == "expected")
        config = config.model_copy(update={"epochs": MOST_EPOCHS})
        self._learn(run, model, tokenizer, drawn, config, [clock])

    def _examples(
        self, run: TrainingRun, salt: str, config: StageConfig | None, *, with_rewards: bool = False
    ) -> list[Example]:
        assert config is not None, "checked by `check`"
        return examples(self.config, run.runner(), config.examples, salt, with_rewards=with_rewards)

    def _learn(
        self,
        run: TrainingRun,
        model: Any,
        tokenizer: Any,
        drawn: Sequence[Example],
        config: StageConfig,
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
        per_row = run.examples_per_row(config)
        learn(model, tokenizer, drawn, config, arguments, callbacks, per_row=per_row)


def figures(questions: Sequence[TeamQuestion], scores: Sequence[Score]) -> dict[str, Any]:
    """Return a point of a curve: the share of right answers, in total and by kind, and the share of plans
    that can run.
    """
    kinds: dict[str, list[bool]] = {}
    for each, score in zip(questions, scores, strict=True):
        kinds.setdefault(kind_of(each), []).append(score.right)
    return {
        "right": mean(each.right for each in scores),
        "parsed": mean(each.parsed for each in scores),
        "questions": len(scores),
        "kinds": {kind: mean(rights) for kind, rights in sorted(kinds.items())},
    }


def kind_of(question: TeamQuestion) -> str:
    """Return the kind of a question: a request's kind, a synthetic question's number of skills, or another
    question's source.
    """
    if isinstance(question, RequestQuestion):
        return question.request.kind.replace("_", " ")
    skills = len(question.question.facts.get("chain", ()))
    return SKILLS[min(skills, 2)] if skills else question.question.source


def texts(drawn: Sequence[Example]) -> list[str]:
    """Return the texts that train the tokenizer of a model from scratch."""
    return [text for each in drawn[:2000] for text in (*(turn["content"] for turn in each.prompt), each.plan)]


def check(config: Config) -> None:
    """Check that all stages can be compared.

    Raises:
        SettingsError: a stage is missing, or there are no held-out questions.
    """
    missing = [name for name in ("warm_start", "expected_reward", "held_out") if not getattr(config, name)]
    missing += [] if config.grpo.steps else ["grpo.steps"]
    if missing:
        raise SettingsError(
            f"A comparison of stages needs a config with warm_start, expected_reward, grpo.steps and held_out. Add {missing[0]}."
        )


def plot(curves: Curves, workers: str, target: Path) -> None:
    """Plot the share of held-out questions that are answered correctly over time, with one line per seed.

    The first plot is for all questions. If there are several kinds of questions, one plot for each follows.

    Args:
        curves: the curves by seed.
        workers: the description of the workers.
        target: the file of the picture.
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
                # A seed may have no question of a kind.
                points = [(point["minutes"], share(point, title)) for point in each[arm]]
                times, shares = zip(*points, strict=True)
                axis.plot(times, shares, color=f"C{number}", alpha=0.8, label=None if first else label)
        axis.set(title=title, xlabel="minutes of one core after the same warm start", ylim=(0, 1.05))
    for axis in grid.flat[len(titles) :]:
        axis.remove()
    grid[0, 0].set(ylabel="share of held-out questions answered correctly")
    grid[0, 0].legend()
    figure.suptitle(f"The three stages in equal time, one line per seed\n{workers}", fontsize="medium")
    figure.tight_layout()
    figure.savefig(target, dpi=120)
    pyplot.close(figure)


def share(point: Mapping[str, Any], title: str) -> float:
    """Return a point's share for all questions or for one kind. It is NaN if there is no question of the
    kind.
    """
    return point["right"] if title == ALL else point["kinds"].get(title, math.nan)


main = Program("python -m training.stages")


@main.command()
def run(
    config: str = "training/configs/stages.yaml",
    minutes: Annotated[float, Option(help="CPU time of each stage in minutes")] = 2.0,
    every_s: Annotated[float, Option(help="CPU time between measurements in seconds")] = 10.0,
    seeds: Annotated[list[int] | None, Option(metavar="SEED...", show_default="0, 1, 2")] = None,
    out: Path = Path("build"),
) -> int:
    """Compare a run's stages in equal CPU time. Exit with 0 if done, 1 for an invalid config, 130 if stopped."""
    console = terminal.console(errors=True)
    curves: Curves = {}
    workers = ""
    try:
        parsed = load(config)
        check(parsed)
        for seed in seeds or (0, 1, 2):
            seeded = parse(parsed.model_dump(mode="json") | {"seed": seed}, "--seeds")
            with tempfile.TemporaryDirectory() as folder:
                comparison = Comparison(seeded, Path(folder) / "run", minutes, every_s)
                curves[str(seed)], workers = comparison.run(), comparison.workers
            show(console, seed, curves[str(seed)])
    except SettingsError as exc:
        raise CommandError(exc.message) from exc
    except KeyboardInterrupt:
        return 130
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f"{parsed.name}.json", json.dumps(curves, indent=1) + "\n")
    plot(curves, workers, out / f"{parsed.name}.png")
    return 0


def show(console: Console, seed: int, curves: dict[Arm, list[dict[str, Any]]]) -> None:
    """Print where each stage started and ended, for one seed."""
    for arm, points in curves.items():
        first, last = points[0], points[-1]
        kinds = ", ".join(f"{kind} {right:.3f}" for kind, right in last["kinds"].items())
        console.print(
            f"seed {seed}, {ARMS[arm]}: share of right answers {first['right']:.3f} to {last['right']:.3f} in "
            f"{last['minutes']:.1f} minutes ({kinds})",
            highlight=False,
        )


if __name__ == "__main__":
    sys.exit(main())
