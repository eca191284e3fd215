"""A resumable training run with its stages: look-ups, warm start, expected reward and GRPO."""
# The types of accelerate and torch are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import PartialState
from transformers import TrainerCallback, set_seed

from serving.settings.settings import load as load_settings
from training import data, grpo
from training.caching_worker import CallCache
from training.callbacks import CurveLog, ProgressBar, StopSignal, tensorboard
from training.config import Config
from training.data import assign_teams, eval_questions, training_questions
from training.examples import Example, examples
from training.look_up_examples import look_up_examples
from training.models import keep_of_start, model_for, tokenizer_for
from training.plan_runner import PlanRunner, training_pool
from training.policy_eval import PolicyMetrics, metrics_by_source, score_policy, solo_accuracy, sources
from training.run_dir import RunDir, digests
from training.supervised import learn
from training.supervised_config import LookUpConfig, StageConfig
from training.team_question import TeamQuestion
from training.trl_reward import PlanReward

CHECKPOINT_EVERY = 50
"""Number of steps between two checkpoints of a supervised stage."""
COLLATORS = 4
"""Processes that prepare batches for a GPU. One would take as long as the learning."""
Stage = Literal["look_up", "warm", "expected"]
BARS: dict[Stage, str] = {"look_up": "look-ups", "warm": "warm start", "expected": "expected reward"}
"""Supervised stages in their order, with the labels of their progress bars."""


@dataclass(slots=True)
class RunStopped(Exception):
    """A signal stopped the run, which can be resumed."""

    step: int


@dataclass(slots=True)
class TrainingRun:
    """Training run in progress, by processes that train together, one per device."""

    config: Config
    run_dir: RunDir
    processes: int = 1

    def runner(self) -> PlanRunner:
        settings = load_settings(self.config.pool.settings)
        cache = CallCache(self.config.grpo.memory) if self.config.grpo.memory else None
        return PlanRunner(training_pool(settings, os.environ), self.config.pool.model, cache)

    def prompts(self) -> list[TeamQuestion]:
        """Return the questions in the order of the steps, each twice if there is a second round."""
        config = self.config
        questions = training_questions(config.questions, config.grpo.steps * config.grpo.questions)
        rows = assign_teams(config, self.runner().workers, questions, "pools")
        return [each for each in rows for _ in range(2 if config.grpo.recursion else 1)]

    def eval_questions(self) -> list[TeamQuestion]:
        return eval_questions(self.config, self.runner().workers)

    def examples(self, stage: Stage = "warm") -> list[Example]:
        """Return the examples of a supervised stage, or none if the config lacks it."""
        config = self._stage(stage)
        if config is None:
            return []

        def draw() -> list[dict[str, Any]]:
            if stage == "look_up":
                drawn = look_up_examples(self.config, self.runner())
            else:
                is_warm = stage == "warm"
                salt = "warm start" if is_warm else stage
                drawn = examples(self.config, self.runner(), config.examples, salt, with_rewards=not is_warm)
            return [asdict(each) for each in drawn]

        name = "examples" if stage == "warm" else f"{stage}_examples"
        return [Example(**each) for each in self._once(name, draw)]

    def _stage(self, stage: Stage) -> StageConfig | None:
        config = self.config
        stages: dict[Stage, StageConfig | None] = {
            "look_up": config.look_up,
            "warm": config.warm_start,
            "expected": config.expected_reward,
        }
        return stages[stage]

    def examples_per_row(self, stage: StageConfig) -> int:
        if isinstance(stage, LookUpConfig):
            return stage.per_team + stage.named_per_team + stage.of_parts_per_team
        return self.config.questions.requests_per_team

    def check(self) -> None:
        """Check everything that can be checked before spending hours or machines."""
        self._check_inputs()
        self.prompts()
        self.eval_questions()

    def _check_inputs(self) -> None:
        """Check everything that takes only seconds and needs no examples."""
        grpo.check(self.config, self.processes)
        digests(self.config)
        data.check(self.config, self.runner().workers)

    def run(self, callbacks: Sequence[TrainerCallback] = ()) -> dict[str, Any]:
        """Train, and return the report. After RunStopped there is a checkpoint. Finished stages are always
        kept.
        """
        start, earlier = time.monotonic(), self.run_dir.load("minutes") or 0.0
        try:
            report = self._run(callbacks)
        finally:
            minutes = round(earlier + (time.monotonic() - start) / 60, 2)
            self.run_dir.save("minutes", minutes)
        report["minutes"] = minutes
        self.run_dir.save("report", report)
        return report

    def _run(self, callbacks: Sequence[TrainerCallback]) -> dict[str, Any]:
        config = self.config
        self._check_inputs()
        self._wait_for_all()  # until the main process has created the folder
        set_seed(config.seed)
        prompts, held_out, warm_examples = self.prompts(), self.eval_questions(), self.examples()
        sample = prompts or assign_teams(
            config, self.runner().workers, training_questions(config.questions, 100), "pools"
        )
        provenance = self._once("provenance", lambda: self.provenance([*held_out, *sample]))
        texts = [
            text
            for each in warm_examples[:2000]
            for text in (*(turn["content"] for turn in each.prompt), each.plan)
        ]
        tokenizer = tokenizer_for(config.model, texts)
        model = model_for(config.model, tokenizer, config.seed)
        self._learn("look_up", model, tokenizer, self.examples("look_up"))
        self._learn("warm", model, tokenizer, warm_examples)
        if config.expected_reward:
            self._measure("warm_started", model, tokenizer, held_out)
            self._learn("expected", model, tokenizer, self.examples("expected"))
        if config.model.lora and config.model.lora.kept:
            keep_of_start(model, config.model.lora)
        before = self._measure("before", model, tokenizer, held_out)
        if config.grpo.steps:
            self.train_by_grpo(model, tokenizer, prompts, callbacks).save_model(str(self.run_dir.final))
        elif self.run_dir.is_main:
            model.save_pretrained(str(self.run_dir.final))
            tokenizer.save_pretrained(str(self.run_dir.final))
        after = self._measure("after", model, tokenizer, held_out)

        def solo() -> dict[str, Any]:
            accuracies = solo_accuracy(self.runner(), held_out)
            return {source: asdict(each) for source, each in accuracies.items()}

        return {
            "name": config.name,
            "seed": config.seed,
            "provenance": provenance,
            "warm_started": self.run_dir.load("warm_started"),
            "before": before,
            "after": after,
            "alone": self._once("alone", solo),
            "steps": config.grpo.steps,
            "parameters": sum(p.numel() for p in model.parameters()),
            "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        }

    def provenance(self, questions: list[TeamQuestion]) -> dict[str, list[str]]:
        """Return the kinds of workers by source: `synthetic`, `model`, or others of `Pool.provenance`."""
        kinds = self.runner().pool.provenance
        workers: dict[str, set[str]] = {source: set() for source in sources(questions)}
        for each in questions:
            used = {"synthetic"} if each.members else {kinds.get(name, "model") for name in each.workers}
            workers[each.question.source].update(used)
        return {source: sorted(used) for source, used in workers.items()}

    def _learn(self, stage: Stage, model: Any, tokenizer: Any, examples: list[Example]) -> None:
        """Train `model` on the examples. If the stage is already done, load its weights."""
        config, weights = self._stage(stage), self.run_dir.path / stage / "weights.pt"
        if config is None:
            return
        if weights.exists():
            model.load_state_dict(torch.load(weights, weights_only=True), strict=False)
            return
        bar = ProgressBar(BARS[stage])
        arguments = {
            "output_dir": str(self.run_dir.path / f"{stage}_checkpoints"),
            "seed": self.config.seed,
            "bf16": self.config.model.mixed_precision,
            "use_cpu": not torch.cuda.is_available(),
            "dataloader_num_workers": COLLATORS if torch.cuda.is_available() else 0,
            "save_steps": CHECKPOINT_EVERY,
            "save_total_limit": 1,
            "disable_tqdm": True,
            "report_to": "none",
        }
        with StopSignal() as stop:
            logs = self._loggers(self.run_dir.path / stage, self.run_dir.path / f"{stage}_curves.jsonl")
            try:
                learn(
                    model,
                    tokenizer,
                    examples,
                    config,
                    arguments,
                    [bar, stop, *logs],
                    per_row=self.examples_per_row(config),
                    resume=lambda: self.run_dir.checkpoint(f"{stage}_checkpoints"),
                )
            finally:
                bar.close()
            if stop.requested:
                raise RunStopped(0)
        if self.run_dir.is_main:
            weights.parent.mkdir(exist_ok=True)
            torch.save(_trainable_weights(model), weights.with_suffix(".partial"))
            weights.with_suffix(".partial").replace(weights)
        self._wait_for_all()

    def _loggers(self, events: Path, curves: Path) -> list[TrainerCallback]:
        """Return the callbacks that write curves. Only the main process has any."""
        return [tensorboard(events), CurveLog(curves)] if self.run_dir.is_main else []

    def train_by_grpo(
        self, model: Any, tokenizer: Any, prompts: list[TeamQuestion], callbacks: Sequence[TrainerCallback]
    ) -> Any:
        bar, runner, config = ProgressBar("GRPO"), self.runner(), self.config.grpo
        reward = PlanReward(
            self.runner, prompts, [tokenizer.eos_token_id], config.usd_weight, config.concurrency
        )
        with StopSignal() as stop:
            trainer = grpo.trainer(
                self.config,
                model,
                tokenizer,
                reward,
                runner,
                grpo.rows(runner, prompts),
                self.run_dir.path,
                [*self._loggers(self.run_dir.path, self.run_dir.curves), bar, stop, *callbacks],
                self.processes,
            )
            try:
                trainer.train(resume_from_checkpoint=self.run_dir.checkpoint("checkpoints"))
            finally:
                bar.close()
                asyncio.run_coroutine_threadsafe(reward.aclose(), trainer.async_loop).result()
            if stop.requested:
                raise RunStopped(trainer.state.global_step)
        return trainer

    def _measure(
        self, when: str, model: Any, tokenizer: Any, held_out: list[TeamQuestion]
    ) -> dict[str, dict[str, float | None]]:
        """Measure greedy and sampled plans on held-out questions, by source. A resumed run reuses the
        figures.
        """

        def figures() -> dict[str, dict[str, float | None]]:
            tokens = self.config.grpo.max_plan_tokens

            def measure(temperature: float) -> dict[str, PolicyMetrics]:
                runner = self.runner()
                scores = score_policy(model, tokenizer, runner, held_out, tokens, temperature=temperature)
                return metrics_by_source(held_out, scores)

            greedy = measure(0.0)
            state = torch.get_rng_state()
            torch.manual_seed(self.config.seed)
            sampled = measure(1.0)
            torch.set_rng_state(state)
            return {
                source: each.asdict() | {"sampled": sampled[source].right} for source, each in greedy.items()
            }

        return self._once(when, figures)

    def _once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the value saved under `name`. If there is none, the main process computes and saves it."""
        if self.run_dir.is_main and self.run_dir.load(name) is None:
            self.run_dir.save(name, compute())
        self._wait_for_all()
        return self.run_dir.load(name)

    def _wait_for_all(self) -> None:
        """Wait for the other processes, so that none reads a file before it is written."""
        if self.processes > 1:
            PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()


def _trainable_weights(model: Any) -> dict[str, torch.Tensor]:
    """Return the unfrozen parameters with duplicates, because a tied head has two names."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    frozen = {name for name, parameter in parameters.items() if not parameter.requires_grad}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}
