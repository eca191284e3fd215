"""The whole team as one worker of itself (arXiv 2512.04388, section 3.2: the conductor may call itself),
bounded in depth.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing

from conductor.errors import Interrupted, PodiumError, WorkerError, WorkerUnavailable
from conductor.model.failure import Failure
from conductor.model.pool_member import PoolMember
from conductor.model.worker import Call, Delta, FinishReason, Reply, open_reply
from conductor.run.events import AnswerDelta, RunFailed, RunFinished
from conductor.run.record import Record
from conductor.run.run import Run

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
                    case RunFailed(failure=failure):
                        yield _total(run.record, None)  # what it took, it took
                        raise _wrap(failure)
                    case _:
                        pass


def team_member(model: str, open_inner: OpenInner) -> PoolMember:
    """The whole team as one more worker of the pool."""
    worker = TeamWorker(model, open_inner)
    return PoolMember(TEAM, worker, TEAM_CARD, bills_inner_calls=True, sees_images=True)


def _total(record: Record, finish: FinishReason | None) -> Delta:
    return Delta(
        finish=finish,
        usage=record.usage,
        cost_usd=record.cost_usd,
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
