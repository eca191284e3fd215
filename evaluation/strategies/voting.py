"""Majority votes of samples of one worker (self-consistency, arXiv 2203.11171), or of all workers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.backends import Caps
from evaluation.graders import extract
from evaluation.outcome import RunOutcome, combine
from evaluation.questions import Question
from evaluation.spec import Spec, count
from evaluation.strategies.base import (
    EvalContext,
    OneWorkerStrategy,
    Setup,
    Strategy,
    StrategyAnswer,
    solo_plan,
    solo_workers,
)
from evaluation.workers.majority import majority


@dataclass(slots=True)
class SelfConsistency(OneWorkerStrategy):
    """Strategy that takes the majority of `n` samples of `worker`."""

    n: int
    temperature: float

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        part = context.caps.part(self.n)
        outcomes = await samples(question, context, self.worker, self.n, self.temperature, part)
        return StrategyAnswer(combine(outcomes, majority_answer(question, outcomes), concurrent=True))


@dataclass(slots=True)
class Vote(Strategy):
    """Strategy that takes the majority of one answer per worker. Of equals, the earliest wins."""

    workers: tuple[str, ...]

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        part = context.caps.part(len(self.workers))
        runs = (context.backend.run(question, part, solo_plan(worker)) for worker in self.workers)
        answers = await asyncio.gather(*runs)
        return StrategyAnswer(combine(answers, majority_answer(question, answers), concurrent=True))


async def samples(
    question: Question,
    context: EvalContext,
    worker: str,
    n: int,
    temperature: float,
    part: Caps,
    first: int = 0,
) -> list[RunOutcome]:
    """Return `n` concurrent answers of one worker, each with its own seed from `first`."""
    seeds = [context.seed * 1000 + first + index for index in range(n)]
    plan = solo_plan(worker)
    runs = (context.backend.run(question, part, plan, temperature=temperature, seed=seed) for seed in seeds)
    return list(await asyncio.gather(*runs))


def majority_answer(question: Question, outcomes: Sequence[RunOutcome]) -> str:
    """Return the first text whose extracted part is the most frequent. Texts without one do not vote."""
    texts = [outcome.answer for outcome in outcomes if outcome.error is None]
    winner = majority([extract(question, text) for text in texts])
    return texts[winner or 0] if texts else ""


def make(spec: Spec, setup: Setup) -> Sequence[SelfConsistency | Vote]:
    label = str(spec)
    if spec.name == "vote":
        spec.allow_only()
        workers = setup.workers(spec.detail, label)
        return [Vote(label, "majority of one answer of each worker", workers)]
    spec.allow_only("n", "temperature")
    worker, first = setup.worker(spec.detail, label), solo_workers(setup.backend)[0]
    n, temperature = spec.value("n", 5, count), spec.value("temperature", 0.7, float)
    about = f"majority of {n} samples (arXiv 2203.11171)"
    return [SelfConsistency(label, about, worker, first, n, temperature)]
