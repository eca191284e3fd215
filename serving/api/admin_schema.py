"""What the admin API takes and gives. A field's description is its meaning in the OpenAPI document."""

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from serving.accounts.account_policy import AccountPolicy
from serving.accounts.budgets import Spending
from serving.accounts.caller import DEFAULT_SCOPES, Scope
from serving.accounts.directory import NAME_CHARS
from serving.accounts.key_info import US, KeyInfo, KeyState, TeamInfo
from serving.accounts.money import MAX_USD
from serving.accounts.rates import Period

MOST_OVERLAP_S = 30 * 24 * 3600
Limit = Annotated[Decimal | None, Field(ge=0, le=MAX_USD)]
Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARS)]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NewTeam(_Body):
    """A team to be made."""

    name: Name = Field(description="No other team has it.")


class TeamChange(_Body):
    """What is to be changed of a team."""

    enabled: bool = Field(description="Whether its keys are let in. Within 10 s everywhere.")


class NewKey(_Body):
    """A key to be made."""

    name: Name = Field(description="What it is for, as people will find it in lists.")
    team: str | None = Field(
        default=None,
        description="The id or name of the team whose runs it sees. Without one it sees its own.",
    )
    scopes: frozenset[Scope] = Field(
        default=DEFAULT_SCOPES,
        min_length=1,
        description="`run`: ask models; `read`: see the team's runs; `admin`: everything, for keys without a team.",
    )
    expires_at: AwareDatetime | None = Field(
        default=None, description="From when on it is refused, with a time zone. null: never."
    )

    @property
    def expires_us(self) -> int | None:
        """As the store has times."""
        return None if self.expires_at is None else int(self.expires_at.timestamp() * US)


class Reloaded(_Body):
    """What is served now."""

    workers: list[str] = Field(description="Every worker that can be asked.")
    policies: list[str] = Field(
        description="Names in the policies of teams and keys that the settings do not have. Such a policy has no effect."
    )


class Rotation(_Body):
    """How a key gets a new secret."""

    overlap_s: float = Field(
        default=0,
        ge=0,
        le=MOST_OVERLAP_S,
        description="How long the secret before works too, so that its users have time to change it.",
    )


class Team(_Body):
    """A team of people."""

    object: Literal["team"] = "team"
    id: str = Field(description="Never changes.")
    name: str
    created_at: datetime
    enabled: bool = Field(description="Whether its keys are let in.")

    @classmethod
    def of(cls, team: TeamInfo) -> Self:
        """`team` as it is told."""
        return cls(id=team.id, name=team.name, created_at=_time(team.made_us), enabled=team.off_us is None)


class Key(_Body):
    """A key, without the secret that it is."""

    object: Literal["key"] = "key"
    id: str = Field(description="Never changes, also when the key is rotated.")
    name: str
    hint: str = Field(description="The last characters of the secret.")
    scopes: list[Scope]
    team: Team | None = Field(description="Whom it belongs to. null: nobody but its holder.")
    state: KeyState = Field(description="Whether its holder is let in, and if not, why.")
    created_at: datetime
    expires_at: datetime | None = Field(description="From when on it is refused. null: never.")
    revoked_at: datetime | None = Field(description="Since when it is refused. null: it is not.")

    @classmethod
    def of(cls, key: KeyInfo) -> Self:
        """`key` as it is told."""
        return cls(**_fields(key))


class KeyWithSecret(Key):
    """A key and its secret, which is shown this once and kept nowhere."""

    secret: str = Field(description="What its holder sends as `Authorization: Bearer`.")

    @classmethod
    def made(cls, key: KeyInfo, secret: str) -> Self:
        """`key` for whom it was made for."""
        return cls(**_fields(key), secret=secret)


class Window(_Body):
    """A day or a month under way, UTC. Dollars are texts, exact."""

    limit_usd: Decimal | None = Field(description="What may be spent in it. null: no limit.")
    spent_usd: Decimal
    held_usd: Decimal = Field(description="Held for calls under way, at the most that they can cost.")
    left_usd: Decimal | None = Field(description="The limit less what is spent and held. null: no limit.")
    resets_at: datetime = Field(description="When the next one begins.")

    @classmethod
    def of(cls, spending: Spending) -> Self:
        """`spending` as it is told."""
        names = ("limit_usd", "spent_usd", "held_usd", "left_usd", "resets_at")
        return cls(**{name: getattr(spending, name) for name in names})


class Budget(_Body):
    """What a key or a team may spend, and what is spent."""

    object: Literal["budget"] = "budget"
    id: str = Field(description="The key's, or the team's.")
    day: Window
    month: Window

    @classmethod
    def of(cls, id: str, windows: Iterable[Spending]) -> Self:
        """The windows under way of the key or team of that id."""
        by_period = {each.period: Window.of(each) for each in windows}
        return cls(id=id, day=by_period["day"], month=by_period["month"])


class OwnBudget(_Body):
    """Budgets of the caller's key and team. A call must fit into every limit."""

    object: Literal["budget"] = "budget"
    left_usd: Decimal | None = Field(
        description="Dollars left in the tightest budget. null: there is no limit."
    )
    key: Budget | None = Field(description="Budget of the key. null: the server needs no key.")
    team: Budget | None = Field(
        description="Budget of the team, for all its keys together. null: the key has no team."
    )


class BudgetChange(_Body):
    """New limits. One that is not named stays, null lifts it. They hold at once, for the day and the month
    under way too.
    """

    day_usd: Limit = Field(default=None, description="What may be spent in each day, UTC.")
    month_usd: Limit = Field(default=None, description="What may be spent in each month, UTC.")

    @property
    def limits_usd(self) -> dict[Period, Decimal | None]:
        """Those that are named."""
        given: dict[Period, Decimal | None] = {"day": self.day_usd, "month": self.month_usd}
        return {period: limit for period, limit in given.items() if f"{period}_usd" in self.model_fields_set}


class Policy(_Body):
    """What a team or a key may do. What is not in `policy` is not limited."""

    object: Literal["policy"] = "policy"
    id: str = Field(description="The key's, or the team's.")
    policy: AccountPolicy = Field(description="Its own.")
    in_force: AccountPolicy = Field(description="With what its team's takes away, where it is a key.")

    @classmethod
    def of(cls, whose: KeyInfo | TeamInfo) -> Self:
        """The policy of `whose`."""
        in_force = whose.policies.both if isinstance(whose, KeyInfo) else whose.policy
        return cls(id=whose.id, policy=whose.policy, in_force=in_force)


class Teams(_Body):
    """Teams, the oldest first."""

    object: Literal["list"] = "list"
    data: list[Team]


class Keys(_Body):
    """Keys, the newest first."""

    object: Literal["list"] = "list"
    data: list[Key]
    has_more: bool = Field(description="Whether older ones follow: ask with `after`, the last id of these.")


class ErrorFacts(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = Field(description="The field at fault.")
    code: str


class Error(BaseModel):
    """The body of an answer that is none."""

    error: ErrorFacts


def _fields(key: KeyInfo) -> dict[str, Any]:
    now_us = int(datetime.now(UTC).timestamp() * US)
    return {
        "id": key.id,
        "name": key.name,
        "hint": key.hint,
        "scopes": [scope for scope in Scope if scope in key.scopes],
        "team": Team.of(key.team) if key.team else None,
        "state": key.state(now_us),
        "created_at": _time(key.made_us),
        "expires_at": _time(key.expires_us) if key.expires_us is not None else None,
        "revoked_at": _time(key.revoked_us) if key.revoked_us is not None else None,
    }


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(us // US, UTC)
