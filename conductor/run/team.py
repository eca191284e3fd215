"""A conductor and a pool: a value that answers nothing by itself (`lifecycle.py` runs tasks over it)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from conductor.errors import BadTask, NotAllowed, did_you_mean, quote
from conductor.model.pool_member import PoolMember
from conductor.plan.prompts import Prompts
from conductor.run.plan_writer import ConductorModel
from conductor.run.task import Task


@dataclass(frozen=True, slots=True)
class Team:
    """A conductor and a pool.

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

    def members_for(self, task: Task) -> dict[str, PoolMember]:
        """The part of the pool that `task` may use: what plans are written and checked with, and who may
        answer alone.

        Raises:
            BadTask: it names a worker nobody has, leaves none, or brings a plan that asks for others.
            NotAllowed: its permit leaves none.
        """
        for name_of_field, names in (
            ("workers", task.workers or ()),
            ("exclude_workers", task.exclude_workers),
        ):
            unknown = [name for name in names if name not in self.pool]
            if unknown:
                detail = f"The pool has: {', '.join(self.pool)}."
                allowed = filter(task.permit.allows, self.pool)
                raise unknown_worker(unknown[0], f"podium.{name_of_field}", allowed, detail)
        wanted = list(self.pool) if task.workers is None else list(dict.fromkeys(task.workers))
        left = [name for name in wanted if name not in task.exclude_workers]
        if not left:
            param = "podium.exclude_workers" if task.exclude_workers else "podium.workers"
            raise BadTask("No worker is left for this request; allow at least one.", param=param)
        members = {name: self.pool[name] for name in left if task.permit.allows(name)}
        if not members:
            message = f"None of the workers that {quote(task.model)} may use is one that may be called for this key."
            raise NotAllowed(message, param="model")
        for step in task.plan.steps if task.plan else ():
            if step.worker not in members:
                message = f"The plan asks {quote(step.worker)}, which this request does not allow. See podium.workers."
                raise BadTask(message, param="podium.plan", detail=f"Allowed: {', '.join(members)}.")
        return members

    def planner(self, task: Task) -> ConductorModel | None:
        """Who writes plans for `task`; None where nobody may."""
        conductor = self.conductor
        return conductor if conductor and task.permit.allows(conductor.member.name) else None

    def fallbacks(self, task: Task) -> list[str]:
        """Return the workers that may answer alone, the settings' choice first. Workers that cannot use a picture, a PDF
        or the tools of the request are left out if another one can.
        """
        members = self.members_for(task)
        names = sorted(members, key=lambda name: name != self.fallback)
        needs: tuple[tuple[bool, Callable[[PoolMember], bool]], ...] = (
            (task.shows_pictures, lambda member: member.sees_images),
            (task.shows_pdfs, lambda member: member.reads_pdfs),
            (bool(task.tools), lambda member: member.calls_tools is not False),
        )
        for is_needed, can in needs:
            if is_needed:
                names = [name for name in names if can(members[name])] or names
        return names


def unknown_worker(name: str, param: str, allowed: Iterable[str], detail: str = "") -> BadTask:
    """Return the error for a worker that is not in the pool, or not for this caller: a caller is not told which.

    Args:
        name: of the worker.
        param: the field that names it.
        allowed: workers that the caller may call, one of which may be meant.
        detail: for the operator.
    """
    hint = did_you_mean(name, allowed)
    message = f"No worker of the pool is called {quote(name)}.{hint} GET /v1/models lists them."
    return BadTask(message, param=param, detail=detail)
