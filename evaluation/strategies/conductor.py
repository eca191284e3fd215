"""Strategy in which a conductor writes a plan for each question. It is the pool's conductor, or a trained one
from elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluation import EvaluationError
from evaluation.backends import EvaluationBackend
from evaluation.outcome import RunOutcome
from evaluation.questions import Question
from evaluation.results import TRANSIENT
from evaluation.spec import Spec
from evaluation.strategies.base import EvalContext, Setup, Strategy, StrategyAnswer, TrainingSet

CONDUCTOR_FAILED = "the conductor failed: "
"""Beginning of the fallback reason in a record if the conductor failed. The type of the error follows."""


@dataclass(slots=True)
class ConductorStrategy(Strategy):
    model: str | None
    own: EvaluationBackend | None = None
    """A backend opened for this strategy, or None to use the evaluation's."""

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        """Return which conductor writes the plans. Results with another conductor are not reused."""
        return {"model": self.model, "pool": dict(self.own.identity) if self.own else None}

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        backend = self.own or context.backend
        outcome = unreachable_as_error(await backend.run(question, context.caps, model=self.model))
        return StrategyAnswer(outcome, notes={"plan": list(outcome.plan)})

    async def aclose(self) -> None:
        if self.own is not None:
            await self.own.aclose()


def unreachable_as_error(outcome: RunOutcome) -> RunOutcome:
    """Turn a fallback into an error if the conductor was unreachable, which says nothing about its plans."""
    error = (outcome.fallback or "").removeprefix(CONDUCTOR_FAILED).partition(":")[0]
    if error in TRANSIENT and outcome.error is None:
        return replace(outcome, error=error, message=outcome.fallback or "")
    return outcome


def make(spec: Spec, setup: Setup) -> Sequence[ConductorStrategy]:
    spec.allow_only("settings", "model", "at", "as")
    path, model, at = (spec.options.get(option) for option in ("settings", "model", "at"))
    if spec.name == "trained" and not (path or model or at):
        raise EvaluationError(
            "trained needs a conductor. Use trained?settings=FILE, trained?at=URL for an engine, or "
            "trained?model=NAME if a server has several."
        )
    own = setup.open_backend(path, at, model) if path or at else None
    if not (own or setup.backend).has_conductor:
        raise EvaluationError(
            f"{spec.name}: the pool has no conductor that this process can call. Set `conductor` in the "
            "settings. If the conductor is a vLLM engine, start it with `vllm serve` and use "
            f"'{spec.name}?at=http://127.0.0.1:8001/v1'."
        )
    if own is not None and (differing := sorted({*own.workers} ^ {*setup.backend.workers})):
        raise EvaluationError(
            f"{path} and the evaluation have different workers ({', '.join(differing)} are only in one of them). "
            "Use the same workers in both."
        )
    about = "a conductor's plans" if spec.name == "conductor" else "a trained conductor's plans"
    source = ", ".join(each for each in (path, at, model) if each)
    label = spec.options.get("as", str(spec))
    return [ConductorStrategy(label, about + (f" ({source})" if source else ""), None if at else model, own)]
