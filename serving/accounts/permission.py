"""Check of a task against the policies of its caller. Policies are checked only here.

The result is a task with a permit. A permit contains what the policies allow the run. Planning, plan
validation, failover, nested runs and resumed runs obey the permit and do not look at policies.
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
    """Values that a request sets explicitly. Values from the settings of its model are not included.

    Args:
        workers: workers that the request allows by name.
        excluded: workers that the request excludes.
        planned: workers of the plan in the request.
        fixed: workers of the workflow that `model` names, or the worker that it names.
        rounds: maximum number of rounds, or None.
        effort: reasoning effort, or None.
        keeps: name of the field that lets the run outlive its client, or None if the run ends with its
            client.
    """

    workers: Sequence[str] = ()
    excluded: Sequence[str] = ()
    planned: Sequence[str] = ()
    fixed: Sequence[str] = ()
    rounds: int | None = None
    effort: str | None = None
    keeps: str | None = None


def permit_of(policies: Policies, settings: Settings) -> Permit:
    """Return the permit for the runs of a caller: the workers, effort and use of texts that policies allow."""
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
    """Return the task with a permit and with limits that the policies allow.

    A limit from the settings is reduced if it is higher than a policy allows. A limit that the request sets
    is rejected instead. The caller must have checked that the policies allow the model.

    Args:
        task: the task from the request and the settings.
        asked: values that the request sets explicitly.
        policies: policies of the caller.
        settings: current settings.

    Raises:
        BadTask: the request names a worker that it may not call. The error is the same as for a worker that
            does not exist.
        NotAllowed: the request exceeds a policy. The error names the field and the policy's owner.
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
    """Name in a policy that the settings do not contain. It is probably misspelled and has no effect."""

    field: str
    message: str


def unknown_names(policy: AccountPolicy, settings: Settings) -> Iterator[UnknownPolicyName]:
    """Yield each name in `policy` that does not exist in `settings`."""
    workers = [worker.name for worker in settings.workers]
    places = [place for worker in settings.workers for place in places_reached(worker)]
    known: dict[str, tuple[str, Iterable[str]]] = {
        "models": (
            "no model, workflow or worker has this name",
            [*settings.models, *settings.workflows, *workers],
        ),
        "workers": ("no worker has this name", workers),
        "exclude_workers": ("no worker has this name", workers),
        "providers": ("no worker has this provider", {place.provider for place in places}),
        "regions": ("no worker has this region", {place.region for place in places if place.region}),
    }
    for field, (why, names) in known.items():
        listed = list(dict.fromkeys(names))
        for name in sorted(set(getattr(policy, field) or ()) - set(listed)):
            there = f" Known: {', '.join(listed[:MOST_LISTED])}." if listed else ""
            message = f"{field} contains {quote(name)}, but {why}.{did_you_mean(name, listed)}{there}"
            yield UnknownPolicyName(field, message)


def check_names(policy: AccountPolicy, settings: Settings) -> None:
    """Check that a policy contains only names from the settings.

    A misspelled name in `exclude_workers`, for example, would exclude no worker.

    Raises:
        BadTask: a name is unknown. The error names the field and makes a suggestion.
    """
    for unknown in unknown_names(policy, settings):
        raise BadTask(unknown.message, param=unknown.field)


def narrow_records(records: RunRecords, policies: Policies, settings: Settings) -> RunRecords:
    """Restrict the permits of a resumed run, and of the runs nested in it, to the current policies."""

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
            raise _refusal("tools", whose, f"does not allow the tool {quote(name)}. Remove the tool")


def not_kept(param: str = "Idempotency-Key") -> NotAllowed:
    """Return the error for a run that must be stored, for example to wait for tools, but whose policy forbids
    it.
    """
    message = (
        "The policy of this API key or its team does not allow storing text, which a run that continues after its request "
        "requires. Remove Idempotency-Key, podium.keep, podium.background and tools."
    )
    return NotAllowed(message, param=param)


def _check_workers(asked: Asked, permit: Permit, settings: Settings) -> None:
    """Check that the request names no forbidden worker, except in its plan.

    `Team.members_for` rejects a forbidden worker in the plan as unknown.
    """
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
            raise _refusal(
                field, whose, f"limits the number of steps to {policy.max_steps}, but the plan has {steps}"
            )


def _allows_tool(name: str) -> Callable[[AccountPolicy], bool]:
    return lambda policy: policy.allows_tool(name)


def _check_limits(asked: Asked, policies: Policies) -> None:
    rounds, effort = asked.rounds, asked.effort
    for whose, policy in (("team", policies.team), ("key", policies.key)):
        if rounds is not None and policy.max_rounds is not None and rounds > policy.max_rounds:
            raise _refusal("podium.rounds", whose, f"limits the number of rounds to {policy.max_rounds}")
        most = policy.max_effort
        if effort is not None and most is not None and EFFORTS.index(effort) > EFFORTS.index(most):
            raise _refusal("reasoning_effort", whose, f"limits the reasoning effort to {most!r}")
        if asked.keeps is not None and not policy.store_content:
            why = f"does not allow storing text, which a run that continues after its request requires. Remove {asked.keeps}"
            raise _refusal(asked.keeps, whose, why)


def _refusal(field: str, whose: str, why: str) -> NotAllowed:
    remedy = f"An administrator can change the policy with `podium {whose}s policy`."
    return NotAllowed(f"{field}: the policy of this {whose} {why}. {remedy}", param=field)
