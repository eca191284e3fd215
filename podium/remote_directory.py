"""Teams and keys of a server elsewhere, by its admin API: the part of `Directory` that `podium keys` and `podium teams`
use. It knows no store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from podium.budgets_cli import pages
from podium.client import FAILED, Client, ClientError, path_part
from serving.accounts.account_policy import AccountPolicy
from serving.accounts.budgets import Spending
from serving.accounts.caller import Scope
from serving.accounts.key_info import US, KeyInfo, TeamInfo, iso
from serving.accounts.keys import ApiKey
from serving.accounts.rates import Period

Json = dict[str, Any]
PERIODS: tuple[Period, ...] = ("day", "month")


class RemoteDirectory:
    """See `Directory`, whose methods these are.

    Args:
        client: with the key of an administrator.

    Raises (each method):
        ClientError: the server refuses, or there is none.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def aclose(self) -> None:
        """Nothing to close."""

    async def create_team(self, name: str) -> TeamInfo:
        """Make a team."""
        return _team(self._client.post("/v1/admin/teams", {"name": name}))

    async def teams(self) -> list[TeamInfo]:
        """All teams."""
        return [_team(each) for each in pages(self._client, "teams")]

    async def team(self, reference: str) -> TeamInfo:
        """The one of that id, else of that name, with its policy."""
        found = [team for team in await self.teams() if reference in (team.id, team.name)]
        if not found:
            raise ClientError(f"There is no team {reference!r}; `podium teams list` shows them.", FAILED)
        team = min(found, key=lambda each: each.id != reference)
        return replace(team, policy=self._policy(f"/v1/admin/teams/{path_part(team.id)}"))

    async def switch_team(self, reference: str, *, on: bool) -> TeamInfo:
        """Let its keys in, or no longer."""
        return _team(self._client.post(f"/v1/admin/teams/{path_part(reference)}", {"enabled": on}))

    async def create_key(
        self, name: str, team: str | None, scopes: Collection[Scope], expires_us: int | None
    ) -> tuple[ApiKey, KeyInfo]:
        """Make a key."""
        asked = {"name": name, "team": team, "scopes": sorted(scopes), "expires_at": iso(expires_us)}
        made = self._client.post("/v1/admin/keys", asked)
        return ApiKey(made["secret"]), _key(made)

    async def keys(self, team: str | None = None) -> list[KeyInfo]:
        """Keys, the newest first."""
        wanted = None if team is None else (await self.team(team)).id
        found = [_key(each) for each in pages(self._client, "keys")]
        return [key for key in found if wanted is None or (key.team and key.team.id == wanted)]

    async def key(self, reference: str) -> KeyInfo:
        """The one of that id or name."""
        key = _key(self._client.get(f"/v1/admin/keys/{path_part(reference)}"))
        return replace(key, policy=self._policy(f"/v1/admin/keys/{path_part(key.id)}"))

    async def revoke(self, reference: str) -> KeyInfo:
        """Refuse it from now on."""
        return _key(self._client.delete(f"/v1/admin/keys/{path_part(reference)}"))

    async def rotate(self, reference: str, overlap_s: float = 0) -> tuple[ApiKey, KeyInfo]:
        """Give it a new secret."""
        made = self._client.post(f"/v1/admin/keys/{path_part(reference)}/rotate", {"overlap_s": overlap_s})
        return ApiKey(made["secret"]), _key(made)

    async def budget(self, subject: str) -> list[Spending]:
        """What a `subject` (see `serving.accounts.rates`) may spend, and has spent."""
        told = self._client.get(_budget_path(subject))
        return [Spending(period, *_amounts(told[period])) for period in PERIODS]

    async def set_budget(self, subject: str, limits_usd: Mapping[Period, Decimal | None]) -> None:
        """Limit what it may spend."""
        limits = {f"{period}_usd": None if limit is None else str(limit) for period, limit in limits_usd.items()}  # fmt: skip
        if limits:
            self._client.post(_budget_path(subject), limits)

    async def change_team_policy(self, reference: str, given: AccountPolicy) -> TeamInfo:
        """Change what its keys may do."""
        self._client.post(f"/v1/admin/teams/{path_part(reference)}/policy", _stated(given))
        return await self.team(reference)

    async def change_key_policy(self, reference: str, given: AccountPolicy) -> KeyInfo:
        """Change what it may do."""
        self._client.post(f"/v1/admin/keys/{path_part(reference)}/policy", _stated(given))
        return await self.key(reference)

    def _policy(self, path: str) -> AccountPolicy:
        return AccountPolicy.model_validate(self._client.get(f"{path}/policy")["policy"])


def _stated(policy: AccountPolicy) -> Json:
    return policy.model_dump(mode="json", exclude_unset=True)


def _budget_path(subject: str) -> str:
    whose, _, id = subject.partition(":")
    return f"/v1/admin/{whose}s/{path_part(id)}/budget"


def _amounts(window: Json) -> tuple[Decimal | None, Decimal, Decimal]:
    limit = window["limit_usd"]
    return None if limit is None else Decimal(limit), Decimal(window["spent_usd"]), Decimal(window["held_usd"])  # fmt: skip


def _team(told: Json) -> TeamInfo:
    made_us = _us(told["created_at"]) or 0
    return TeamInfo(told["id"], told["name"], made_us, None if told["enabled"] else made_us)


def _key(told: Json) -> KeyInfo:
    return KeyInfo(
        told["id"],
        told["name"],
        told["hint"],
        frozenset(Scope(scope) for scope in told["scopes"]),
        _team(told["team"]) if told["team"] else None,
        _us(told["created_at"]) or 0,
        _us(told["expires_at"]),
        _us(told["revoked_at"]),
    )


def _us(time: str | None) -> int | None:
    return None if time is None else int(datetime.fromisoformat(time).timestamp() * US)
