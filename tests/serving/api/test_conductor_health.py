"""Reports of a conductor that makes no plans: one log message, a metric and `/readyz`. One plan clears them."""

import asyncio
import logging

import pytest

from serving.sessions.pools import FAILURES_UNTIL_DEGRADED
from serving.telemetry import metrics
from tests.serving.api.served import Json, Served, plan, served, step, team
from tests.states import until
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, serving

N = FAILURES_UNTIL_DEGRADED
GOOD = plan(step(0))


async def readyz(api: Served) -> Json:
    answer = await api.http.get("/readyz")
    assert answer.status_code == 200, answer.text
    return answer.json()


def level(api: Served) -> float:
    return next(m.value for m in api.service.levels() if m.instrument is metrics.CONDUCTOR_FAILURES)


async def test_a_conductor_that_rejects_a_parameter_is_reported_after_ten_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "podium")
    refusal = Answer(status=400, error="'temperature' does not support 0.0 with this model.")
    async with serving(OpenAIWire(), *[refusal] * (N + 2)) as upstream:
        settings = team()
        settings["workers"][0] = {
            "name": "conductor", "kind": "openai", "model": "gpt-5", "base_url": f"{upstream.url}/v1", "in_pool": False,
        }  # fmt: skip
        async with served(settings) as api:
            for _ in range(N - 1):
                await api.ok()
            assert (await readyz(api))["status"] == "ready"
            for _ in range(3):
                await api.ok()
            report = await readyz(api)
            assert level(api) == N + 2
            upstream.answers.append(Answer(text=GOOD))
            await api.ok()
            after = await readyz(api)
            assert level(api) == 0
    assert report["status"] == "degraded"
    assert report["conductor"].items() >= {"worker": "conductor", "failures_in_a_row": N + 2}.items()
    assert "WorkerRefused" in report["conductor"]["reason"]
    assert "temperature" not in report["conductor"]["reason"], "a provider's words are for the log"
    assert (after["status"], "conductor" in after) == ("ready", False)
    errors = [
        record.getMessage()
        for record in caplog.records
        if record.name == "podium" and record.levelno == logging.ERROR
    ]
    assert len(errors) == 1
    assert "'temperature' does not support 0.0" in errors[0]
    assert any("writes plans again" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("bad", ["I like trains.", {"error": "unavailable"}])
async def test_invalid_plans_and_outages_count_as_failures(bad: str | Json) -> None:
    settings = team(bad)
    settings["workers"][0]["retry"] = {"attempts": 1}
    async with served(settings) as api:
        await asyncio.gather(*(api.ok() for _ in range(N)))
        assert (await readyz(api))["status"] == "degraded"


async def test_a_repaired_plan_counts_as_a_plan() -> None:
    async with served(team("I like trains.", GOOD)) as api:
        for _ in range(N):
            await api.ok()
        assert level(api) == 0


async def test_one_plan_resets_the_failure_count() -> None:
    async with served(team(*["no plan"] * 2 * (N - 1), GOOD)) as api:
        for _ in range(2 * N - 1):
            await api.ok()
        assert level(api) == N - 1
        assert (await readyz(api))["status"] == "ready"


async def test_a_callers_limits_are_not_failures_of_the_conductor() -> None:
    async with served(team("no plan", {"text": "never", "stall_after_tokens": 0})) as api:
        assert (await api.post(deadline_s=0.3)).status_code == 400, "in the middle of the repair"
        asking = asyncio.create_task(api.post())
        await until(lambda: len(api.worker("conductor").calls) == 4, "the repair is asked for")
        asking.cancel()
        await asyncio.wait([asking])
        await api.quiet()
        await api.ok({"model": "a"})
        assert level(api) == 0
    async with served(team({"error": "overflow"})) as api:
        await api.ok()
        assert (await api.post(max_tokens=1)).status_code == 402
        assert level(api) == 0


async def test_a_conductor_silent_until_the_deadline_has_failed() -> None:
    async with served(team({"text": "never", "stall_after_tokens": 0})) as api:
        late = await asyncio.gather(*(api.post(deadline_s=0.3) for _ in range(N)))
        assert {answer.status_code for answer in late} == {400}
        report = await readyz(api)
    assert (report["status"], "sent nothing" in report["conductor"]["reason"]) == ("degraded", True)


async def test_a_client_that_leaves_a_silent_conductor_does_not_count() -> None:
    async with served(team({"text": "never", "stall_after_tokens": 0})) as api:
        asking = asyncio.create_task(api.post())
        await until(lambda: len(api.worker("conductor").calls) == 1, "the conductor is asked")
        asking.cancel()
        await asyncio.wait([asking])
        await api.quiet()
        assert level(api) == 0


async def test_a_conductor_that_is_slow_to_finish_its_plan_does_not_count() -> None:
    async with served(team({"text": "never ends", "stall_after_tokens": 1})) as api:
        assert (await api.post(deadline_s=0.3)).status_code == 400
        assert level(api) == 0


async def test_new_settings_reset_the_failure_count() -> None:
    async with served(team("no plan")) as api:
        for _ in range(N):
            await api.ok()
        assert (await readyz(api))["status"] == "degraded"
        await api.service.swap(api.service.pool)
        assert (await readyz(api))["status"] == "ready"
