"""Check of a task against the policies of its caller. This is the only place for it.

The result is a task with a permit. Planning, plan validation, failover, runs inside the run and resumed runs
obey the permit and do not look at policies.
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
"""Maximum number of names in an error message."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Limits and names that the request itself contains, apart from its model's settings.

    Args:
        workers, excluded: workers that it names or excludes.
        planned: workers of the plan that it contains.
        fixed: workers of the workflow that it names, or the named worker.
        rounds, effort: limits that it sets.
        keeps: field that lets its run outlive the client. None: it does not.
    """

    workers: Sequence[str] = ()
    excluded: Sequence[str] = ()
    planned: Sequence[str] = ()
    fixed: Sequence[str] = ()
    rounds: int | None = None
    effort: str | None = None
    keeps: str | None = None


def permit_of(policies: Policies, settings: Settings) -> Permit:
    """Return the permit for the runs of a caller."""
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
    """Return whether a caller may use the model `name`, which calls the workers `fixed`."""
    return policies.both.allows_model(name) and all(permit.allows(worker) for worker in fixed)


def narrow_task(task: Task, asked: Asked, policies: Policies, settings: Settings) -> Task:
    """Return `task` limited by the policies. Limits from settings are reduced; a request that exceeds them is
    rejected.

    The model must already be allowed.

    Raises:
        BadTask: it names a worker that may not be called. The error is the same as for a worker that does not
            exist.
        NotAllowed: it exceeds a policy. The error names the field and the policy's owner.
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


class UnknownPolicyName(NamedTuple):
    """Name in a policy that the settings do not contain. The policy then lacks its intended effect."""

    field: str
    message: str


def unknown_names(policy: AccountPolicy, settings: Settings) -> Iterator[UnknownPolicyName]:
    """Yield each name in `policy` that does not exist in `settings`."""
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
            there = f" Known: {', '.join(listed[:MOST_LISTED])}." if listed else ""
            message = f"{field}: there is no {kind} {quote(name)}.{did_you_mean(name, listed)}{there}"
            yield UnknownPolicyName(field, message)


def check_names(policy: AccountPolicy, settings: Settings) -> None:
    """Check that a policy contains only names from the settings. A misspelled name in a deny list would ban
    no worker.

    Raises:
        BadTask: a name is unknown. The error names the field and makes a suggestion.
    """
    for unknown in unknown_names(policy, settings):
        raise BadTask(unknown.message, param=unknown.field)


def narrow_records(records: RunRecords, policies: Policies, settings: Settings) -> RunRecords:
    """Return the records of a resumed run and of the runs inside it, limited by the current policies."""

    def narrow(record: Record) -> Record:
        permit = record.task.permit.narrow(permit_of(policies, settings))
        return replace(record, task=replace(record.task, permit=permit))

    inner = {id: narrow(record) for id, record in records.inner.items()}
    return replace(records, record=narrow(records.record), inner=inner)


def check_tools(tools: Toolset, policies: Policies) -> None:
    """Check that a run may offer `tools` to its workers. A tool that is not offered cannot be called.

    Raises:
        NotAllowed: a tool is not allowed. The error names the first one.
    """
    for tool in tools.tools:
        name = f"{tool.namespace}.{tool.name}" if tool.namespace else tool.name
        if whose := policies.whose(_allows_tool(name)):
            raise _refusal("tools", whose, f"does not allow the tool {quote(name)}. Leave it out")


def not_kept(param: str = "Idempotency-Key") -> NotAllowed:
    """Return the error for a run that must outlive its request, for example to wait for tools, but whose
    texts may not be stored.
    """
    message = (
        "The policy of this key or its team does not allow texts to be stored, which a run that outlives its request needs. "
        "Leave out Idempotency-Key, podium.keep, podium.background and tools."
    )
    return NotAllowed(message, param=param)


def _check_workers(asked: Asked, permit: Permit, settings: Settings) -> None:
    """Check that no forbidden worker is named. In a plan, such a worker is unknown (`Team.members_for`)."""
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
            raise _refusal(field, whose, f"limits steps to {policy.max_steps}, but the plan has {steps}")


def _allows_tool(name: str) -> Callable[[AccountPolicy], bool]:
    return lambda policy: policy.allows_tool(name)


def _check_limits(asked: Asked, policies: Policies) -> None:
    rounds, effort = asked.rounds, asked.effort
    for whose, policy in (("team", policies.team), ("key", policies.key)):
        if rounds is not None and policy.max_rounds is not None and rounds > policy.max_rounds:
            raise _refusal("podium.rounds", whose, f"limits rounds to {policy.max_rounds}")
        most = policy.max_effort
        if effort is not None and most is not None and EFFORTS.index(effort) > EFFORTS.index(most):
            raise _refusal("reasoning_effort", whose, f"limits effort to {most!r}")
        if asked.keeps is not None and not policy.store_content:
            why = (
                "does not allow texts to be stored, which a run that outlives its request needs. Leave it out"
            )
            raise _refusal(asked.keeps, whose, why)


def _refusal(field: str, whose: str, why: str) -> NotAllowed:
    remedy = f"An administrator can change it: `podium {whose}s policy`."
    return NotAllowed(f"{field}: the policy of this {whose} {why}. {remedy}", param=field)
