"""Callers, and what they may do and see."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from conductor.errors import NotAllowed
from conductor.run.record import NOBODY, Account
from serving.accounts.account_policy import UNLIMITED, Policies


class Scope(StrEnum):
    """Operations that a key permits. Every key may list models."""

    RUN = "run"
    """Send requests to models and teams of them, and pay for them."""
    READ = "read"
    """Read the runs of the key's team."""
    ADMIN = "admin"
    """Everything: teams, keys, replicas, and the runs of every team."""


DEFAULT_SCOPES = frozenset({Scope.RUN, Scope.READ})
"""Scopes of a key that is created without any."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Sender of a request.

    Args:
        account: key and its team.
        scopes: operations that the key permits.
        policies: policies for the runs that it starts.
    """

    account: Account
    scopes: frozenset[Scope]
    policies: Policies = UNLIMITED

    @property
    def has_key(self) -> bool:
        """False only if no key has ever been made."""
        return bool(self.account.key_id)

    def may(self, scope: Scope) -> bool:
        """Return whether the scopes include `scope` or `admin`."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def require(self, scope: Scope) -> None:
        """Check a scope. See `may`.

        Raises:
            NotAllowed: the caller does not have the scope.
        """
        if not self.may(scope):
            raise NotAllowed(
                f"This requires a key with the scope {scope.value!r}, but yours has {join(self.scopes)}. "
                "Ask an administrator for another key.",
                param="Authorization",
            )

    @property
    def sees_every_run(self) -> bool:
        """True if it may see all runs."""
        return Scope.ADMIN in self.scopes

    def sees(self, account: Account) -> bool:
        """Return whether it may see the runs of `account`: its team's, or if it has no team, its own."""
        return self.sees_every_run or (bool(self.account.key_id) and self.owns(account))

    def owns(self, account: Account) -> bool:
        """Return whether objects of `account` belong to its team, or without a team, to its key.

        An administrator's key sees more than it owns.
        """
        return same_owner(self.account, account)

    def reads(self, account: Account) -> bool:
        """Return whether it may read and continue the runs of `account`.

        With the scope `read`, these are all that it sees. Otherwise only its own key's.
        """
        return self.sees(account) and (self.may(Scope.READ) or account.key_id == self.account.key_id)


def same_owner(one: Account, other: Account) -> bool:
    """Return whether two accounts share what they own: their team's, or without a team, their key's."""
    return one.team_id == other.team_id and (bool(one.team_id) or one.key_id == other.key_id)


ANYBODY = Caller(NOBODY, frozenset(Scope))
"""Caller while no key has ever been made. Requests are then accepted only from this machine."""


def join(scopes: Iterable[Scope]) -> str:
    """Return scopes as text, as in the database and the command line, in the order of `Scope`."""
    return ",".join(scope.value for scope in Scope if scope in set(scopes))


def parse_scopes(text: str) -> frozenset[Scope]:
    """Return the scopes in a text written by `join`.

    Raises:
        ValueError: a scope is unknown, or there is none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = [scope.value for scope in Scope]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown scope {unknown[0]!r}; known scopes are {', '.join(known)}")
    if not names:
        raise ValueError(f"no scope is given; known scopes are {', '.join(known)}")
    return frozenset(Scope(name) for name in names)
