"""Health of each worker, kept across reloads while the worker stays the same."""

import asyncio
import gc
import time
from typing import Any

import pytest

from conductor.errors import WorkerError
from conductor.model.call import Call
from conductor.model.messages import Message
from serving.health import (
    FAILURES_BEFORE_OPEN,
    FIRST_OPEN_S,
    MAX_OPEN_S,
    PROBE_S,
    WINDOW,
    Health,
    Opening,
    WorkerHealth,
)
from serving.pool import Pool, build_pool
from serving.sessions.service import Service
from serving.settings.settings import parse
from serving.telemetry import metrics

CALL = Call((Message.of("user", "hi"),))


def pool(health: Health, *workers: dict[str, Any], **more: Any) -> Pool:
    own = [{"kind": "scripted", "retry": {"attempts": 1}} | worker for worker in workers]
    return build_pool(parse({"workers": own} | more), {}, {}, health)


async def ask(of: Pool, name: str) -> None:
    """Read the worker's answer and ignore its failure."""
    try:
        async with of.members[name].worker.open(CALL) as reply:
            async for _ in reply:
                pass
    except WorkerError:
        pass


def level(service: Service, instrument: metrics.Instrument, *labels: str) -> float:
    return next(
        m.value for m in service.levels() if m.instrument is instrument and m.labels[: len(labels)] == labels
    )


async def test_every_attempt_counts_and_a_success_resets_consecutive_failures() -> None:
    retry = {"attempts": 3, "first_wait_s": 0.001}
    own = pool(
        Health(),
        {"name": "a", "replies": [{"error": "unavailable"}, {"error": "busy"}, "Yes."], "retry": retry},
    )
    a = own.health["a"]
    await ask(own, "a")
    assert (a.successes, a.failures, a.failures_in_a_row) == (1, 2, 0)
    assert a.failure_share == pytest.approx(2 / 3)


async def test_a_stream_that_breaks_counts_as_a_failure() -> None:
    own = pool(Health(), {"name": "a", "replies": [{"text": "one two", "fail_after_tokens": 1}]})
    await ask(own, "a")
    a = own.health["a"]
    assert (a.successes, a.failures_in_a_row) == (0, 1)
    assert a.first_token_s(0.5) is not None


@pytest.mark.parametrize("error", ["refused", "overflow"])
async def test_a_rejected_or_too_long_prompt_does_not_count(error: str) -> None:
    own = pool(Health(), {"name": "a", "replies": [{"error": error}]})
    await ask(own, "a")
    assert (own.health["a"].successes, own.health["a"].failures) == (0, 0)


async def test_a_caller_that_leaves_does_not_count() -> None:
    own = pool(Health(), {"name": "a", "replies": [{"text": "one two", "stall_after_tokens": 1}]})
    asking = asyncio.create_task(ask(own, "a"))
    while own.health["a"].first_token_s(0.5) is None:
        await asyncio.sleep(0.001)
    asking.cancel()
    await asyncio.wait([asking])
    assert (own.health["a"].successes, own.health["a"].failures) == (0, 0)


async def test_a_fallbacks_calls_count_for_the_fallback() -> None:
    own = pool(
        Health(), {"name": "a", "replies": [{"error": "unavailable"}], "fallbacks": ["b"]}, {"name": "b"}
    )
    await ask(own, "a")
    assert (own.health["a"].failures, own.health["b"].failures, own.health["b"].successes) == (1, 0, 1)


async def test_a_wait_for_a_slot_is_not_part_of_the_first_token_time() -> None:
    own = pool(Health(), {"name": "a", "delay_s": 0.05, "max_concurrency": 1})
    await asyncio.gather(*(ask(own, "a") for _ in range(8)))
    slowest_s = own.health["a"].first_token_s(1)
    assert slowest_s is not None
    assert 0.05 <= slowest_s < 0.4, "the last one waited for seven others"


async def test_health_survives_a_reload() -> None:
    health = Health()
    down = {"name": "a", "replies": [{"error": "unavailable"}]}
    service = Service(pool(health, down))
    await ask(service.pool, "a")
    await service.swap(pool(health, down | {"card": "Another card."}, {"name": "b"}))
    gc.collect()
    await ask(service.pool, "a")
    assert service.pool.health["a"].failures_in_a_row == 2
    assert level(service, metrics.WORKER_FAILURES, "a") == 2
    assert level(service, metrics.WORKER_FAILURES, "b") == 0


API = {"name": "a", "kind": "openai", "model": "m-1", "base_url": "http://127.0.0.1:1/v1"}


@pytest.mark.parametrize(
    "change", [{"model": "m-2"}, {"base_url": "http://127.0.0.1:2/v1"}, {"kind": "scripted"}]
)
async def test_another_model_or_address_with_the_same_name_starts_without_history(
    change: dict[str, Any],
) -> None:
    health = Health()
    new = API | change
    if new["kind"] == "scripted":
        new = {"name": "a"}
    service = Service(pool(health, API))
    before = service.pool.health["a"]
    before.fail()
    await service.swap(pool(health, new))
    before.fail()  # a call to the old worker that ends late
    assert service.pool.health["a"].failures == 0


async def test_a_rejected_pool_changes_no_health() -> None:
    health = Health()
    service = Service(pool(health, API))
    service.pool.health["a"].fail()
    await pool(health, API | {"model": "m-2"}).aclose()
    assert pool(health, API).health["a"].failures == 1


async def test_a_removed_worker_is_forgotten_and_its_gauges_are_reset() -> None:
    health = Health()
    service = Service(pool(health, API))
    service.pool.health["a"].fail()
    assert level(service, metrics.WORKER_FAILURES, "a") == 1
    await service.swap(pool(health, {"name": "b"}))
    gc.collect()
    assert level(service, metrics.WORKER_FAILURES, "a") == 0
    assert pool(health, API).health["a"].failures == 0


def test_failure_shares_and_quantiles_use_the_newest_calls() -> None:
    health = WorkerHealth()
    assert (health.failure_share, health.first_token_s(0.95)) == (0, None)
    for _ in range(WINDOW):
        health.fail()
        health.speak(9.0)
    assert (health.failure_share, health.first_token_s(0.5)) == (1, 9)
    for number in range(WINDOW):
        health.succeed()
        health.speak(number / WINDOW)
    assert (health.failure_share, health.successes, health.failures_in_a_row) == (0, WINDOW, 0)
    assert health.first_token_s(0.5) == pytest.approx(0.5, abs=0.01)
    assert health.first_token_s(0.95) == pytest.approx(0.95, abs=0.01)
    assert health.first_token_s(0) == 0


def test_many_simultaneous_failures_open_a_circuit_no_longer_than_three() -> None:
    health = WorkerHealth()
    for _ in range(64):
        health.fail()
    assert (health.circuit, health.failures_in_a_row) == ("open", 64)
    assert health.skip_s == pytest.approx(FIRST_OPEN_S, abs=1)


def test_failed_probes_extend_the_wait_up_to_a_limit_and_a_success_resets_it() -> None:
    health = WorkerHealth()

    def probe_and_fail() -> float:
        health.skip_until_s = 0.0
        assert bool(health.begin_call()) == (health.failures_in_a_row >= FAILURES_BEFORE_OPEN)
        health.fail()
        return health.skip_s

    rests = [round(probe_and_fail()) for _ in range(9)]
    assert rests == [0, 0, 5, *[8] * 6]
    health.skip_until_s = 0.0
    assert health.begin_call()
    assert health.skip_s == pytest.approx(PROBE_S, abs=1), "its answer is waited for"
    health.succeed()
    assert (health.circuit, health.skip_s) == ("closed", 0)
    assert [round(probe_and_fail()) for _ in range(4)] == [0, 0, 5, 8]


def test_only_the_newest_inconclusive_probe_permits_another_one() -> None:
    health = WorkerHealth()
    for _ in range(FAILURES_BEFORE_OPEN):
        health.fail()
    health.end_call(health.begin_call())
    assert health.circuit == "open", "a call that was no probe ends no rest"
    health.skip_until_s = 0.0
    late = health.begin_call()
    health._probes_until_s = 0.0  # as after a probe that timed out
    newer = health.begin_call()
    assert not health.begin_call(), "one at a time"
    health.end_call(late)
    assert health.circuit == "open"
    health.end_call(newer)
    assert health.circuit == "half_open"
    failed = health.begin_call()
    health.fail()
    health.end_call(failed)
    assert health.skip_s == pytest.approx(MAX_OPEN_S, abs=1), "a verdict stands"


def test_a_failure_after_another_replicas_opening_opens_the_circuit() -> None:
    health, now_s = WorkerHealth(), time.monotonic()
    health.elsewhere = (Opening(now_s - 60, now_s - 1),)
    assert (health.circuit, health.skip_s) == ("half_open", 0)
    health.fail()
    assert health.circuit == "open"
    assert health.skip_s == pytest.approx(FIRST_OPEN_S, abs=1)
    assert health.opening is None, "one failure is no opening of its own"


async def test_the_gauges_have_a_series_for_each_quantile() -> None:
    service = Service(pool(Health(), {"name": "a", "delay_s": 0.01}))
    await ask(service.pool, "a")
    for quantile in ("0.5", "0.95"):
        assert level(service, metrics.WORKER_FIRST_TOKEN, "a", quantile) == pytest.approx(0.01)
