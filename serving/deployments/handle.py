"""Carries calls to an engine's replicas over Ray Serve, and its errors back."""

from collections.abc import AsyncGenerator
from typing import Any, cast

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from conductor.errors import PodiumError, WorkerBusy, WorkerUnavailable
from serving.workers.vllm import Chunk, EngineCall


class EngineHandle:
    """An `EngineClient` over a deployment handle, configured once: `.options()` a call would cost the controller."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle.options(stream=True, method_name="generate")

    async def generate(self, call: EngineCall) -> AsyncGenerator[Chunk]:
        """See `EngineClient.generate`."""
        response = self._handle.remote(call)
        try:
            async for chunk in response:
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
