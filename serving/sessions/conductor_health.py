"""Health of the conductor: whether it writes plans.

It is derived from the records of this router's runs. For a conductor behind an API, there is no other sign of
health.
"""

import logging
from dataclasses import dataclass
from typing import Literal

from conductor.errors import ContentFiltered, ContextOverflow, DeadlineExceeded, WorkerError
from conductor.run.plan_record import PlanRecord
from conductor.run.record import Record

logger = logging.getLogger("podium")

FAILURES_UNTIL_DEGRADED = 10
"""Number of consecutive runs without a plan after which the conductor counts as degraded."""
WRITTEN = ("conductor", "repair", "revision")
"""Values of `PlanRecord.source` for plans that the conductor wrote."""


@dataclass(slots=True)
class ConductorHealth:
    """Counter of consecutive runs for which the conductor wrote no plan."""

    failures: int = 0
    reason: str = ""
    """Why the newest of these runs has no plan. Clients can see this text."""

    @property
    def is_degraded(self) -> bool:
        """True if there are so many failures that `/readyz` and the log report them."""
        return self.failures >= FAILURES_UNTIL_DEGRADED

    def count(self, record: Record) -> None:
        """Count an ended run. Ignore it if it does not show whether the conductor works."""
        match verdict(record):
            case "planned":
                if self.is_degraded:
                    logger.warning(
                        "The conductor writes plans again, after %d runs without a plan.", self.failures
                    )
                self.failures, self.reason = 0, ""
            case "failed":
                plan = _plan_to_blame(record)
                assert plan is not None, "a failed verdict has a plan"
                self.failures, self.reason = self.failures + 1, _reason(plan)
                if self.failures == FAILURES_UNTIL_DEGRADED:
                    message = "The conductor has written no plan for %d consecutive runs, so one worker answers alone. Last error: %s"
                    logger.error(message, self.failures, _explanation(plan))
            case "says nothing":
                pass


def verdict(record: Record) -> Literal["planned", "failed", "says nothing"]:
    """Return what a run shows about the conductor: it has written a plan, it has failed, or neither.

    The conductor has not failed if the client disconnected, if a budget was exceeded, or if the prompt was
    too long or was filtered. A deadline counts as a failure only if the conductor sent nothing before it.
    """
    plans = [plan for plan in record.plans if plan.source in WRITTEN]
    if any(
        (plan.steps or plan.accepted) and plan.rejection is None and plan.failure is None for plan in plans
    ):
        return "planned"
    return "failed" if _plan_to_blame(record) else "says nothing"


def _plan_to_blame(record: Record) -> PlanRecord | None:
    """Return the newest plan for whose failure the conductor is responsible, or None if there is none.

    Also return None if the run ended before the conductor could retry.
    """
    plans = [plan for plan in record.plans if plan.source in WRITTEN]
    is_late = record.failure is not None and record.failure.is_a(DeadlineExceeded)
    if is_late and plans and all(_is_silent(plan) for plan in plans):
        return plans[-1]
    if (is_late or record.status == "cancelled") and record.fallback is None:
        return None
    return next((plan for plan in reversed(plans) if _is_failure(plan)), None)


def _is_silent(plan: PlanRecord) -> bool:
    """Return whether the call of the conductor ended before its first token, without an error."""
    return plan.result is None and plan.rejection is None and plan.failure is None


def _is_failure(plan: PlanRecord) -> bool:
    failure = plan.failure
    if failure is None:
        return plan.rejection is not None
    is_of_prompt = failure.is_a(ContextOverflow) or failure.is_a(ContentFiltered)
    return plan.rejection is not None or (failure.is_a(WorkerError) and not is_of_prompt)


def _reason(plan: PlanRecord) -> str:
    if _is_silent(plan):
        return "DeadlineExceeded: the conductor sent nothing before the deadline of the request"
    return plan.failure.story if plan.failure else f"{plan.reject_reason}: {plan.why}"


def _explanation(plan: PlanRecord) -> str:
    details = [each.detail for each in plan.failure.causes if each.detail] if plan.failure else []
    return " ".join([f"{plan.worker}: {_reason(plan)}", *dict.fromkeys(details)])
