"""One training run from its config: warm start, GRPO, measured before and after. Can be stopped at any time and resumed."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, set_seed

from serving.settings import load as load_settings
from training import grpo
from training.callbacks import Bar, Curves, Interrupted, tensorboard
from training.config import Config
from training.data import Asked, drawn, held_out, training_questions
from training.examples import Example, examples
from training.folder import RunFolder
from training.measuring import fixed_workers, measure
from training.models import model_for, tokenizer_for
from training.remembering import Memory
from training.reward import PlanReward
from training.running import PlanRunner, training_pool
from training.warm_start import warm_start

WARM_SAVED_EVERY = 50
"""Steps of the warm start between two checkpoints."""


def processes() -> int:
    """On how many devices this run is, as torchrun, accelerate or Ray Train say it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@dataclass(slots=True)
class Stopped(Exception):
    """The run was stopped by a signal; it can be resumed."""

    step: int


@dataclass(slots=True)
class TrainingRun:
    """A run under way.

    Args:
        config: what to do.
        folder: where it is kept.
        processes: on so many devices.
        title: of its progress bars.
    """

    config: Config
    folder: RunFolder
    processes: int = 1
    title: str = ""

    def runner(self) -> PlanRunner:
        """A new runner over the pool, for one event loop."""
        settings = load_settings(self.config.pool.settings)
        memory = Memory(self.config.grpo.memory) if self.config.grpo.memory else None
        return PlanRunner(training_pool(settings, os.environ), self.config.pool.model, memory)

    def asked(self) -> list[Asked]:
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
        return examples(self.config, self.runner())

    def held_out(self) -> list[Asked]:
        """Questions for measuring."""
        return held_out(self.config, self.runner().workers)

    def run(self, callbacks: Sequence[TrainerCallback] = ()) -> dict[str, Any]:
        """All of it; the report.

        Raises:
            Stopped: by a signal; a checkpoint is there.
            SettingsError: something in the config cannot be used.
        """
        began, config = time.monotonic(), self.config
        set_seed(config.seed)
        asked, measured, shown = self.asked(), self.held_out(), self.examples()
        texts = [
            part for each in shown[:2000] for part in (*(turn["content"] for turn in each.prompt), each.plan)
        ]
        tokenizer = tokenizer_for(config.model, texts)
        model = model_for(config.model, tokenizer, config.seed)
        with Interrupted() as interrupted:
            model = self._warmed(model, tokenizer, shown, interrupted)
            before = self._measured("before", model, tokenizer, measured)
            trained = self._taught(model, tokenizer, asked, [interrupted, *callbacks])
            if interrupted.asked:
                raise Stopped(trained.state.global_step)
        trained.save_model(str(self.folder.final))
        after = self._measured("after", model, tokenizer, measured)
        report = {
            "name": config.name, "seed": config.seed, "before": before, "after": after,
            "fixed_workers": self._noted("fixed_workers", lambda: fixed_workers(self.runner(), measured)) if measured else {},
            "minutes": round((time.monotonic() - began) / 60, 2), "steps": trained.state.global_step,
            "parameters": sum(p.numel() for p in model.parameters()),
            "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        }  # fmt: skip
        self.folder.note("report", report)
        return report

    def _warmed(
        self, model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example],
        interrupted: Interrupted,
    ) -> PreTrainedModel | PeftModel:  # fmt: skip
        """The model after its warm start: done now, or read back where it was done before."""
        config = self.config.warm_start
        if config is None:
            return model
        weights = self.folder.warm / "weights.pt"
        if weights.exists():
            model.load_state_dict(torch.load(weights, weights_only=True), strict=False)
            return model
        bar = Bar(f"{self.title}warm start")
        arguments = {
            "output_dir": str(self.folder.path / "warm_checkpoints"), "seed": self.config.seed,
            "use_cpu": not torch.cuda.is_available(), "save_steps": WARM_SAVED_EVERY, "save_total_limit": 1, "disable_tqdm": True,
            "report_to": "none",
        }  # fmt: skip
        try:
            warm_start(
                model, tokenizer, examples, config, arguments, [
                    bar, interrupted, Curves(self.folder.path / "warm_curves.jsonl"),
                    tensorboard(self.folder.path / "warm_start"),
                ],
                resume=lambda: self.folder.checkpoint("warm_checkpoints"),
            )  # fmt: skip
        finally:
            bar.close()
        if interrupted.asked:
            raise Stopped(0)
        self.folder.warm.mkdir(exist_ok=True)
        kept = {name: tensor for name, tensor in model.state_dict().items() if not _frozen(model, name)}
        torch.save(kept, weights.with_suffix(".partial"))
        weights.with_suffix(".partial").replace(weights)
        return model

    def _taught(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        asked: list[Asked],
        callbacks: list[TrainerCallback],
    ) -> Any:
        bar, runner = Bar(f"{self.title}GRPO"), self.runner()
        questions = {each.question.id: each.question for each in asked}
        config = self.config.grpo
        reward = PlanReward(
            self.runner, questions, [tokenizer.eos_token_id], config.usd_weight, config.concurrency
        )
        seen = [tensorboard(self.folder.path), Curves(self.folder.curves), bar, *callbacks]
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
        return trainer

    def _measured(
        self, when: str, model: Any, tokenizer: PreTrainedTokenizerBase, held_out: list[Asked]
    ) -> dict[str, float]:
        """Figures of the held-out questions, greedy and sampled; kept, so that a resumed run does not measure again."""
        if not held_out:
            return {}

        def figures() -> dict[str, float]:
            tokens = self.config.grpo.max_plan_tokens
            greedy, _ = measure(model, tokenizer, self.runner(), held_out, tokens)
            state = torch.get_rng_state()
            torch.manual_seed(self.config.seed)
            sampled, _ = measure(model, tokenizer, self.runner(), held_out, tokens, temperature=1.0)
            torch.set_rng_state(state)
            return greedy.asdict() | {"sampled": sampled.right}

        return self._noted(when, figures)

    def _noted(self, name: str, make: Any) -> Any:
        if (noted := self.folder.noted(name)) is None:
            self.folder.note(name, noted := make())
        return noted


def _frozen(model: Any, name: str) -> bool:
    """Whether a weight is one that is not trained, and so not kept."""
    parameters = dict(model.named_parameters())
    return name in parameters and not parameters[name].requires_grad
