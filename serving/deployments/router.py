"""The HTTP ingress, as a replica: settings in, API out; a new pool on every `user_config`."""

import os
from typing import Any

from fastapi import FastAPI
from ray import serve

from serving import logs
from serving.api.app import build_api
from serving.api.service import Service
from serving.deployments.autoscaling import LOAD
from serving.deployments.handle import EngineHandle
from serving.deployments.metrics import RayMeter, sample
from serving.deployments.replicas import replicas_of
from serving.pool import build_pool
from serving.settings import Settings, parse
from serving.user_config import patched
from serving.worker_settings import VllmSettings


class Router:
    """One router replica.

    Args:
        settings: as `Settings` dumps them.
        engines: handles of the vLLM deployments, by the name of the worker that owns each.
    """

    def __init__(self, settings: dict[str, Any], engines: dict[str, Any]) -> None:
        self._settings = parse(settings)
        self._engines = {
            name: EngineHandle(handle, may_sleep=_may_sleep(self._settings, name))
            for name, handle in engines.items()
        }
        logs.to_stdout()
        meter = RayMeter()
        application = serve.get_replica_context().app_name
        pool = build_pool(self._settings, os.environ, self._engines)
        self._service = Service(pool, meter=meter, replicas=lambda: replicas_of(application))
        sample(meter, self._service.levels)

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Pool, prices, prompts and limits of `user_config` from now on; runs under way keep what they began with.

        Raises:
            SettingsError: nothing has changed.
        """
        settings = patched(self._settings, user_config)
        await self._service.swap(build_pool(settings, os.environ, self._engines))

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """For `autoscaling.by_load`: calls to models, under way or waiting for a slot, over what one replica is meant for."""
        return {LOAD: self._service.calls / self._service.pool.settings.router.target_calls}

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_api(self._service)


def _may_sleep(settings: Settings, name: str) -> bool:
    worker = settings.worker(name)
    return isinstance(worker, VllmSettings) and worker.scale.min_replicas == 0
