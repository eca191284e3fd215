"""Run strategies on questions, with bounded concurrency and a budget. An interrupted run can resume.

Strategies run one after another, so that their latencies are measured under the same load. A strategy works
on `concurrency` questions at the same time. A result is written to the log as soon as it is graded.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from conductor.plan.plan import Plan
from evaluation.backends import Caps, EvaluationBackend
from evaluation.graders import grade
from evaluation.questions import Question
from evaluation.results import Result, ResultLog, digest
from evaluation.routing.embeddings import Embedder
from evaluation.strategies.base import (
    EvalContext,
    Strategy,
    StrategyAnswer,
    TrainingSet,
    solo_plan,
    solo_workers,
)

Item = TypeVar("Item")


class Display(Protocol):
    def begin(self, name: str, total: int) -> Callable[[bool | None], None]:
        """Start a progress bar for `total` questions. Call the result after each one with right, wrong or
        None.
        """
        ...

    def say(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """Configuration of an evaluation.

    Args:
        training: the questions to learn from. None of them is in `questions`.
        concurrency: the number of questions that a strategy works on at the same time.
        strategy_usd: the cost limit of one strategy in US dollars, excluding training, or None for no limit.
    """

    questions: Sequence[Question]
    training: Sequence[Question] = ()
    caps: Caps = Caps()
    seed: int = 0
    concurrency: int = 16
    strategy_usd: Decimal | None = None


@dataclass(slots=True)
class EvalResults:
    """Results by strategy and question id, and by strategy what it learned and why it stopped early."""

    results: dict[str, dict[str, Result]] = field(default_factory=dict)
    learned: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class StrategySpending:
    """Tracks what a strategy has spent, and decides whether its budget allows another question."""

    limit_usd: Decimal | None
    question_usd: Decimal | None
    spent_usd: Decimal = Decimal(0)
    in_flight: int = 0
    stopped: str = ""

    def may_begin(self) -> bool:
        """Return whether the budget allows another question. Each one in progress reserves its cost cap."""
        if self.limit_usd is None or self.stopped:
            return not self.stopped
        reserved = (self.question_usd or Decimal(0)) * (self.in_flight + (self.question_usd is not None))
        over = self.spent_usd + reserved > self.limit_usd
        if over or (self.spent_usd >= self.limit_usd and self.limit_usd > 0):
            self.stopped = f"its budget of ${self.limit_usd} is used up"
        return not self.stopped

    def book(self, cost_usd: Decimal | None) -> None:
        """Add the cost of an answer. An unknown one counts as the cap, or without a cap stops the strategy."""
        if cost_usd is not None:
            self.spent_usd += cost_usd
        elif self.limit_usd is not None and self.question_usd is not None:
            self.spent_usd += self.question_usd
        elif self.limit_usd is not None:
            self.stopped = "the cost of an answer is unknown, so the budget cannot be enforced. Set --max-cost-usd as well"


class Evaluation:
    def __init__(
        self,
        config: EvalConfig,
        backend: EvaluationBackend,
        log: ResultLog,
        display: Display,
        cache: Path | None = None,
    ) -> None:
        self._config, self._backend, self._log, self._display = config, backend, log, display
        self._embedder = Embedder(cache, display.say)
        self._results = EvalResults()
        self._digests: dict[str, str] = {}
        self._setting = [backend.identity, asdict(config.caps), config.seed]

    async def run(self, strategies: Sequence[Strategy]) -> EvalResults:
        """Run the strategies in this order. After an OSError, earlier results are intact."""
        training = await self._training_set() if self._config.training else None
        if training is not None and any(strategy.learns for strategy in strategies):
            questions = (*self._config.training, *self._config.questions)
            self._embedder.embed([question.text for question in questions])
        for strategy in strategies:
            learned = await strategy.prepare(training)
            self._results.learned[strategy.label] = learned
            self._digests[strategy.label] = digest(
                [self._setting, strategy.label, learned, [self._digests[a] for a in strategy.after]]
            )
            await self._run_strategy(strategy)
        return self._results

    async def _run_strategy(self, strategy: Strategy) -> None:
        config, label = self._config, strategy.label
        results = self._results.results.setdefault(label, {})
        spending = StrategySpending(config.strategy_usd, config.caps.max_cost_usd)
        context = EvalContext(self._backend, config.caps, config.seed, self._result)
        advance = self._display.begin(label, len(config.questions))
        keys = {q.id: digest([self._digests[label], q.text, q.expected]) for q in config.questions}

        def keep(question: Question, result: Result) -> None:
            results[question.id] = result
            spending.book(Decimal(0) if result.notes.get("free") else result.outcome.cost_usd)
            advance(result.correct)

        async def answer(question: Question) -> None:
            if not spending.may_begin():
                return
            spending.in_flight += 1
            try:
                answering = strategy.answer(question, context)
                result = await self._grade_and_log(label, question, keys[question.id], answering)
            finally:
                spending.in_flight -= 1
            keep(question, result)

        for question in config.questions:
            if (result := self._log.get(label, question.id, keys[question.id])) is not None:
                keep(question, result)
        await for_each([q for q in config.questions if q.id not in results], answer, config.concurrency)
        if spending.stopped:
            self._results.stopped[label] = spending.stopped
            progress = f"{len(results)} of {len(config.questions)} questions"
            self._display.say(f"{label} was stopped after {progress}: {spending.stopped}.")

    async def _grade_and_log(
        self, label: str, question: Question, key: str, answering: Awaitable[StrategyAnswer]
    ) -> Result:
        answer = await answering
        verdict = answer.grade or await grade(question, answer.outcome.answer)
        result = Result.of(label, question, key, answer.outcome, verdict, answer.notes)
        self._log.add(result)
        return result

    def _result(self, label: str, question: str) -> Result | None:
        return self._results.results.get(label, {}).get(question)

    async def _training_set(self) -> TrainingSet:
        """Grade every worker's answers to the training questions. Logged results are reused."""
        config, workers = self._config, solo_workers(self._backend)
        right_Q_W = np.zeros((len(config.training), len(workers)), dtype=np.bool_)
        usd_Q_W = np.full(right_Q_W.shape, math.nan)
        for w, worker in enumerate(workers):
            advance = self._display.begin(f"training questions: {worker}", len(config.training))

            async def try_worker(
                at: int, w: int = w, worker: str = worker, advance: Callable[[bool | None], None] = advance
            ) -> None:
                result = await self._try_plan(config.training[at], solo_plan(worker))
                cost = result.outcome.cost_usd
                right_Q_W[at, w], usd_Q_W[at, w] = result.correct, math.nan if cost is None else float(cost)
                advance(result.correct)

            await for_each(range(len(config.training)), try_worker, config.concurrency)
        usd_W, embed = usd_Q_W.mean(axis=0), self._embedder.embed
        return TrainingSet(config.training, workers, right_Q_W, usd_W, embed, self._try_plan, config.seed)

    async def _try_plan(self, question: Question, plan: Plan) -> Result:
        label = f"training:{digest([[s.worker, s.subtask, s.access] for s in plan.steps])}"
        key = digest([self._setting, question.text, question.expected])
        logged = self._log.get(label, question.id, key)
        if logged is not None:
            return logged

        async def answer() -> StrategyAnswer:
            return StrategyAnswer(await self._backend.run(question, self._config.caps, plan))

        return await self._grade_and_log(label, question, key, answer())


async def for_each(items: Sequence[Item], do: Callable[[Item], Awaitable[None]], concurrency: int) -> None:
    """Call `do` for every item, `concurrency` at a time. The first exception cancels the rest."""
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await do(item)

    tasks = [asyncio.create_task(work()) for _ in range(min(concurrency, len(items)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
