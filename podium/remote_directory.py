"""Teams and keys of a remote server, through its admin API.

This implements the methods of `Directory` that `podium keys` and `podium teams` use.
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
from serving.accounts.budget_limits import Spending
from serving.accounts.caller import Scope
from serving.accounts.hold import Period
from serving.accounts.key_info import US, KeyEdit, KeyInfo, TeamInfo, iso
from serving.accounts.keys import ApiKey

Json = dict[str, Any]
PERIODS: tuple[Period, ...] = ("day", "month")


class RemoteDirectory:
    """Replacement for `Directory` that calls a server's admin API with an administrator's key, and raises
    `ClientError`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def aclose(self) -> None:
        """Do nothing: there is no connection to close."""

    async def create_team(self, name: str) -> TeamInfo:
        return _team(self._client.post("/v1/admin/teams", {"name": name}))

    async def teams(self) -> list[TeamInfo]:
        return [_team(each) for each in pages(self._client, "teams")]

    async def team(self, reference: str) -> TeamInfo:
        """Return the team with this id, or else the team with this name, including its policy."""
        matches = [team for team in await self.teams() if reference in (team.id, team.name)]
        if not matches:
            raise ClientError(
                f"Team {reference!r} not found. List all teams with `podium teams list`.", FAILED
            )
        team = min(matches, key=lambda each: each.id != reference)
        return replace(team, policy=self._policy(f"/v1/admin/teams/{path_part(team.id)}"))

    async def switch_team(self, reference: str, *, on: bool) -> TeamInfo:
        return _team(self._client.post(f"/v1/admin/teams/{path_part(reference)}", {"enabled": on}))

    async def create_key(
        self, name: str, team: str | None, scopes: Collection[Scope], expires_us: int | None
    ) -> tuple[ApiKey, KeyInfo]:
        """Create a key. Return its secret, and a description of the key."""
        body = {"name": name, "team": team, "scopes": sorted(scopes), "expires_at": iso(expires_us)}
        created = self._client.post("/v1/admin/keys", body)
        return ApiKey(created["secret"]), _key(created)

    async def keys(self, team: str | None = None) -> list[KeyInfo]:
        """Return all keys, or those of one team, newest first."""
        team_id = None if team is None else (await self.team(team)).id
        keys = [_key(each) for each in pages(self._client, "keys")]
        return [key for key in keys if team_id is None or (key.team and key.team.id == team_id)]

    async def key(self, reference: str) -> KeyInfo:
        key = _key(self._client.get(f"/v1/admin/keys/{path_part(reference)}"))
        return replace(key, policy=self._policy(f"/v1/admin/keys/{path_part(key.id)}"))

    async def change_key(self, reference: str, edit: KeyEdit) -> KeyInfo:
        body: Json = {"scopes": sorted(edit["scopes"])} if "scopes" in edit else {}
        if "expires_us" in edit:
            body["expires_at"] = iso(edit["expires_us"])
        return _key(self._client.post(f"/v1/admin/keys/{path_part(reference)}", body))

    async def revoke(self, reference: str) -> KeyInfo:
        return _key(self._client.delete(f"/v1/admin/keys/{path_part(reference)}"))

    async def rotate(self, reference: str, overlap_s: float = 0) -> tuple[ApiKey, KeyInfo]:
        """Replace the secret of the key. Return the new secret, and a description of the key."""
        rotated = self._client.post(f"/v1/admin/keys/{path_part(reference)}/rotate", {"overlap_s": overlap_s})
        return ApiKey(rotated["secret"]), _key(rotated)

    async def budget(self, subject: str) -> list[Spending]:
        """Return the budget and the spending of a team or key. `serving.accounts.hold` defines subjects."""
        budget = self._client.get(_budget_path(subject))
        return [Spending(period, *_amounts(budget[period])) for period in PERIODS]

    async def set_budget(self, subject: str, limits_usd: Mapping[Period, Decimal | None]) -> None:
        limits = {f"{period}_usd": None if limit is None else str(limit) for period, limit in limits_usd.items()}  # fmt: skip
        if limits:
            self._client.post(_budget_path(subject), limits)

    async def change_team_policy(self, reference: str, changes: AccountPolicy) -> TeamInfo:
        self._client.post(f"/v1/admin/teams/{path_part(reference)}/policy", _stated(changes))
        return await self.team(reference)

    async def change_key_policy(self, reference: str, changes: AccountPolicy) -> KeyInfo:
        self._client.post(f"/v1/admin/keys/{path_part(reference)}/policy", _stated(changes))
        return await self.key(reference)

    def _policy(self, path: str) -> AccountPolicy:
        return AccountPolicy.model_validate(self._client.get(f"{path}/policy")["policy"])


def _stated(policy: AccountPolicy) -> Json:
    return policy.model_dump(mode="json", exclude_unset=True)


def _budget_path(subject: str) -> str:
    kind, _, id = subject.partition(":")
    return f"/v1/admin/{kind}s/{path_part(id)}/budget"


def _amounts(window: Json) -> tuple[Decimal | None, Decimal, Decimal]:
    limit = window["limit_usd"]
    return None if limit is None else Decimal(limit), Decimal(window["spent_usd"]), Decimal(window["held_usd"])  # fmt: skip


def _team(body: Json) -> TeamInfo:
    made_us = _us(body["created_at"]) or 0
    return TeamInfo(body["id"], body["name"], made_us, None if body["enabled"] else made_us)


def _key(body: Json) -> KeyInfo:
    return KeyInfo(
        body["id"],
        body["name"],
        body["hint"],
        frozenset(Scope(scope) for scope in body["scopes"]),
        _team(body["team"]) if body["team"] else None,
        _us(body["created_at"]) or 0,
        _us(body["expires_at"]),
        _us(body["revoked_at"]),
    )


def _us(time: str | None) -> int | None:
    return None if time is None else int(datetime.fromisoformat(time).timestamp() * US)
