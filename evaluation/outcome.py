"""What one question took on any backend: the figures of a run's record that reports compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from conductor.model.usage import total
from conductor.run.record import Record


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """An answer and its price.

    Args:
        answer: the text; empty where there is none.
        calls: to models, those for plans included.
        steps: of the plan that answered; of all plans where several runs made one answer.
        prompt_tokens: of every call; None where one call did not report it.
        completion_tokens: likewise.
        cost_usd: None where one call's cost is unknown.
        wall_s: from question to answer.
        critical_path_s: had every step begun the moment it could.
        format_failures: plans that were rejected.
        fallback: why one worker answered instead; None where a plan was run.
        error: the type of the error that ended the run, such as `WorkerRefused`.
        message: the error in words.
        workers: who was called, each once.
        plan: the steps that ran, as text for a reader of the results.
    """

    answer: str = ""
    calls: int = 0
    steps: int = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cost_usd: Decimal | None = Decimal(0)
    wall_s: float = 0.0
    critical_path_s: float = 0.0
    format_failures: int = 0
    fallback: str | None = None
    error: str | None = None
    message: str = ""
    workers: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()

    @property
    def tokens(self) -> int | None:
        """Prompt and completion tokens."""
        return _sum([self.prompt_tokens, self.completion_tokens])


def outcome_of(record: Record) -> RunOutcome:
    """The figures of a run's record."""
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
    """A step as reports show it; one without a subtask is asked the question itself."""
    return f"{worker}{list(access)}: {subtask or 'answer the question'}"


def combine(parts: Sequence[RunOutcome], answer: str, *, concurrent: bool) -> RunOutcome:
    """One outcome of several runs. A figure that is unknown for one run is unknown for all.

    Args:
        parts: at least one.
        answer: what was made of their answers.
        concurrent: whether they ran at the same time, so that the longest one counts; else their times add
            up.
    """
    duration = max if concurrent else sum
    failure = None if any(part.error is None for part in parts) else parts[0]
    return RunOutcome(
        answer=answer,
        calls=sum(part.calls for part in parts),
        steps=sum(part.steps for part in parts),
        prompt_tokens=_sum([part.prompt_tokens for part in parts]),
        completion_tokens=_sum([part.completion_tokens for part in parts]),
        cost_usd=total([part.cost_usd for part in parts]),
        wall_s=duration(part.wall_s for part in parts),
        critical_path_s=duration(part.critical_path_s for part in parts),
        format_failures=sum(part.format_failures for part in parts),
        fallback=next((part.fallback for part in parts if part.fallback), None),
        error=failure.error if failure else None,
        message=failure.message if failure else "",
        workers=tuple(dict.fromkeys(name for part in parts for name in part.workers)),
        plan=tuple(step for part in parts for step in part.plan),
    )


def _sum(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None
