"""The API with keys in a real store, over a real socket."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from serving.accounts.account_ledgers import AccountLedgers
from serving.accounts.caller import DEFAULT_SCOPES, Scope
from serving.accounts.directory import Directory
from serving.accounts.keys import ApiKey
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import Address
from serving.settings.settings import parse
from serving.store.database_conversations import DatabaseConversations
from serving.telemetry.measurement import MeasurementSink
from tests.databases import make_file
from tests.serving.api.served import Json, Served, served, team

KEYS: dict[str, tuple[str | None, set[Scope]]] = {
    "mine": ("search", {*DEFAULT_SCOPES}),
    "other team": ("sales", {*DEFAULT_SCOPES}),
    "only run": ("search", {Scope.RUN}),
    "only read": ("search", {Scope.READ}),
    "alone": (None, {*DEFAULT_SCOPES}),
    "admin": (None, {Scope.ADMIN}),
}
"""Team and scopes of the test keys, by name."""


@dataclass
class Keyed:
    """A running API with the secrets of its keys."""

    api: Served
    directory: Directory
    store: ReplicaStore
    secrets: dict[str, str]
    ids: dict[str, str]

    def headers(self, who: str | None) -> dict[str, str]:
        return {} if who is None else {"authorization": f"Bearer {self.secrets[who]}"}

    async def ask(
        self, who: str | None, method: str, path: str, body: Json | None = None, headers: Json | None = None
    ) -> httpx2.Response:
        return await self.api.http.request(
            method, path, json=body, headers=self.headers(who) | (headers or {})
        )


@asynccontextmanager
async def keyed(
    place: Path | Address, settings: Json | None = None, meter: MeasurementSink | None = None, **environ: Any
) -> AsyncGenerator[Keyed]:
    """Serve with `KEYS`, in a store at the address or in the folder `place`."""
    address = make_file(place / "podium.db") if isinstance(place, Path) else place
    directory, store = Directory(address), ReplicaStore(address)
    try:
        secrets, ids = {"wrong": ApiKey.make().reveal()}, {}
        for name in ("search", "sales"):
            ids[name] = (await directory.create_team(name)).id
        for who, (owner, scopes) in KEYS.items():
            key, key_record = await directory.create_key(who, owner, scopes)
            secrets[who], ids[who] = key.reveal(), key_record.id
        checked = parse(settings or team())
        ledgers = AccountLedgers(store, checked.store.when_away)
        conversations = DatabaseConversations(store)
        async with served(
            checked, environ, directory=directory, ledgers=ledgers, conversations=conversations, meter=meter
        ) as api:
            yield Keyed(api, directory, store, secrets, ids)
            await api.service.pool.aclose()
    finally:
        await store.aclose()
        await directory.aclose()
