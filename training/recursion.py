"""Two rounds in one GRPO step: first plans, and second plans that are written after reading a first plan's
outcome.

This uses TRL's `rollout_func` (1.16, experimental), because the prompt of a second round is known only after
the first round has run. The rows of a step are pairs of groups about the same question. The completions of
the first group are first plans. Those of the second group are second plans, each about the first plan at the
same position. Each round therefore has its own baseline, as in the paper (arXiv 2512.04388, appendix A.1),
and half of the samples belong to the second round.

Generation uses transformers on one process. vLLM or several processes would need a generation of their own
here.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from training.generation import Completion, generate
from training.plan_runner import Chat, PlanRunner
from training.reward import Score
from training.trl_reward import PlanReward, figures

Rollout = tuple[int, list[str]]
"""The number of a question's row, and the texts of its plans so far."""


class TwoRounds:
    """`rollout_func` with its reward function.

    Args:
        rows: the number of the question's row by prompt (`key`).
        group: the number of completions per question and round.
        discount: the weight d. The first plan's reward is (1 - d) r0 + d r1, and the second plan's is r1.
    """

    def __init__(
        self, reward: PlanReward, runner: PlanRunner, rows: dict[str, int], group: int, discount: float
    ) -> None:
        self._reward, self._runner, self._rows = reward, runner, rows
        self._group, self._discount = group, discount

    def __call__(self, prompts: list[Chat], trainer: Any) -> dict[str, Any]:
        """Complete `prompts`, which are pairs of groups, and return the columns that the reward needs."""
        group = self._group
        if len(prompts) % (2 * group):
            raise ValueError(
                f"{len(prompts)} prompts cannot be divided into pairs of groups of {group}. "
                "Set micro_batch to the batch of a whole step"
            )
        positions = [index for index in range(len(prompts)) if index // group % 2 == 0]
        numbers = [self._rows[key(prompts[index])] for index in positions]
        first = self._generate([prompts[index] for index in positions], trainer)
        first_scores = self._score(
            [(row, [c.text]) for row, c in zip(numbers, first, strict=True)], first, trainer
        )
        second = self._generate(
            [
                self._revision(row, c.text, s.record.answer)
                for row, c, s in zip(numbers, first, first_scores, strict=True)
            ],
            trainer,
        )
        rollouts: list[Rollout] = [
            (row, [one.text, two.text] if s.parsed and s.record.answer else [two.text])
            for row, one, two, s in zip(numbers, first, second, first_scores, strict=True)
        ]
        second_scores = self._score(rollouts, second, trainer)
        rows: dict[int, tuple[Completion, float | None]] = {}
        for at, one, two, r0, r1 in zip(positions, first, second, first_scores, second_scores, strict=True):
            worth = blend(r0.reward, r1.reward, self._discount) if r0.parsed else r0.reward
            rows[at], rows[at + group] = (one, worth), (two, r1.reward if r0.parsed else None)
        ordered = [rows[index] for index in range(len(prompts))]
        metrics = round_figures(self._runner, rollouts, first_scores, second_scores)
        return {
            "prompt_ids": [completion.prompt_ids for completion, _ in ordered],
            "completion_ids": [completion.ids for completion, _ in ordered],
            "logprobs": None,
            "worth": [worth for _, worth in ordered],
            "metrics": [metrics] * len(prompts),
        }

    async def reward(
        self, completions: Sequence[Any], worth: Sequence[float | None], **columns: Any
    ) -> list[float | None]:
        """Return the rewards. The rollout has already run the plans and computed them."""
        for name, value in columns["metrics"][0].items():
            columns["log_metric"](name, value)
        return list(worth)

    def _revision(self, row: int, plan: str, outcome: str) -> Chat:
        return self._runner.revision(self._reward.question(row), plan, outcome or "(nothing)")

    def _score(
        self, rollouts: Sequence[Rollout], completions: Sequence[Completion], trainer: Any
    ) -> list[Score]:
        async def run() -> list[Score]:
            pairs = zip(rollouts, completions, strict=True)
            return await asyncio.gather(*(self._reward.score(*r, ended=c.ended) for r, c in pairs))

        return asyncio.run_coroutine_threadsafe(run(), trainer.async_loop).result()

    def _generate(self, prompts: Sequence[Chat], trainer: Any) -> list[Completion]:
        model, args = trainer.accelerator.unwrap_model(trainer.model), trainer.args
        tokens = args.max_completion_length
        return generate(model, trainer.processing_class, prompts, tokens, args.temperature)


def key(prompt: Chat) -> str:
    return json.dumps([[turn["role"], turn["content"]] for turn in prompt])


def blend(first: float | None, second: float | None, discount: float) -> float | None:
    """Return the reward of the first plan, or None if one of the two plans cannot be scored."""
    return None if first is None or second is None else (1 - discount) * first + discount * second


def round_figures(
    runner: PlanRunner, rollouts: Sequence[Rollout], first: list[Score], second: list[Score]
) -> dict[str, float]:
    """Return the figures of both rounds. The names of the second round's start with `second/`."""
    groups = [row for row, _ in rollouts]
    accepted = sum(bool(score.record.plans and score.newest.accepted) for score in second) / len(second)
    later = {f"second/{name}": value for name, value in figures(second, groups, runner.workers).items()}
    return figures(first, groups, runner.workers) | later | {"second/accepted": accepted}
