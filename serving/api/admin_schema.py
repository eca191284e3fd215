"""Bodies of the admin API. Field descriptions are part of the OpenAPI document."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from serving.accounts.account_policy import AccountPolicy
from serving.accounts.budget_limits import Spending
from serving.accounts.caller import DEFAULT_SCOPES, Scope
from serving.accounts.directory import NAME_CHARS
from serving.accounts.hold import Period
from serving.accounts.key_info import US, KeyEdit, KeyInfo, KeyState, TeamInfo
from serving.accounts.money import MAX_USD

MOST_OVERLAP_S = 30 * 24 * 3600
Limit = Annotated[Decimal | None, Field(ge=0, le=MAX_USD)]
Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARS)]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NewTeam(_Body):
    """Team to create."""

    name: Name = Field(description="Name of the team. It must be unique among all teams.")


class TeamChange(_Body):
    """Change of a team."""

    enabled: bool = Field(
        description="Whether the team's keys are accepted. A change reaches all replicas within 10 s."
    )


class NewKey(_Body):
    """Key to create."""

    name: Name = Field(description="What the key is for. Shown in lists.")
    team: str | None = Field(
        default=None,
        description="Id or name of the key's team. The key reads all runs of its team; without a team, only its own.",
    )
    scopes: frozenset[Scope] = Field(
        default=DEFAULT_SCOPES,
        min_length=1,
        description="`run`: call models. `read`: read the team's runs. `admin`: everything; for keys without a team.",
    )
    expires_at: AwareDatetime | None = Field(
        default=None,
        description="Time from which the key is rejected, with a time zone, or null if the key does not expire.",
    )

    @property
    def expires_us(self) -> int | None:
        """Expiry in microseconds since 1970 (UTC), or None."""
        return _us(self.expires_at)


class KeyChange(_Body):
    """Change of a key. An omitted field keeps its value."""

    scopes: frozenset[Scope] = Field(
        default=DEFAULT_SCOPES,
        min_length=1,
        description="New scopes of the key. `admin` is only for keys without a team.",
    )
    expires_at: AwareDatetime | None = Field(
        default=None,
        description="Time from which the key is rejected, with a time zone, or null if it does not expire.",
    )

    @property
    def edit(self) -> KeyEdit:
        """Fields that the request names."""
        edit: KeyEdit = {}
        if "scopes" in self.model_fields_set:
            edit["scopes"] = self.scopes
        if "expires_at" in self.model_fields_set:
            edit["expires_us"] = _us(self.expires_at)
        return edit


class Reloaded(_Body):
    """Result of a reload."""

    workers: list[str] = Field(description="Names of all workers.")
    policies: list[str] = Field(
        description="Messages about names in the policies of teams and keys that the settings do not define. Such a name matches nothing."
    )


class Rotation(_Body):
    """Options for the rotation of a key."""

    overlap_s: float = Field(
        default=0,
        ge=0,
        le=MOST_OVERLAP_S,
        description="Seconds for which the previous secret stays valid, so that clients have time to switch to the new one.",
    )


class TeamBody(_Body):
    """Team of API keys."""

    object: Literal["team"] = "team"
    id: str = Field(description="Id of the team. It never changes.")
    name: str
    created_at: datetime
    enabled: bool = Field(description="Whether the team's keys are accepted.")

    @classmethod
    def of(cls, team: TeamInfo) -> Self:
        return cls(id=team.id, name=team.name, created_at=_time(team.made_us), enabled=team.off_us is None)


class Key(_Body):
    """API key, without its secret."""

    object: Literal["key"] = "key"
    id: str = Field(description="Id of the key. It stays the same when the key is rotated.")
    name: str
    hint: str = Field(description="Last characters of the secret.")
    scopes: list[Scope]
    team: TeamBody | None = Field(description="Team of the key, or null if it has none.")
    state: KeyState = Field(
        description="State of the key. Only an `active` key is accepted. `team off`: its team is disabled."
    )
    created_at: datetime
    expires_at: datetime | None = Field(
        description="Time from which the key is rejected, or null if the key does not expire."
    )
    revoked_at: datetime | None = Field(
        description="Time at which the key was revoked, or null if it was not revoked."
    )

    @classmethod
    def of(cls, key: KeyInfo) -> Self:
        return cls(**_fields(key))


class KeyWithSecret(Key):
    """API key with its secret. The secret is shown only once and is not stored."""

    secret: str = Field(description="Secret of the key, to send as `Authorization: Bearer SECRET`.")

    @classmethod
    def reveal(cls, key: KeyInfo, secret: str) -> Self:
        """Return the response that shows the secret of a new or rotated key."""
        return cls(**_fields(key), secret=secret)


class WindowBody(_Body):
    """Budget of the current day or month (UTC). Dollar amounts are exact decimal strings."""

    limit_usd: Decimal | None = Field(
        description="Maximum spending in the window, in dollars, or null if there is no limit."
    )
    spent_usd: Decimal
    held_usd: Decimal = Field(description="Amount reserved for open calls, which is their maximum cost.")
    left_usd: Decimal | None = Field(
        description="Limit minus `spent_usd` and `held_usd`, or null if there is no limit."
    )
    resets_at: datetime = Field(description="Start of the next window.")

    @classmethod
    def of(cls, spending: Spending) -> Self:
        names = ("limit_usd", "spent_usd", "held_usd", "left_usd", "resets_at")
        return cls(**{name: getattr(spending, name) for name in names})


class BudgetBody(_Body):
    """Budgets of a key or a team, with the spending so far."""

    object: Literal["budget"] = "budget"
    id: str = Field(description="Id of the key or the team.")
    day: WindowBody
    month: WindowBody

    @classmethod
    def of(cls, id: str, windows: Iterable[Spending]) -> Self:
        """Return the response for the current windows of the key or team `id`."""
        by_period = {each.period: WindowBody.of(each) for each in windows}
        return cls(id=id, day=by_period["day"], month=by_period["month"])


class OwnBudget(_Body):
    """The caller's key, and the budgets of the key and its team. A call must fit into every limit."""

    object: Literal["budget"] = "budget"
    api_key: Key | None = Field(
        description="The caller's key, with its scopes, or null if the server needs no key."
    )
    left_usd: Decimal | None = Field(
        description="Smallest remaining amount of the budgets, in dollars, or null if there is no limit."
    )
    key: BudgetBody | None = Field(description="Budget of the key, or null if the server needs no key.")
    team: BudgetBody | None = Field(
        description="Budget of the team, for all its keys together, or null if the key has no team."
    )


class BudgetChange(_Body):
    """New spending limits. An omitted field keeps its limit; null removes it.

    Changes take effect immediately, also for the current day and month.
    """

    day_usd: Limit = Field(default=None, description="Maximum spending per day (UTC), in dollars.")
    month_usd: Limit = Field(default=None, description="Maximum spending per month (UTC), in dollars.")

    @property
    def limits_usd(self) -> dict[Period, Decimal | None]:
        """Limits that the request names, by period."""
        limits: dict[Period, Decimal | None] = {"day": self.day_usd, "month": self.month_usd}
        return {period: limit for period, limit in limits.items() if f"{period}_usd" in self.model_fields_set}


class PolicyBody(_Body):
    """Policy of a team or a key. A field that is not set in `policy` limits nothing."""

    object: Literal["policy"] = "policy"
    id: str = Field(description="Id of the key or the team.")
    policy: AccountPolicy = Field(description="The policy as it was set for this key or team.")
    in_force: AccountPolicy = Field(
        description="Effective policy. For a key, it combines the key's policy with its team's."
    )

    @classmethod
    def of(cls, account: KeyInfo | TeamInfo) -> Self:
        in_force = account.policies.both if isinstance(account, KeyInfo) else account.policy
        return cls(id=account.id, policy=account.policy, in_force=in_force)


class Teams(_Body):
    """Teams, oldest first."""

    object: Literal["list"] = "list"
    data: list[TeamBody]


class Keys(_Body):
    """Keys, newest first."""

    object: Literal["list"] = "list"
    data: list[Key]
    has_more: bool = Field(
        description="Whether there are older keys. To list them, pass the last id as `after`."
    )


class ErrorFacts(BaseModel):
    """Details of an error."""

    message: str
    type: str
    param: str | None = Field(description="Request field or header that caused the error.")
    code: str


class Error(BaseModel):
    """Response to a request that failed."""

    error: ErrorFacts


def _fields(key: KeyInfo) -> dict[str, Any]:
    now_us = time.time_ns() // 1000
    return {
        "id": key.id,
        "name": key.name,
        "hint": key.hint,
        "scopes": [scope for scope in Scope if scope in key.scopes],
        "team": TeamBody.of(key.team) if key.team else None,
        "state": key.state(now_us),
        "created_at": _time(key.made_us),
        "expires_at": _time(key.expires_us) if key.expires_us is not None else None,
        "revoked_at": _time(key.revoked_us) if key.revoked_us is not None else None,
    }


def _us(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp() * US)


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(us // US, UTC)
