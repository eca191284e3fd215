"""Best-of-n at equal compute: the control that the paper lacks.

For each question the worker is sampled as often as the conductor made calls for that question, the one for the plan included
(`by=calls`), or until as many tokens are spent as the conductor spent (`by=tokens`; at least one sample, none that is expected to
go beyond). The majority is chosen; `best_of_n_oracle` says what a perfect choice would have got.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.errors import EvaluationError
from evaluation.graders import grade
from evaluation.spec import Named, text
from evaluation.outcome import Outcome, together
from evaluation.questions import Question
from evaluation.results import Result
from evaluation.strategies.base import Answer, Lessons, Plain, Scene, Setup, known, models_of
from evaluation.strategies.voting import majority, samples

BY = ("calls", "tokens")
MOST = 64
"""Samples of one question."""


@dataclass(slots=True)
class BestOfN(Plain):
    """Samples of `worker` for what `match` used."""

    worker: str
    first: str
    match: str
    by: str
    temperature: float

    @property
    def after(self) -> tuple[str, ...]:
        """See `Strategy`."""
        return (self.match,)

    async def prepare(self, lessons: Lessons | None) -> Mapping[str, Any]:
        """See `Strategy`."""
        self.worker = self.worker or (lessons.best if lessons else self.first)
        return {"worker": self.worker, "match": self.match, "by": self.by}

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        matched = scene.result(self.match, question.id)
        if matched is None:
            return Answer(
                Outcome(error="NoResults", message=f"{self.match} has no result for this question.")
            )
        if self.by == "calls":
            n = min(MOST, max(1, matched.outcome.calls))
            drawn = await samples(question, scene, self.worker, n, self.temperature, scene.caps.part(n))
        elif matched.outcome.tokens is None:
            return Answer(
                Outcome(error="UnknownTokens", message=f"{self.match}'s tokens are unknown; use by=calls.")
            )
        else:
            drawn = await self._for_tokens(question, scene, matched)
        grades = [await grade(question, each.answer) for each in drawn]
        side_by_side = self.by == "calls"
        outcome = together(drawn, majority(question, drawn), side_by_side=side_by_side)
        return Answer(outcome, notes={"n": len(drawn), "samples_right": [each.correct for each in grades]})

    async def _for_tokens(self, question: Question, scene: Scene, matched: Result) -> list[Outcome]:
        left = matched.outcome.tokens or 0
        drawn: list[Outcome] = []
        while len(drawn) < MOST:
            drawn += await samples(question, scene, self.worker, 1, self.temperature, scene.caps, len(drawn))
            spent = [each.tokens for each in drawn]
            known_tokens = [tokens for tokens in spent if tokens is not None]
            if len(known_tokens) < len(spent) or drawn[-1].error is not None:
                break
            if sum(known_tokens) + sum(known_tokens) / len(known_tokens) > left:
                break
        return drawn


def make(named: Named, setup: Setup) -> Sequence[BestOfN]:
    """See `Maker`."""
    named.only("match", "by", "temperature")
    match, by = named.value("match", "conductor", text), named.value("by", "calls", text)
    if by not in BY:
        raise EvaluationError(f"best_of_n: by={by!r} is neither of {', '.join(BY)}.")
    if match not in setup.labels:
        raise EvaluationError(
            f"best_of_n spends what {match!r} spent, which is not among the strategies: name it too, or choose with ?match=."
        )
    worker = known(named.detail, setup.asker, "best_of_n") if named.detail else ""
    about = f"majority of as many samples as {match} used {by}"
    temperature = named.value("temperature", 0.7, float)
    return [BestOfN(str(named), about, worker, models_of(setup.asker)[0], match, by, temperature)]
