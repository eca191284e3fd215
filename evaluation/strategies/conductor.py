"""A conductor writes a plan for each question: the pool's own, or a trained one of other settings or another name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluation.backends.in_process import Asker
from evaluation.errors import EvaluationError
from evaluation.spec import Named
from evaluation.outcome import Outcome
from evaluation.questions import Question
from evaluation.results import PASSING
from evaluation.strategies.base import Answer, Lessons, Plain, Scene, Setup

FAILED = "the conductor failed: "
"""So a run's record begins to tell why a fallback answered (`conductor.conducting`); then the error's type."""


@dataclass(slots=True)
class Conducted(Plain):
    """Plans of a conductor."""

    model: str | None
    own: Asker | None = None
    """Another pool than the evaluation's, opened for this strategy."""

    async def prepare(self, lessons: Lessons | None) -> Mapping[str, Any]:
        """See `Strategy`. Whose plans they are decides whether an answer of before still counts."""
        return {"model": self.model, "pool": dict(self.own.told) if self.own else None}

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        outcome = of_conductor(await (self.own or scene.asker).run(question, scene.caps, model=self.model))
        return Answer(outcome, notes={"plan": list(outcome.plan)})

    async def aclose(self) -> None:
        """See `Strategy`."""
        if self.own is not None:
            await self.own.aclose()


def of_conductor(outcome: Outcome) -> Outcome:
    """An answer that a fallback gave because the conductor could not be reached says nothing about its plans: it is asked again."""
    error = (outcome.fallback or "").removeprefix(FAILED).partition(":")[0]
    if error in PASSING and outcome.error is None:
        return replace(outcome, error=error, message=outcome.fallback or "")
    return outcome


def make(named: Named, setup: Setup) -> Sequence[Conducted]:
    """See `Maker`."""
    named.only("settings", "model", "at", "as")
    path, model, at = (named.options.get(option) for option in ("settings", "model", "at"))
    if named.name == "trained" and not (path or model or at):
        raise EvaluationError(
            "trained: say which conductor: trained?settings=FILE, trained?at=URL where an engine runs, or trained?model=NAME where a "
            "server has several."
        )
    own = setup.open_asker(path, at, model) if path or at else None
    if not (own or setup.asker).conducts:
        raise EvaluationError(
            f"{named.name}: the pool has no conductor that can be asked from here. Set `conductor` in its settings; where it is a vLLM "
            f"engine, start one with `vllm serve` and name it with '{named.name}?at=http://127.0.0.1:8001/v1'."
        )
    if own is not None:
        missing = [name for name in setup.asker.workers if name not in own.workers]
        more = [name for name in own.workers if name not in setup.asker.workers]
        if missing or more:
            raise EvaluationError(
                f"{path} has another pool ({', '.join(missing + more)} is in one of the two only); "
                "strategies are compared over the same workers."
            )
    about = "a conductor's plans" if named.name == "conductor" else "a trained conductor's plans"
    told = ", ".join(each for each in (path, at, model) if each)
    label = named.options.get("as", str(named))
    return [Conducted(label, about + (f" ({told})" if told else ""), None if at else model, own)]
