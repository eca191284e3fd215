"""The one entry point: a conductor and a pool, and the runs that they answer.

Everything that happens in a run is an event; the record is their fold. How a run is driven is in `conducting.py`.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from conductor.errors import BadTask, quote
from conductor.model.pool_member import PoolMember
from conductor.plan.prompts import Prompts
from conductor.run.event_log import Outbox
from conductor.run.ledger import Ledger
from conductor.run.plan_run import wait_until_done
from conductor.run.plan_writer import ConductorModel
from conductor.run.record import Record
from conductor.run.rounds import RoundLoop
from conductor.run.run import Run
from conductor.run.task import Task


@dataclass(frozen=True, slots=True)
class Team:
    """A conductor and a pool, ready to answer.

    Args:
        conductor: who writes plans; None where only given plans are run.
        pool: every worker, by name, in the order the conductor sees them.
        prompts: the texts.
        fallback: who answers where no plan can be had; None: the first of the request's pool.
    """

    conductor: ConductorModel | None
    pool: Mapping[str, PoolMember]
    prompts: Prompts = field(default_factory=Prompts)
    fallback: str | None = None

    def allowed(self, task: Task) -> dict[str, PoolMember]:
        """The part of the pool that `task` may use.

        Raises:
            BadTask: it names a worker nobody has, leaves none, or brings a plan that asks for others.
        """
        for name_of_field, names in (
            ("workers", task.workers or ()),
            ("exclude_workers", task.exclude_workers),
        ):
            unknown = [name for name in names if name not in self.pool]
            if unknown:
                raise BadTask(
                    f"No worker of the pool is called {quote(unknown[0])}. GET /v1/models lists them.",
                    param=f"podium.{name_of_field}", detail=f"The pool has: {', '.join(self.pool)}.",
                )  # fmt: skip
        wanted = list(self.pool) if task.workers is None else list(dict.fromkeys(task.workers))
        members = {name: self.pool[name] for name in wanted if name not in task.exclude_workers}
        if not members:
            param = "podium.exclude_workers" if task.exclude_workers else "podium.workers"
            raise BadTask("No worker is left for this request; allow at least one.", param=param)
        for step in task.plan.steps if task.plan else ():
            if step.worker not in members:
                message = f"The plan asks {quote(step.worker)}, which this request does not allow. See podium.workers."
                raise BadTask(message, param="podium.plan", detail=f"Allowed: {', '.join(members)}.")
        return members

    @asynccontextmanager
    async def running(
        self, task: Task, id: str | None = None, ledger: Ledger | None = None
    ) -> AsyncGenerator[Run]:
        """Run `task` for as long as the block lasts; leaving it early cancels and closes everything it had begun.

        Args:
            task: what to do.
            id: the run's name; made up where None.
            ledger: of the run that this one is a step of.

        Raises:
            BadTask: before anything is called. Whatever happens later is the run's terminal event.
        """
        members = self.allowed(task)
        outbox = Outbox()
        record = Record(
            id or f"wf_{uuid.uuid4().hex}", task.model, time.time(), max_cost_usd=task.budget.max_cost_usd
        )
        run = Run(record, outbox)
        conducting = RoundLoop(self, task, members, run, outbox, ledger or Ledger(task.budget))
        driver = asyncio.create_task(conducting.drive(), name=f"run {run.record.id}")
        try:
            yield run
        finally:
            driver.cancel()
            try:
                await wait_until_done([driver])
            finally:
                if run.record.status == "running":
                    run.record = replace(run.record, status="cancelled", wall_s=conducting.now_s())
