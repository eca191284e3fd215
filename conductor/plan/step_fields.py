"""The fields of a step, as a conductor's text has them in either format, to the types of a `Step`."""

from collections.abc import Sequence
from typing import Any, cast

from conductor.errors import InvalidPlan, Reason, quote
from conductor.plan.plan import Step


def read_step(
    index: int, worker: Any, subtask: Any, access: Any, workers: Sequence[str], needs: Any = ""
) -> Step:
    """The fields of step `index` as a `Step`, in the types and names of the pool.

    Raises:
        InvalidPlan: a field has the wrong type, or the worker's number is not in the pool.
    """
    if isinstance(worker, bool) or not isinstance(worker, int | str):
        raise _wrong_type(index, "worker", "a number or a name")
    task = _text(index, "subtask", subtask)
    if isinstance(worker, int) and not 0 <= worker < len(workers):
        raise InvalidPlan(
            f"Step {index} names worker {quote(worker)}; the pool of this request has 0 to {len(workers) - 1}.",
            reason=Reason.UNKNOWN_WORKER,
            step=index,
        )
    name = workers[worker] if isinstance(worker, int) else worker
    return Step(name, task, _access(index, access), _text(index, "needs", needs))


def read_flag(index: int, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong_type(index, name, "true or false")
    return value


def _text(index: int, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong_type(index, name, "a text")
    if any("\ud800" <= char <= "\udfff" for char in value):
        message = f"Step {index}'s {name} has half of a character, which no model can be sent."
        raise InvalidPlan(message, reason=Reason.MALFORMED, step=index)
    return value.strip()


def _access(index: int, access: Any) -> tuple[int, ...]:
    if access == "all":
        return tuple(range(index))
    if not isinstance(access, list):
        raise _wrong_type(index, "access", 'a list of step numbers, or "all"')
    reads = cast(list[Any], access)
    if reads == ["all"]:
        return tuple(range(index))
    if not all(isinstance(read, int) and not isinstance(read, bool) for read in reads):
        raise _wrong_type(index, "access", 'a list of step numbers, or "all"')
    return tuple(cast(list[int], reads))


def _wrong_type(index: int, name: str, wanted: str) -> InvalidPlan:
    return InvalidPlan(f"Step {index}'s {name!r} must be {wanted}.", reason=Reason.WRONG_TYPE, step=index)
