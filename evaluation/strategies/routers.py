"""Learned routers: one worker per question, chosen by a model that is fitted on training questions.

`routellm` chooses between a strong and a weak worker (`evaluation.routing.factorisation`). Its threshold is
set so that the strong one gets a given share of the questions, or so that the mean cost stays within a limit.
`router` chooses among all workers (`evaluation.routing.logistic`).

Both are calibrated on questions that they were not fitted on: `routellm` on a fifth of the training questions
that is held back, `router` on each fifth in turn.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evaluation import EvaluationError
from evaluation.questions import Question
from evaluation.routing import factorisation, logistic
from evaluation.spec import Spec, share
from evaluation.strategies.base import (
    EvalContext,
    Floats,
    Setup,
    Strategy,
    StrategyAnswer,
    TrainingSet,
    require_training,
    solo_plan,
)

HELD_BACK = 0.2


@dataclass(slots=True)
class LearningStrategy(Strategy):
    """Base of strategies that need a training set. `prepare` sets `training`."""

    training: TrainingSet = field(init=False)

    @property
    def learns(self) -> bool:
        return True

    def embed(self, question: Question) -> Floats:
        return self.training.embed([question.text])


@dataclass(slots=True)
class RouteLLM(LearningStrategy):
    """Router between a strong and a weak worker."""

    strong: str
    weak: str
    share: float | None
    usd: str
    model: factorisation.Factorisation | None = None
    threshold: float = math.inf

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        self.training = training = require_training(training, self.label)
        self.strong = self.strong or training.best
        allowed = target_usd(self.usd, training, self.label) if self.usd else math.inf
        self.weak = self.weak or weaker_worker(training, self.strong, allowed)
        fit, held_back = split(training)
        x = training.embed_questions()
        try:
            self.model = factorisation.fit(x[fit], training.right_Q_W[fit], training.seed)
        except ValueError as exc:
            raise EvaluationError(f"{self.label}: {exc}. Choose other training questions.") from exc
        strong_share = self._strong_share(training, allowed)
        self.threshold = factorisation.threshold(self._win_rate(x[held_back]), strong_share)
        finite = math.isfinite(self.threshold)
        return {
            "strong": self.strong,
            "weak": self.weak,
            "share": round(strong_share, 4),
            "threshold": round(self.threshold, 6) if finite else str(self.threshold),
        }

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        rate = float(self._win_rate(self.embed(question))[0])
        worker = self.strong if rate >= self.threshold else self.weak
        return await context.ask(question, solo_plan(worker), win_rate=round(rate, 4))

    def _win_rate(self, x: Floats) -> Floats:
        assert self.model is not None, "prepare comes first"
        workers = self.training.workers
        return self.model.win_rate(x, workers.index(self.strong), workers.index(self.weak))

    def _strong_share(self, training: TrainingSet, allowed: float) -> float:
        """Return the strong worker's share: the configured one, or the largest within the mean cost."""
        if not self.usd:
            return 0.5 if self.share is None else self.share
        strong, weak = (training.usd_W[training.workers.index(name)] for name in (self.strong, self.weak))
        if math.isnan(strong) or math.isnan(weak) or strong <= weak:
            raise EvaluationError(
                f"{self.label}: usd= needs a strong worker of known cost that is more expensive than the weak worker."
            )
        if weak > allowed:
            raise EvaluationError(
                f"{self.label}: {self.weak} costs ${weak:g} per question, which is more than usd= allows. Choose a cheaper worker with weak=."
            )
        return float(min(1.0, (allowed - weak) / (strong - weak)))


@dataclass(slots=True)
class LearnedRouter(LearningStrategy):
    """Router to the worker with the highest chance of being right minus a factor times its cost."""

    usd: str
    model: logistic.WorkerRegressions | None = None
    factor: float = 0.0
    usd_W: Floats = field(default_factory=lambda: np.zeros(0))

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        self.training = training = require_training(training, self.label)
        x = training.embed_questions()
        self.usd_W = np.nan_to_num(training.usd_W, nan=0.0)
        if self.usd:
            if np.isnan(training.usd_W).any():
                raise EvaluationError(
                    f"{self.label}: usd= needs the cost of every worker, but one is unknown. Set `price` for each worker."
                )
            chances = logistic.out_of_fold(x, training.right_Q_W, training.seed)
            target = target_usd(self.usd, training, self.label)
            try:
                self.factor = logistic.factor_for(chances, self.usd_W, target)
            except ValueError as exc:
                raise EvaluationError(f"{self.label}: usd={self.usd} is too low: {exc}.") from exc
        self.model = logistic.fit(x, training.right_Q_W)
        return {"points a US$": float(f"{100 * self.factor:.4g}")} if self.usd else {}

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        assert self.model is not None, "prepare comes first"
        chances = self.model.chances(self.embed(question))
        worker = self.training.workers[int(logistic.choose(chances, self.usd_W, self.factor)[0])]
        return await context.ask(question, solo_plan(worker))


def split(training: TrainingSet) -> tuple[Any, Any]:
    """Return the positions of questions to fit and to calibrate on, by seed."""
    order = np.random.default_rng(training.seed).permutation(len(training.questions))
    held_back = max(1, round(HELD_BACK * len(order)))
    if len(order) <= held_back:
        raise EvaluationError("One training question is not enough to learn from. Raise --train-count.")
    return order[held_back:], order[:held_back]


def weaker_worker(training: TrainingSet, strong: str, allowed_usd: float = math.inf) -> str:
    """Return the worker to pair with `strong`: the most accurate at half its cost, or the second best. It
    must cost less than `allowed_usd`.
    """
    others = [w for w, name in enumerate(training.workers) if name != strong]
    limit = training.usd_W[training.workers.index(strong)] / 2
    cheap = [w for w in others if training.usd_W[w] <= limit and training.usd_W[w] < allowed_usd]
    rights = training.right_Q_W.sum(axis=0)
    if not cheap and math.isfinite(allowed_usd):
        raise EvaluationError(
            f"routellm: no worker other than {strong} is known to cost less than ${allowed_usd:g} per question. Raise usd=."
        )
    if not others:
        raise EvaluationError("routellm needs at least two workers, but the pool has only one.")
    return training.workers[max(cheap or others, key=lambda w: rights[w])]


def target_usd(usd: str, training: TrainingSet, label: str) -> float:
    """Return the target cost of a question in US dollars. `usd` is a number, or `best` for the best worker's."""
    if usd == "best":
        cost = float(training.usd_W[training.workers.index(training.best)])
        if math.isnan(cost):
            raise EvaluationError(
                f"{label}: the cost of {training.best} is unknown. Set its `price`, or use usd=NUMBER."
            )
        return cost * (1 + 1e-9)
    try:
        return float(usd)
    except ValueError as exc:
        raise EvaluationError(
            f"{label}: usd={usd!r} is invalid. Use a number of dollars, or `best`."
        ) from exc


def make(spec: Spec, setup: Setup) -> Sequence[RouteLLM | LearnedRouter]:
    label, usd = str(spec), spec.options.get("usd", "")
    if spec.name == "router":
        spec.allow_only("usd")
        about = "logistic regressions over question embeddings choose among all workers"
        return [LearnedRouter(label, about, usd)]
    spec.allow_only("strong", "weak", "share", "usd")
    strong, weak = (setup.worker(spec.options.get(role, ""), label) for role in ("strong", "weak"))
    strong_share = spec.value("share", None, share)
    if usd and strong_share is not None:
        raise EvaluationError(
            f"{label}: share= and usd= cannot be used together, because both set how often the strong worker is called. Remove one."
        )
    about = "RouteLLM's matrix factorisation, retrained (arXiv 2406.18665)"
    return [RouteLLM(label, about, strong, weak, strong_share, usd)]
