"""What is on record of a key and of a team. Nothing here lets anybody in: of a key's text only its end is
kept.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal

from conductor.run.record import Account
from serving.accounts.account_policy import ANY_POLICY, AccountPolicy, Policies
from serving.accounts.caller import Caller, Scope

KeyState = Literal["active", "revoked", "expired", "team off"]
US = 1_000_000
"""Microseconds in a second: times of the database are microseconds since 1970, UTC."""
LAST_US = 253_402_300_800 * US
"""The year 10000: no later time can be shown."""


@dataclass(frozen=True, slots=True)
class TeamInfo:
    """A team of people.

    Args:
        id: never changes.
        name: no other team has it.
        made_us: when it was made.
        off_us: since when its keys are refused; None: they are not.
        policy: what its keys may do.
    """

    id: str
    name: str
    made_us: int
    off_us: int | None = None
    policy: AccountPolicy = ANY_POLICY


@dataclass(frozen=True)
class KeyInfo:
    """An API key.

    Args:
        id: never changes, also when the key is rotated.
        name: what it is for.
        hint: the last characters of the key.
        scopes: what it may be used for.
        team: whom it belongs to; None: to nobody.
        made_us: when it was made.
        expires_us: from when on it is refused; None: never.
        revoked_us: since when it is refused; None: it is not.
        policy: what it may do of what its team may.
    """

    id: str
    name: str
    hint: str
    scopes: frozenset[Scope]
    team: TeamInfo | None
    made_us: int
    expires_us: int | None = None
    revoked_us: int | None = None
    policy: AccountPolicy = ANY_POLICY

    def state(self, now_us: int) -> KeyState:
        """Whether it lets its holder in, and if not, why."""
        if self.revoked_us is not None:
            return "revoked"
        if self.expires_us is not None and self.expires_us <= now_us:
            return "expired"
        return "team off" if self.team is not None and self.team.off_us is not None else "active"

    @cached_property
    def caller(self) -> Caller:
        """Who sends it; one object for all requests."""
        return Caller(Account(self.id, self.team.id if self.team else ""), self.scopes, self.policies)

    @property
    def policies(self) -> Policies:
        """What it may do."""
        return Policies(self.team.policy if self.team else ANY_POLICY, self.policy)


def iso(time_us: int | None) -> str | None:
    """A time for people: to the second, UTC."""
    if time_us is None:
        return None
    return datetime.fromtimestamp(time_us // US, UTC).isoformat().replace("+00:00", "Z")
