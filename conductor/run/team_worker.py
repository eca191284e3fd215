"""The whole team as one worker of itself (arXiv 2512.04388, section 3.2: the conductor may call itself), bounded in depth."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from conductor.errors import PodiumError, WorkerError
from conductor.model.usage import Usage
from conductor.model.worker import Call, Delta, FinishReason, Reply, open_reply
from conductor.run.events import AnswerDelta, RunFailed, RunFinished
from conductor.run.ledger import Ledger

if TYPE_CHECKING:
    from conductor.run.record import Record
    from conductor.run.task import Task
    from conductor.run.team import Team

ITSELF = "team"
"""The name under which the pool shows it."""


class TeamWorker:
    """A run inside a run. Its calls are paid from the outer ledger, so the step that asks it costs nothing itself."""

    def __init__(self, engine: "Team", task: "Task", ledger: Ledger) -> None:
        self._engine, self._task, self._ledger = engine, task, ledger

    @property
    def name(self) -> str:
        """See `Worker.name`."""
        return ITSELF

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `Worker.open`.

        Raises:
            WorkerError: the inner run failed; its own error is the cause.
        """
        return open_reply(
            self.name, self._task.model, self._deltas(call), price=None
        )  # known once it has ended

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        inner = replace(
            self._task, conversation=call.messages, sampling=replace(call, messages=(), step=None),
            depth=self._task.depth - 1, rounds=1, deadline_s=None,
        )  # fmt: skip
        async with self._engine.running(inner, ledger=self._ledger) as run, aclosing(run.events()) as events:
            async for event in events:
                match event:
                    case AnswerDelta(text=text, reasoning=reasoning):
                        yield Delta(text, reasoning)
                    case RunFinished(finish=finish):
                        yield self._told(run.record, finish)
                    case RunFailed(error=error):
                        yield self._told(run.record, None)  # what it took, it took
                        raise self._failed(error)
                    case _:
                        pass

    def _told(self, record: "Record", finish: FinishReason | None) -> Delta:
        usage = sum((call.usage for call in record.calls if call.usage), Usage())
        return Delta(finish=finish, usage=usage, cost_usd=record.cost_usd, inner=record)

    def _failed(self, error: PodiumError) -> PodiumError:
        if not isinstance(error, WorkerError):
            return error
        facts = {name: value for name, value in vars(error).items() if name in ("detail", "retry_after_s")}
        wrapped = type(error)(f"The inner run failed: {error.message}", worker=self.name, **facts)
        wrapped.__cause__ = error
        return wrapped
