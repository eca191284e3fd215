"""Ray Serve replica that serves Podium's HTTP API. It rebuilds its pool of workers for every new
`user_config`.
"""

import asyncio
import logging
import os
from typing import Any

from fastapi import FastAPI
from ray import serve

from conductor.errors import StoreUnavailable
from serving.accounts.account_ledgers import AccountLedgers
from serving.accounts.budget_webhooks import BudgetWebhooks
from serving.accounts.directory import Directory
from serving.accounts.rates import RateCounter
from serving.accounts.replica_store import ReplicaStore
from serving.api.app import build_api
from serving.api.dialects.responses.conversations import ConversationTurns
from serving.batches.database_store import DatabaseBatchStore
from serving.batches.memory_store import MemoryBatchStore
from serving.batches.runner import Batches
from serving.deployments.autoscaling import LOAD
from serving.deployments.draining import leave_in_time
from serving.deployments.handle import EngineHandle
from serving.deployments.loopback import listen_on_loopback
from serving.deployments.ray_meter import RayMeter, sample
from serving.deployments.replicas import Replicas
from serving.deployments.store_reach import find_shared_address
from serving.gc_tuning import trim_when_idle, tune_garbage_collection
from serving.health import Health
from serving.pool import Pool, build_pool
from serving.sessions.live_settings import LiveSettings
from serving.sessions.service import Service
from serving.settings.price_table import with_known_prices
from serving.settings.settings import Settings, parse
from serving.settings.source import SettingsSource
from serving.store.database_conversations import DatabaseConversations
from serving.store.database_store import DatabaseStore
from serving.store.prompt_caches import PromptCaches
from serving.store.shared_circuits import SharedCircuits
from serving.store.store import StoreListener
from serving.telemetry import logs

logger = logging.getLogger("podium")


class Router:
    """Replica of the router, the HTTP ingress. `engines` are by owner, `source` is where the settings came
    from.
    """

    def __init__(
        self, settings: dict[str, Any], engines: dict[str, Any], source: dict[str, Any] | None = None
    ) -> None:
        listen_on_loopback()
        self._settings = parse(settings)
        replicas = Replicas(serve.get_replica_context().app_name)
        self._engines = {name: EngineHandle(handle, replicas) for name, handle in engines.items()}
        logs.to_stdout()
        meter = RayMeter()
        self._health = Health()
        pool = self._build_pool(self._with_prices(self._settings))
        address = find_shared_address(self._settings.store, os.environ)
        self._directory, self._store = Directory(address), ReplicaStore(address)
        ledgers = AccountLedgers(self._store, self._settings.store.when_away)
        policies = self._directory.policies
        rates = RateCounter(os.environ.get(self._settings.store.redis_url_env))
        is_stored = self._settings.store.records
        self._service = Service(
            pool,
            self._open_store if is_stored else None,
            meter,
            replicas.counts,
            ledgers,
            policies,
            rates,
            DatabaseConversations(self._store) if is_stored else None,
            ConversationTurns(),
            PromptCaches(self._store) if is_stored else None,
        )
        batches = DatabaseBatchStore(self._store) if is_stored else MemoryBatchStore()
        self._batches = Batches(batches, self._service, policies)
        self._webhooks = BudgetWebhooks(self._store, lambda: self._service.settings().webhooks, os.environ)
        self._circuits = SharedCircuits(self._store, self._health)
        settings_source = SettingsSource(**source) if source else None
        self._live = LiveSettings(
            self._service,
            self._settings,
            self._build_pool,
            settings_source,
            complete=self._with_prices,
            find_policy_faults=self._directory.unknown_names,
        )
        self._draining: asyncio.Task[None] | None = None
        sample(meter, self._service.levels)

    def _build_pool(self, settings: Settings) -> Pool:
        return build_pool(settings, os.environ, self._engines, self._health)

    @staticmethod
    def _with_prices(settings: Settings) -> Settings:
        return with_known_prices(settings, os.environ)

    def _open_store(self, listener: StoreListener) -> DatabaseStore:
        return DatabaseStore(
            self._store, lambda: self._service.settings().limits, self._settings.store, listener=listener
        )

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply `user_config` to new requests, and return once every adapter is loaded. Open runs keep the
        old settings.

        An error would make Serve end the replica. A running replica therefore keeps its settings, and reports
        the reason in its log and at `/readyz`. A new one raises it.
        """
        await self._live.patch(user_config)

    async def check_health(self) -> None:
        """Start the background tasks on the first call, after `reconfigure`. An earlier error, or a store
        that cannot be used, ends the replica, but not one that cannot be reached.
        """
        if not self._live.is_up:
            try:
                await self._directory.check()
            except StoreUnavailable as exc:
                logger.error("Key store unreachable; rejecting requests until it recovers: %s", exc.detail)
            self._service.store.start()
            self._webhooks.start()
            self._batches.start()
            self._circuits.start()
            self._live.start()
            trim_when_idle()
            await self._live.check_policies()
            self._draining = asyncio.create_task(
                leave_in_time(self._service.sessions.leave_all), name="draining"
            )

    async def __del__(self) -> None:
        """Close the router. Serve awaits this before it ends the replica, once no request is open."""
        if self._draining is not None:
            self._draining.cancel()
        await self._live.aclose()
        await self._webhooks.aclose()
        await self._batches.aclose()
        await self._service.aclose()
        await self._circuits.aclose()
        await self._store.aclose()
        await self._directory.aclose()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Report the router's load for `autoscaling.by_load`.

        It is the number of model calls that run or wait, divided by `router.target_calls`.
        """
        return {LOAD: self._service.calls / self._service.settings().router.target_calls}

    def __serve_build_asgi_app__(self) -> FastAPI:
        api = build_api(
            self._service, directory=self._directory, reload=self._live.reload, work=self._batches
        )
        tune_garbage_collection()  # after everything long-lived has been created
        return api
