"""Who answers questions: a pool in this process (`in_process`) or a server (`over_http`).

A strategy passes a plan, or none, and gets a `RunOutcome`; it does not know which backend answered.
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
    """What a strategy may use for one question, over all its calls. None: unlimited.

    Args:
        max_steps: of a plan that a conductor writes; 1 or more.
        rounds: of planning; 1 or more.
        max_output_tokens: of one call.
        max_tokens: of all calls; a strategy of several runs divides them.
        max_cost_usd: likewise.
        deadline_s: of one run.
        temperature: of workers, where a strategy sets none.
    """

    max_steps: int = 5
    rounds: int = 1
    max_output_tokens: int | None = None
    max_tokens: int | None = None
    max_cost_usd: Decimal | None = None
    deadline_s: float = 300.0
    temperature: float | None = None

    def part(self, of: int) -> "Caps":
        """One of `of` equal parts."""
        return replace(
            self,
            max_tokens=None if self.max_tokens is None else max(1, self.max_tokens // of),
            max_cost_usd=None if self.max_cost_usd is None else self.max_cost_usd / of,
        )


class EvaluationBackend(Protocol):
    """A pool that answers questions."""

    @property
    def workers(self) -> tuple[str, ...]:
        """The names that plans may use."""
        ...

    @property
    def provenance(self) -> Mapping[str, str]:
        """Name to `replayed`, `synthetic`, `scripted` or `program`, conductor included; models have none."""
        ...

    @property
    def has_conductor(self) -> bool:
        """Whether it can write plans."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """What its results depend on: a result of another identity is not reused."""
        ...

    def price(self, worker: str) -> Price | None:
        """Per token; None where unknown."""
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
            caps: of this run.
            plan: the plan to run; None: the conductor writes one.
            temperature: of its workers; None: that of the caps.
            seed: of its workers; None: none is sent.
            model: the conductor's name at a server; None: the server's default.
        """
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...
