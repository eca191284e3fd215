"""Plans and steps, and the checks of each step."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, cast

from msgspec.structs import replace

from conductor.errors import InvalidPlan, Reason, quote
from conductor.model.value import MarkedValue, Value

Format = Literal["steps", "lists"]
OnFailure = Literal["fail", "skip"]
"""Rule for a step whose worker and all its fallbacks fail. `fail`: the run fails. `skip`: the step is
skipped, and the steps that read it see a note instead."""


class Step(MarkedValue, frozen=True):
    """One call to one worker.

    Args:
        worker: name from the request's pool.
        subtask: instruction for the worker, or "" to answer the user's question unchanged.
        access: indices of the earlier steps whose outputs it may read, ascending and unique.
        needs: the conductor's reason for choosing this worker ("translation into German"). Empty if it gave
            none. Workers never see it, and it does not count in comparisons.
        tools: whether it may call the client's tools, if the request has any.
        on_failure: rule for a failure of this step, or None to use the request's rule. The last step is never skipped.
    """

    not_compared: ClassVar[frozenset[str]] = frozenset({"needs"})

    worker: str
    subtask: str
    access: tuple[int, ...] = ()
    needs: str = ""
    tools: bool = True
    on_failure: OnFailure | None = None


class Plan(Value, frozen=True):
    """Steps, each of which reads only earlier ones (a DAG). The last step's output is the answer."""

    steps: tuple[Step, ...]

    @classmethod
    def of(cls, steps: Iterable[Step], workers: Collection[str], max_steps: int) -> "Plan":
        """Check `steps` and return them as a plan.

        Raises:
            InvalidPlan: one of the steps cannot run, or there are no steps.
        """
        draft = PlanBuilder(workers, max_steps)
        for step in steps:
            draft.add(step)
        return draft.finish()

    @property
    def reachable(self) -> frozenset[int]:
        """Indices of the last step and of all steps that it reads, directly or indirectly. Other steps need
        not run.
        """
        needed = {len(self.steps) - 1}
        for index in range(len(self.steps) - 1, -1, -1):
            if index in needed:
                needed.update(self.steps[index].access)
        return frozenset(needed)


@dataclass(slots=True)
class PlanBuilder:
    """Builder of a plan, step by step. It rejects the first step that cannot run."""

    workers: Collection[str]
    max_steps: int
    steps: list[Step] = field(default_factory=list[Step])

    def add(self, step: Step) -> Step:
        """Check and append the next step, which can then start. The InvalidPlan has `reason` and the step's
        index.
        """
        index = len(self.steps)
        if index >= self.max_steps:
            raise InvalidPlan(
                f"The plan has more than {self.max_steps} steps.", reason=Reason.TOO_MANY_STEPS, step=index
            )
        if step.worker not in self.workers:
            raise InvalidPlan(
                f"Step {index} names the worker {quote(step.worker)}, which this request's pool does not have.",
                reason=Reason.UNKNOWN_WORKER,
                step=index,
                detail=f"It has: {', '.join(self.workers)}.",
            )
        forward = [read for read in step.access if not 0 <= read < index]
        if forward:
            raise InvalidPlan(
                f"Step {index} reads step {quote(forward[0])}; a step can only read earlier ones.",
                reason=Reason.READS_FORWARD,
                step=index,
            )
        self.steps.append(replace(step, access=tuple(sorted(set(step.access)))))
        return self.steps[-1]

    def finish(self) -> Plan:
        """Return the plan. Raise InvalidPlan if there are no steps."""
        if not self.steps:
            raise InvalidPlan("The plan has no steps.", reason=Reason.NO_PLAN)
        return Plan(tuple(self.steps))


def read_step(
    index: int, worker: Any, subtask: Any, access: Any, workers: Sequence[str], needs: Any = ""
) -> Step:
    """Convert a step's fields, as the conductor wrote them, to a `Step`. Numbers become workers' names. Raise
    InvalidPlan for wrong types or numbers.
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
        message = f"Step {index}'s {name} contains half of a surrogate pair, which cannot be sent to a model."
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


def _wrong_type(index: int, name: str, rule: str) -> InvalidPlan:
    return InvalidPlan(f"Step {index}'s {name!r} must be {rule}.", reason=Reason.WRONG_TYPE, step=index)


class Parser(Protocol):
    """Parser of one plan whose text arrives in parts."""

    def feed(self, text: str) -> list[Step]:
        """Parse the next part, and return the steps that it completes. Raise InvalidPlan if no plan can
        result.
        """
        ...

    def finish(self, *, cut_off: bool = False) -> Plan | None:
        """End the text, `cut_off` if the model ran out of tokens. Return the plan, or None to accept the last
        answer.
        """
        ...
