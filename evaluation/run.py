"""Runs strategies over questions: bounded, resumable, under a budget. Knows no strategy and no report.

Strategies follow one another, so that their latencies are measured under the same load; each has `concurrency` questions under
way. Every result is on the disk before the next question is begun, so an evaluation that was stopped goes on where it was.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from conductor.plan import Plan
from evaluation.backends.in_process import Asker, Caps
from evaluation.graders import grade
from evaluation.questions import Question
from evaluation.results import Result, ResultLog, digest, judged
from evaluation.routing.embeddings import Embedder
from evaluation.strategies.base import Answer, Lessons, Scene, Strategy, by_itself, models_of


class Show(Protocol):
    """Where progress goes."""

    def begin(self, name: str, total: int) -> Callable[[bool | None], None]:
        """A new bar; call what it gives once a question: whether it was right, None where that says nothing."""
        ...

    def say(self, text: str) -> None:
        """A line."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """An evaluation.

    Args:
        questions: to be judged by.
        training: to learn from; none of them is among `questions`.
        caps: of every strategy, for one question.
        seed: of everything that is drawn.
        concurrency: questions under way at once.
        strategy_usd: what one strategy may cost altogether, learning not included; None: as much as it takes.
    """

    questions: Sequence[Question]
    training: Sequence[Question] = ()
    caps: Caps = Caps()
    seed: int = 0
    concurrency: int = 16
    strategy_usd: Decimal | None = None


@dataclass(slots=True)
class Evaluated:
    """What came out.

    Args:
        results: strategy to question id to result.
        learned: what each strategy learned or chose.
        stopped: why a strategy did not answer everything.
    """

    results: dict[str, dict[str, Result]] = field(default_factory=dict)
    learned: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Spending:
    """What a strategy has spent, and whether it may begin another question."""

    limit_usd: Decimal | None
    question_usd: Decimal | None
    spent_usd: Decimal = Decimal(0)
    under_way: int = 0
    stopped: str = ""

    def may_begin(self) -> bool:
        """Whether there is room for one more question; where each has a cap of its own, for one that costs all of it."""
        if self.limit_usd is None or self.stopped:
            return not self.stopped
        held = (self.question_usd or Decimal(0)) * (self.under_way + (self.question_usd is not None))
        if self.spent_usd + held > self.limit_usd or (
            self.spent_usd >= self.limit_usd and self.limit_usd > 0
        ):
            self.stopped = f"its budget of {self.limit_usd} US$ is used up"
        return not self.stopped

    def book(self, cost_usd: Decimal | None) -> None:
        """A question has been answered."""
        if cost_usd is not None:
            self.spent_usd += cost_usd
        elif self.limit_usd is not None and self.question_usd is not None:
            self.spent_usd += self.question_usd
        elif self.limit_usd is not None:
            self.stopped = (
                "the cost of an answer is unknown, so its budget cannot be kept (cap questions too)"
            )


class Evaluation:
    """One evaluation under way."""

    def __init__(
        self, order: Order, asker: Asker, log: ResultLog, show: Show, cache: Path | None = None
    ) -> None:
        self._order, self._asker, self._log, self._show = order, asker, log, show
        self._embedder = Embedder(cache, show.say)
        self._evaluated = Evaluated()
        self._digests: dict[str, str] = {}

    async def run(self, strategies: Sequence[Strategy]) -> Evaluated:
        """All of them, in their order.

        Raises:
            EvaluationError: one cannot learn or choose.
            OSError: a result could not be kept. What was kept is whole.
        """
        lessons = await self._lessons() if self._order.training else None
        if lessons is not None and any(strategy.learns for strategy in strategies):
            self._embedder.embed(
                [question.text for question in (*self._order.training, *self._order.questions)]
            )
        for strategy in strategies:
            learned = await strategy.prepare(lessons)
            self._evaluated.learned[strategy.label] = learned
            self._digests[strategy.label] = digest(
                [self._told(), strategy.label, learned, [self._digests[a] for a in strategy.after]]
            )
            await self._answered(strategy)
        return self._evaluated

    def _told(self) -> Any:
        order = self._order
        return [self._asker.told, asdict(order.caps), order.seed]

    async def _answered(self, strategy: Strategy) -> None:
        order, label = self._order, strategy.label
        held = self._evaluated.results.setdefault(label, {})
        spending = Spending(order.strategy_usd, order.caps.max_cost_usd)
        scene = Scene(self._asker, order.caps, order.seed, self._result)
        advance = self._show.begin(label, len(order.questions))

        keys = {q.id: digest([self._digests[label], q.text, q.expected]) for q in order.questions}

        def keep(question: Question, result: Result) -> None:
            held[question.id] = result
            spending.book(Decimal(0) if result.notes.get("free") else result.outcome.cost_usd)
            advance(result.correct)

        async def one(question: Question) -> None:
            if not spending.may_begin():
                return
            spending.under_way += 1
            try:
                result = await self._judged(
                    label, question, keys[question.id], strategy.answer(question, scene)
                )
            finally:
                spending.under_way -= 1
            keep(question, result)

        for question in order.questions:
            if (result := self._log.get(label, question.id, keys[question.id])) is not None:
                keep(question, result)
        await each([q for q in order.questions if q.id not in held], one, order.concurrency)
        if spending.stopped:
            self._evaluated.stopped[label] = spending.stopped
            self._show.say(
                f"{label} was stopped after {len(held)} of {len(order.questions)} questions: {spending.stopped}"
            )

    async def _judged(self, label: str, question: Question, key: str, answering: Awaitable[Answer]) -> Result:
        answer = await answering
        given = answer.grade
        if given is None:
            given = await grade(question, answer.outcome.answer)
        result = judged(label, question, key, answer.outcome, given, answer.notes)
        self._log.add(result)
        return result

    def _result(self, label: str, question: str) -> Result | None:
        return self._evaluated.results.get(label, {}).get(question)

    async def _lessons(self) -> Lessons:
        """How every worker does on the training questions; asked now, or read from the log."""
        order, workers = self._order, models_of(self._asker)
        right_Q_W = np.zeros((len(order.training), len(workers)), dtype=np.bool_)
        usd_Q_W = np.full(right_Q_W.shape, math.nan)
        for w, worker in enumerate(workers):
            advance = self._show.begin(f"training questions: {worker}", len(order.training))

            async def one(
                at: int, w: int = w, worker: str = worker, advance: Callable[[bool | None], None] = advance
            ) -> None:
                result = await self._tried(order.training[at], by_itself(worker))
                right_Q_W[at, w] = result.correct
                cost = result.outcome.cost_usd
                usd_Q_W[at, w] = math.nan if cost is None else float(cost)
                advance(result.correct)

            await each(range(len(order.training)), one, order.concurrency)
        usd_W = usd_Q_W.mean(axis=0)
        return Lessons(
            order.training, workers, right_Q_W, usd_W, self._embedder.embed, self._tried, order.seed
        )

    async def _tried(self, question: Question, plan: Plan) -> Result:
        """Run `plan` on a training question, once."""
        label = f"training:{digest([[s.worker, s.subtask, s.access] for s in plan.steps])}"
        key = digest([self._told(), question.text, question.expected])
        found = self._log.get(label, question.id, key)
        if found is not None:
            return found

        async def answering() -> Answer:
            return Answer(await self._asker.run(question, self._order.caps, plan))

        return await self._judged(label, question, key, answering())


async def each(items: Sequence[Any], do: Callable[[Any], Awaitable[None]], at_once: int) -> None:
    """`do` every item, `at_once` of them under way; the first failure ends all and is raised as itself."""
    waiting = iter(items)

    async def go_on() -> None:
        for item in waiting:
            await do(item)

    tasks = [asyncio.create_task(go_on()) for _ in range(min(at_once, len(items)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
