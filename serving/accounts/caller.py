"""Who calls, and what it may do and see."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from conductor.errors import NotAllowed
from conductor.run.record import NOBODY, Account
from serving.accounts.account_policy import UNLIMITED, Policies


class Scope(StrEnum):
    """What a key may be used for. Every key may ask for the names of models."""

    RUN = "run"
    """Ask models and teams of them, and pay."""
    READ = "read"
    """See the runs of the key's team."""
    ADMIN = "admin"
    """Everything: teams, keys, replicas, and the runs of every team."""


DEFAULT_SCOPES = frozenset({Scope.RUN, Scope.READ})
"""Of a key that is made without a word about them."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request.

    Args:
        account: the key, and the team it belongs to.
        scopes: what the key may be used for.
        policies: what runs that it asks for may reach.
    """

    account: Account
    scopes: frozenset[Scope]
    policies: Policies = UNLIMITED

    @property
    def has_key(self) -> bool:
        """False only where no key has ever been made."""
        return bool(self.account.key_id)

    def may(self, scope: Scope) -> bool:
        """Whether the scopes include `scope`, or `admin`."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def require(self, scope: Scope) -> None:
        """See `may`.

        Raises:
            NotAllowed: they do not.
        """
        if not self.may(scope):
            raise NotAllowed(
                f"This takes a key with the scope {scope.value!r}; yours has {join(self.scopes)}. "
                "Ask an administrator for another key.",
                param="Authorization",
            )

    @property
    def sees_every_run(self) -> bool:
        """Whether no run is hidden from it."""
        return Scope.ADMIN in self.scopes

    def sees(self, account: Account) -> bool:
        """Whether it may see the runs of `account`: those of its own team; without a team, its own."""
        return self.sees_every_run or (bool(self.account.key_id) and self.owns(account))

    def owns(self, account: Account) -> bool:
        """Whether what is of `account` is its team's; without a team, its own. An administrator's key sees more than it
        owns.
        """
        mine = self.account
        if mine.team_id or account.team_id:
            return mine.team_id == account.team_id
        return mine.key_id == account.key_id

    def reads(self, account: Account) -> bool:
        """Whether it may read what is of `account`, and go on with it: what it sees where it may read at all, else its
        own alone.
        """
        return self.sees(account) and (self.may(Scope.READ) or account.key_id == self.account.key_id)


ANYBODY = Caller(NOBODY, frozenset(Scope))
"""Whoever calls while no key has ever been made: from this machine only."""


def join(scopes: Iterable[Scope]) -> str:
    """Scopes as one text, as the database and the command line have them; in the order of `Scope`."""
    return ",".join(scope.value for scope in Scope if scope in set(scopes))


def parse_scopes(text: str) -> frozenset[Scope]:
    """The scopes in a text as `join` writes it.

    Raises:
        ValueError: one is not known, or there is none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = [scope.value for scope in Scope]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no scope {unknown[0]!r}; there are {', '.join(known)}")
    if not names:
        raise ValueError(f"no scope is named; there are {', '.join(known)}")
    return frozenset(Scope(name) for name in names)
