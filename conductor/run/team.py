"""A team, and a team as a worker of another run."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from decimal import Decimal

from msgspec.structs import replace

from conductor.errors import (
    BadTask,
    Interrupted,
    NotAllowed,
    PodiumError,
    WorkerError,
    WorkerUnavailable,
    did_you_mean,
    quote,
)
from conductor.model.call import Call
from conductor.model.failure import Failure
from conductor.model.messages import Native, PendingCall
from conductor.model.reply import Delta, FinishReason, Reply, open_reply
from conductor.model.usage import FREE, Price
from conductor.model.worker import PoolMember
from conductor.plan.prompts import Prompts
from conductor.run.events import AnswerDelta, RunFailed, RunFinished, RunSuspended
from conductor.run.plan_writer import ConductorModel
from conductor.run.record import Record
from conductor.run.run import Run
from conductor.run.task import Task
from conductor.run.turns import Given, GivenResult


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


TEAM = "team"
"""The name under which the pool shows it."""
TEAM_CARD = "this whole team again: for a part that deserves a plan of its own"

OpenInner = Callable[[Call], AbstractAsyncContextManager[Run]]
"""Opens the run that answers a call of a step."""


class TeamWorker:
    """A run inside a run. Its calls are paid from the outer ledger, so the step that asks it costs nothing
    itself.
    """

    def __init__(self, model: str, open_inner: OpenInner) -> None:
        self._model, self._open_inner = model, open_inner

    @property
    def name(self) -> str:
        """See `Worker.name`."""
        return TEAM

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `Worker.open`.

        Raises:
            WorkerError: the inner run failed; its own error is the cause.
        """
        return open_reply(self.name, self._model, self._deltas(call), price=None)  # known once it has ended

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        async with self._open_inner(call) as run, aclosing(run.events()) as events:
            async for event in events:
                match event:
                    case AnswerDelta(text=text, reasoning=reasoning):
                        yield Delta(text, reasoning)
                    case RunFinished(finish=finish):
                        yield _total(run.record, finish)
                    case RunSuspended(calls=calls):
                        yield _waits(run.record, calls)
                    case RunFailed(failure=failure):
                        yield _total(run.record, None)  # what it took, it took
                        raise _wrap(failure)
                    case _:
                        pass


def team_member(model: str, open_inner: OpenInner, price: Price | None) -> PoolMember:
    """The whole team as one more worker of the pool. `price`: about what a call of it costs, for the conductor to read."""
    worker = TeamWorker(model, open_inner)
    return PoolMember(
        TEAM, worker, TEAM_CARD, price=price, bills_inner_calls=True, sees_images=True, reads_pdfs=True
    )


def estimate_price(conductor: PoolMember | None, pool: Iterable[PoolMember], max_steps: int) -> Price | None:
    """Return about what a call of the whole team costs: a plan of `max_steps` steps at the mean price of the workers, and
    the plan itself. None if no price is known.
    """
    prices = [member.price for member in pool if member.price is not None]
    if not prices:
        return None
    planned = conductor.price if conductor is not None and conductor.price is not None else FREE

    def estimate(rate: Callable[[Price], Decimal]) -> Decimal:
        exact = rate(planned) + max_steps * sum(map(rate, prices), Decimal(0)) / len(prices)
        return Decimal(f"{exact:.2g}") if exact else exact

    return Price(
        estimate(lambda price: price.input_usd_per_mtok), estimate(lambda price: price.output_usd_per_mtok)
    )


def _waits(record: Record, calls: tuple[PendingCall, ...]) -> Delta:
    """The inner run waits for tools: its calls as one turn of the step that is it."""
    shown = tuple(replace(each.call, id=str(each.number)) for each in calls)
    native = Native(TEAM, "", {"run": record.id})
    return replace(_total(record, FinishReason.TOOL_CALLS), tool_calls=shown, native=native)


@dataclass(frozen=True, slots=True)
class WaitingInner:
    """A run inside a run that waited for tools, and what they gave."""

    record: Record
    given: Given


def find_waiting(call: Call, earlier: Mapping[str, Record]) -> WaitingInner | None:
    """The run that `call` continues: its step's newest turn was the run's calls of tools. None: it begins one."""
    turns = [n for n, message in enumerate(call.messages) if message.native and message.native.worker == TEAM]
    if not turns:
        return None
    native = call.messages[turns[-1]].native
    assert native is not None, "it was looked for"
    record = earlier.get(str(native.payload["run"]))
    after = call.messages[turns[-1] + 1 :]
    if record is None or record.status != "waiting":
        return None
    results = tuple(GivenResult(int(each.id), each) for message in after for each in message.tool_results)
    said = tuple(message for message in after if message.role != "tool")
    return WaitingInner(record, Given(results, said))


def _total(record: Record, finish: FinishReason | None) -> Delta:
    return Delta(
        finish=finish,
        usage=record.segment_usage,
        cost_usd=record.segment_cost_usd,
        inner_run=record.id,
        cost_is_bound=record.cost_is_bound,
    )


def _wrap(failure: Failure) -> PodiumError:
    """The inner run's failure as one of the step that asked; a budget's or a deadline's is the outer run's
    too.
    """
    error = failure.to_error()
    if isinstance(error, Interrupted):
        return WorkerUnavailable(f"The inner run failed: {error.message}", worker=TEAM)
    if not isinstance(error, WorkerError):
        return error
    facts = {name: value for name, value in vars(error).items() if name in ("detail", "retry_after_s")}
    wrapped = type(error)(f"The inner run failed: {error.message}", worker=TEAM, **facts)
    wrapped.__cause__ = error
    return wrapped
