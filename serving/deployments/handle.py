"""Call an engine's replicas through Ray Serve, and map Ray's errors to Podium's."""

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

READY_TIMEOUT_S = 2.0
"""Maximum seconds for the answer to `ready`. An engine that takes longer counts as not ready."""
FIRST_CHUNK_CHECK_S = 1.0
"""Seconds between two checks whether the engine has a replica, while a call waits for its first chunk."""
LOAD_TIMEOUT_S = 330.0
"""Maximum time to load an adapter in every replica. Slightly more than a replica allows for fetching it."""
BROADCAST_TRIES, BROADCAST_INTERVAL_S = 10, 0.5
"""Attempts to find replicas for an adapter, and seconds between two. Without any, the engine has none."""


@contextlib.contextmanager
def detach_from_request() -> Generator[None]:
    """Make the calls inside the block independent of the current Serve request.

    When a client disconnects, Ray Serve cancels the calls that its request made to other replicas, without
    notifying the code that waits for them. A run that continues without its client would then wait forever.
    Detached calls are ended by the run itself.
    """
    current: Any = _serve_request_context
    token = current.set(replace(_get_serve_request_context(), _internal_request_id=""))
    try:
        yield
    finally:
        current.reset(token)


class EngineHandle:
    """`EngineClient` that calls an engine through its handle. Options are set once, as `.options()` per call
    loads Serve's controller.
    """

    def __init__(self, handle: Any, replicas: Replicas) -> None:
        self._handle = handle.options(stream=True, method_name="generate")
        self._ready, self._every = handle.options(method_name="ready"), handle
        self._name, self._replicas = handle.deployment_id.name, replicas

    async def load(self, adapter: str) -> None:
        try:
            refusals = await self._ask_every_replica(adapter)
        except TimeoutError as exc:
            raise AdapterError(f"Loading adapter {adapter} took longer than {LOAD_TIMEOUT_S:.0f} s.") from exc
        except (RayServeException, RayError) as exc:
            raise WorkerUnavailable(
                f"A replica failed while loading adapter {adapter}.", detail=f"{type(exc).__name__}: {exc}"
            ) from exc
        for refusal in refusals:
            if refusal is not None:
                raise refusal

    async def _ask_every_replica(self, adapter: str) -> list[AdapterError | None]:
        """Load the adapter in every running replica, and return each replica's result.

        A new handle learns about its replicas with a delay, so try several times.
        """
        for _ in range(1 if await self._replicas.is_asleep(self._name) else BROADCAST_TRIES):
            with contextlib.suppress(DeploymentUnavailableError):
                responses = self._every.broadcast("load", adapter=adapter)
                return await responses.results_async(timeout_s=LOAD_TIMEOUT_S)
            await asyncio.sleep(BROADCAST_INTERVAL_S)
        return []

    async def ready(self, adapters: Sequence[str] = ()) -> bool:
        if await self._replicas.is_asleep(self._name):
            return True  # a health check must not wake it
        # As a keyword argument: Ray's prefix router looks for a prompt in positional ones.
        with detach_from_request():  # other requests wait for the answer too
            response = self._ready.remote(adapters=list(adapters))
        try:
            return await asyncio.wait_for(response, READY_TIMEOUT_S)
        except (TimeoutError, RayServeException, RayError):
            response.cancel()
            return False

    async def generate(
        self, call: EngineCall, waiting: Callable[[str], None] | None = None
    ) -> AsyncGenerator[Chunk]:
        """Stream the answer to `call`; see `EngineClient.generate`. Raise WorkerBusy if the queues are full,
        and WorkerUnavailable if the engine has lost its replicas. A fallback is sooner than a new replica.
        """
        if await self._replicas.is_still_down(self._name):
            raise _down()
        with detach_from_request():
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
            raise WorkerBusy("The engine's queue is full. Try again later.", detail=str(exc)) from exc
        except RayTaskError as exc:
            cause = cast(Any, exc).cause
            if isinstance(cause, PodiumError):
                raise cause from exc
            raise WorkerUnavailable(
                "The engine's replica failed. Try again.", detail=f"{type(cause).__name__}: {cause}"
            ) from exc
        except (DeploymentUnavailableError, RayServeException, RayError) as exc:
            if is_whole:  # the replica was lost after its last chunk, so the answer is complete
                return
            raise WorkerUnavailable(
                "The engine's replica was lost. Try again.", detail=f"{type(exc).__name__}: {exc}"
            ) from exc
        finally:
            response.cancel()

    async def _first(
        self, response: Any, waiting: Callable[[str], None] | None
    ) -> Chunk | PodiumError | None:
        """Wait for and return the first chunk, if any. Raise WorkerUnavailable if the engine lost its
        replicas.
        """
        patience = asyncio.timeout(None)
        try:
            async with patience:
                watch = asyncio.create_task(self._watch_replicas(waiting, patience))
                try:
                    return await anext(response, None)
                finally:
                    watch.cancel()
        except TimeoutError as exc:
            if not patience.expired():
                raise
            raise _down() from exc

    async def _watch_replicas(self, waiting: Callable[[str], None] | None, patience: asyncio.Timeout) -> None:
        """Call `waiting` while the first replica starts, and expire `patience` if the engine has lost all."""
        while True:
            await asyncio.sleep(FIRST_CHUNK_CHECK_S)
            if (await self._replicas.counts()).get(self._name, {}).get("running"):
                continue  # the replica is working, or dead and Serve has not noticed
            if await self._replicas.is_down(self._name):
                patience.reschedule(asyncio.get_running_loop().time())
                return
            if waiting:
                waiting("No replica is running. The first one is starting.")


def _down() -> WorkerUnavailable:
    return WorkerUnavailable("The engine went down and is restarting. Try again later.")
