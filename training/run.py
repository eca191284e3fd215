"""One training run from its config: warm start, GRPO, measured before and after. Can be stopped at any time and resumed."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, set_seed

from serving.settings import load as load_settings
from training import grpo
from training.caching_worker import CallCache
from training.callbacks import CurveLog, ProgressBar, StopSignal, tensorboard
from training.config import Config
from training.data import TeamQuestion, drawn, held_out, training_questions
from training.examples import Example, examples
from training.models import model_for, tokenizer_for
from training.plan_runner import PlanRunner, training_pool
from training.policy_eval import alone, measure, sources
from training.reward import PlanReward
from training.run_dir import RunDir
from training.warm_start import warm_start

WARM_SAVED_EVERY = 50
"""Steps of the warm start between two checkpoints."""


@dataclass(slots=True)
class RunStopped(Exception):
    """The run was stopped by a signal; it can be resumed."""

    step: int


@dataclass(slots=True)
class TrainingRun:
    """A run under way.

    Args:
        config: what to do.
        folder: where it is kept; begun by the process that leads.
        processes: on so many devices, one each.
        title: of its progress bars.
    """

    config: Config
    folder: RunDir
    processes: int = 1
    title: str = ""

    def runner(self) -> PlanRunner:
        """A new runner over the pool, for one event loop."""
        settings = load_settings(self.config.pool.settings)
        memory = CallCache(self.config.grpo.memory) if self.config.grpo.memory else None
        return PlanRunner(training_pool(settings, os.environ), self.config.pool.model, memory)

    def asked(self) -> list[TeamQuestion]:
        """What is asked, in the order of the steps; twice each where there is a second round."""
        grpo_config = self.config.grpo
        count = grpo_config.steps * grpo_config.questions
        rows = drawn(
            self.config, self.runner().workers, training_questions(self.config.questions, count), "pools"
        )
        return [each for each in rows for _ in range(2 if grpo_config.recursion else 1)]

    def examples(self) -> list[Example]:
        """Of the warm start."""
        if self.config.warm_start is None:
            return []
        made = self._noted(
            "examples", lambda: [asdict(each) for each in examples(self.config, self.runner())]
        )
        return [Example(**each) for each in made]

    def held_out(self) -> list[TeamQuestion]:
        """Questions for measuring."""
        return held_out(self.config, self.runner().workers)

    def check(self) -> None:
        """Look at all that can be looked at before hours of work, or machines, are spent.

        Raises:
            SettingsError: the pool, the questions or the batch cannot be used.
        """
        grpo.check(self.config, self.processes)
        self.asked(), self.held_out()

    def run(self, callbacks: Sequence[TrainerCallback] = ()) -> dict[str, Any]:
        """All of it; the report.

        Raises:
            Stopped: by a signal while it trained; a checkpoint is there.
            KeyboardInterrupt: between the trainings; what was finished is there.
            SettingsError: something in the config cannot be used.
        """
        began, before = time.monotonic(), self.folder.noted("minutes") or 0.0
        try:
            report = self._run(callbacks)
        finally:
            self.folder.note("minutes", minutes := round(before + (time.monotonic() - began) / 60, 2))
        report["minutes"] = minutes
        self.folder.note("report", report)
        return report

    def _run(self, callbacks: Sequence[TrainerCallback]) -> dict[str, Any]:
        config = self.config
        grpo.check(config, self.processes)
        self._together()  # the process that leads has begun the folder
        set_seed(config.seed)
        asked, measured, shown = self.asked(), self.held_out(), self.examples()
        provenance = self._noted("provenance", lambda: self._provenance([*measured, *asked]))
        texts = [
            part for each in shown[:2000] for part in (*(turn["content"] for turn in each.prompt), each.plan)
        ]
        tokenizer = tokenizer_for(config.model, texts)
        model = model_for(config.model, tokenizer, config.seed)
        model = self._warmed(model, tokenizer, shown)
        before = self._measured("before", model, tokenizer, measured)
        trained = self._taught(model, tokenizer, asked, callbacks)
        trained.save_model(str(self.folder.final))
        after = self._measured("after", model, tokenizer, measured)
        return {
            "name": config.name,
            "seed": config.seed,
            "provenance": provenance,
            "before": before,
            "after": after,
            "alone": self._noted(
                "alone",
                lambda: {source: asdict(each) for source, each in alone(self.runner(), measured).items()},
            ),
            "steps": trained.state.global_step,
            "parameters": sum(p.numel() for p in model.parameters()),
            "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        }

    def _provenance(self, asked: list[TeamQuestion]) -> dict[str, list[str]]:
        """By the questions' source, what stands behind the workers that are asked: `model`, or what else `Pool.provenance` has."""
        kinds = self.runner().pool.provenance
        return {
            source: sorted(
                {
                    kinds.get(name, "model")
                    for each in asked
                    if each.question.source == source
                    for name in each.workers
                }
            )
            for source in sources(asked)
        }

    def _warmed(
        self, model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example]
    ) -> PreTrainedModel | PeftModel:
        """The model after its warm start: done now, or read back where it was done before."""
        config = self.config.warm_start
        if config is None:
            return model
        weights = self.folder.warm / "weights.pt"
        if weights.exists():
            model.load_state_dict(torch.load(weights, weights_only=True), strict=False)
            return model
        bar = ProgressBar(f"{self.title}warm start")
        arguments = {
            "output_dir": str(self.folder.path / "warm_checkpoints"),
            "seed": self.config.seed,
            "use_cpu": not torch.cuda.is_available(),
            "save_steps": WARM_SAVED_EVERY,
            "save_total_limit": 1,
            "disable_tqdm": True,
            "report_to": "none",
        }
        with StopSignal() as interrupted:
            seen = self._seen(self.folder.path / "warm_start", self.folder.path / "warm_curves.jsonl")
            try:
                warm_start(
                    model,
                    tokenizer,
                    examples,
                    config,
                    arguments,
                    [bar, interrupted, *seen],
                    resume=lambda: self.folder.checkpoint("warm_checkpoints"),
                )
            finally:
                bar.close()
            if interrupted.asked:
                raise RunStopped(0)
        if self.folder.leads:
            self.folder.warm.mkdir(exist_ok=True)
            kept = {name: tensor for name, tensor in model.state_dict().items() if not _frozen(model, name)}
            torch.save(kept, weights.with_suffix(".partial"))
            weights.with_suffix(".partial").replace(weights)
        self._together()
        return model

    def _seen(self, events: Path, curves: Path) -> list[TrainerCallback]:
        """Where curves are written to."""
        return [tensorboard(events), CurveLog(curves)] if self.folder.leads else []

    def _taught(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        asked: list[TeamQuestion],
        callbacks: Sequence[TrainerCallback],
    ) -> Any:
        """The trainer, at its end."""
        bar, runner, config = ProgressBar(f"{self.title}GRPO"), self.runner(), self.config.grpo
        questions = {each.question.id: each.question for each in asked}
        reward = PlanReward(
            self.runner, questions, [tokenizer.eos_token_id], config.usd_weight, config.concurrency
        )
        with StopSignal() as interrupted:
            seen = [*self._seen(self.folder.path, self.folder.curves), bar, interrupted, *callbacks]
            trainer = grpo.trainer(
                self.config,
                model,
                tokenizer,
                reward,
                runner,
                grpo.rows(runner, asked),
                self.folder.path,
                seen,
                self.processes,
            )
            try:
                trainer.train(resume_from_checkpoint=self.folder.checkpoint("checkpoints"))
            finally:
                bar.close()
                asyncio.run_coroutine_threadsafe(reward.aclose(), trainer.async_loop).result()
            if interrupted.asked:
                raise RunStopped(trainer.state.global_step)
        return trainer

    def _measured(
        self, when: str, model: Any, tokenizer: PreTrainedTokenizerBase, held_out: list[TeamQuestion]
    ) -> dict[str, dict[str, float | None]]:
        """Figures of the held-out questions by source, greedy and sampled; kept, so that a resumed run does not measure again."""

        def figures() -> dict[str, dict[str, float | None]]:
            tokens = self.config.grpo.max_plan_tokens
            greedy = measure(model, tokenizer, self.runner(), held_out, tokens)
            state = torch.get_rng_state()
            torch.manual_seed(self.config.seed)
            sampled = measure(model, tokenizer, self.runner(), held_out, tokens, temperature=1.0)
            torch.set_rng_state(state)
            return {
                source: each.asdict() | {"sampled": sampled[source].right} for source, each in greedy.items()
            }

        return self._noted(when, figures)

    def _noted(self, name: str, make: Callable[[], Any]) -> Any:
        """What is noted under `name`; made now, by the process that leads, where nothing is."""
        if self.folder.leads and self.folder.noted(name) is None:
            self.folder.note(name, make())
        self._together()
        return self.folder.noted(name)

    def _together(self) -> None:
        """Wait for the other processes, so that none reads what another one has not written yet."""
        if self.processes > 1:
            PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()


def _frozen(model: Any, name: str) -> bool:
    """Whether a weight is one that is not trained, and so not kept."""
    parameters = dict(
        model.named_parameters(remove_duplicate=False)
    )  # a head that is the embedding has two names
    return name in parameters and not parameters[name].requires_grad
