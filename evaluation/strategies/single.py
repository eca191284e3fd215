"""One worker a question: every one by itself, one by lot, the cheapest."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conductor.money import Usage
from evaluation.backends.in_process import Asker
from evaluation.errors import EvaluationError
from evaluation.spec import Named
from evaluation.questions import Question
from evaluation.strategies.base import Answer, Lessons, Plain, Scene, Setup, by_itself, known, models_of

TYPICAL = Usage(500, 500)
"""Prices are compared for as much read as written, where no costs were measured."""


@dataclass(slots=True)
class Single(Plain):
    """Always the same worker."""

    worker: str

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        return Answer(await scene.asker.run(question, scene.caps, by_itself(self.worker)))


@dataclass(slots=True)
class Random(Plain):
    """A worker drawn anew for each question, the same one at every run with one seed."""

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        drawn = random.Random(f"{scene.seed} {question.id}").choice(models_of(scene.asker))
        return Answer(await scene.asker.run(question, scene.caps, by_itself(drawn)))


@dataclass(slots=True)
class Cheapest(Plain):
    """The worker whose answers cost least: as measured on the training questions, or else by its price."""

    asker: Asker
    worker: str = field(default="")

    async def prepare(self, lessons: Lessons | None) -> Mapping[str, Any]:
        """See `Strategy`.

        Raises:
            EvaluationError: nobody's cost is known.
        """
        if lessons is not None and not all(map(math.isnan, lessons.usd_W)):
            costs = {name: float(usd) for name, usd in zip(lessons.workers, lessons.usd_W, strict=True)}
        else:
            prices = {name: self.asker.price(name) for name in models_of(self.asker)}
            costs = {
                name: math.nan if price is None else float(price.of(TYPICAL))
                for name, price in prices.items()
            }
        told = {name: usd for name, usd in costs.items() if not math.isnan(usd)}
        if not told:
            raise EvaluationError(
                "cheapest: no worker's cost is known; set `price` in the settings, or give --train."
            )
        self.worker = min(told, key=lambda name: told[name])
        return {"worker": self.worker}

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        return Answer(await scene.asker.run(question, scene.caps, by_itself(self.worker)))


def make(named: Named, setup: Setup) -> Sequence[Single | Random | Cheapest]:
    """See `Maker`."""
    named.only()
    if named.name == "random":
        return [Random("random", "a worker drawn by lot")]
    if named.name == "cheapest":
        return [Cheapest("cheapest", "the worker that costs least", setup.asker)]
    chosen = [known(named.detail, setup.asker, "single")] if named.detail else models_of(setup.asker)
    return [Single(f"single:{worker}", f"{worker} by itself", worker) for worker in chosen]
