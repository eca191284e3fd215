"""Policies: what a team or a key may use, how much of it, and what happens to its texts. Also the check of a
task against the policies of its caller. Policies are checked only here.

A policy can only restrict. A team's policy restricts what the settings allow. A key's policy restricts what
its team's policy allows. This module does not access the store.

The result of the check is a task with a permit. A permit contains what the policies allow the run. Planning, plan
validation, failover, nested runs and resumed runs obey the permit and do not look at policies.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, cast

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from conductor.errors import BadTask, NotAllowed, did_you_mean, quote
from conductor.model.messages import Toolset
from conductor.model.terms import EFFORTS, Permit, least, lowest_effort
from conductor.run.ledger import Budget
from conductor.run.record import Record, RunRecords
from conductor.run.task import Task
from conductor.run.team import unknown_worker
from serving.settings.model_access import Effort
from serving.settings.settings import Settings
from serving.settings.worker_profile import places_reached
from serving.settings.workers import WorkerSettings

MOST_NAMES = 1000
MOST = 1_000_000_000
MOST_LISTED = 20
"""Maximum number of names in an error message."""
Names = Annotated[
    frozenset[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=MOST_NAMES)
]


class AccountPolicy(BaseModel, frozen=True):
    """Policy of a team or a key. null means no limit. A key may do only what its team's policy also allows."""

    model_config = ConfigDict(extra="forbid")

    models: Names | None = Field(
        default=None, description="Allowed values of `model`: models, workflows and workers."
    )
    workers: Names | None = Field(
        default=None, description="Workers that may be called, including the conductor."
    )
    exclude_workers: Names = Field(default=frozenset(), description="Workers that may not be called.")
    providers: Names | None = Field(
        default=None,
        description="Allow only workers whose `provider` is one of these. If a worker has no `provider`, its kind counts.",
    )
    regions: Names | None = Field(
        default=None, description="Allow only workers whose `region` is one of these."
    )
    local_only: bool = Field(
        default=False, description="Allow only workers that keep all data on your own machines."
    )
    max_steps: int | None = Field(
        default=None, ge=1, le=100, description="Maximum number of steps in a plan."
    )
    max_rounds: int | None = Field(
        default=None, ge=1, le=5, description="Maximum number of planning rounds of a request."
    )
    max_depth: int | None = Field(
        default=None, ge=0, le=3, description="Maximum nesting depth of steps that call the whole team again."
    )
    tools: Names | None = Field(
        default=None,
        description="Client tools that a request may offer. Tools in a namespace are `NAMESPACE.NAME`.",
    )
    max_effort: Effort | None = Field(
        default=None, description="Highest `reasoning_effort` of requests and workers."
    )
    max_cost_usd: Annotated[Decimal, Field(gt=0, ge=Decimal("1e-12"), le=MOST)] | None = Field(
        default=None, description="Maximum cost of one request, in US dollars."
    )
    requests_per_minute: int | None = Field(
        default=None, ge=1, le=MOST, description="Maximum number of requests per minute."
    )
    tokens_per_minute: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="Maximum number of input and output tokens per minute, over all calls.",
    )
    store_content: bool = Field(
        default=True,
        description="Store texts. If false, only the metadata of a run is stored, such as its tokens and costs.",
    )
    content_days: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Maximum number of days to store texts, including texts already stored."
    )
    trace_content: bool = Field(
        default=True, description="Allow texts in traces, if the settings enable them."
    )
    train_on_content: bool = Field(
        default=True, description="Allow models to be trained on the runs. Records show this as `training`."
    )
    redact_personal_data: bool = Field(
        default=False,
        description="Remove e-mail addresses and telephone, card and bank account numbers from stored and traced texts.",
    )

    def narrow(self, other: "AccountPolicy") -> "AccountPolicy":
        """Return a policy that allows only what both this policy and `other` allow."""
        return AccountPolicy(
            models=_both(self.models, other.models),
            workers=_both(self.workers, other.workers),
            exclude_workers=self.exclude_workers | other.exclude_workers,
            providers=_both(self.providers, other.providers),
            regions=_both(self.regions, other.regions),
            local_only=self.local_only or other.local_only,
            max_steps=least(self.max_steps, other.max_steps),
            max_rounds=least(self.max_rounds, other.max_rounds),
            max_depth=least(self.max_depth, other.max_depth),
            tools=_both(self.tools, other.tools),
            max_effort=cast(Effort | None, lowest_effort(self.max_effort, other.max_effort)),
            max_cost_usd=least(self.max_cost_usd, other.max_cost_usd),
            requests_per_minute=least(self.requests_per_minute, other.requests_per_minute),
            tokens_per_minute=least(self.tokens_per_minute, other.tokens_per_minute),
            store_content=self.store_content and other.store_content,
            content_days=least(self.content_days, other.content_days),
            trace_content=self.trace_content and other.trace_content,
            train_on_content=self.train_on_content and other.train_on_content,
            redact_personal_data=self.redact_personal_data or other.redact_personal_data,
        )  # fmt: skip

    @property
    def limits_workers(self) -> bool:
        """True if the policy restricts which workers may be called."""
        limits = (self.workers, self.providers, self.regions)
        return self.local_only or bool(self.exclude_workers) or any(each is not None for each in limits)

    def allows_model(self, name: str) -> bool:
        return self.models is None or name in self.models

    def allows_tool(self, name: str) -> bool:
        return self.tools is None or name in self.tools

    def allows_worker(self, worker: WorkerSettings) -> bool:
        """Return whether the worker may be called. All of its deployments must be allowed."""
        if worker.name in self.exclude_workers or (
            self.workers is not None and worker.name not in self.workers
        ):
            return False
        return all(
            (self.providers is None or place.provider in self.providers)
            and (self.regions is None or place.region in self.regions)
            and (place.is_local or not self.local_only)
            for place in places_reached(worker)
        )  # fmt: skip

    def stated(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as JSON."""
        shape = self.model_dump(mode="json", exclude_defaults=True)
        return {name: sorted(value) if isinstance(value, list) else value for name, value in shape.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _both(one: Names | None, other: Names | None) -> Names | None:
    return one & other if one is not None and other is not None else other if one is None else one


ANY_POLICY = AccountPolicy()
"""Policy without any limits."""


@dataclass(frozen=True, slots=True)
class Policies:
    """Policies that apply to a caller."""

    team: AccountPolicy = ANY_POLICY
    key: AccountPolicy = ANY_POLICY

    @property
    def both(self) -> AccountPolicy:
        """Policy that allows only what both the team's and the key's policy allow."""
        return _narrow(self.team, self.key)

    @property
    def limits_rates(self) -> bool:
        """True if the team or the key has a limit per minute."""
        return any(
            policy.requests_per_minute is not None or policy.tokens_per_minute is not None
            for policy in (self.team, self.key)
        )

    def refusing_owner(self, allows: Callable[[AccountPolicy], bool]) -> str | None:
        """Return the owner of the policy that does not satisfy `allows`: `team`, `key`, or None if both satisfy it."""
        return "team" if not allows(self.team) else "key" if not allows(self.key) else None


@lru_cache(maxsize=1024)
def _narrow(team: AccountPolicy, key: AccountPolicy) -> AccountPolicy:
    return team.narrow(key)


UNLIMITED = Policies()
"""Policies of callers as long as no key has ever been created."""


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


def narrow_task(
    task: Task,
    policies: Policies,
    permit: Permit,
    settings: Settings,
    *,
    workers: Sequence[str] = (),
    excluded: Sequence[str] = (),
    planned: Sequence[str] = (),
    fixed: Sequence[str] = (),
    rounds: int | None = None,
    effort: str | None = None,
    keeps: str | None = None,
) -> Task:
    """Return the task with a permit and with limits that the policies allow.

    A limit from the settings is reduced if it is higher than a policy allows. A limit that the request sets
    is rejected instead. The caller must have checked that the policies allow the model.

    `workers` and `excluded` are named by the request, `planned` by its plan, and `fixed` by the workflow or
    worker that is its `model`. `keeps` is the field that lets the run outlive its client, if any.

    Raises:
        BadTask: the request names a worker that it may not call. The error is the same as for a worker that
            does not exist.
        NotAllowed: the request exceeds a policy. The error names the field and the policy's owner.
    """
    policy = policies.both
    _check_workers({"podium.workers": workers, "podium.exclude_workers": excluded}, permit, settings)
    _check_steps(planned, fixed, policies)
    _check_limits(rounds, effort, keeps, policies)
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
    names_by_field: dict[str, tuple[str, Iterable[str]]] = {
        "models": (
            "no model, workflow or worker has this name",
            [*settings.models, *settings.workflows, *workers],
        ),
        "workers": ("no worker has this name", workers),
        "exclude_workers": ("no worker has this name", workers),
        "providers": ("no worker has this provider", {place.provider for place in places}),
        "regions": ("no worker has this region", {place.region for place in places if place.region}),
    }
    for field, (why, names) in names_by_field.items():
        listed = list(dict.fromkeys(names))
        for name in sorted(set(getattr(policy, field) or ()) - set(listed)):
            there = f" Known: {', '.join(listed[:MOST_LISTED])}." if listed else ""
            message = f"{field} contains {quote(name)}, but {why}.{did_you_mean(name, listed)}{there}"
            yield UnknownPolicyName(field, message)


def check_names(policy: AccountPolicy, settings: Settings) -> None:
    """Check that a policy has only names from the settings, as a misspelled one would exclude nothing. The
    BadTask names the field and a similar name.
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
    """Check that a run may offer `tools`. The NotAllowed names the first that it may not."""
    for tool in tools.tools:
        name = f"{tool.namespace}.{tool.name}" if tool.namespace else tool.name
        if owner := policies.refusing_owner(_allows_tool(name)):
            raise _refusal("tools", owner, f"does not allow the tool {quote(name)}. Remove the tool")


def not_kept(param: str = "Idempotency-Key") -> NotAllowed:
    """Return the error for a run that must be stored, for example to wait for tools, but may not."""
    message = (
        "The policy of this API key or its team does not allow storing text, which a run that continues after its request "
        "requires. Remove Idempotency-Key, podium.keep, podium.background and tools."
    )
    return NotAllowed(message, param=param)


def _check_workers(fields: Mapping[str, Sequence[str]], permit: Permit, settings: Settings) -> None:
    """Check that the request names no forbidden worker, except in its plan, which `Team.members_for` checks."""
    worker_names = {worker.name for worker in settings.workers}
    for field, names in fields.items():
        for name in names:
            if name in worker_names and not permit.allows(name):
                raise unknown_worker(name, field, filter(permit.allows, settings.pool))


def _check_steps(planned: Sequence[str], fixed: Sequence[str], policies: Policies) -> None:
    steps = len(planned or fixed)
    for owner, policy in (("team", policies.team), ("key", policies.key)):
        if policy.max_steps is not None and steps > policy.max_steps:
            field = "podium.plan" if planned else "model"
            raise _refusal(
                field, owner, f"limits the number of steps to {policy.max_steps}, but the plan has {steps}"
            )


def _allows_tool(name: str) -> Callable[[AccountPolicy], bool]:
    return lambda policy: policy.allows_tool(name)


def _check_limits(rounds: int | None, effort: str | None, keeps: str | None, policies: Policies) -> None:
    for owner, policy in (("team", policies.team), ("key", policies.key)):
        if rounds is not None and policy.max_rounds is not None and rounds > policy.max_rounds:
            raise _refusal("podium.rounds", owner, f"limits the number of rounds to {policy.max_rounds}")
        most = policy.max_effort
        if effort is not None and most is not None and EFFORTS.index(effort) > EFFORTS.index(most):
            raise _refusal("reasoning_effort", owner, f"limits the reasoning effort to {most!r}")
        if keeps is not None and not policy.store_content:
            why = f"does not allow storing text, which a run that continues after its request requires. Remove {keeps}"
            raise _refusal(keeps, owner, why)


def _refusal(field: str, owner: str, why: str) -> NotAllowed:
    remedy = f"An administrator can change the policy with `podium {owner}s policy`."
    return NotAllowed(f"{field}: the policy of this {owner} {why}. {remedy}", param=field)
