"""Carries calls to an engine's replicas over Ray Serve, and its errors back."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, cast

from ray.exceptions import RayError, RayTaskError
from ray.serve.context import (
    _get_serve_request_context,  # pyright: ignore[reportPrivateUsage]
    _serve_request_context,  # pyright: ignore[reportPrivateUsage, reportUnknownVariableType]
)
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

from conductor.errors import PodiumError, WorkerBusy, WorkerUnavailable
from serving.deployments.replicas import Replicas
from serving.lora.adapters import AdapterError
from serving.workers.vllm import Chunk, EngineCall

READY_WITHIN_S = 2.0
"""An engine that does not say within this that it is up, is not."""
ASK_WHY_AFTER_S = 1.0
"""So long a call waits before it asks whether its engine has no replica."""
LOADED_WITHIN_S = 330.0
"""An adapter that is not in every replica by then is given up on: a little more than a replica gives its
store."""
ASK_FOR_REPLICAS, ASK_AGAIN_S = 10, 0.5
"""How often, and how long after one another, replicas are looked for that are to load an adapter; then there
are none."""


@contextlib.contextmanager
def as_its_own_request() -> Generator[None]:
    """What is asked inside belongs to no request that came in.

    When a client leaves, Ray Serve cancels whatever its request asked of other replicas, and the one that
    waits for such an answer is not told: a run that outlives its client would wait for ever. Who leads the
    run ends its calls.
    """
    current: Any = _serve_request_context
    token = current.set(replace(_get_serve_request_context(), _internal_request_id=""))
    try:
        yield
    finally:
        current.reset(token)


class EngineHandle:
    """An `EngineClient` over a deployment handle, configured once: `.options()` a call would cost the
    controller.

    Args:
        handle: of the deployment.
        replicas: of its application.
    """

    def __init__(self, handle: Any, replicas: Replicas) -> None:
        self._handle = handle.options(stream=True, method_name="generate")
        self._ready, self._every = handle.options(method_name="ready"), handle
        self._name, self._replicas = handle.deployment_id.name, replicas

    async def load(self, adapter: str) -> None:
        """See `EngineClient.load`."""
        try:
            refusals = await self._ask_every_replica(adapter)
        except TimeoutError as exc:
            raise AdapterError(
                f"The adapter {adapter} was not loaded within {LOADED_WITHIN_S:.0f} s."
            ) from exc
        except (RayServeException, RayError) as exc:
            raise WorkerUnavailable(
                f"A replica failed while it loaded {adapter}.", detail=f"{type(exc).__name__}: {exc}"
            ) from exc
        for refusal in refusals:
            if refusal is not None:
                raise refusal

    async def _ask_every_replica(self, adapter: str) -> list[AdapterError | None]:
        """What every replica says that is up; a handle learns a moment after its making which there are."""
        for _ in range(1 if await self._replicas.is_asleep(self._name) else ASK_FOR_REPLICAS):
            with contextlib.suppress(DeploymentUnavailableError):
                asked = self._every.broadcast("load", adapter=adapter)
                return await asked.results_async(timeout_s=LOADED_WITHIN_S)
            await asyncio.sleep(ASK_AGAIN_S)
        return []

    async def ready(self, adapters: Sequence[str] = ()) -> bool:
        """See `EngineClient.ready`."""
        if await self._replicas.is_asleep(self._name):
            return True  # and not woken by being asked
        # By name: Ray's prefix router looks for a prompt in whatever is passed by place.
        asked = self._ready.remote(adapters=list(adapters))
        try:
            return await asyncio.wait_for(asked, READY_WITHIN_S)
        except (TimeoutError, RayServeException, RayError):
            asked.cancel()
            return False

    async def generate(
        self, call: EngineCall, waiting: Callable[[str], None] | None = None
    ) -> AsyncGenerator[Chunk]:
        """See `EngineClient.generate`.

        Raises:
            WorkerUnavailable: also where the engine has lost its last replica, rather than waiting until
            another is up: a fallback, or one worker by itself, answers sooner.
        """
        if await self._replicas.is_still_down(self._name):
            raise _down()
        with as_its_own_request():
            response = self._handle.remote(call)
        is_whole = False
        try:
            chunk = await self._first(response, waiting)
            while chunk is not None:
                if isinstance(chunk, PodiumError):
                    raise chunk
                is_whole = chunk.finish is not None
                yield chunk
                chunk = await anext(response, None)
        except BackPressureError as exc:
            raise WorkerBusy("its queue is full. Try again later.", detail=str(exc)) from exc
        except RayTaskError as exc:
            cause = cast(Any, exc).cause
            if isinstance(cause, PodiumError):
                raise cause from exc
            raise WorkerUnavailable(
                "its replica failed. Try again.", detail=f"{type(cause).__name__}: {cause}"
            ) from exc
        except (DeploymentUnavailableError, RayServeException, RayError) as exc:
            if is_whole:  # it was lost between its last word and its goodbye
                return
            raise WorkerUnavailable(
                "its replica is gone. Try again.", detail=f"{type(exc).__name__}: {exc}"
            ) from exc
        finally:
            response.cancel()

    async def _first(
        self, response: Any, waiting: Callable[[str], None] | None
    ) -> Chunk | PodiumError | None:
        """The first piece; None where there is none."""
        patience = asyncio.timeout(None)
        try:
            async with patience:
                asking = asyncio.create_task(self._ask_why(waiting, patience))
                try:
                    return await anext(response, None)
                finally:
                    asking.cancel()
        except TimeoutError as exc:
            if not patience.expired():
                raise
            raise _down() from exc

    async def _ask_why(self, waiting: Callable[[str], None] | None, patience: asyncio.Timeout) -> None:
        """Report a replica that is being started: a cold start is progress, not an error. One that was lost
        is an error.
        """
        while True:
            await asyncio.sleep(ASK_WHY_AFTER_S)
            if (await self._replicas.counts()).get(self._name, {}).get("running"):
                continue  # it works on it; or is dead, and Serve has yet to look
            if await self._replicas.is_down(self._name):
                patience.reschedule(asyncio.get_running_loop().time())
                return
            if waiting:
                waiting("no replica is up; the first one is being started")


def _down() -> WorkerUnavailable:
    return WorkerUnavailable("its engine went down and is being started again. Try again later.")
