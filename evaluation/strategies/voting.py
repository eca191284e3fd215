"""Majorities: of several samples of one worker (self-consistency, arXiv 2203.11171), or of one answer of each worker."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.backends.in_process import Caps, Sampling
from evaluation.graders import extract
from evaluation.spec import Named, count
from evaluation.outcome import Outcome, together
from evaluation.questions import Question
from evaluation.strategies.base import Answer, Lessons, Plain, Scene, Setup, by_itself, known, models_of


@dataclass(slots=True)
class SelfConsistency(Plain):
    """The majority of `n` samples of `worker`; an empty name is settled by the lessons."""

    worker: str
    first: str
    n: int
    temperature: float

    async def prepare(self, lessons: Lessons | None) -> Mapping[str, Any]:
        """See `Strategy`."""
        self.worker = self.worker or (lessons.best if lessons else self.first)
        return {"worker": self.worker}

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        part = scene.caps.part(self.n)
        drawn = await samples(question, scene, self.worker, self.n, self.temperature, part)
        return Answer(together(drawn, majority(question, drawn), side_by_side=True))


@dataclass(slots=True)
class Vote(Plain):
    """The majority of one answer of each of `workers`; of equally frequent ones the earliest worker's."""

    workers: tuple[str, ...]

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        part = scene.caps.part(len(self.workers))
        answers = await asyncio.gather(
            *(scene.asker.run(question, part, by_itself(worker)) for worker in self.workers)
        )
        return Answer(together(answers, majority(question, answers), side_by_side=True))


async def samples(
    question: Question, scene: Scene, worker: str, n: int, temperature: float, part: Caps, first: int = 0
) -> list[Outcome]:
    """`n` answers of one worker at once, each with a seed of its own, from `first` on."""
    seeds = [scene.seed * 1000 + first + index for index in range(n)]
    runs = (scene.asker.run(question, part, by_itself(worker), Sampling(temperature, seed)) for seed in seeds)
    return list(await asyncio.gather(*runs))


def majority(question: Question, outcomes: Sequence[Outcome]) -> str:
    """The text of the first answer whose extracted part is the most frequent; of several such, the one that came first.

    Texts without an answer in them have no vote; where nobody has one, the first text stands.
    """
    texts = [outcome.answer for outcome in outcomes if outcome.error is None]
    votes = [
        (text, " ".join(found.split()).casefold())
        for text in texts
        if (found := extract(question, text)) is not None
    ]
    if not votes:
        return texts[0] if texts else ""
    counted = Counter(vote for _, vote in votes)
    return max(votes, key=lambda each: counted[each[1]])[0]


def make(named: Named, setup: Setup) -> Sequence[SelfConsistency | Vote]:
    """See `Maker`."""
    label = str(named)
    if named.name == "vote":
        named.only()
        chosen = [known(each, setup.asker, label) for each in named.detail.split("+")] if named.detail else []
        return [Vote(label, "majority of one answer of each worker", tuple(chosen) or models_of(setup.asker))]
    named.only("n", "temperature")
    worker = known(named.detail, setup.asker, label) if named.detail else ""
    n, temperature = named.value("n", 5, count), named.value("temperature", 0.7, float)
    about = f"majority of {n} samples (arXiv 2203.11171)"
    return [SelfConsistency(label, about, worker, models_of(setup.asker)[0], n, temperature)]
