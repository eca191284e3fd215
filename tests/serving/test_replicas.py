import asyncio
from collections.abc import Callable

import pytest
from pydantic import TypeAdapter
from ray.serve.schema import ServeStatus

from serving.deployments import replicas as module
from serving.deployments.replicas import Replicas


def account(status: str = "HEALTHY", **counts: int) -> ServeStatus:
    engine = {"status": status, "status_trigger": "UNSPECIFIED", "replica_states": counts, "message": ""}
    application = {
        "status": "RUNNING", "message": "", "last_deployed_time_s": 0, "deployments": {"engine": engine},
    }  # fmt: skip
    return TypeAdapter(ServeStatus).validate_python({"applications": {"podium": application}})


def of(serve_status: ServeStatus, n_calls: list[int] | None = None) -> Replicas:
    def status() -> ServeStatus:
        if n_calls is not None:
            n_calls.append(1)
        return serve_status

    ask: Callable[[], ServeStatus] = status
    return Replicas("podium", ask)


async def test_replicas_are_counted_per_state():
    assert await of(account(RUNNING=2, STARTING=1, STOPPING=0)).counts() == {
        "engine": {"running": 2, "starting": 1}
    }
    assert await Replicas("another", lambda: account(RUNNING=1)).counts() == {}


@pytest.mark.parametrize(
    ("status", "asleep"),
    [
        (account(), True),
        (account(RUNNING=0), True),
        (account(RUNNING=1), False),
        (account(STARTING=1), False),
        (account(status="UPDATING"), False),
        (account(status="UNHEALTHY"), False),
        (account(status="DEPLOY_FAILED"), False),
    ],
)
async def test_an_engine_is_asleep_if_it_is_healthy_without_replicas(status: ServeStatus, asleep: bool):
    assert await of(status).is_asleep("engine") is asleep
    assert await of(status).is_asleep("no such engine") is False


async def test_concurrent_queries_are_joined_and_later_repeated(
    monkeypatch: pytest.MonkeyPatch,
):
    n_calls: list[int] = []
    replicas = of(account(RUNNING=1), n_calls)
    await asyncio.gather(*(replicas.counts() for _ in range(50)))
    assert len(n_calls) == 1
    monkeypatch.setattr(module, "STATUS_TTL_S", -1.0)
    await replicas.counts()
    assert len(n_calls) == 2
