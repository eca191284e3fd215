"""Strategies with one worker per question: each worker alone, a random one, the cheapest."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conductor.model.usage import Usage
from evaluation import EvaluationError
from evaluation.backends import EvaluationBackend
from evaluation.questions import Question
from evaluation.spec import Spec
from evaluation.strategies.base import (
    EvalContext,
    Setup,
    Strategy,
    StrategyAnswer,
    TrainingSet,
    solo_plan,
    solo_workers,
)

TYPICAL = Usage(500, 500)
"""Usage for which prices are compared if no costs were measured."""


@dataclass(slots=True)
class Single(Strategy):
    """Strategy that always calls the same worker."""

    worker: str

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        return await context.ask(question, solo_plan(self.worker))


@dataclass(slots=True)
class Random(Strategy):
    """Strategy that calls a random worker for each question. The same seed gives the same choices."""

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        rng = random.Random(f"{context.seed} {question.id}")
        return await context.ask(question, solo_plan(rng.choice(solo_workers(context.backend))))


@dataclass(slots=True)
class Cheapest(Strategy):
    """Strategy that calls the worker whose training answers cost least. Without any, prices are compared."""

    backend: EvaluationBackend
    worker: str = ""

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        """Choose the worker."""
        costs: dict[str, float] = {}
        if training is not None:
            costs = dict(zip(training.workers, map(float, training.usd_W), strict=True))
        usd_by_worker = {name: usd for name, usd in costs.items() if not math.isnan(usd)}
        if not usd_by_worker:
            prices = {name: self.backend.price(name) for name in solo_workers(self.backend)}
            usd_by_worker = {
                name: float(price.of(TYPICAL)) for name, price in prices.items() if price is not None
            }
        if not usd_by_worker:
            raise EvaluationError(
                "cheapest: the cost of no worker is known. Set `price` in the settings, or use --train."
            )
        self.worker = min(usd_by_worker, key=lambda name: usd_by_worker[name])
        return {"worker": self.worker}

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        return await context.ask(question, solo_plan(self.worker))


def make(spec: Spec, setup: Setup) -> Sequence[Single | Random | Cheapest]:
    spec.allow_only()
    if spec.name == "random":
        return [Random("random", "a random worker for each question")]
    if spec.name == "cheapest":
        return [Cheapest("cheapest", "the worker that costs least", setup.backend)]
    worker = setup.worker(spec.detail, "single")
    chosen = [worker] if worker else solo_workers(setup.backend)
    return [Single(f"single:{worker}", f"{worker} alone", worker) for worker in chosen]
