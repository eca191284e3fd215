"""The port to whoever knows which worker a plan will probably ask, and whether it can be asked now."""

from decimal import Decimal
from typing import Protocol

from conductor.run.guess_events import GuessOutcome
from conductor.run.record import Record
from conductor.run.task import Task


class Speculation(Protocol):
    """Who is asked the user's own words before the plan is there, and whether that is worth it."""

    def likeliest(self, record: Record) -> str | None:
        """The worker that the first plan of `record`, which has just begun, will probably ask; None: not known."""
        ...

    def admit(self, worker: str, worst_usd: Decimal) -> bool:
        """Whether it may be asked now, where that may cost so much for nothing. It is counted then, until `end`."""
        ...

    def end(self, worker: str, outcome: GuessOutcome) -> None:
        """How a call that was admitted ended, `kept` once the step has it; told once."""
        ...


def may_guess(task: Task) -> bool:
    """Whether the call of a step that has the user's own words is known before the plan is, and can be made without
    taking anything from the plan's own.

    A stop sequence and a form of the answer go to the last step alone; a plan gives its step tools; pictures and files choose
    the worker. Tokens of a call that is closed are not known and count at their bound, so no request that limits
    tokens is guessed at.
    """
    depends_on_plan = task.tools or task.answer_format or task.sampling.stop
    is_plain = not depends_on_plan and not task.shows_pictures and not task.shows_pdfs
    is_planned = task.plan is None and not task.plan_only and not task.strict
    return is_plain and is_planned and task.priority == "interactive" and task.budget.max_tokens is None
