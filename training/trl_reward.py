"""Compute the reward of completions by running them.

`PlanReward` is a TRL reward function (1.16). It is asynchronous, and returns None for completions that cannot
be scored. It uses the data set's column `row`, and knows neither the model nor the optimizer.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from conductor.model.usage import Usage
from training.plan_runner import PlanRunner
from training.reward import RewardTerms, Score, score
from training.team_question import TeamQuestion

LogMetric = Callable[[str, float], None]


class PlanReward:
    """Scores the texts of plans.

    Args:
        runner: a function that creates a runner. It is called once, in the event loop that will use the
            runner.
        eos_ids: the tokens that end a completion. A completion without one was truncated and is not a plan.
    """

    def __init__(
        self,
        runner: Callable[[], PlanRunner],
        questions: Sequence[TeamQuestion],
        eos_ids: Sequence[int],
        usd_weight: float = 0.0,
        concurrency: int = 64,
    ) -> None:
        self.__name__ = "plan"
        self._make_runner, self._questions, self._eos_ids = runner, questions, frozenset(eos_ids)
        self._usd_weight, self._concurrency = usd_weight, concurrency
        self._runner: PlanRunner | None = None
        self._slots: asyncio.Semaphore | None = None

    async def __call__(
        self,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        row: Sequence[int],
        log_metric: LogMetric | None = None,
        **_: Any,
    ) -> list[float | None]:
        """Return one reward per completion, as TRL passes them with their tokens and the question's `row`."""
        texts = [each if isinstance(each, str) else each[-1]["content"] or "" for each in completions]
        runs = (
            self.score(number, [text], ended=bool(ids) and ids[-1] in self._eos_ids)
            for number, text, ids in zip(row, texts, completion_ids, strict=True)
        )
        scores = await asyncio.gather(*runs)
        if log_metric is not None:
            all_workers = self._runner.workers if self._runner else []
            for name, value in figures(scores, list(row), all_workers).items():
                log_metric(name, value)
        return [each.reward for each in scores]

    def question(self, row: int) -> TeamQuestion:
        return self._questions[row]

    async def score(self, row: int, plans: list[str], *, ended: bool = True) -> Score:
        if self._runner is None or self._slots is None:
            self._runner, self._slots = self._make_runner(), asyncio.Semaphore(self._concurrency)
        runner, question = self._runner, self._questions[row]
        terms = RewardTerms(runner.conductor.format, runner.limits.max_steps, self._usd_weight)
        async with self._slots:
            record = await runner.run(question, plans, ended=ended)
        return await score(question.question, record, plans[-1], list(question.workers), terms, ended=ended)

    async def aclose(self) -> None:
        """Close the runner, in the event loop that used it."""
        if self._runner is not None:
            await self._runner.aclose()


def figures(scores: Sequence[Score], groups: Sequence[int], workers: Sequence[str]) -> dict[str, float]:
    """Return a batch's figures for the curves. `groups` has each question's number, `workers` all of the
    pool.
    """
    values = {
        "plan/parsed": mean(each.parsed for each in scores),
        "plan/right": mean(each.right for each in scores),
        "plan/outages": mean(each.reward is None for each in scores),
        "plan/groups_without_signal": _without_signal(scores, groups),
    }
    ran = [each for each in scores if each.parsed and each.newest.steps]
    if not ran:
        return values
    steps = [step for each in ran for step in each.newest.steps]
    values["plan/steps"] = len(steps) / len(ran)
    values["plan/reads"] = mean(bool(step.access) for step in steps)
    usages = [sum((call.usage for call in each.record.calls if call.usage), Usage()) for each in ran]
    values["plan/tokens"] = mean(usage.total_tokens for usage in usages)
    costs = [float(each.record.cost_usd) for each in ran if each.record.cost_usd is not None]
    if costs:
        values["plan/cost_usd"] = mean(costs)
    used = Counter(step.worker for step in steps)
    return values | {f"workers/{name}": used[name] / len(steps) for name in workers}


def _without_signal(scores: Sequence[Score], groups: Sequence[int]) -> float:
    """Return the share of questions with equal rewards, which give no gradient."""
    rewards: dict[int, set[float]] = {group: set() for group in groups}
    for each, group in zip(scores, groups, strict=True):
        if each.reward is not None:
            rewards[group].add(each.reward)
    return mean(len(each) < 2 for each in rewards.values())
