"""What a team or a key may reach, how much of it, and what may become of its texts. Knows no store and no
request.

A policy only ever takes away: from the pool of the settings, and a key's from its team's.
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
    """What a team or a key may do. null: no limit. A key may do what both its team's policy and its own allow."""

    model_config = ConfigDict(extra="forbid")

    models: Names | None = Field(
        default=None, description="The names that `model` may be: models, workflows and workers."
    )
    workers: Names | None = Field(
        default=None, description="The workers that may be called, the conductor included."
    )
    exclude_workers: Names = Field(default=frozenset(), description="Workers that may not be called.")
    providers: Names | None = Field(
        default=None, description="Only workers whose `provider`, else kind, is one of these."
    )
    regions: Names | None = Field(default=None, description="Only workers whose `region` is one of these.")
    local_only: bool = Field(
        default=False, description="Only workers that keep what they are sent on one's own machines."
    )
    max_steps: int | None = Field(default=None, ge=1, le=100, description="The most steps of a plan.")
    max_rounds: int | None = Field(default=None, ge=1, le=5, description="The most rounds of a request.")
    max_depth: int | None = Field(
        default=None, ge=0, le=3, description="How deep a step may call the whole team again."
    )
    tools: Names | None = Field(
        default=None,
        description="The client's tools that a request may offer, in a namespace `NAMESPACE.NAME`.",
    )
    max_effort: Effort | None = Field(
        default=None, description="The highest `reasoning_effort`, of requests and of workers."
    )
    max_cost_usd: Annotated[Decimal, Field(gt=0, ge=Decimal("1e-12"), le=MOST)] | None = Field(
        default=None, description="What one request may cost."
    )
    requests_per_minute: int | None = Field(default=None, ge=1, le=MOST, description="Requests in a minute.")
    tokens_per_minute: int | None = Field(
        default=None, ge=1, le=MOST, description="Tokens in a minute, of all calls, read and written."
    )
    store_content: bool = Field(
        default=True, description="Whether texts are kept. If not, only the numbers of a run are."
    )
    content_days: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="How long texts are kept at most; also those that are kept already."
    )
    trace_content: bool = Field(
        default=True, description="Whether texts are put into traces, where the settings put them there."
    )
    train_on_content: bool = Field(
        default=True, description="Whether models may be trained on the runs. Records say it as `training`."
    )
    redact_personal_data: bool = Field(
        default=False,
        description="Take e-mail addresses, telephone, card and bank account numbers out of what is kept or traced.",
    )

    def narrow(self, other: "AccountPolicy") -> "AccountPolicy":
        """What both allow."""
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
        """Whether any worker may be left out by it."""
        named = (self.workers, self.providers, self.regions)
        return self.local_only or bool(self.exclude_workers) or any(each is not None for each in named)

    def allows_model(self, name: str) -> bool:
        """Whether `model` may be that name."""
        return self.models is None or name in self.models

    def allows_tool(self, name: str) -> bool:
        """Whether a request may offer the tool of that name."""
        return self.tools is None or name in self.tools

    def allows_worker(self, worker: WorkerSettings) -> bool:
        """Whether it may be called, wherever its calls go."""
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
        """What it says, as JSON; nothing where it says nothing."""
        shape = self.model_dump(mode="json", exclude_defaults=True)
        return {name: sorted(value) if isinstance(value, list) else value for name, value in shape.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]

    def change(self, given: "AccountPolicy") -> Self:
        """This, with what `given` says in place; what it does not name stays."""
        return self.model_copy(update={name: getattr(given, name) for name in given.model_fields_set})


def least(*limits: Any) -> Any:
    """The least of some limits; None of them: no limit."""
    return min((limit for limit in limits if limit is not None), default=None)


def _least_effort(*limits: Effort | None) -> Effort | None:
    return cast(Effort | None, lowest_effort(*limits))


def _both(one: Names | None, other: Names | None) -> Names | None:
    return one & other if one is not None and other is not None else other if one is None else one


ANY_POLICY = AccountPolicy()
"""Says nothing."""


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies that hold for a caller.

    Args:
        team: of its team.
        key: of its key.
    """

    team: AccountPolicy = ANY_POLICY
    key: AccountPolicy = ANY_POLICY

    @property
    def both(self) -> AccountPolicy:
        """What both allow."""
        return _narrow(self.team, self.key)

    def whose(self, allows: Callable[[AccountPolicy], bool]) -> str | None:
        """Whose policy does not allow something: `team` or `key`; None: both do."""
        return "team" if not allows(self.team) else "key" if not allows(self.key) else None


@lru_cache(maxsize=1024)
def _narrow(team: AccountPolicy, key: AccountPolicy) -> AccountPolicy:
    return team.narrow(key)


UNLIMITED = Policies()
"""Of whoever calls while no key has ever been made."""
