"""Outcome of one question on any backend. It contains the figures of a run that reports compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from conductor.model.usage import total
from conductor.run.record import Record


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Answer, and what it took to produce it. A figure is None if it is unknown.

    Args:
        calls: the number of calls to models, including those for plans, or None if it is unknown.
        steps: the number of steps of the plan that answered, or None if it is unknown. If several runs made
            one answer, their steps are added up.
        critical_path_s: the seconds that the run would have taken if every step had started as soon as it
            could.
        format_failures: the number of rejected plans, or None if it is unknown.
        fallback: the reason why one worker answered without a plan, or None if a plan ran.
    """

    answer: str = ""
    calls: int | None = 0
    steps: int | None = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cost_usd: Decimal | None = Decimal(0)
    wall_s: float = 0.0
    critical_path_s: float = 0.0
    format_failures: int | None = 0
    fallback: str | None = None
    error: str | None = None
    message: str = ""
    workers: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()

    @property
    def tokens(self) -> int | None:
        """Number of prompt and completion tokens together, or None if one of the two is unknown."""
        return sum_known([self.prompt_tokens, self.completion_tokens])


def outcome_of(record: Record) -> RunOutcome:
    calls, plan = record.calls, record.answering_plan
    usage = record.usage
    metered = record.n_unmetered_calls == 0
    failure = record.failure
    return RunOutcome(
        answer=record.answer,
        calls=len(calls),
        steps=len(plan.steps) if plan else 0,
        prompt_tokens=usage.input_tokens if metered else None,
        completion_tokens=usage.output_tokens if metered else None,
        cost_usd=record.cost_usd,
        wall_s=record.wall_s,
        critical_path_s=record.critical_path_s,
        format_failures=sum(each.rejection is not None for each in record.plans),
        fallback=record.fallback,
        error=failure.code if failure else None,
        message=failure.explanation if failure else "",
        workers=tuple(dict.fromkeys(call.worker for call in calls)),
        plan=tuple(step_line(s.worker, s.access, s.subtask) for s in plan.steps) if plan else (),
    )


def step_line(worker: str, access: Sequence[int], subtask: str) -> str:
    """Format a step for reports. A step without a subtask answers the question itself."""
    return f"{worker}{list(access)}: {subtask or 'answer the question'}"


def combine(parts: Sequence[RunOutcome], answer: str, *, concurrent: bool) -> RunOutcome:
    """Combine runs into one outcome. Unknown figures stay unknown. Times add up, unless runs were concurrent."""
    duration = max if concurrent else sum
    failure = None if any(part.error is None for part in parts) else parts[0]
    return RunOutcome(
        answer=answer,
        calls=sum_known([part.calls for part in parts]),
        steps=sum_known([part.steps for part in parts]),
        prompt_tokens=sum_known([part.prompt_tokens for part in parts]),
        completion_tokens=sum_known([part.completion_tokens for part in parts]),
        cost_usd=total([part.cost_usd for part in parts]),
        wall_s=duration(part.wall_s for part in parts),
        critical_path_s=duration(part.critical_path_s for part in parts),
        format_failures=sum_known([part.format_failures for part in parts]),
        fallback=next((part.fallback for part in parts if part.fallback), None),
        error=failure.error if failure else None,
        message=failure.message if failure else "",
        workers=tuple(dict.fromkeys(name for part in parts for name in part.workers)),
        plan=tuple(step for part in parts for step in part.plan),
    )


def sum_known(numbers: Sequence[int | None]) -> int | None:
    known_numbers = [number for number in numbers if number is not None]
    return sum(known_numbers) if len(known_numbers) == len(numbers) else None
