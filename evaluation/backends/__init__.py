"""Backends that answer questions: a pool of workers in this process (`in_process`), or a server
(`over_http`).

A strategy passes a plan or None, and gets a `RunOutcome`. It does not know which backend answered.
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
    """Limits for a strategy's work on one question. None means no limit.

    Args:
        max_tokens: the tokens of all calls together. A strategy with several runs divides them among the
            runs.
        max_cost_usd: the US dollars of all calls together, divided in the same way.
        temperature: the temperature of workers if the strategy sets none.
    """

    max_steps: int = 5
    rounds: int = 1
    max_output_tokens: int | None = None
    max_tokens: int | None = None
    max_cost_usd: Decimal | None = None
    deadline_s: float = 300.0
    temperature: float | None = None

    def part(self, of: int) -> "Caps":
        """Divide the limits of tokens and cost into `of` equal parts, and return the limits of one part."""
        return replace(
            self,
            max_tokens=None if self.max_tokens is None else max(1, self.max_tokens // of),
            max_cost_usd=None if self.max_cost_usd is None else self.max_cost_usd / of,
        )


class EvaluationBackend(Protocol):
    """Interface of backends. A backend answers questions with a pool of workers."""

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of the workers that plans may use."""
        ...

    @property
    def provenance(self) -> Mapping[str, str]:
        """Workers and conductors that are `replayed`, `synthetic`, `scripted` or a `program`, by name."""
        ...

    @property
    def has_conductor(self) -> bool: ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """What results depend on. They are reused only for a backend with the same identity."""
        ...

    def price(self, worker: str) -> Price | None:
        """Return the worker's price per token, or None if it is unknown."""
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
        """Answer `question`. Failures are returned as an outcome. Only the question's text is sent. Without a
        plan, the conductor writes one. Unset options are those of `caps` and of the server.
        """
        ...

    async def aclose(self) -> None: ...
