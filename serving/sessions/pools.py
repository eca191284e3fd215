"""The current pool of workers, earlier pools that requests still use, and the health of the conductor.

The connections of a pool are closed after the last request that uses it. Whether the conductor writes plans is derived from the
records of this router's runs. For a conductor behind an API, there is no other sign of health.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from conductor.errors import ContentFiltered, ContextOverflow, DeadlineExceeded, WorkerError
from conductor.run.plan_record import PlanRecord
from conductor.run.record import Record
from serving.gc_tuning import collect_soon
from serving.health import WorkerHealth
from serving.pool import Pool
from serving.telemetry import metrics
from serving.telemetry.measurement import Measurement, of_health

logger = logging.getLogger("podium")

FAILURES_UNTIL_DEGRADED = 10
"""Number of consecutive runs without a plan after which the conductor counts as degraded."""
WRITTEN = ("conductor", "repair", "revision")
"""Values of `PlanRecord.source` for plans that the conductor wrote."""


class Pools:
    """Pools of one router. The pool `current` serves new requests."""

    def __init__(self, pool: Pool) -> None:
        self.current = pool
        self.conductor_health = ConductorHealth()
        """Health of the current pool's conductor. Prompts, key and team can be fixed by new settings, so each
        pool restarts the count.
        """
        self._n_using = Counter[Pool]()
        self._retired: list[Pool] = []
        self._closing = set[asyncio.Task[None]]()
        self._levelled: set[str] = set()
        """Names of all workers that were ever reported. The gauges of a removed worker must fall to 0."""

    @asynccontextmanager
    async def using(self, pool: Pool | None = None) -> AsyncGenerator[Pool]:
        """Use the current pool, or a `pool` that is already in use. Its connections stay open until the end
        of the block. The block is entered without an await.
        """
        pool = pool or self.current
        self._n_using[pool] += 1
        try:
            yield pool
        finally:
            self._n_using[pool] -= 1
            await self._close_unused()

    async def swap(self, pool: Pool) -> None:
        """Use `pool` for new requests, and close the previous pool after the last request that uses it."""
        self._retired.append(self.current)
        self.current, self.conductor_health = pool, ConductorHealth()
        await self._close_unused()

    @property
    def calls(self) -> int:
        return sum(slots.queued + slots.open_calls for pool in self._all for slots in pool.limiters.values())

    def levels(self) -> Iterator[Measurement]:
        """Yield the gauges of the load and the health of each worker."""
        self._levelled.update(self.current.limiters)
        for name in sorted(self._levelled):
            slots = [pool.limiters[name] for pool in self._all if name in pool.limiters]
            yield Measurement(metrics.QUEUED, sum(each.queued for each in slots), (name,))
            yield Measurement(metrics.OPEN, sum(each.open_calls for each in slots), (name,))
            yield Measurement(metrics.SLOTS, sum(each.n_slots for each in slots[:1]), (name,))
            yield from of_health(name, self.current.health.get(name) or WorkerHealth())

    @property
    def _all(self) -> list[Pool]:
        return [self.current, *self._retired]

    async def _close_unused(self) -> None:
        unused = [pool for pool in self._retired if not self._n_using[pool]]
        self._retired = [pool for pool in self._retired if self._n_using[pool]]
        if not unused:
            return
        for pool in unused:
            del self._n_using[pool]
        closing = [asyncio.create_task(pool.aclose(), name="close a replaced pool") for pool in unused]
        self._closing.update(closing)
        for task in closing:
            task.add_done_callback(self._closing.discard)
        await asyncio.wait(closing)  # the tasks go on if this request is cancelled
        collect_soon()


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
    """Return the newest plan that failed by the conductor's fault, if it could retry, or None."""
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
    return plan.failure.description if plan.failure else f"{plan.reject_reason}: {plan.why}"


def _explanation(plan: PlanRecord) -> str:
    details = [each.detail for each in plan.failure.causes if each.detail] if plan.failure else []
    return " ".join([f"{plan.worker}: {_reason(plan)}", *dict.fromkeys(details)])
