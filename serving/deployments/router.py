"""The HTTP ingress, as a replica: settings in, API out; a new pool on every `user_config`."""

import os
from typing import Any

from fastapi import FastAPI

from serving import logs
from serving.api.app import build_api
from serving.api.service import Service
from serving.deployments.handle import EngineHandle
from serving.deployments.metrics import RayMeter, sample
from serving.pool import build_pool
from serving.settings import parse, patched


class Router:
    """One router replica.

    Args:
        settings: as `Settings` dumps them.
        engines: handles of the vLLM deployments, by the name of the worker that owns each.
    """

    def __init__(self, settings: dict[str, Any], engines: dict[str, Any]) -> None:
        self._settings = parse(settings)
        self._engines = {name: EngineHandle(handle) for name, handle in engines.items()}
        logs.to_stdout()
        meter = RayMeter()
        self._service = Service(build_pool(self._settings, os.environ, self._engines), meter=meter)
        sample(meter, self._service.levels)

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Pool, prices, prompts and limits of `user_config` from now on; runs under way keep what they began with.

        Raises:
            SettingsError: nothing has changed.
        """
        settings = patched(self._settings, user_config)
        await self._service.swap(build_pool(settings, os.environ, self._engines))

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_api(self._service)
