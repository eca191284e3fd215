"""Nobody whom the run's permit leaves out, and no longer thought than it allows."""

from contextlib import AbstractAsyncContextManager

from conductor.errors import WorkerRefused
from conductor.model.call import Call
from conductor.model.field_values import copy_with
from conductor.model.permit import EFFORTS
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from serving.layers.layer import Layer


class Permitted(Layer):
    """`worker`, for runs that may call it.

    Args:
        worker: who is called.
        default_effort: how long its model thinks where a call does not say.
    """

    def __init__(self, worker: Worker, default_effort: str = "none") -> None:
        super().__init__(worker)
        self._default_effort = default_effort

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `Worker.open`.

        Raises:
            WorkerRefused: the call's permit leaves it out. It was not asked.
        """
        if not call.permit.allows(self.name):
            message = f"{self.name} is none of the workers that this run may call."
            raise WorkerRefused(message, worker=self.name, every_call=True)
        effort = limit_effort(call.sampling.effort, call.permit.max_effort, self._default_effort)
        if effort != call.sampling.effort:
            call = copy_with(call, sampling=copy_with(call.sampling, effort=effort))
        return self._worker.open(call)


def limit_effort(effort: str | None, most: str | None, default: str) -> str | None:
    """The level to ask for: `effort`, or `most` where that is lower. A word that is no level counts as the
    highest.

    Args:
        effort: what is asked for; None: what the model does by itself.
        most: the highest level that is allowed; None: any.
        default: what the model does by itself.
    """
    if most is None:
        return effort
    return most if _rank(effort or default) > _rank(most) else effort


def _rank(level: str) -> int:
    return EFFORTS.index(level) if level in EFFORTS else len(EFFORTS)
