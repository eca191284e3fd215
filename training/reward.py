"""The reward: completions in, numbers out, by running them.

A TRL reward function (1.16: asynchronous, `None` for what cannot be scored) with the data set's columns
`row`. Knows neither model nor optimizer.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from conductor.model.usage import Usage
from training.plan_runner import PlanRunner
from training.scoring import RewardTerms, Score, score
from training.team_question import TeamQuestion

LogMetric = Callable[[str, float], None]


class PlanReward:
    """Scores plan texts.

    Args:
        runner: makes a runner inside the event loop that will use it; called once.
        questions: in the order of the data set's rows.
        eos_ids: tokens that end a completion; one without them was cut off, and is no plan.
        usd_weight: see `RewardTerms`.
        concurrency: runs at once.
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
        earlier: Sequence[str] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """One reward a completion.

        Args:
            completions: as TRL passes them: a list with one assistant message, or a text.
            completion_ids: their tokens.
            row: a column of the data set: the number of the question.
            log_metric: receives the batch's figures.
            earlier: the plan of the round before, where the completion is a second round's; empty: a first
                round.
            **_: whatever else TRL passes.
        """
        texts = [each if isinstance(each, str) else each[-1]["content"] or "" for each in completions]
        columns = (row, earlier or [""] * len(texts), texts, completion_ids)
        runs = (
            self.score(number, [plan, text] if plan else [text], ended=bool(ids) and ids[-1] in self._eos_ids)
            for number, plan, text, ids in zip(*columns, strict=True)
        )
        scores = await asyncio.gather(*runs)
        if log_metric is not None:
            all_workers = self._runner.workers if self._runner else []
            for name, value in figures(scores, list(row), all_workers).items():
                log_metric(name, value)
        return [each.reward for each in scores]

    def question(self, row: int) -> TeamQuestion:
        """The question of that row."""
        return self._questions[row]

    async def score(self, row: int, plans: list[str], *, ended: bool = True) -> Score:
        """Run the last of `plans`, and score it."""
        if self._runner is None or self._slots is None:
            self._runner, self._slots = self._make_runner(), asyncio.Semaphore(self._concurrency)
        runner, asked = self._runner, self._questions[row]
        terms = RewardTerms(runner.conductor.format, runner.limits.max_steps, self._usd_weight)
        async with self._slots:
            record = await runner.run(asked, plans, ended=ended)
        return await score(asked.question, record, plans[-1], list(asked.workers), terms, ended=ended)

    async def aclose(self) -> None:
        """Close its runner, in the event loop that used it."""
        if self._runner is not None:
            await self._runner.aclose()


def figures(scores: Sequence[Score], groups: Sequence[int], workers: Sequence[str]) -> dict[str, float]:
    """A batch's figures for the curves.

    Args:
        scores: of its completions.
        groups: the question of each.
        workers: every name of the pool, so that the histogram always has the same bars.
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
    """The share of questions all of whose completions got the same reward: they teach nothing."""
    rewards: dict[int, set[float]] = {group: set() for group in groups}
    for each, group in zip(scores, groups, strict=True):
        if each.reward is not None:
            rewards[group].add(each.reward)
    return mean(len(each) < 2 for each in rewards.values())
