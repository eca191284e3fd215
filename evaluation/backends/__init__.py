"""Backends that answer questions: a pool in this process (`in_process`) or a server (`over_http`).

A strategy passes a plan, or None, and gets a `RunOutcome`. It does not know which backend answered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Protocol

from conductor.model.usage import Price
from conductor.plan.plan import Plan
from evaluation.outcome import RunOutcome
from evaluation.questions import Question


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of a strategy for one question, over all its calls. None means no limit.

    Args:
        max_steps: steps of a plan that a conductor writes, at least 1.
        rounds: planning rounds, at least 1.
        max_output_tokens: output tokens of one call.
        max_tokens: tokens of all calls. A strategy with several runs divides them.
        max_cost_usd: US dollars of all calls, divided in the same way.
        deadline_s: seconds for one run.
        temperature: temperature of workers if the strategy sets none.
    """

    max_steps: int = 5
    rounds: int = 1
    max_output_tokens: int | None = None
    max_tokens: int | None = None
    max_cost_usd: Decimal | None = None
    deadline_s: float = 300.0
    temperature: float | None = None

    def part(self, of: int) -> "Caps":
        """Return one of `of` equal parts of the token and cost limits."""
        return replace(
            self,
            max_tokens=None if self.max_tokens is None else max(1, self.max_tokens // of),
            max_cost_usd=None if self.max_cost_usd is None else self.max_cost_usd / of,
        )


class EvaluationBackend(Protocol):
    """Pool that answers questions."""

    @property
    def workers(self) -> tuple[str, ...]:
        """Names that plans may use."""
        ...

    @property
    def provenance(self) -> Mapping[str, str]:
        """`replayed`, `synthetic`, `scripted` or `program`, by name of a worker or conductor.

        Real models have no entry.
        """
        ...

    @property
    def has_conductor(self) -> bool:
        """Whether the backend can write plans."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that results depend on. Results of a backend with another identity are not reused."""
        ...

    def price(self, worker: str) -> Price | None:
        """Return the price per token, or None if it is unknown."""
        ...

    async def run(
        self,
        question: Question,
        caps: Caps,
        plan: Plan | None = None,
        *,
        temperature: float | None = None,
        seed: int | None = None,
        model: str | None = None,
    ) -> RunOutcome:
        """Answer `question`. A failure is an outcome with an error.

        Args:
            question: only its text is sent.
            caps: limits of this run.
            plan: the plan to run, or None to let the conductor write one.
            temperature: temperature of the workers, or None to use that of the caps.
            seed: seed for the workers, or None to send none.
            model: name of the conductor at a server, or None for the server's default.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...
