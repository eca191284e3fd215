"""What one question took, whoever was asked: the few figures of a run's record that reports compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from conductor.model.usage import total
from conductor.run.record import Record


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer and its price.

    Args:
        answer: the text; empty where there is none.
        calls: to models, those for plans included.
        steps: of the plan that answered; of all of them where several runs made one answer.
        prompt_tokens, completion_tokens: of every call; None where one of them did not tell.
        cost_usd: None where one call's cost is unknown.
        wall_s: from question to answer.
        critical_path_s: had every step begun the moment it could.
        format_failures: plans that were refused.
        fallback: why one worker answered by itself; None where a plan was run.
        error: the type of the error that ended it, such as `WorkerRefused`.
        message: the error in words.
        workers: who was asked, each once.
        plan: the steps that ran, as text, for whoever looks into a result.
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
        """Read and written together."""
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        return self.prompt_tokens + self.completion_tokens


def of_record(record: Record) -> Outcome:
    """A run's record, in short."""
    calls, plan = record.calls, record.answering_plan
    used = record.usage
    told = record.n_unmetered_calls == 0
    failure = record.failure
    return Outcome(
        answer=record.answer, calls=len(calls), steps=len(plan.steps) if plan else 0,
        prompt_tokens=used.input_tokens if told else None, completion_tokens=used.output_tokens if told else None,
        cost_usd=record.cost_usd, wall_s=record.wall_s, critical_path_s=record.critical_path_s,
        format_failures=sum(each.rejection is not None for each in record.plans), fallback=record.fallback,
        error=failure.code if failure else None, message=failure.explanation if failure else "",
        workers=tuple(dict.fromkeys(call.worker for call in calls)),
        plan=tuple(f"{s.worker}{list(s.access)}: {s.subtask}" for s in plan.steps) if plan else (),
    )  # fmt: skip


def together(parts: Sequence[Outcome], answer: str, *, side_by_side: bool) -> Outcome:
    """Several runs that made one answer. An unknown figure of one is unknown for all.

    Args:
        parts: at least one.
        answer: what was made of them.
        side_by_side: they ran at once, so the longest one counts; else one after another.
    """
    longest = max if side_by_side else sum
    answered = [part for part in parts if part.error is None]
    failed = None if answered else parts[0]
    return Outcome(
        answer=answer, calls=sum(part.calls for part in parts), steps=sum(part.steps for part in parts),
        prompt_tokens=_sum([part.prompt_tokens for part in parts]),
        completion_tokens=_sum([part.completion_tokens for part in parts]),
        cost_usd=total([part.cost_usd for part in parts]),
        wall_s=longest(part.wall_s for part in parts), critical_path_s=longest(part.critical_path_s for part in parts),
        format_failures=sum(part.format_failures for part in parts),
        fallback=next((part.fallback for part in parts if part.fallback), None),
        error=failed.error if failed else None, message=failed.message if failed else "",
        workers=tuple(dict.fromkeys(name for part in parts for name in part.workers)),
        plan=tuple(step for part in parts for step in part.plan),
    )  # fmt: skip


def _sum(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None
