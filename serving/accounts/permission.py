"""The one place where a task is held against the policies of whoever asks for it.

What comes out is a task with a permit: planning, plan validation, failing over, runs inside the run and those
who continue it go by that, and by no policy.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from conductor.errors import BadTask, NotAllowed, did_you_mean, quote
from conductor.model.messages import Toolset
from conductor.model.terms import EFFORTS, Permit
from conductor.run.ledger import Budget
from conductor.run.record import Record, RunRecords
from conductor.run.task import Task
from conductor.run.team import unknown_worker
from serving.accounts.account_policy import AccountPolicy, Policies, least
from serving.settings.places import places_reached
from serving.settings.settings import Settings

MOST_LISTED = 20
"""Names in an error message."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for by itself, beside what its model's settings say.

    Args:
        workers, excluded: that it names.
        planned: workers of the plan that it brings.
        fixed: workers of the workflow that it names, or the worker itself.
        rounds, effort: that it names.
        keeps: the field by which its run outlives its client; None: it does not.
    """

    workers: Sequence[str] = ()
    excluded: Sequence[str] = ()
    planned: Sequence[str] = ()
    fixed: Sequence[str] = ()
    rounds: int | None = None
    effort: str | None = None
    keeps: str | None = None


def permit_of(policies: Policies, settings: Settings) -> Permit:
    """What the runs of a caller may reach of the workers in `settings`."""
    policy = policies.both
    workers = None
    if policy.limits_workers:
        workers = tuple(worker.name for worker in settings.workers if policy.allows_worker(worker))
    return Permit(
        workers=workers,
        max_effort=policy.max_effort,
        stores=policy.store_content,
        traces=policy.trace_content,
        trains=policy.train_on_content,
        hides_personal_data=policy.redact_personal_data,
    )


def may_ask(name: str, fixed: Sequence[str], policies: Policies, permit: Permit) -> bool:
    """Whether `model` may be that name, which asks the workers `fixed`."""
    return policies.both.allows_model(name) and all(permit.allows(worker) for worker in fixed)


def narrow_task(task: Task, asked: Asked, policies: Policies, settings: Settings) -> Task:
    """`task`, whose model may be asked, inside the policies: what settings allow is cut to them, what was asked for
    beyond them is refused.

    Raises:
        BadTask: it names a worker that may not be called, which is as one that is not there.
        NotAllowed: naming the field, and whose policy it is.
    """
    policy = policies.both
    permit = permit_of(policies, settings)
    _check_workers(asked, permit, settings)
    _check_steps(asked, policies)
    _check_limits(asked, policies)
    check_tools(task.tools, policies)
    return replace(
        task,
        max_steps=least(task.max_steps, policy.max_steps),
        rounds=least(task.rounds, policy.max_rounds),
        depth=least(task.depth, policy.max_depth),
        budget=Budget(least(task.budget.max_cost_usd, policy.max_cost_usd), task.budget.max_tokens),
        permit=permit,
    )


class UnknownName(NamedTuple):
    """A name in a policy that the settings do not have, so that the policy does not do what it says."""

    field: str
    message: str


def unknown_names(policy: AccountPolicy, settings: Settings) -> Iterator[UnknownName]:
    """Yield each name in `policy` that `settings`, as they are written, do not have."""
    workers = [worker.name for worker in settings.workers]
    places = [place for worker in settings.workers for place in places_reached(worker)]
    known: dict[str, tuple[str, Iterable[str]]] = {
        "models": ("model, workflow or worker", [*settings.models, *settings.workflows, *workers]),
        "workers": ("worker", workers),
        "exclude_workers": ("worker", workers),
        "providers": ("provider of a worker", {place.provider for place in places}),
        "regions": ("region of a worker", {place.region for place in places if place.region}),
    }
    for field, (kind, names) in known.items():
        listed = list(dict.fromkeys(names))
        for name in sorted(set(getattr(policy, field) or ()) - set(listed)):
            there = f" There are: {', '.join(listed[:MOST_LISTED])}." if listed else ""
            message = f"{field}: no {kind} is called {quote(name)}.{did_you_mean(name, listed)}{there}"
            yield UnknownName(field, message)


def check_names(policy: AccountPolicy, settings: Settings) -> None:
    """See that a policy names only what the settings have: a deny list with a misspelt name bans no worker.

    Raises:
        BadTask: naming the field, with a suggestion.
    """
    for unknown in unknown_names(policy, settings):
        raise BadTask(unknown.message, param=unknown.field)


def narrow_records(records: RunRecords, policies: Policies, settings: Settings) -> RunRecords:
    """A run that is to be continued, and the runs inside it, inside the policies of now."""

    def narrow(record: Record) -> Record:
        permit = record.task.permit.narrow(permit_of(policies, settings))
        return replace(record, task=replace(record.task, permit=permit))

    inner = {id: narrow(record) for id, record in records.inner.items()}
    return replace(records, record=narrow(records.record), inner=inner)


def check_tools(tools: Toolset, policies: Policies) -> None:
    """See that a run may offer `tools` to its workers: what is not offered cannot be called, whatever a worker writes.

    Raises:
        NotAllowed: naming the first that it may not.
    """
    for tool in tools.tools:
        name = f"{tool.namespace}.{tool.name}" if tool.namespace else tool.name
        if whose := policies.whose(_allows_tool(name)):
            raise _refusal("tools", whose, f"the tool {quote(name)} may not be offered. Leave it out")


def not_kept(param: str = "Idempotency-Key") -> NotAllowed:
    """The error for a run that is to outlive its request, as one that waits for tools does, and whose texts may not
    be kept.
    """
    message = (
        "By the policy of this key or its team no text of a run is kept, which a run that outlives its request needs. "
        "Leave Idempotency-Key, podium.keep, podium.background and tools out."
    )
    return NotAllowed(message, param=param)


def _check_workers(asked: Asked, permit: Permit, settings: Settings) -> None:
    """See that a worker that may not be called is named nowhere; in a plan nobody knows it (`Team.members_for`)."""
    known = {worker.name for worker in settings.workers}
    for field, names in (("podium.workers", asked.workers), ("podium.exclude_workers", asked.excluded)):
        for name in names:
            if name in known and not permit.allows(name):
                raise unknown_worker(name, field, filter(permit.allows, settings.pool))


def _check_steps(asked: Asked, policies: Policies) -> None:
    steps = len(asked.planned or asked.fixed)
    for whose, policy in (("team", policies.team), ("key", policies.key)):
        if policy.max_steps is not None and steps > policy.max_steps:
            field = "podium.plan" if asked.planned else "model"
            raise _refusal(field, whose, f"plans have {policy.max_steps} steps at most, and this has {steps}")


def _allows_tool(name: str) -> Callable[[AccountPolicy], bool]:
    return lambda policy: policy.allows_tool(name)


def _check_limits(asked: Asked, policies: Policies) -> None:
    rounds, effort = asked.rounds, asked.effort
    for whose, policy in (("team", policies.team), ("key", policies.key)):
        if rounds is not None and policy.max_rounds is not None and rounds > policy.max_rounds:
            raise _refusal("podium.rounds", whose, f"a request has {policy.max_rounds} rounds at most")
        most = policy.max_effort
        if effort is not None and most is not None and EFFORTS.index(effort) > EFFORTS.index(most):
            raise _refusal("reasoning_effort", whose, f"it is {most!r} at most")
        if asked.keeps is not None and not policy.store_content:
            why = "no text of a run is kept, which a run that outlives its request needs. Leave it out"
            raise _refusal(asked.keeps, whose, why)


def _refusal(field: str, whose: str, why: str) -> NotAllowed:
    remedy = f"An administrator may change it: `podium {whose}s policy`."
    return NotAllowed(f"{field}: by the policy of this {whose}, {why}. {remedy}", param=field)
