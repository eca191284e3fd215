"""Policies: what a team or a key may use, how much of it, and what happens to its texts.

A policy can only restrict. A team's policy restricts what the settings allow. A key's policy restricts what
its team's policy allows. This module accesses neither the store nor requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Self, cast

from pydantic import BaseModel, ConfigDict, Field

from conductor.model.terms import lowest_effort
from serving.settings.access import Effort
from serving.settings.places import places_reached
from serving.settings.workers import WorkerSettings

MOST_NAMES = 1000
MOST = 1_000_000_000
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
            max_effort=_least_effort(self.max_effort, other.max_effort),
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
        named = (self.workers, self.providers, self.regions)
        return self.local_only or bool(self.exclude_workers) or any(each is not None for each in named)

    def allows_model(self, name: str) -> bool:
        """Return whether `model` may have this value."""
        return self.models is None or name in self.models

    def allows_tool(self, name: str) -> bool:
        """Return whether a request may offer the tool."""
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

    def change(self, changes: "AccountPolicy") -> Self:
        """Return this policy with the fields that are set in `changes` replaced."""
        return self.model_copy(update={name: getattr(changes, name) for name in changes.model_fields_set})


def least(*limits: Any) -> Any:
    """Return the lowest limit, or None if all are None (no limit)."""
    return min((limit for limit in limits if limit is not None), default=None)


def _least_effort(*limits: Effort | None) -> Effort | None:
    return cast(Effort | None, lowest_effort(*limits))


def _both(one: Names | None, other: Names | None) -> Names | None:
    return one & other if one is not None and other is not None else other if one is None else one


ANY_POLICY = AccountPolicy()
"""Policy without any limits."""


@dataclass(frozen=True, slots=True)
class Policies:
    """Policies that apply to a caller.

    Args:
        team: the policy of the caller's team.
        key: the policy of the caller's key.
    """

    team: AccountPolicy = ANY_POLICY
    key: AccountPolicy = ANY_POLICY

    @property
    def both(self) -> AccountPolicy:
        """Policy that allows only what both the team's and the key's policy allow."""
        return _narrow(self.team, self.key)

    def whose(self, allows: Callable[[AccountPolicy], bool]) -> str | None:
        """Return whose policy does not satisfy `allows`: `team`, `key`, or None if both satisfy it."""
        return "team" if not allows(self.team) else "key" if not allows(self.key) else None


@lru_cache(maxsize=1024)
def _narrow(team: AccountPolicy, key: AccountPolicy) -> AccountPolicy:
    return team.narrow(key)


UNLIMITED = Policies()
"""Policies of callers as long as no key has ever been created."""
