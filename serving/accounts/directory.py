"""Teams and their API keys in the store: what administrators change, and what an `Authenticator` looks up.

Nothing here is on the way of a paid call: keys that were looked up are remembered by the `Authenticator`.
"""

import asyncio
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
from serving.accounts.account_policy import AccountPolicy, Policies
from serving.accounts.account_rows import KEYS, read_key, read_team
from serving.accounts.authenticator import check_in_force
from serving.accounts.budgets import Spending, read_spending, set_budget
from serving.accounts.caller import DEFAULT_SCOPES, Scope
from serving.accounts.key_info import LAST_US, US, KeyInfo, TeamInfo
from serving.accounts.keys import ApiKey
from serving.accounts.permission import unknown_names
from serving.accounts.rates import Period
from serving.database.address import Address
from serving.database.database import Database
from serving.database.migrate import open_database
from serving.database.schema import api_key, team
from serving.settings.settings import Settings

MOST_LISTED = 1000
"""Keys, or teams, in one answer."""
NAME_CHARS = 100


class Directory:
    """The teams and keys of one store; see `aclose`.

    Args:
        address: of the store. Looking something up there makes no SQLite file; changing something does.
        now_s: the time of day.
    """

    def __init__(self, address: Address, now_s: Callable[[], float] = time.time) -> None:
        self._address, self._now_s = address, now_s
        self._database: Database | None = None
        self._opening = asyncio.Lock()

    async def aclose(self) -> None:
        """Close its connections."""
        if self._database is not None:
            await self._database.aclose()

    async def open(self) -> Database:
        """The store itself, made where there was none.

        Raises:
            StoreError, StoreUnavailable: see `check`.
        """
        async with self._opening:
            if self._database is None:
                self._database = await open_database(self._address)
        return self._database

    async def budget(self, subject: str) -> list[Spending]:
        """What a key or a team may spend in the day and the month under way, and what is spent.

        Args:
            subject: see `serving.accounts.rates`.
        """
        return await read_spending(await self.open(), subject)

    async def set_budget(self, subject: str, limits_usd: Mapping[Period, Decimal | None]) -> None:
        """Limit what a key or a team may spend in each day or month; None lifts a limit.

        Raises:
            BadTask: a limit is no amount that can be counted.
        """
        for period, limit_usd in limits_usd.items():
            try:
                await set_budget(await self.open(), subject, period, limit_usd)
            except ValueError as exc:
                raise BadTask(f"The limit of a {period} {exc}.", param=period) from exc

    async def check(self) -> None:
        """See that the store can be used, where there is one.

        Raises:
            StoreError: it cannot, until the operator changes something.
            StoreUnavailable: it is away.
        """
        if self._address.may_hold_something:
            await self.open()

    async def find(self, hash: str) -> KeyInfo | None:
        """See `serving.accounts.authenticator.KeyFinder`."""
        still = (api_key.c.old_hash == hash) & (api_key.c.old_until_us > self._now_us)
        return next(iter(await self._keys(KEYS.where(or_(api_key.c.hash == hash, still)))), None)

    async def has_keys(self) -> bool:
        """See `serving.accounts.authenticator.KeyFinder`."""
        return bool(await self.rows(select(literal(1)).select_from(api_key).limit(1)))

    async def create_team(self, name: str) -> TeamInfo:
        """A new team.

        Raises:
            BadTask: another one is called so, or nothing can be.
        """
        made = TeamInfo(_new_id("team"), _checked_name(name), self._now_us)
        values = {"id": made.id, "name": made.name, "made_us": made.made_us}
        try:
            async with (await self.open()).writing() as connection:
                await connection.execute(insert(team).values(values))
        except IntegrityError:
            raise BadTask(f"A team is called {quote(name)} already.", param="name") from None
        return made

    async def teams(self) -> list[TeamInfo]:
        """Those that were made last, the oldest of them first."""
        newest = select(team).order_by(team.c.made_us.desc(), team.c.id.desc()).limit(MOST_LISTED)
        return [read_team(row) for row in reversed(await self.rows(newest))]

    async def team(self, reference: str) -> TeamInfo:
        """The team of that id or name.

        Raises:
            UnknownName: there is none.
        """
        rows = await self.rows(select(team).where(or_(team.c.id == reference, team.c.name == reference)))
        if not rows:
            raise UnknownName(f"There is no team {quote(reference)}.", param="team")
        return read_team(next((row for row in rows if row.id == reference), rows[0]))

    async def switch_team(self, reference: str, *, on: bool) -> TeamInfo:
        """Let the keys of a team in, or no longer.

        Raises:
            UnknownName: there is no such team.
        """
        found = await self.team(reference)
        change = update(team).where(team.c.id == found.id)
        change = change.values(off_us=None) if on else change.where(team.c.off_us.is_(None)).values(off_us=self._now_us)  # fmt: skip
        async with (await self.open()).writing() as connection:
            await connection.execute(change)
        return await self.team(found.id)

    async def change_team_policy(self, reference: str, given: AccountPolicy) -> TeamInfo:
        """Change what the keys of a team may do; what `given` does not name stays. Within 10 s everywhere.

        Raises:
            UnknownName: there is no such team.
        """
        found = await self.team(reference)
        await self._set_policy(team, found.id, found.policy.change(given))
        return await self.team(found.id)

    async def change_key_policy(self, reference: str, given: AccountPolicy) -> KeyInfo:
        """Change what a key may do of what its team may; what `given` does not name stays.

        Raises:
            UnknownName, BadTask: see `key`.
        """
        found = await self.key(reference)
        await self._set_policy(api_key, found.id, found.policy.change(given))
        return await self.key(found.id)

    async def policies(self, account: Account) -> Policies:
        """What the runs of an account may reach, as it is now.

        Raises:
            UnknownName: there is no such key.
            Unauthenticated: it is not in force any more.
        """
        key = await self.key(account.key_id)
        check_in_force(key, self._now_us)
        return key.policies

    async def unknown_names(self, settings: Settings) -> list[str]:
        """Return what the policies of teams, and of keys that are not revoked, name and `settings` do not have."""
        teams = await self.rows(select(team).where(team.c.policy != "{}"))
        in_force = api_key.c.revoked_us.is_(None) & (api_key.c.policy != "{}")
        keys = await self._keys(KEYS.where(in_force))
        return [
            f"{whose} {each.name} ({each.id}): {unknown.message}"
            for whose, found in (("team", map(read_team, teams)), ("key", keys))
            for each in found
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
        """A new key. The store keeps its hash: the key itself is here, and nowhere else again.

        Args:
            name: what it is for.
            team: the id or name of the team it belongs to.
            scopes: what it may be used for.
            expires_us: from when on it is refused.

        Raises:
            UnknownName: there is no such team.
            BadTask: it would be of no use, or an administrator's with a team.
        """
        if Scope.ADMIN in scopes and team is not None:
            message = "A key with the scope 'admin' sees and changes every team, so it belongs to none. Leave the team out."
            raise BadTask(message, param="team")
        if not scopes:
            raise BadTask("A key without a scope is of no use.", param="scopes")
        if expires_us is not None and expires_us <= self._now_us:
            raise BadTask("The key would have expired before it is made.", param="expires_at")
        if expires_us is not None and expires_us >= LAST_US:
            raise BadTask("A key expires before the year 10000, or never.", param="expires_at")
        owner = await self.team(team) if team is not None else None
        key = ApiKey.make()
        made = KeyInfo(
            _new_id("key"), _checked_name(name), key.hint, frozenset(scopes), owner, self._now_us, expires_us
        )
        values = {
            "id": made.id,
            "hash": key.hash,
            "hint": made.hint,
            "name": made.name,
            "team_id": owner.id if owner else None,
            "scopes": json.dumps([scope.value for scope in Scope if scope in made.scopes]),
            "made_us": made.made_us,
            "expires_us": expires_us,
        }
        async with (await self.open()).writing() as connection:
            await connection.execute(insert(api_key).values(values))
        return key, made

    async def keys(
        self, team: str | None = None, limit: int = MOST_LISTED, after: str | None = None
    ) -> list[KeyInfo]:
        """Keys, the newest first, those that are not in force any more included.

        Args:
            team: the id or name of a team: its keys alone.
            limit: how many.
            after: the id of a key: those that were made before it.

        Raises:
            UnknownName: there is no such team, or no such key.
        """
        asked = KEYS.order_by(api_key.c.made_us.desc(), api_key.c.id.desc()).limit(min(limit, MOST_LISTED))
        if team is not None:
            asked = asked.where(api_key.c.team_id == (await self.team(team)).id)
        if after is not None:
            last = await self.key(after)
            asked = asked.where(tuple_(api_key.c.made_us, api_key.c.id) < tuple_(last.made_us, last.id))
        return await self._keys(asked)

    async def key(self, reference: str) -> KeyInfo:
        """The key of that id, or the one of that name that is neither revoked nor expired.

        Raises:
            UnknownName: there is none.
            BadTask: several are called so.
        """
        found = await self._keys(KEYS.where(or_(api_key.c.id == reference, api_key.c.name == reference)))
        named = [key for key in found if key.state(self._now_us) not in ("revoked", "expired")]
        chosen = [key for key in found if key.id == reference] or named
        if not chosen:
            raise UnknownName(f"There is no key {quote(reference)} in force.", param="key")
        if len(chosen) > 1:
            ids = ", ".join(key.id for key in chosen)
            raise BadTask(f"{len(chosen)} keys are called {quote(reference)}. Name one by its id: {ids}.", param="key")  # fmt: skip
        return chosen[0]

    async def revoke(self, reference: str) -> KeyInfo:
        """Refuse a key from now on, everywhere within 10 s. One that is revoked already stays so.

        Raises:
            UnknownName, BadTask: see `key`.
        """
        found = await self.key(reference)
        change = update(api_key).where(api_key.c.id == found.id, api_key.c.revoked_us.is_(None))
        async with (await self.open()).writing() as connection:
            await connection.execute(change.values(revoked_us=self._now_us, old_hash=None, old_until_us=None))
        return await self.key(found.id)

    async def rotate(self, reference: str, overlap_s: float = 0) -> tuple[ApiKey, KeyInfo]:
        """A new secret for a key, which keeps its id, name, team, scopes, budgets and records.

        Args:
            reference: see `key`.
            overlap_s: how long the secret before works too. One before that works no longer.

        Raises:
            UnknownName: there is no such key.
            BadTask: it is not in force, so that a new secret would not be either.
        """
        found = await self.key(reference)
        if (state := found.state(self._now_us)) in ("revoked", "expired"):
            raise BadTask(f"The key {found.id} is {state}. Make a new one.", param="key")
        key = ApiKey.make()
        change = update(api_key).where(api_key.c.id == found.id).values(
            hash=key.hash,
            hint=key.hint,
            old_hash=api_key.c.hash if overlap_s > 0 else None,
            old_until_us=self._now_us + int(overlap_s * US) if overlap_s > 0 else None,
        )  # fmt: skip
        async with (await self.open()).writing() as connection:
            await connection.execute(change)
        return key, await self.key(found.id)

    @property
    def _now_us(self) -> int:
        return int(self._now_s() * US)

    async def _keys(self, asked: Executable) -> list[KeyInfo]:
        return [read_key(row) for row in await self.rows(asked)]

    async def rows(self, asked: Executable) -> list[Any]:
        """What the store says; nothing where there is none yet."""
        if self._database is None and not self._address.may_hold_something:
            return []
        async with (await self.open()).reading() as connection:
            return list((await connection.execute(asked)).all())


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:20]}"


def _checked_name(name: str) -> str:
    """`name`, which people will read in lists.

    Raises:
        BadTask: it is empty, too long, or holds what cannot be read.
    """
    if not name.strip() or len(name) > NAME_CHARS or not name.isprintable() or name != name.strip():
        raise BadTask(
            f"A name has 1 to {NAME_CHARS} characters that can be read, and no space around them.",
            param="name",
        )
    return name
