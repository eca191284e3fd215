"""Limits of requests and tokens per minute, in memory and in a Redis that routers share."""

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from conductor.model.messages import Message
from conductor.model.reply import CallResult, FinishReason
from conductor.model.usage import Usage
from conductor.run.plan_record import PlanRecord
from conductor.run.record import Account, Record, RunRecords
from conductor.run.task import Task
from loadtest.rig.databases import running_redis
from serving.accounts.account_policy import UNLIMITED, AccountPolicy, Policies
from serving.accounts.rates import RateCounter, wait_until
from tests.virtual_time import keeps_real_time

ME = Account("key_1", "team_1")
TEAMMATE = Account("key_2", "team_1")


def limits(team: int | None = None, key: int | None = None, **more: int) -> Policies:
    """Return policies with these requests per minute, and with `team_tokens` and `key_tokens` per minute."""
    policies = {
        owner: AccountPolicy(requests_per_minute=requests, tokens_per_minute=more.get(f"{owner}_tokens"))
        for owner, requests in (("team", team), ("key", key))
    }
    return Policies(**policies)


@pytest.fixture(scope="module")
@keeps_real_time
def redis_url() -> Iterator[str]:
    with running_redis() as url:
        yield url


@pytest.fixture(params=["memory", "redis"])
async def rates(request: pytest.FixtureRequest) -> AsyncGenerator[RateCounter]:
    url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    counter = RateCounter(url)
    if url:
        await counter.reserve(ME, limits(key=1), 1)
        await counter._windows.reset()  # type: ignore[union-attr]
    async with aclosing(counter):
        yield counter


def records(tokens: int) -> RunRecords:
    """Return a run whose only call used `tokens`."""
    result = CallResult("x", "a", "m", Usage(tokens - 1, 1), None, FinishReason.STOP)
    task = Task((Message.of("user", "x"),))
    return RunRecords(
        replace(Record("wf_1", task, 0.0), plans=(PlanRecord(0, 0, "conductor", 0.0, "a", result=result),))
    )


async def is_admitted(
    rates: RateCounter, policies: Policies, account: Account = ME, tokens: int = 10
) -> bool:
    return (await rates.reserve(account, policies, tokens)).refusal is None


async def test_a_key_over_its_rate_limit_gets_a_retry_after(rates: RateCounter) -> None:
    assert [await is_admitted(rates, limits(key=3)) for _ in range(5)] == [True] * 3 + [False] * 2
    reservation = await rates.reserve(ME, limits(key=3), 10)
    assert reservation.refusal is not None
    assert 0 < reservation.refusal.retry_after_s <= 61
    assert "3 requests per minute" in reservation.refusal.message
    assert "`podium keys policy`" in reservation.refusal.message
    assert reservation.headers["x-ratelimit-limit-requests"] == "3"
    assert reservation.headers["x-ratelimit-remaining-requests"] == "0"
    assert await is_admitted(rates, limits(key=3), TEAMMATE)


async def test_a_teams_keys_share_its_limit_and_a_rejection_consumes_nothing(rates: RateCounter) -> None:
    policies = limits(team=3, key=2)
    assert [await is_admitted(rates, policies) for _ in range(6)] == [True] * 2 + [False] * 4
    assert [await is_admitted(rates, policies, TEAMMATE) for _ in range(2)] == [True, False]
    assert await is_admitted(rates, policies, Account("key_3", "team_2"))
    assert await is_admitted(rates, UNLIMITED)


async def test_tokens_are_estimated_at_admission_and_corrected_at_the_end(rates: RateCounter) -> None:
    policies = limits(key_tokens=1000)

    async def remaining() -> int:
        reservation = await rates.reserve(ME, policies, 1)
        await rates.settle(reservation, None)
        return int(reservation.headers["x-ratelimit-remaining-tokens"]) + 1

    first = await rates.reserve(ME, policies, 400)
    assert await remaining() == 600
    await rates.settle(first, records(100))
    assert await remaining() == 900
    second = await rates.reserve(ME, policies, 100)
    await rates.settle(second, records(2000))
    assert not await is_admitted(rates, policies, tokens=1)
    await rates.settle(second, records(2000))  # settling once is enough


async def test_a_request_that_does_not_run_returns_its_tokens(rates: RateCounter) -> None:
    policies = limits(key_tokens=100)
    for _ in range(5):
        # More tokens than the limit: reserves all of them.
        reservation = await rates.reserve(ME, policies, 5000)
        assert reservation.refusal is None
        assert not await is_admitted(rates, policies, tokens=1)
        await rates.settle(reservation, None)


async def test_routers_that_share_a_redis_share_the_limits(redis_url: str) -> None:
    async with aclosing(RateCounter(redis_url)) as one, aclosing(RateCounter(redis_url)) as other:
        mine = Account("key_shared")
        admissions = [await is_admitted(each, limits(key=4), mine) for each in (one, other) * 3]
    assert admissions == [True] * 4 + [False] * 2


async def test_without_redis_requests_are_admitted_and_the_outage_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "podium")
    async with aclosing(RateCounter("redis://:a-long-password-of-ours@127.0.0.1:1/0")) as rates:
        assert [await is_admitted(rates, limits(key=1)) for _ in range(3)] == [True] * 3
        await rates.settle(await rates.reserve(ME, limits(key=1), 10), records(9))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "podium"]
    assert "Redis does not respond" in line
    assert "a-long-password" not in line


@given(
    st.integers(0, 99), st.floats(0, 60), st.integers(0, 99), st.floats(60, 120), st.integers(1, 100), st.data()
)  # fmt: skip
def test_the_retry_after_is_neither_too_short_nor_too_long(
    before: int, before_s: float, count: int, count_s: float, limit: int, data: st.DataObject
) -> None:
    amount = data.draw(st.integers(1, limit))
    wait_s = wait_until((before, before_s, count, count_s), limit, amount)

    def fits(after_s: float) -> bool:
        if after_s < count_s - 60:
            used = before * max(0.0, before_s - after_s) / 60 + count
        else:
            used = count * max(0.0, count_s - after_s) / 60
        return int(used) + amount <= limit

    assert 0 <= wait_s <= 120
    assert fits(wait_s + 0.01)
    if wait_s > 0.02 and abs(wait_s - (count_s - 60)) > 0.02:
        assert not fits(wait_s - 0.02)


def test_a_test_redis_is_removed_afterwards(tmp_path: Path) -> None:
    with running_redis() as url:
        assert url.startswith("redis://127.0.0.1:")
