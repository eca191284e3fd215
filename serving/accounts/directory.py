"""Directory of teams and API keys in the store, for administrators and for the `Authenticator`.

Most requests do not access it, because the `Authenticator` caches keys.
"""

import json
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import Any

from sqlalchemy import Executable, Table, insert, literal, or_, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from conductor.errors import BadTask, UnknownName, quote
from conductor.run.record import Account
from serving.accounts.account_policy import AccountPolicy, Policies, unknown_names
from serving.accounts.account_rows import KEYS, read_key, read_team
from serving.accounts.budget_limits import Spending, read_spending, set_budget
from serving.accounts.caller import DEFAULT_SCOPES, Scope
from serving.accounts.hold import Period
from serving.accounts.key_info import LAST_US, US, KeyEdit, KeyInfo, TeamInfo, check_in_force
from serving.accounts.keys import ApiKey
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import Address
from serving.database.database import Database
from serving.database.schema import api_key, team
from serving.settings.model_access import overlay
from serving.settings.settings import Settings

MOST_LISTED = 1000
"""Maximum number of keys or teams in one answer."""
NAME_CHARS = 100


class Directory:
    """Directory of the teams and keys in one store. Close it with `aclose`. A write creates a SQLite file."""

    def __init__(self, address: Address, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._store = ReplicaStore(address)
        """Connections of its own, so that look-ups of keys do not wait for large reads."""

    async def aclose(self) -> None:
        await self._store.aclose()

    async def open(self) -> Database:
        """Return the database. Create its schema if it is empty."""
        return await self._store.database()

    async def budget(self, subject: str) -> list[Spending]:
        """Return the limits and spending of a key or a team in the current day and month."""
        return await read_spending(await self.open(), subject)

    async def set_budget(self, subject: str, limits_usd: Mapping[Period, Decimal | None]) -> None:
        """Limit what a key or a team may spend. None removes a limit. Raise BadTask for an invalid one."""
        for period, limit_usd in limits_usd.items():
            try:
                await set_budget(await self.open(), subject, period, limit_usd)
            except ValueError as exc:
                raise BadTask(f"The limit per {period} {exc}.", param=period) from exc

    async def check(self) -> None:
        """Check that the store can be used, or raise. A SQLite file that does not exist yet passes."""
        if self._store.address.may_hold_something:
            await self.open()

    async def find(self, hash: str) -> KeyInfo | None:
        still = (api_key.c.old_hash == hash) & (api_key.c.old_until_us > self._now_us)
        return next(iter(await self._keys(KEYS.where(or_(api_key.c.hash == hash, still)))), None)

    async def has_keys(self) -> bool:
        return bool(await self.rows(select(literal(1)).select_from(api_key).limit(1)))

    async def create_team(self, name: str) -> TeamInfo:
        """Create a team. Raise BadTask if the name is taken or not valid."""
        info = TeamInfo(_new_id("team"), _checked_name(name), self._now_us)
        values = {"id": info.id, "name": info.name, "made_us": info.made_us}
        try:
            async with (await self.open()).writing() as connection:
                await connection.execute(insert(team).values(values))
        except IntegrityError:
            raise BadTask(f"A team named {quote(name)} already exists.", param="name") from None
        return info

    async def teams(self) -> list[TeamInfo]:
        """Return the newest `MOST_LISTED` teams, oldest first."""
        newest = select(team).order_by(team.c.made_us.desc(), team.c.id.desc()).limit(MOST_LISTED)
        return [read_team(row) for row in reversed(await self.rows(newest))]

    async def team(self, reference: str) -> TeamInfo:
        """Return the team with this id or name, or raise UnknownName."""
        rows = await self.rows(select(team).where(or_(team.c.id == reference, team.c.name == reference)))
        if not rows:
            raise UnknownName(
                f"No team has the id or name {quote(reference)}. `podium teams list` lists all teams.",
                param="team",
            )
        return read_team(next((row for row in rows if row.id == reference), rows[0]))

    async def switch_team(self, reference: str, *, on: bool) -> TeamInfo:
        """Switch a team on or off. The keys of a team that is off are rejected."""
        info = await self.team(reference)
        change = update(team).where(team.c.id == info.id)
        change = change.values(off_us=None) if on else change.where(team.c.off_us.is_(None)).values(off_us=self._now_us)  # fmt: skip
        async with (await self.open()).writing() as connection:
            await connection.execute(change)
        return await self.team(info.id)

    async def change_team_policy(self, reference: str, changes: AccountPolicy) -> TeamInfo:
        """Change the fields of a team's policy that are set, on every replica within 10 s."""
        info = await self.team(reference)
        await self._set_policy(team, info.id, overlay(info.policy, changes))
        return await self.team(info.id)

    async def change_key_policy(self, reference: str, changes: AccountPolicy) -> KeyInfo:
        """Change the policy of a key. Fields that are not set in `changes` keep their values."""
        info = await self.key(reference)
        await self._set_policy(api_key, info.id, overlay(info.policy, changes))
        return await self.key(info.id)

    async def policies(self, account: Account) -> Policies:
        """Return an account's current policies. Raise Unauthenticated for keys that are rejected."""
        key = await self.key(account.key_id)
        check_in_force(key, self._now_us)
        return key.policies

    async def unknown_names(self, settings: Settings) -> list[str]:
        """Return a message for each name in the policies of teams and active keys that the settings lack."""
        teams = await self.rows(select(team).where(team.c.policy != "{}"))
        in_force = api_key.c.revoked_us.is_(None) & (api_key.c.policy != "{}")
        keys = await self._keys(KEYS.where(in_force))
        return [
            f"{kind} {each.name} ({each.id}): {unknown.message}"
            for kind, accounts in (("team", map(read_team, teams)), ("key", keys))
            for each in accounts
            for unknown in unknown_names(each.policy, settings)
        ]

    async def _set_policy(self, table: Table, id: str, policy: AccountPolicy) -> None:
        change = update(table).where(table.c.id == id).values(policy=json.dumps(policy.stated()))
        async with (await self.open()).writing() as connection:
            await connection.execute(change)

    async def create_key(
        self,
        name: str,
        team: str | None = None,
        scopes: Collection[Scope] = DEFAULT_SCOPES,
        expires_us: int | None = None,
    ) -> tuple[ApiKey, KeyInfo]:
        """Create a key, of which the store keeps only the hash. Raise BadTask for an unusable one, or an
        `admin` with a team.
        """
        if Scope.ADMIN in scopes and team is not None:
            message = "A key with the scope 'admin' can access every team, so it cannot belong to one team. Leave out the team."
            raise BadTask(message, param="team")
        if not scopes:
            raise BadTask("A key needs at least one scope.", param="scopes")
        self._check_expiry(expires_us)
        owner = await self.team(team) if team is not None else None
        key = ApiKey.make()
        info = KeyInfo(
            _new_id("key"), _checked_name(name), key.hint, frozenset(scopes), owner, self._now_us, expires_us
        )
        values = {
            "id": info.id,
            "hash": key.hash,
            "hint": info.hint,
            "name": info.name,
            "team_id": owner.id if owner else None,
            "scopes": _scopes_json(scopes),
            "made_us": info.made_us,
            "expires_us": expires_us,
        }
        async with (await self.open()).writing() as connection:
            await connection.execute(insert(api_key).values(values))
        return key, info

    async def keys(
        self, team: str | None = None, limit: int = MOST_LISTED, after: str | None = None
    ) -> list[KeyInfo]:
        """Return up to `limit` keys, newest first, after the key `after`, also expired and revoked ones.
        Raise UnknownName.
        """
        query = KEYS.order_by(api_key.c.made_us.desc(), api_key.c.id.desc()).limit(min(limit, MOST_LISTED))
        if team is not None:
            query = query.where(api_key.c.team_id == (await self.team(team)).id)
        if after is not None:
            last = await self.key(after)
            query = query.where(tuple_(api_key.c.made_us, api_key.c.id) < tuple_(last.made_us, last.id))
        return await self._keys(query)

    async def key(self, reference: str) -> KeyInfo:
        """Return the key with this id, or the active one with this name. Raise UnknownName, or BadTask for
        several.
        """
        keys = await self._keys(KEYS.where(or_(api_key.c.id == reference, api_key.c.name == reference)))
        usable_keys = [key for key in keys if key.state(self._now_us) not in ("revoked", "expired")]
        matches = [key for key in keys if key.id == reference] or usable_keys
        if not matches:
            raise UnknownName(
                f"No active key is named {quote(reference)}, and no key has this id. `podium keys list` lists the keys.",
                param="key",
            )
        if len(matches) > 1:
            ids = ", ".join(key.id for key in matches)
            raise BadTask(f"{len(matches)} keys are named {quote(reference)}. Use the id of one: {ids}.", param="key")  # fmt: skip
        return matches[0]

    async def change_key(self, reference: str, edit: KeyEdit) -> KeyInfo:
        """Change the scopes or the expiry of a key. Every replica applies the change within 10 s.

        Raises:
            UnknownName: there is no such key.
            BadTask: the key is revoked, would be unusable, or would have both the scope `admin` and a team.
        """
        info = await self.key(reference)
        scopes = edit.get("scopes", info.scopes)
        if Scope.ADMIN in scopes and info.team is not None:
            raise BadTask(
                "A key with the scope 'admin' cannot belong to a team. Create a key without a team.",
                param="scopes",
            )
        if not scopes:
            raise BadTask("A key needs at least one scope.", param="scopes")
        if edit.get("expires_us", info.expires_us) != info.expires_us:
            self._check_expiry(edit.get("expires_us"))
        # only the columns of the edit, so that a concurrent edit of the other field stays
        values: dict[str, Any] = {"id": info.id, **edit}
        if "scopes" in edit:
            values["scopes"] = _scopes_json(scopes)
        change = update(api_key).where(api_key.c.id == info.id, api_key.c.revoked_us.is_(None)).values(values)
        async with (await self.open()).writing() as connection:
            is_changed = (await connection.execute(change)).rowcount > 0
        if not is_changed:
            raise BadTask(f"The key {info.id} is revoked. Create a new one.", param="key")
        return await self.key(info.id)

    async def revoke(self, reference: str) -> KeyInfo:
        """Revoke a key, unless it is already. Every replica rejects it within 10 s."""
        info = await self.key(reference)
        change = update(api_key).where(api_key.c.id == info.id, api_key.c.revoked_us.is_(None))
        async with (await self.open()).writing() as connection:
            await connection.execute(change.values(revoked_us=self._now_us, old_hash=None, old_until_us=None))
        return await self.key(info.id)

    async def rotate(self, reference: str, overlap_s: float = 0) -> tuple[ApiKey, KeyInfo]:
        """Create a new secret for an active key, whose id and all else stay. The previous one works for
        `overlap_s`, older ones stop.
        """
        info = await self.key(reference)
        if (state := info.state(self._now_us)) in ("revoked", "expired"):
            raise BadTask(f"The key {info.id} is {state}. Create a new one.", param="key")
        key = ApiKey.make()
        change = update(api_key).where(api_key.c.id == info.id).values(
            hash=key.hash,
            hint=key.hint,
            old_hash=api_key.c.hash if overlap_s > 0 else None,
            old_until_us=self._now_us + int(overlap_s * US) if overlap_s > 0 else None,
        )  # fmt: skip
        async with (await self.open()).writing() as connection:
            await connection.execute(change)
        return key, await self.key(info.id)

    def _check_expiry(self, expires_us: int | None) -> None:
        if expires_us is not None and expires_us <= self._now_us:
            raise BadTask("expires_at must be in the future.", param="expires_at")
        if expires_us is not None and expires_us >= LAST_US:
            raise BadTask("expires_at must be before the year 10000.", param="expires_at")

    @property
    def _now_us(self) -> int:
        return int(self._now_s() * US)

    async def _keys(self, query: Executable) -> list[KeyInfo]:
        return [read_key(row) for row in await self.rows(query)]

    async def rows(self, query: Executable) -> list[Any]:
        """Return the rows of a query. Return no rows if the store does not exist yet."""
        return await self._store.read(query)


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:20]}"


def _scopes_json(scopes: Collection[Scope]) -> str:
    return json.dumps([scope.value for scope in Scope if scope in scopes])


def _checked_name(name: str) -> str:
    """Return `name`. Raise BadTask if it is empty, too long, or not printable."""
    if not name.strip() or len(name) > NAME_CHARS or not name.isprintable() or name != name.strip():
        raise BadTask(
            f"name must have 1 to {NAME_CHARS} printable characters, without leading or trailing spaces.",
            param="name",
        )
    return name
