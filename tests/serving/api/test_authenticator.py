"""Cached key look-ups: how long they stay valid, and behaviour while the database does not answer."""

import asyncio
import logging
from dataclasses import dataclass, field, replace

import pytest

from conductor.errors import StoreUnavailable, Unauthenticated
from serving.accounts.caller import Scope
from serving.accounts.key_info import KeyInfo, TeamInfo
from serving.accounts.keys import ApiKey
from serving.api import authentication
from serving.api.authentication import FRESH_S, KEPT_AWAY_S, KEPT_S, RENEWED_S, Authenticator
from serving.database.address import StoreError
from tests.serving.accounts.clock import Clock
from tests.states import until

KEY = ApiKey.of(bytes(range(32)))
INFO = KeyInfo("key_1", "app", KEY.hint, frozenset({Scope.RUN}), TeamInfo("team_1", "search", 0), 0)
AWAY = StoreUnavailable("The store is away.", detail="postgres.internal: connection refused")


@dataclass
class Keys:
    """Key store in memory that can be slow or fail."""

    infos: dict[str, KeyInfo] = field(default_factory=lambda: {KEY.hash: INFO})
    failure: Exception | None = None
    waiting: asyncio.Event | None = None
    lookups: int = 0

    async def find(self, hash: str) -> KeyInfo | None:
        self.lookups += 1
        # Reads before it waits: a slow answer has the state at the time of the request.
        info = self.infos.get(hash)
        if self.waiting:
            await self.waiting.wait()
        if self.failure:
            raise self.failure
        return info

    async def has_keys(self) -> bool:
        return await self.find("") is None and bool(self.infos)


@dataclass
class AuthenticatorUnderTest:
    keys: Keys
    clock: Clock
    subject: Authenticator

    async def is_admitted(self, key: ApiKey = KEY) -> bool:
        try:
            return (await self.subject.caller(key.reveal())).account.key_id == "key_1"
        except Unauthenticated:
            return False


@pytest.fixture
def it() -> AuthenticatorUnderTest:
    keys, clock = Keys(), Clock()
    return AuthenticatorUnderTest(keys, clock, Authenticator(keys, clock, clock))


async def test_a_key_is_looked_up_again_only_after_some_seconds(it: AuthenticatorUnderTest) -> None:
    for _ in range(20):
        assert await it.is_admitted()
    assert it.keys.lookups == 1
    it.clock.now_s += FRESH_S
    assert await it.is_admitted()
    assert it.keys.lookups == 2


async def test_a_key_in_use_is_refreshed_in_the_background(it: AuthenticatorUnderTest) -> None:
    assert await it.is_admitted()
    it.keys.waiting = answered = asyncio.Event()
    it.clock.now_s += RENEWED_S
    async with asyncio.timeout(1):
        assert await it.is_admitted(), "without the answer"
    answered.set()
    await until(lambda: it.keys.lookups == 2, "it was looked up again")
    await asyncio.sleep(0.01)
    it.keys.waiting = asyncio.Event()
    it.clock.now_s += FRESH_S - RENEWED_S
    async with asyncio.timeout(1):
        assert await it.is_admitted(), "what was looked up the second time is believed"


async def test_a_revoked_key_in_use_is_rejected_within_ten_seconds(it: AuthenticatorUnderTest) -> None:
    assert await it.is_admitted()
    it.keys.infos[KEY.hash] = replace(INFO, revoked_us=1)
    let_in_s = 0.0
    for tenths in range(120):
        it.clock.now_s += 0.1
        if await it.is_admitted():
            let_in_s = tenths / 10
    assert 0 < let_in_s < FRESH_S < 10


async def test_a_revoked_key_is_rejected_in_time_although_the_database_is_intermittent(
    it: AuthenticatorUnderTest,
) -> None:
    assert await it.is_admitted()
    it.keys.infos[KEY.hash], it.keys.failure = replace(INFO, revoked_us=1), AWAY
    it.clock.now_s += KEPT_S - 0.1
    assert await it.is_admitted(), "the database is away for a moment"
    it.clock.now_s += 0.2
    with pytest.raises(StoreUnavailable):
        await it.is_admitted()
    it.keys.failure = None
    assert not await it.is_admitted()


async def test_with_the_setting_a_key_stays_valid_for_an_hour_without_the_database(
    it: AuthenticatorUnderTest,
) -> None:
    it.subject = Authenticator(it.keys, it.clock, it.clock, KEPT_AWAY_S)
    assert await it.is_admitted()
    it.keys.failure = AWAY
    it.clock.now_s += KEPT_AWAY_S - 1
    assert await it.is_admitted()
    with pytest.raises(StoreUnavailable):
        await it.is_admitted(ApiKey.make())
    it.keys.infos[KEY.hash], it.keys.failure = replace(INFO, revoked_us=1), None
    assert not await it.is_admitted(), "once it answers, its word counts"
    it.keys.failure = AWAY
    it.clock.now_s += KEPT_AWAY_S + 1
    with pytest.raises(StoreUnavailable):
        await it.is_admitted()


async def test_a_look_ups_age_counts_from_its_start(it: AuthenticatorUnderTest) -> None:
    it.keys.waiting = asyncio.Event()
    first = asyncio.create_task(it.is_admitted())
    await until(lambda: it.keys.lookups == 1)
    it.clock.now_s += FRESH_S - 0.5
    it.keys.waiting.set()
    assert await first
    it.clock.now_s += 1
    await it.is_admitted()
    assert it.keys.lookups == 2


async def test_concurrent_requests_share_one_look_up_that_a_cancellation_does_not_end(
    it: AuthenticatorUnderTest,
) -> None:
    it.keys.waiting = asyncio.Event()
    asking = [asyncio.create_task(it.is_admitted()) for _ in range(50)]
    await until(lambda: it.keys.lookups == 1)
    asking[0].cancel()
    await asyncio.sleep(0)
    it.keys.waiting.set()
    assert all(await asyncio.gather(*asking[1:]))
    assert it.keys.lookups == 1


async def test_a_local_change_applies_immediately_even_to_a_look_up_in_progress(
    it: AuthenticatorUnderTest,
) -> None:
    assert await it.is_admitted()
    it.clock.now_s += FRESH_S
    it.keys.waiting = asyncio.Event()
    under_way = asyncio.create_task(it.is_admitted())
    await until(lambda: it.keys.lookups == 2)
    it.keys.infos[KEY.hash] = replace(INFO, revoked_us=1)
    it.clock.now_s += 0.1
    it.subject.forget()
    it.keys.waiting.set()
    await under_way
    assert not await it.is_admitted()


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (None, "Unknown API key"),
        (replace(INFO, revoked_us=1), "revoked"),
        (replace(INFO, expires_us=1_749_999_999_000_000), "expired at 2025-06-15T15:06:39Z"),
        (replace(INFO, team=TeamInfo("team_1", "search", 0, off_us=1)), "is disabled"),
    ],
)
async def test_a_rejected_keys_holder_gets_the_reason(
    it: AuthenticatorUnderTest, info: KeyInfo | None, message: str
) -> None:
    it.keys.infos = {KEY.hash: info} if info else {}
    with pytest.raises(Unauthenticated, match=message) as refused:
        await it.subject.caller(KEY.reveal())
    assert KEY.reveal() not in str(refused.value)


async def test_a_cached_key_expires_on_time(it: AuthenticatorUnderTest) -> None:
    it.keys.infos[KEY.hash] = replace(INFO, expires_us=int((it.clock.now_s + 1) * 1e6))
    assert await it.is_admitted()
    it.clock.now_s += 1
    assert not await it.is_admitted()
    assert it.keys.lookups == 1


async def test_a_mistyped_key_needs_no_database_query(it: AuthenticatorUnderTest) -> None:
    with pytest.raises(Unauthenticated):
        await it.subject.caller(KEY.reveal()[:-1] + "!")
    assert it.keys.lookups == 0


async def test_unknown_keys_use_limited_memory(
    it: AuthenticatorUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "MOST_KEYS", 10)
    for _ in range(50):
        assert not await it.is_admitted(ApiKey.make())
    assert len(it.subject._keys) == 10


async def test_a_server_is_open_until_its_first_key_and_never_again(it: AuthenticatorUnderTest) -> None:
    it.keys.infos = {}
    assert await it.subject.is_open()
    it.keys.infos = {KEY.hash: INFO}
    it.clock.now_s += FRESH_S
    assert not await it.subject.is_open()
    it.keys.infos, it.keys.failure = {}, AWAY
    it.clock.now_s += 1000
    assert not await it.subject.is_open()


@pytest.mark.parametrize("failure", [AWAY, StoreError("The store rejects the password.")])
async def test_no_request_is_admitted_while_it_is_unknown_whether_keys_exist(
    it: AuthenticatorUnderTest, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    it.keys.failure = failure
    with caplog.at_level(logging.ERROR, "podium"):
        for _ in range(3):
            with pytest.raises(StoreUnavailable) as refused:
                await it.subject.is_open()
            with pytest.raises(StoreUnavailable):
                await it.subject.caller(KEY.reveal())
    assert "postgres.internal" not in refused.value.message
    assert len([each for each in caplog.records if each.name == "podium"]) == 1, "one line for many"
    assert KEY.hash not in caplog.text


async def test_a_hanging_database_counts_as_unavailable(
    it: AuthenticatorUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "LOOKUP_S", 0.05)
    it.keys.waiting = asyncio.Event()
    with pytest.raises(StoreUnavailable):
        await it.subject.caller(KEY.reveal())


async def test_the_result_of_a_look_up_that_timed_out_is_cached(
    it: AuthenticatorUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "LOOKUP_S", 0.05)
    it.keys.waiting = answered = asyncio.Event()
    with pytest.raises(StoreUnavailable):
        await it.subject.caller(KEY.reveal())
    answered.set()
    await asyncio.sleep(0.01)
    it.keys.waiting = asyncio.Event()
    assert (await it.subject.caller(KEY.reveal())).account.key_id


async def test_a_server_without_a_key_store_is_open() -> None:
    assert await Authenticator().is_open()
