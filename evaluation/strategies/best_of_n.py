"""Best-of-n at equal compute. It is a control that the paper (arXiv 2512.04388) does not have.

For each question, the worker is sampled as often as the conductor made calls, including the call for the plan
(`by=calls`). With `by=tokens`, the worker is sampled until it has spent as many tokens as the conductor.
There is at least one sample, and no sample is started that is expected to exceed the limit. The majority
answer is chosen. `best_of_n_oracle` shows what a perfect choice would have scored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation import EvaluationError
from evaluation.graders import grade
from evaluation.outcome import RunOutcome, combine
from evaluation.questions import Question
from evaluation.spec import Spec
from evaluation.strategies.base import (
    EvalContext,
    OneWorkerStrategy,
    Setup,
    StrategyAnswer,
    TrainingSet,
    solo_workers,
)
from evaluation.strategies.voting import majority_answer, samples

BY = ("calls", "tokens")
MOST = 64
"""Maximum number of samples of one question."""


@dataclass(slots=True)
class BestOfN(OneWorkerStrategy):
    """Strategy that samples `worker` for as many calls or tokens as the strategy `match` used."""

    match: str
    by: str
    temperature: float

    @property
    def after(self) -> tuple[str, ...]:
        return (self.match,)

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        chosen = await OneWorkerStrategy.prepare(self, training)
        return {**chosen, "match": self.match, "by": self.by}

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        match = context.result(self.match, question.id)
        if match is None:
            message = f"{self.match} has no result for this question."
            return StrategyAnswer(RunOutcome(error="NoResults", message=message))
        calls, tokens = match.outcome.calls, match.outcome.tokens
        if self.by == "calls" and calls is None:
            message = f"The number of calls of {self.match} is unknown. Use by=tokens."
            return StrategyAnswer(RunOutcome(error="UnknownCalls", message=message))
        if self.by == "calls" and calls is not None:
            n = min(MOST, max(1, calls))
            part = context.caps.part(n)
            outcomes = await samples(question, context, self.worker, n, self.temperature, part)
        elif tokens is None:
            message = f"The token counts of {self.match} are unknown. Use by=calls."
            return StrategyAnswer(RunOutcome(error="UnknownTokens", message=message))
        else:
            outcomes = await self._samples_for(tokens, question, context)
        grades = [await grade(question, each.answer) for each in outcomes]
        outcome = combine(outcomes, majority_answer(question, outcomes), concurrent=self.by == "calls")
        notes = {"n": len(outcomes), "samples_right": [each.correct for each in grades]}
        return StrategyAnswer(outcome, notes=notes)

    async def _samples_for(self, tokens: int, question: Question, context: EvalContext) -> list[RunOutcome]:
        outcomes: list[RunOutcome] = []
        spent = 0
        while len(outcomes) < MOST:
            outcomes += await samples(
                question, context, self.worker, 1, self.temperature, context.caps, len(outcomes)
            )
            newest = outcomes[-1]
            if newest.tokens is None or newest.error is not None:
                break
            spent += newest.tokens
            if spent + spent / len(outcomes) > tokens:
                break
        return outcomes


def make(spec: Spec, setup: Setup) -> Sequence[BestOfN]:
    spec.allow_only("match", "by", "temperature")
    match, by = spec.options.get("match", "conductor"), spec.options.get("by", "calls")
    if by not in BY:
        raise EvaluationError(f"best_of_n: by={by!r} must be one of {', '.join(BY)}.")
    if match not in setup.labels:
        raise EvaluationError(
            f"best_of_n needs the results of {match!r}, which is not among the strategies. "
            "Add that strategy, or choose another one with ?match=."
        )
    worker, first = setup.worker(spec.detail, "best_of_n"), solo_workers(setup.backend)[0]
    about = f"majority of samples with as many {by} as {match}"
    return [BestOfN(str(spec), about, worker, first, match, by, spec.value("temperature", 0.7, float))]
