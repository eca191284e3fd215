"""A team of a conductor and workers, and a worker that answers with a run of the whole team."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

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
from conductor.model.call import Call, Sampling
from conductor.model.deltas import open_reply
from conductor.model.failure import Failure
from conductor.model.messages import Native, PendingCall
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import FREE, Price
from conductor.model.worker import PoolMember
from conductor.plan.grammars import SUBTASK_CHARS
from conductor.plan.instructions import Layout, layout_of
from conductor.plan.plan import Format
from conductor.plan.prompts import Prompts
from conductor.run.events import AnswerDelta, RunFailed, RunFinished, RunSuspended
from conductor.run.follow_up import FollowUp
from conductor.run.record import Record
from conductor.run.run import Run
from conductor.run.task import Task
from conductor.run.turns import ClientReply, GivenResult, StepTurn

PLAN_TOKENS = 1024
"""Limit of a plan's text in tokens. It is the limit of arXiv 2512.04388 (appendix A.1)."""
PLAN_TIMEOUT_S = 300.0

Constraint = Literal["ebnf", "json_schema"]
"""Language of the grammar that a server enforces: `ebnf` for vLLM, `json_schema` for API providers."""


@dataclass(frozen=True, slots=True)
class ConductorModel:
    """The model that writes plans, and its decoding settings.

    Args:
        member: the model.
        format: format of its plans.
        temperature: temperature of its decoding. arXiv 2512.04388 trains at 1.0, but plans are best at 0.
        constrained: language of the grammar that its server enforces. None if the server enforces none.
        max_plan_tokens: limit of a plan's length in tokens. It is also enforced here, if the server does not
            enforce it.
        subtask_chars: limit of a subtask's length in the grammar, in characters.
        shuffle: whether each request shows the workers in a new order and with new numbers.
        max_thinking_tokens: limit of the thinking tokens, in addition to the plan. Providers count them as
            output.
        thought: whether the model writes a thought before the steps if a JSON schema is enforced. Use it for
            models without reasoning of their own.
        timeout_s: time limit for one plan in seconds, from its first token on. It includes thinking.
        effort: reasoning effort for plans, or None for the member's default.
    """

    member: PoolMember
    format: Format = "steps"
    temperature: float | None = 0.0
    constrained: Constraint | None = "ebnf"
    max_plan_tokens: int = PLAN_TOKENS
    subtask_chars: int = SUBTASK_CHARS
    shuffle: bool = False
    max_thinking_tokens: int = 0
    thought: bool = False
    timeout_s: float = PLAN_TIMEOUT_S
    effort: str | None = None

    @property
    def layout(self) -> Layout:
        return layout_of(self.format, is_schema=self.constrained == "json_schema", is_thinking=self.thought)

    @property
    def sampling(self) -> Sampling:
        """Decoding parameters of its plans. The user's parameters do not apply to plans."""
        longest = self.max_plan_tokens + self.max_thinking_tokens
        return Sampling(max_output_tokens=longest, temperature=self.temperature, effort=self.effort)


@dataclass(frozen=True, slots=True)
class Team:
    """A conductor and a pool of workers.

    Args:
        conductor: model that writes plans. None if every request must contain its plan.
        pool: all workers by name, in the order in which the conductor sees them.
        prompts: texts of the prompts.
        fallback: worker that answers alone if planning fails, or None for the first worker of the request.
        follow_up: facts about the conversation of one request, if another turn came before it. A team without a
            request has none.
        earlier_turns: turns of earlier runs of the conversation, by the client's id of each of their tool calls. The
            ids of a turn are in the order of its calls.
    """

    conductor: ConductorModel | None
    pool: Mapping[str, PoolMember]
    prompts: Prompts = field(default_factory=Prompts)
    fallback: str | None = None
    follow_up: FollowUp | None = None
    earlier_turns: Mapping[str, StepTurn] = field(default_factory=dict[str, StepTurn])

    def members_for(self, task: Task) -> dict[str, PoolMember]:
        """Return the members of the pool that `task` may use, for its plans and for answers without a plan.

        Raises:
            BadTask: the task names an unknown worker, excludes all workers, or has a plan with a worker that
                is not allowed.
            NotAllowed: the permit allows none of the workers.
        """
        for name_of_field, names in (
            ("workers", task.workers or ()),
            ("exclude_workers", task.exclude_workers),
        ):
            unknown = [name for name in names if name not in self.pool]
            if unknown:
                detail = f"Workers in the pool: {', '.join(self.pool)}."
                allowed = filter(task.permit.allows, self.pool)
                raise unknown_worker(unknown[0], f"podium.{name_of_field}", allowed, detail)
        requested = list(self.pool) if task.workers is None else list(dict.fromkeys(task.workers))
        names = [name for name in requested if name not in task.exclude_workers]
        if not names:
            param = "podium.exclude_workers" if task.exclude_workers else "podium.workers"
            raise BadTask(
                f"{param} leaves no worker for this request. Allow at least one worker.", param=param
            )
        members = {
            name: member
            for name in names
            if task.permit.allows(name) and (member := self.member_for(task, name))
        }
        if not members:
            message = f"The policies of this API key and its team allow none of the workers that the request may use with model {quote(task.model)}. Use another model that GET /v1/models lists, or allow other workers in the request."
            raise NotAllowed(message, param="model")
        for step in task.plan.steps if task.plan else ():
            if step.worker not in members:
                message = f"The plan uses worker {quote(step.worker)}, which this request may not call. Check podium.workers and podium.exclude_workers."
                raise BadTask(message, param="podium.plan", detail=f"Allowed workers: {', '.join(members)}.")
        return members

    def member_for(self, task: Task, name: str) -> PoolMember | None:
        """Return a worker as `task` calls it, or None if the pool does not contain it."""
        member = self.pool.get(name)
        is_chosen = task.workers is not None and not task.workers_by_server
        is_conducted = task.plan is None and not is_chosen and not task.exclude_workers
        return member.for_conductor if member and is_conducted else member

    def planner(self, task: Task) -> ConductorModel | None:
        """Return the conductor for `task`, or None if there is none or the permit excludes it."""
        conductor = self.conductor
        return conductor if conductor and task.permit.allows(conductor.member.name) else None

    def fallbacks(self, task: Task) -> list[str]:
        """Return the workers that may answer alone. The configured fallback is the first one.

        Workers that cannot handle the request's images, PDFs or tools are omitted, unless no worker can.
        """
        members = self.members_for(task)
        names = sorted(members, key=lambda name: name != self.fallback)
        needs: tuple[tuple[bool, Callable[[PoolMember], bool]], ...] = (
            (any(message.has_image for message in task.conversation), lambda member: member.sees_images),
            (any(message.has_pdf for message in task.conversation), lambda member: member.reads_pdfs),
            (bool(task.tools), lambda member: member.calls_tools is not False),
        )
        for is_needed, can in needs:
            if is_needed:
                names = [name for name in names if can(members[name])] or names
        return names


def unknown_worker(name: str, param: str, allowed: Iterable[str], detail: str = "") -> BadTask:
    """Return the error for a worker that is unknown, or hidden from the caller. It may suggest an allowed
    one.
    """
    hint = did_you_mean(name, allowed)
    message = f"No worker is named {quote(name)}.{hint} GET /v1/models lists all workers."
    return BadTask(message, param=param, detail=detail)


TEAM = "team"
"""Name under which the whole team is a worker in the pool."""
TEAM_CARD = "this whole team again: for a part that deserves a plan of its own"

OpenInner = Callable[[Call], AbstractAsyncContextManager[Run]]
"""Function that opens the inner run that answers a step's call."""


class TeamWorker:
    """Worker that answers with a run of the whole team, an inner run. The outer ledger pays for its calls;
    the step itself costs nothing.
    """

    def __init__(self, model: str, open_inner: OpenInner) -> None:
        self._model, self._open_inner = model, open_inner

    @property
    def name(self) -> str:
        return TEAM

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `Worker.open`. The WorkerError has the inner run's error as its cause."""
        # The price is known only at the end.
        return open_reply(self.name, self._model, self._deltas(call), price=None)

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
                        yield _total(run.record, None)  # a failed run is billed, too
                        raise _wrap(failure)
                    case _:
                        pass


def team_member(model: str, open_inner: OpenInner, price: Price | None) -> PoolMember:
    """Return the whole team as a pool member. The approximate `price` is only for the conductor's prompt."""
    worker = TeamWorker(model, open_inner)
    return PoolMember(
        TEAM, worker, TEAM_CARD, price=price, bills_inner_calls=True, sees_images=True, reads_pdfs=True
    )


def estimate_price(conductor: PoolMember | None, pool: Iterable[PoolMember], max_steps: int) -> Price | None:
    """Return the approximate price of the team, or None if not known.

    It is `max_steps` times the workers' mean price, plus the price of the plan.
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
    """Return the tool calls of an inner run that waits for them as one turn of the outer step."""
    tool_calls = tuple(replace(each.call, id=str(each.number)) for each in calls)
    native = Native(TEAM, "", {"run": record.id})
    return replace(_total(record, FinishReason.TOOL_CALLS), tool_calls=tool_calls, native=native)


@dataclass(frozen=True, slots=True)
class WaitingInner:
    """An inner run that waits for tool results, and the results that have arrived."""

    record: Record
    client_reply: ClientReply


def find_waiting(call: Call, earlier: Mapping[str, Record]) -> WaitingInner | None:
    """Return the waiting inner run that `call` continues, or None if the call starts a new run."""
    turns = [n for n, message in enumerate(call.messages) if message.native and message.native.worker == TEAM]
    if not turns:
        return None
    native = call.messages[turns[-1]].native
    assert native is not None, "turns have a native payload"
    record = earlier.get(str(native.payload["run"]))
    after = call.messages[turns[-1] + 1 :]
    if record is None or record.status != "waiting":
        return None
    results = tuple(GivenResult(int(each.id), each) for message in after for each in message.tool_results)
    user_messages = tuple(message for message in after if message.role != "tool")
    return WaitingInner(record, ClientReply(results, user_messages))


def _total(record: Record, finish: FinishReason | None) -> Delta:
    return Delta(
        finish=finish,
        usage=record.segment_usage,
        cost_usd=record.segment_cost_usd,
        inner_run=record.id,
        cost_is_bound=record.cost_is_bound,
    )


def _wrap(failure: Failure) -> PodiumError:
    """Convert an inner failure to the outer step's error. Budget and deadline errors also end the outer run."""
    error = failure.to_error()
    if isinstance(error, Interrupted):
        return WorkerUnavailable(f"The inner run failed: {error.message}", worker=TEAM)
    if not isinstance(error, WorkerError):
        return error
    facts = {name: value for name, value in vars(error).items() if name in ("detail", "retry_after_s")}
    wrapped = type(error)(f"The inner run failed: {error.message}", worker=TEAM, **facts)
    wrapped.__cause__ = error
    return wrapped
