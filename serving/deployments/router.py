"""The HTTP ingress, as a replica: settings in, API out; a new pool on every `user_config`."""

import asyncio
import logging
import os
from typing import Any

from fastapi import FastAPI
from ray import serve

from conductor.errors import StoreUnavailable, WorkerUnavailable
from conductor.model.failure import Failure
from serving.accounts.account_ledgers import AccountLedgers
from serving.accounts.directory import Directory
from serving.accounts.rates import Rates
from serving.accounts.replica_store import ReplicaStore
from serving.api.app import build_api
from serving.deployments.autoscaling import LOAD
from serving.deployments.handle import EngineHandle
from serving.deployments.loopback import listen_on_loopback
from serving.deployments.ray_meter import RayMeter, sample
from serving.deployments.replicas import Replicas
from serving.deployments.store_reach import find_shared_address
from serving.health import Health
from serving.lora.adapters import AdapterError
from serving.pool import build_pool
from serving.runs.database_store import DatabaseStore
from serving.runs.service import Service
from serving.settings.patch import apply_patch
from serving.settings.price_table import with_known_prices
from serving.settings.settings import SettingsError, parse
from serving.telemetry import logs

logger = logging.getLogger("podium")


class Router:
    """One router replica.

    Args:
        settings: as `Settings` dumps them.
        engines: handles of the vLLM deployments, by the name of the worker that owns each.
    """

    def __init__(self, settings: dict[str, Any], engines: dict[str, Any]) -> None:
        listen_on_loopback()
        self._settings = parse(settings)
        replicas = Replicas(serve.get_replica_context().app_name)
        self._engines = {name: EngineHandle(handle, replicas) for name, handle in engines.items()}
        logs.to_stdout()
        meter = RayMeter()
        self._health = Health()
        priced = with_known_prices(self._settings, os.environ)
        pool = build_pool(priced, os.environ, self._engines, self._health)
        address = find_shared_address(self._settings.store, os.environ)
        self._directory, self._store = Directory(address), ReplicaStore(address)
        self._records = self._record_store()
        ledgers = AccountLedgers(self._store, self._settings.store.when_away)
        policies = self._directory.policies
        rates = Rates(os.environ.get(self._settings.store.redis_url_env))
        self._service = Service(pool, self._records, meter, replicas.counts, ledgers, policies, rates)
        self._changing, self._up = asyncio.Lock(), False
        sample(meter, self._service.levels)

    def _record_store(self) -> DatabaseStore | None:
        if not self._settings.store.records:
            return None
        return DatabaseStore(self._store, lambda: self._service.pool.settings.limits, self._settings.store)

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Pool, adapters, prices, prompts and limits of `user_config` from now on; runs under way keep what
        they began with.

        Returns when every adapter is loaded and new requests are answered by it. Serve would end a running
        replica that raised here: so one that serves goes on with what it has, and says in its log and on
        `/readyz` what it did not take.

        Raises:
            SettingsError: this replica has just been started, and has nothing else to go on with.
        """
        async with self._changing:
            pool = None
            try:
                settings = apply_patch(self._settings, user_config)
                settings = await asyncio.to_thread(with_known_prices, settings, os.environ)
                pool = build_pool(settings, os.environ, self._engines, self._health)
                if self._up:  # before, engines may be starting too, and load theirs before `/readyz` says yes
                    await pool.load_adapters()
            except (SettingsError, AdapterError, WorkerUnavailable) as exc:
                if not self._up:
                    raise
                if pool is not None:
                    await pool.aclose()
                why = self._service.refused = Failure.of(exc).explanation
                logger.error("The user_config is not taken; what was served goes on: %s", why)
                return
            await self._service.swap(pool)

    async def check_health(self) -> None:
        """Serve first calls this after construction and configuration. Earlier errors end the replica and
        appear in Serve's status; so does a store that cannot be used, and not one that is away.
        """
        if not self._up:
            try:
                await self._directory.check()
            except StoreUnavailable as exc:
                logger.error(
                    "The store of keys is away, and nobody is let in until it is back: %s", exc.detail
                )
            if self._records is not None:
                self._records.start()
        self._up = True

    async def __del__(self) -> None:
        """Serve awaits this before it ends the replica, once no request is under way."""
        await self._service.aclose()
        await self._store.aclose()
        await self._directory.aclose()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """For `autoscaling.by_load`: calls to models, under way or waiting for a slot, over what one replica
        is meant for.
        """
        return {LOAD: self._service.calls / self._service.pool.settings.router.target_calls}

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_api(self._service, directory=self._directory)
