"""Stored information about keys and teams.

It does not contain the keys themselves, only their last characters.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal, TypedDict

from conductor.errors import Unauthenticated
from conductor.run.record import Account
from serving.accounts.account_policy import ANY_POLICY, AccountPolicy, Policies
from serving.accounts.caller import Caller, Scope

HOW = "Send a key as `Authorization: Bearer pk_…` or `x-api-key: pk_…`."
KeyState = Literal["active", "revoked", "expired", "team off"]
US = 1_000_000
"""Microseconds per second. Times in the database are microseconds since 1970 (UTC)."""
LAST_US = 253_402_300_800 * US
"""Start of the year 10000. Later times cannot be displayed."""


@dataclass(frozen=True, slots=True)
class TeamInfo:
    """Team that owns keys.

    Args:
        off_us: time when the team was switched off, or None if it is on. The keys of a team that is off are
            rejected.
    """

    id: str
    name: str
    made_us: int
    off_us: int | None = None
    policy: AccountPolicy = ANY_POLICY


@dataclass(frozen=True)
class KeyInfo:
    """Stored information about an API key.

    Args:
        id: permanent id. It stays the same when the key is rotated.
        expires_us: time from which the key is rejected, or None if it never expires.
        revoked_us: time of the revocation, or None if the key is not revoked.
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
        """Return the state of the key. Only an active key is accepted."""
        if self.revoked_us is not None:
            return "revoked"
        if self.expires_us is not None and self.expires_us <= now_us:
            return "expired"
        return "team off" if self.team is not None and self.team.off_us is not None else "active"

    @cached_property
    def caller(self) -> Caller:
        """Caller that sends this key. All requests share this object."""
        return Caller(Account(self.id, self.team.id if self.team else ""), self.scopes, self.policies)

    @property
    def policies(self) -> Policies:
        return Policies(self.team.policy if self.team else ANY_POLICY, self.policy)


class KeyEdit(TypedDict, total=False):
    """Change of a key. An omitted field keeps its value.

    Args:
        expires_us: new expiry, or None if the key never expires.
    """

    scopes: Collection[Scope]
    expires_us: int | None


def iso(time_us: int | None) -> str | None:
    """Format a time in ISO 8601 (UTC), rounded down to the second. Return None for None."""
    if time_us is None:
        return None
    return datetime.fromtimestamp(time_us // US, UTC).isoformat().replace("+00:00", "Z")


def check_in_force(key: KeyInfo, now_us: int) -> None:
    """Check that a key and its team are active at `now_us`, or raise Unauthenticated."""
    match key.state(now_us):
        case "active":
            return
        case "expired":
            raise unauthenticated(f"This API key expired at {iso(key.expires_us)}.")
        case "revoked":
            raise unauthenticated("This API key was revoked.")
        case "team off":
            raise unauthenticated("The team of this API key is disabled.")


def unauthenticated(why: str) -> Unauthenticated:
    """Return the error for a request whose key is missing or not accepted."""
    return Unauthenticated(f"{why} {HOW}", param="Authorization")
