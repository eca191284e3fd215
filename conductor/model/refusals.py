"""Which workers have said no in a run: asking them again would give the same, take its time and perhaps be
paid for.
"""

from conductor.errors import ContentFiltered, WorkerRefused
from conductor.model.operation import CallKind


class Refusals:
    """What the workers of one run have refused, runs inside it included.

    A refused plan says nothing of a refused step (other parameters, other words), unless the worker refuses
    every call.
    """

    def __init__(self) -> None:
        self._errors: dict[tuple[str, CallKind], WorkerRefused] = {}

    def add(self, worker: str, operation: CallKind, error: WorkerRefused) -> None:
        """Remember that `worker` raised `error`."""
        operations: tuple[CallKind, ...] = (operation, "chat", "plan") if error.every_call else (operation,)
        for each in operations:
            self._errors.setdefault((worker, each), error)

    def earlier(self, worker: str, operation: CallKind) -> WorkerRefused | None:
        """What `worker` said when it was asked before, as an error of its own; None where it may be asked."""
        error = self._errors.get((worker, operation))
        if error is None:
            return None
        detail = f"It was not asked again: it had refused in this run. {error.detail}".rstrip()
        kind = ContentFiltered if isinstance(error, ContentFiltered) else WorkerRefused
        return kind(error.message, worker=worker, every_call=error.every_call, detail=detail)
