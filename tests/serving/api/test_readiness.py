"""`/readyz` while engines start and stop: 503 until all were up once, then 200 while a worker can answer."""

import asyncio
from typing import Any

import pytest

from serving.sessions.readiness import CHECK_KEPT_S, STARTING_FOR_S, Readiness
from tests.serving.api.served import Json, Served, scripted, served, step, team
from tests.serving.workers.subjects import Behaviour, ScriptedEngine


class Engine(ScriptedEngine):
    def __init__(self, text: str) -> None:
        super().__init__(Behaviour(text=text))
        self.up, self.n_checks = True, 0

    async def ready(self, adapters: Any = ()) -> bool:
        self.n_checks += 1
        await asyncio.sleep(0)
        return self.up


def engines() -> dict[str, Engine]:
    return {"conductor": Engine('{"worker": 0, "subtask": "Answer.", "access": []}'), "v": Engine("From v.")}


def settings(*api_workers: Json) -> Json:
    return {
        "conductor": {"worker": "conductor"},
        "workers": [
            {"name": "conductor", "kind": "vllm", "model": "m", "in_pool": False},
            {"name": "v", "kind": "vllm", "model": "m"},
            *api_workers,
        ],
        "models": {"mini": {}},
    }


async def readyz(api: Served) -> tuple[int, Json]:
    answer = await api.http.get("/readyz")
    return answer.status_code, answer.json()


async def test_the_first_question_waits_for_every_engine() -> None:
    up = engines()
    up["conductor"].up = False
    async with served(settings(scripted("a")), engines=up) as api:
        api.service.readiness = Readiness(kept_s=0)
        status, report = await readyz(api)
        assert (status, report["status"], report["waiting_for"]) == (503, "starting", ["conductor"])
        up["conductor"].up = True
        status, report = await readyz(api)
        assert (status, report["status"], "waiting_for" in report) == (200, "ready", False)


async def test_an_engine_that_never_starts_is_not_waited_for_forever() -> None:
    up, now_s = engines(), 0.0
    up["conductor"].up = False
    async with served(settings(scripted("a")), engines=up) as api:
        api.service.readiness = Readiness(clock=lambda: now_s)
        now_s = STARTING_FOR_S - 1
        assert (await readyz(api))[0] == 503
        now_s = STARTING_FOR_S
        status, report = await readyz(api)
        assert (status, report["status"], report["waiting_for"]) == (200, "degraded", ["conductor"])
        assert report["conductor"]["reason"] == "its engine is not ready"


async def test_a_router_without_any_ready_worker_stays_in_starting() -> None:
    up, now_s = engines(), 0.0
    up["v"].up = False
    async with served(settings(), engines=up) as api:
        api.service.readiness = Readiness(clock=lambda: now_s)
        now_s = STARTING_FOR_S
        status, report = await readyz(api)
    assert (status, report["status"]) == (503, "starting")


async def test_a_failed_conductor_degrades_the_server_and_is_named() -> None:
    up = engines()
    async with served(settings(scripted("a")), engines=up) as api:
        api.service.readiness = Readiness(kept_s=0)
        assert (await readyz(api))[0] == 200
        up["conductor"].up = False
        status, report = await readyz(api)
        assert (status, report["status"], report["waiting_for"]) == (200, "degraded", ["conductor"])
        assert (report["conductor"]["worker"], report["conductor"]["reason"]) == (
            "conductor",
            "its engine is not ready",
        )
        up["conductor"].up = True
        assert (await readyz(api))[1]["status"] == "ready"


async def test_a_failed_worker_degrades_the_server_if_another_answers() -> None:
    up = engines()
    async with served(settings(scripted("a")), engines=up) as api:
        api.service.readiness = Readiness(kept_s=0)
        await readyz(api)
        up["v"].up = False
        status, report = await readyz(api)
    assert (status, report["status"], report["waiting_for"]) == (200, "degraded", ["v"])
    assert "conductor" not in report, "it does its work"


@pytest.mark.parametrize("fallbacks", [[], ["a"]])
async def test_without_a_worker_or_fallback_the_server_is_unavailable(fallbacks: list[str]) -> None:
    up = engines()
    both = settings(scripted("a", in_pool=False))
    both["workers"][1]["fallbacks"] = fallbacks
    async with served(both, engines=up) as api:
        api.service.readiness = Readiness(kept_s=0)
        await readyz(api)
        up["v"].up = False
        status, report = await readyz(api)
    assert (status, report["status"]) == ((200, "degraded") if fallbacks else (503, "unavailable"))


async def test_an_api_conductor_needs_no_engine() -> None:
    async with served(team(workflows={"solo": [step("a")]})) as api:
        assert (await readyz(api))[1]["status"] == "ready"


async def test_a_flood_of_probes_checks_each_engine_once_per_second() -> None:
    """Anyone can send them, and each check is a remote call that occupies a request slot of its engine."""
    up, now_s = engines(), 0.0
    async with served(settings(scripted("a")), engines=up) as api:
        api.service.readiness = Readiness(clock=lambda: now_s)
        reports = await asyncio.gather(*(readyz(api) for _ in range(50)))
        assert {status for status, _ in reports} == {200}
        now_s = CHECK_KEPT_S / 2
        await readyz(api)
        assert [engine.n_checks for engine in up.values()] == [1, 1]
        now_s = CHECK_KEPT_S
        up["v"].up = False
        assert (await readyz(api))[1]["waiting_for"] == ["v"]
        assert [engine.n_checks for engine in up.values()] == [2, 2]


async def test_a_probe_that_leaves_does_not_end_the_check_of_others() -> None:
    up = engines()
    async with served(settings(scripted("a")), engines=up) as api:
        readiness, pool, health = Readiness(), api.service.pool, api.service.conductor_health
        first, second = (asyncio.create_task(readiness.state(pool, health)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second)[1]["status"] == "ready"
        assert up["v"].n_checks == 1
