"""Carries calls to an engine's replicas over Ray Serve, and its errors back."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from conductor.errors import PodiumError, WorkerBusy, WorkerUnavailable
from serving.workers.vllm import Chunk, EngineCall

READY_WITHIN_S = 2.0
"""An engine that does not say within this that it is up, is not."""


class EngineHandle:
    """An `EngineClient` over a deployment handle, configured once: `.options()` a call would cost the controller."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle.options(stream=True, method_name="generate")
        self._ready = handle.options(method_name="ready")

    async def ready(self) -> bool:
        """See `EngineClient.ready`."""
        asked = self._ready.remote()
        try:
            return await asyncio.wait_for(asked, READY_WITHIN_S)
        except (TimeoutError, RayServeException, RayError):
            asked.cancel()
            return False

    async def generate(self, call: EngineCall) -> AsyncGenerator[Chunk]:
        """See `EngineClient.generate`."""
        response = self._handle.remote(call)
        try:
            async for chunk in response:
                if isinstance(chunk, PodiumError):
                    raise chunk
                yield chunk
        except BackPressureError as exc:
            raise WorkerBusy(f"Its queue is full: {exc}") from exc
        except RayTaskError as exc:
            cause = cast(Any, exc).cause
            if isinstance(cause, PodiumError):
                raise cause from exc
            raise WorkerUnavailable(f"Its replica failed: {type(cause).__name__}: {cause}") from exc
        except (DeploymentUnavailableError, RayServeException, RayError) as exc:
            raise WorkerUnavailable(f"Its replica is gone: {type(exc).__name__}: {exc}") from exc
        finally:
            response.cancel()
