"""The whole team as one worker of itself (arXiv 2512.04388, section 3.2: the conductor may call itself),
bounded in depth.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from decimal import Decimal

from conductor.errors import Interrupted, PodiumError, WorkerError, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.failure import Failure
from conductor.model.messages import Native, PendingCall
from conductor.model.pool_member import PoolMember
from conductor.model.reply import Delta, FinishReason, Reply, open_reply
from conductor.model.usage import FREE, Price
from conductor.run.events import AnswerDelta, RunFailed, RunFinished, RunSuspended
from conductor.run.record import Record
from conductor.run.run import Run
from conductor.run.turns import Given, GivenResult

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
