"""Learned routers: one worker a question, chosen by what was learned from training questions.

`routellm` chooses between a strong and a weak worker (`evaluation.routing.factorisation`); its threshold is set so that the strong
one is called for a given share of questions, or so that questions cost no more than a given mean. `router` chooses among all
workers (`evaluation.routing.logistic`). What they are calibrated on they were not fitted on: a fifth of the training questions that
is held back, and for `router` each fifth in turn.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evaluation.errors import EvaluationError
from evaluation.spec import Named, share
from evaluation.questions import Question
from evaluation.routing import factorisation, logistic
from evaluation.strategies.base import Answer, Floats, Lessons, Plain, Scene, Setup, by_itself, known, taught

HELD_BACK = 0.2


@dataclass(slots=True)
class RouteLLM(Plain):
    """Strong or weak."""

    strong: str
    weak: str
    share: float | None
    usd: str
    fitted: factorisation.Factorisation | None = field(default=None)
    threshold: float = math.inf
    lessons: Lessons | None = field(default=None)

    @property
    def learns(self) -> bool:
        """See `Strategy`."""
        return True

    async def prepare(self, lessons: Lessons | None) -> Mapping[str, Any]:
        """See `Strategy`."""
        self.lessons = lessons = taught(lessons, self.label)
        self.strong = self.strong or lessons.best
        allowed = target(self.usd, lessons, self.label) if self.usd else math.inf
        self.weak = self.weak or weaker(lessons, self.strong, allowed)
        fit, held = split(lessons)
        x = lessons.embed([question.text for question in lessons.questions])
        try:
            self.fitted = factorisation.fitted(x[fit], lessons.right_Q_W[fit], lessons.seed)
        except ValueError as exc:
            raise EvaluationError(f"{self.label}: {exc}; learn from other questions.") from exc
        of_strong = self._share(lessons, allowed)
        self.threshold = factorisation.threshold(self._win_rate(x[held], self.fitted, lessons), of_strong)
        told = {"strong": self.strong, "weak": self.weak, "share": round(of_strong, 4)}
        return told | {
            "threshold": round(self.threshold, 6) if math.isfinite(self.threshold) else str(self.threshold)
        }

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        assert self.lessons is not None and self.fitted is not None, "prepare comes first"
        rate = self._win_rate(self.lessons.embed([question.text]), self.fitted, self.lessons)[0]
        worker = self.strong if rate >= self.threshold else self.weak
        return Answer(
            await scene.asker.run(question, scene.caps, by_itself(worker)),
            notes={"win_rate": round(float(rate), 4)},
        )

    def _win_rate(self, x: Floats, fitted: factorisation.Factorisation, lessons: Lessons) -> Floats:
        return fitted.win_rate(x, lessons.workers.index(self.strong), lessons.workers.index(self.weak))

    def _share(self, lessons: Lessons, allowed: float) -> float:
        """Of strong calls: as it was set, or what the mean cost allows."""
        if not self.usd:
            return 0.5 if self.share is None else self.share
        strong, weak = (lessons.usd_W[lessons.workers.index(name)] for name in (self.strong, self.weak))
        if math.isnan(strong) or math.isnan(weak) or strong <= weak:
            raise EvaluationError(
                f"{self.label}: usd= needs a strong worker whose cost is known and above the weak one's."
            )
        if weak > allowed:
            raise EvaluationError(
                f"{self.label}: {self.weak} alone costs more than that, {weak:g} US$; name a cheaper weak=."
            )
        return float(min(1.0, (allowed - weak) / (strong - weak)))


@dataclass(slots=True)
class Router(Plain):
    """The best chance for the money."""

    usd: str
    fitted: logistic.Chances | None = field(default=None)
    factor: float = 0.0
    usd_W: Floats = field(default_factory=lambda: np.zeros(0))
    lessons: Lessons | None = field(default=None)

    @property
    def learns(self) -> bool:
        """See `Strategy`."""
        return True

    async def prepare(self, lessons: Lessons | None) -> Mapping[str, Any]:
        """See `Strategy`."""
        self.lessons = lessons = taught(lessons, self.label)
        x = lessons.embed([question.text for question in lessons.questions])
        self.usd_W = np.nan_to_num(lessons.usd_W, nan=0.0)
        if self.usd:
            if np.isnan(lessons.usd_W).any():
                raise EvaluationError(
                    f"{self.label}: usd= needs every worker's cost, and one is unknown; set their prices."
                )
            chances = logistic.out_of_fold(x, lessons.right_Q_W, lessons.seed)
            try:
                self.factor = logistic.factor_for(chances, self.usd_W, target(self.usd, lessons, self.label))
            except ValueError as exc:
                raise EvaluationError(f"{self.label}: usd={self.usd} is too little: {exc}.") from exc
        self.fitted = logistic.fitted(x, lessons.right_Q_W)
        return {"points a US$": float(f"{100 * self.factor:.4g}")} if self.usd else {}

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        assert self.lessons is not None and self.fitted is not None, "prepare comes first"
        chances = self.fitted.chances(self.lessons.embed([question.text]))
        worker = self.lessons.workers[int(logistic.chosen(chances, self.usd_W, self.factor)[0])]
        return Answer(await scene.asker.run(question, scene.caps, by_itself(worker)))


def split(lessons: Lessons) -> tuple[Any, Any]:
    """Positions to fit on, and to calibrate on; the same ones for one seed."""
    order = np.random.default_rng(lessons.seed).permutation(len(lessons.questions))
    held = max(1, round(HELD_BACK * len(order)))
    if len(order) <= held:
        raise EvaluationError("One question is too few to learn from; raise --train-count.")
    return order[held:], order[:held]


def weaker(lessons: Lessons, strong: str, allowed_usd: float = math.inf) -> str:
    """The worker to go with `strong`: the most accurate of those that cost at most half as much, or else the second best.

    Args:
        lessons: who can what.
        strong: the other one.
        allowed_usd: the mean cost to be kept, which the weak worker must not reach by itself.

    Raises:
        EvaluationError: there is no such worker.
    """
    others = [w for w, name in enumerate(lessons.workers) if name != strong]
    limit = lessons.usd_W[lessons.workers.index(strong)] / 2
    cheap = [w for w in others if lessons.usd_W[w] <= limit and lessons.usd_W[w] < allowed_usd]
    rights = lessons.right_Q_W.sum(axis=0)
    if not cheap and math.isfinite(allowed_usd):
        raise EvaluationError(
            f"routellm: no worker beside {strong} is known to cost less than {allowed_usd:g} US$."
        )
    if not others:
        raise EvaluationError("routellm needs two workers; the pool has one.")
    return lessons.workers[max(cheap or others, key=lambda w: rights[w])]


def target(usd: str, lessons: Lessons, label: str) -> float:
    """Dollars a question: a number, or `best`: what the best single worker costs.

    Raises:
        EvaluationError: it is neither, or that cost is unknown.
    """
    if usd == "best":
        cost = float(lessons.usd_W[lessons.workers.index(lessons.best)])
        if math.isnan(cost):
            raise EvaluationError(
                f"{label}: the cost of {lessons.best} is unknown; set its price, or write usd=NUMBER."
            )
        return cost * (1 + 1e-9)
    try:
        return float(usd)
    except ValueError as exc:
        raise EvaluationError(f"{label}: usd={usd!r} is neither a number of dollars nor `best`.") from exc


def make(named: Named, setup: Setup) -> Sequence[RouteLLM | Router]:
    """See `Maker`."""
    label, usd = str(named), named.options.get("usd", "")
    if named.name == "router":
        named.only("usd")
        return [Router(label, "logistic regressions over question embeddings choose among all workers", usd)]
    named.only("strong", "weak", "share", "usd")
    pair = [
        known(named.options[role], setup.asker, label) if role in named.options else ""
        for role in ("strong", "weak")
    ]
    of_strong = named.value("share", None, share) if "share" in named.options else None
    if usd and of_strong is not None:
        raise EvaluationError(
            f"{label}: share= and usd= both set how often the strong worker is called; keep one."
        )
    return [
        RouteLLM(
            label, "RouteLLM's matrix factorisation, retrained (arXiv 2406.18665)", *pair, of_strong, usd
        )
    ]
