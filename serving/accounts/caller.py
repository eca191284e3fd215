"""Callers, and what they may do and see."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from conductor.errors import NotAllowed
from conductor.run.record import NO_ACCOUNT, Account
from serving.accounts.account_policy import UNLIMITED, Policies


class Scope(StrEnum):
    """Operations that a key permits. Every key may list models."""

    RUN = "run"
    """Send requests, which the key or its team pays for."""
    READ = "read"
    """Read the runs of the key's team."""
    ADMIN = "admin"
    """All operations: manage teams, keys and replicas, and access the runs of every team."""


DEFAULT_SCOPES = frozenset({Scope.RUN, Scope.READ})
"""Scopes of a key that is created without explicit scopes."""


@dataclass(frozen=True, slots=True)
class Caller:
    account: Account
    scopes: frozenset[Scope]
    policies: Policies = UNLIMITED

    @property
    def has_key(self) -> bool:
        """True if the caller has sent a key. False only if no key has ever been created."""
        return bool(self.account.key_id)

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def require(self, scope: Scope) -> None:
        """Check that the scopes include `scope` or `admin`, or raise NotAllowed."""
        if not self.may(scope):
            raise NotAllowed(
                f"This request requires an API key with the scope {scope.value!r}, but your key has only "
                f"{join(self.scopes).replace(',', ', ')}. Ask an administrator for another key.",
                param="Authorization",
            )

    @property
    def sees_every_run(self) -> bool:
        return Scope.ADMIN in self.scopes

    def sees(self, account: Account) -> bool:
        """Return whether the caller may see the runs of `account`: of its team, or of its key without one."""
        return self.sees_every_run or (bool(self.account.key_id) and self.owns(account))

    def owns(self, account: Account) -> bool:
        """Return whether the caller owns the objects of `account`: its team's, or its key's without one. The
        scope `admin` sees more than it owns.
        """
        return same_owner(self.account, account)

    def reads(self, account: Account) -> bool:
        """Return whether the caller may read and continue the runs of `account`: with `read` all that it
        sees, or else only its key's.
        """
        return self.sees(account) and (self.may(Scope.READ) or account.key_id == self.account.key_id)


def same_owner(one: Account, other: Account) -> bool:
    """Return whether two accounts own the same objects: they have the same team, or no team and the same key."""
    return one.team_id == other.team_id and (bool(one.team_id) or one.key_id == other.key_id)


ANONYMOUS = Caller(NO_ACCOUNT, frozenset(Scope))
"""Caller of every request as long as no key has ever been created. Such requests are accepted only from the
same machine."""


def join(scopes: Iterable[Scope]) -> str:
    """Return the scopes as comma-separated text, in the order of `Scope`."""
    return ",".join(scope.value for scope in Scope if scope in set(scopes))


def parse_scopes(text: str) -> frozenset[Scope]:
    """Return the scopes in a text written by `join`. Raise ValueError if one is unknown or none is there."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    scope_names = [scope.value for scope in Scope]
    if unknown := [name for name in names if name not in scope_names]:
        raise ValueError(f"unknown scope {unknown[0]!r}; known scopes are {', '.join(scope_names)}")
    if not names:
        raise ValueError(f"at least one scope is required; known scopes are {', '.join(scope_names)}")
    return frozenset(Scope(name) for name in names)
