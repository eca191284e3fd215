"""Calls to an engine: what they wait for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError
from ray.serve.context import _get_serve_request_context as serve_request
from ray.serve.context import _RequestContext
from ray.serve.context import _serve_request_context as request

from conductor.errors import WorkerUnavailable
from serving.deployments import handle as module
from serving.deployments import replicas as replicas_module
from serving.deployments.handle import EngineHandle
from serving.deployments.replicas import Replicas
from serving.workers.vllm import Chunk, EngineCall
from tests.serving.test_replicas import account

CALL = EngineCall([{"role": "user", "content": "hi"}])
WORD = Chunk("Yes.", "", "stop", 1, 0, 1, 0)


class Response:
    """Fake response of Ray Serve that yields once `up` is set."""

    def __init__(self, up: asyncio.Event) -> None:
        self._pieces, self.cancelled = self._answer(up), False

    async def _answer(self, up: asyncio.Event) -> AsyncIterator[Chunk]:
        await up.wait()
        yield WORD

    def __aiter__(self) -> "Response":
        return self

    async def __anext__(self) -> Chunk:
        return await anext(self._pieces)

    def cancel(self) -> None:
        self.cancelled = True


class Deployment:
    """Fake Ray Serve handle, and the controller's account of its deployment."""

    def __init__(self, status: str, **replicas: int) -> None:
        self.deployment_id = SimpleNamespace(name="engine")
        self.status, self.replicas = status, replicas
        self.up, self.responses, self.n_lookups = asyncio.Event(), list[Response](), 0
        self.requests: list[Any] = []
        self.pieces: list[Chunk] = []

    def options(self, **_: Any) -> "Deployment":
        return self

    def remote(self, call: EngineCall) -> Response:
        assert call is CALL
        self.requests.append(serve_request())
        self.responses.append(Response(self.up))
        return self.responses[-1]

    def account(self) -> Any:
        self.n_lookups += 1
        return account(self.status, **self.replicas)

    def handle(self) -> EngineHandle:
        return EngineHandle(self, Replicas("podium", self.account))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_CHUNK_CHECK_S", 0.01)
    monkeypatch.setattr(replicas_module, "STATUS_TTL_S", -1.0)  # expires immediately, even if no time passes


async def answer(handle: EngineHandle, notices: list[str] | None = None) -> list[Chunk]:
    return [chunk async for chunk in handle.generate(CALL, None if notices is None else notices.append)]


async def test_a_call_to_a_ready_engine_does_not_query_the_controller() -> None:
    engine = Deployment("HEALTHY", RUNNING=1)
    engine.up.set()
    assert await answer(engine.handle()) == [WORD]
    assert engine.n_lookups == 0
    assert engine.responses[0].cancelled, "closed"


async def test_a_call_to_an_engine_is_not_cancelled_with_its_request() -> None:
    """Ray Serve uses this id to cancel the calls of a request once its client has left."""
    engine = Deployment("HEALTHY", RUNNING=1)
    engine.up.set()
    request.set(_RequestContext(request_id="told", _internal_request_id="of the client"))
    await answer(engine.handle())
    assert (engine.requests[0].request_id, engine.requests[0]._internal_request_id) == ("told", "")
    assert serve_request()._internal_request_id == "of the client"


@pytest.mark.parametrize("finish", ["stop", None])
async def test_a_replica_lost_after_its_last_chunk_is_not_an_error(finish: str | None) -> None:
    async def lose(_: Response) -> Chunk:
        if engine.pieces:
            return engine.pieces.pop()
        raise ActorUnavailableError("gone", None)

    engine = Deployment("HEALTHY", RUNNING=1)
    engine.pieces = [WORD._replace(finish=finish)]
    with pytest.MonkeyPatch.context() as patch, nullcontext() if finish else pytest.raises(WorkerUnavailable):
        patch.setattr(Response, "__anext__", lose)
        assert await answer(engine.handle()) == [WORD]


@pytest.mark.parametrize("status", ["UPSCALING", "UPDATING"])
async def test_a_cold_start_is_awaited_and_reported_once(status: str) -> None:
    engine, notices = Deployment(status, STARTING=1), list[str]()
    asking = asyncio.create_task(answer(engine.handle(), notices))
    while engine.n_lookups < 6:
        await asyncio.sleep(0.001)
    engine.up.set()
    assert await asking == [WORD]
    assert set(notices) == {"No replica is running. The first one is starting."}


@pytest.mark.parametrize("status", ["UNHEALTHY", "DEPLOY_FAILED"])
async def test_an_engine_that_lost_its_only_replica_is_not_awaited(status: str) -> None:
    engine = Deployment(status, STARTING=1)
    handle = engine.handle()
    for _ in range(3):
        with pytest.raises(WorkerUnavailable, match="went down"):
            await answer(handle, [])
    assert [response.cancelled for response in engine.responses] == [True], "the second was not sent any more"
    engine.status, engine.replicas = "HEALTHY", {"RUNNING": 1}
    engine.up.set()
    assert await answer(handle) == [WORD], "and once it is up, it is asked"


async def test_an_engine_with_other_replicas_is_awaited() -> None:
    engine = Deployment("UNHEALTHY", RUNNING=1, STARTING=1)
    asking = asyncio.create_task(answer(engine.handle(), []))
    while engine.n_lookups < 3:
        await asyncio.sleep(0.001)
    engine.up.set()
    assert await asking == [WORD]


async def test_a_replica_whose_failure_is_detected_late_is_not_awaited() -> None:
    engine = Deployment("HEALTHY", RUNNING=1)
    asking = asyncio.create_task(answer(engine.handle(), []))
    while engine.n_lookups < 3:
        await asyncio.sleep(0.001)
    engine.status, engine.replicas = "UNHEALTHY", {"STARTING": 1}
    with pytest.raises(WorkerUnavailable, match="went down"):
        await asking
