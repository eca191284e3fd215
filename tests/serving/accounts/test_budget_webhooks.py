"""Budget webhooks: each threshold is sent once, signed as Standard Webhooks requires, and never delays a request."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from aiohttp import web
from sqlalchemy import func, select
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from conductor.errors import BudgetExceeded
from conductor.model.usage import Price, Usage
from serving.accounts.account_ledger import AccountLedger
from serving.accounts.budget_limits import read_spending, set_budget
from serving.accounts.budget_webhooks import BudgetWebhooks, headers
from serving.accounts.hold import key_subject, team_subject
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import Address
from serving.database.schema import budget_alert
from serving.pool import build_pool
from serving.settings.settings import SettingsError, parse
from serving.settings.webhooks import WebhookSettings
from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK, scripted, team

SECRET, OLD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLKSw", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
ENVIRONMENT = {"PODIUM_WEBHOOK_SECRET": SECRET}
CENT_A_TOKEN = {"input_usd_per_mtok": 0, "output_usd_per_mtok": 10_000}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
WORKER = scripted("w", "one two", price=CENT_A_TOKEN, max_output_tokens=4)
"""Worker whose answers cost two cents."""


@dataclass
class Receiver:
    """Webhook receiver that verifies signatures and answers with `statuses` in turn, then with 204."""

    url: str = ""
    statuses: list[int] = field(default_factory=list[int])
    messages: list[Any] = field(default_factory=list[Any])
    ids: list[str] = field(default_factory=list[str])
    secret: str = SECRET
    hold: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self, request: web.Request) -> web.Response:
        message = Webhook(self.secret).verify(await request.read(), dict(request.headers))
        await self.hold.wait()
        self.messages.append(message)
        self.ids.append(request.headers["webhook-id"])
        return web.Response(
            status=self.statuses.pop(0) if self.statuses else 204, headers={"location": "/elsewhere"}
        )


@asynccontextmanager
async def receiving(*statuses: int, handler: Handler | None = None) -> AsyncGenerator[Receiver]:
    """Run a receiver with these statuses, or with its own handler."""
    receiver = Receiver(statuses=list(statuses))
    receiver.hold.set()
    app = web.Application()
    app.router.add_post("/hook", handler or receiver.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield receiver
    finally:
        receiver.hold.set()
        await runner.cleanup()


@asynccontextmanager
async def store_and_hooks(
    address: Address, url: str, n: int = 1, **options: Any
) -> AsyncGenerator[list[BudgetWebhooks]]:
    """Yield the webhooks of `n` replicas that share a store."""
    settings = WebhookSettings(url=url, **options)
    async with AsyncExitStack() as stack:
        hooks: list[BudgetWebhooks] = []
        for _ in range(n):
            store = ReplicaStore(address)
            stack.push_async_callback(store.aclose)
            hooks.append(
                BudgetWebhooks(store, lambda: settings, ENVIRONMENT, look_s=0.05, waits_s=(0.1, 0.1, 0.1))
            )
            stack.push_async_callback(hooks[-1].aclose)
        yield hooks


async def test_each_budget_threshold_is_sent_once_per_window_from_all_replicas(
    store_address: Address,
) -> None:
    async with receiving() as receiver, keyed(store_address, team(workers=[WORKER], workflows={})) as it:
        await it.directory.set_budget(team_subject(it.ids["search"]), {"month": Decimal("0.2")})
        async with store_and_hooks(store_address, receiver.url, n=3) as replicas:
            counts: list[int] = []
            for _ in range(9):
                answer = await it.ask("mine", "POST", "/v1/chat/completions", ASK | {"model": "w"})
                assert answer.status_code == 200, answer.text
                while Decimal((await _month(it))["held_usd"]):
                    await asyncio.sleep(0.01)
                await asyncio.gather(*(each.poll() for each in replicas))
                counts.append(len(receiver.messages))
            assert counts == [0, 0, 0, 0, 1, 1, 1, 2, 2], "at 0.10 and 0.16 of 0.20 dollars"
            answer = await it.ask("mine", "POST", "/v1/chat/completions", ASK | {"model": "w"})
            assert answer.status_code == 402, "it could cost four cents, and two are left"
            while len(receiver.messages) < 3:
                await asyncio.gather(*(each.poll() for each in replicas))
        assert [message["data"]["percent"] for message in receiver.messages] == [50, 80, 100]
        assert len(set(receiver.ids)) == 3
        first = receiver.messages[0]
        assert first["type"] == "budget.threshold_reached"
        assert first["data"] | {"window": ""} == {
            "subject": {"kind": "team", "id": it.ids["search"], "name": "search"},
            "period": "month", "window": "", "percent": 50, "limit_usd": "0.2", "spent_usd": "0.1",
        }  # fmt: skip
        assert first["data"]["window"] == f"{datetime.now(UTC):%Y-%m}"


async def _month(it: Any) -> Any:
    return (await it.ask("admin", "GET", f"/v1/admin/teams/{it.ids['search']}/budget")).json()["month"]


async def spend(store: ReplicaStore, key_id: str, usd: str, cap: str = "1") -> None:
    """Spend `usd` in a run of the key, under a daily cap."""
    await set_budget(await store.database(), key_subject(key_id), "day", Decimal(cap))
    ledger = AccountLedger(await store.ledger(), key_id, None, "wf_1")
    async with ledger.hold(Price(Decimal(0), Decimal(10_000)), 0, 64, "w") as hold:
        await ledger.settle(hold, Decimal(usd), Usage(1, 1))
    while not (await read_spending(await store.database(), key_subject(key_id)))[0].spent_usd:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("status", [500, 302, 429])
async def test_a_failed_webhook_is_sent_again_with_the_same_id(status: int, store_address: Address) -> None:
    async with (
        receiving(status, status) as receiver,
        store_and_hooks(store_address, receiver.url) as (hooks,),
    ):
        await spend(hooks._store, "key_1", "0.6")
        hooks.start()
        await until_done(hooks, 1)
        assert len(receiver.messages) == 3, "the third was taken"
        assert len(set(receiver.ids)) == 1
        assert len({json.dumps(message, sort_keys=True) for message in receiver.messages}) == 1


async def test_a_failing_receiver_is_retried_and_a_removed_one_is_not(
    store_address: Address,
) -> None:
    async with receiving(*[500] * 9) as receiver, store_and_hooks(store_address, receiver.url) as (hooks,):
        await spend(hooks._store, "key_1", "0.6")
        hooks.start()
        await until_done(hooks, 1)
        assert len(receiver.messages) == 4, "the first and three more"
        receiver.statuses = [410]
        await spend(hooks._store, "key_2", "0.6")
        await until_done(hooks, 2)
        assert len(receiver.messages) == 5


async def until_done(hooks: BudgetWebhooks, n: int) -> None:
    """Wait until `n` alerts are delivered or given up."""
    done = select(func.count()).select_from(budget_alert).where(budget_alert.c.done_us.is_not(None))
    while True:
        async with (await hooks._store.database()).reading() as connection:
            if await connection.scalar(done) == n:
                return
        await asyncio.sleep(0.02)


async def test_a_call_over_the_remaining_budget_sends_the_last_threshold(store_address: Address) -> None:
    async with (
        receiving() as receiver,
        store_and_hooks(store_address, receiver.url, budget_percent=(100,)) as (hooks,),
    ):
        await spend(hooks._store, "key_1", "0.99")
        await hooks.poll()
        assert receiver.messages == []
        ledger = AccountLedger(await hooks._store.ledger(), "key_1", None, "wf_2", wait_s=0)
        with pytest.raises(BudgetExceeded):
            async with ledger.hold(Price(Decimal(0), Decimal(10_000)), 0, 64, "w"):
                pass
        while not await hooks.poll():
            await asyncio.sleep(0.02)
        assert [(m["data"]["percent"], m["data"]["spent_usd"]) for m in receiver.messages] == [(100, "0.99")]


async def test_no_request_waits_for_a_receiver_that_does_not_answer(store_address: Address) -> None:
    async with receiving() as receiver, keyed(store_address, team(workers=[WORKER], workflows={})) as it:
        receiver.hold.clear()
        await it.directory.set_budget(team_subject(it.ids["search"]), {"month": Decimal("0.2")})
        async with store_and_hooks(store_address, receiver.url) as (hooks,):
            hooks.start()
            for _ in range(6):
                async with asyncio.timeout(5):
                    answer = await it.ask("mine", "POST", "/v1/chat/completions", ASK | {"model": "w"})
                assert answer.status_code == 200
            receiver.hold.set()
            while not receiver.messages:
                await asyncio.sleep(0.02)


async def test_with_two_secrets_a_webhook_has_both_signatures() -> None:
    signing = [Webhook(SECRET), Webhook(OLD_SECRET)]
    sent = headers("msg_1", '{"a": 1}', signing)
    for each in signing:
        assert each.verify('{"a": 1}', sent) == {"a": 1}
        with pytest.raises(WebhookVerificationError):
            each.verify('{"a": 2}', sent)


@pytest.mark.parametrize(
    ("secret", "fault"),
    [
        (None, "PODIUM_WEBHOOK_SECRET"),
        ("whsec_***", "must be `whsec_` followed by"),
        ("whsec_", "must be `whsec_` followed by"),
        ("whsec_c2hvcnQ=", "at least 24 bytes"),
    ],
)
def test_an_invalid_webhook_secret_is_rejected_and_not_shown(secret: str | None, fault: str) -> None:
    settings = parse({"workers": [scripted("w")], "webhooks": {"url": "https://hooks.example/x"}})
    with pytest.raises(SettingsError, match=fault) as caught:
        build_pool(settings, {} if secret is None else {"PODIUM_WEBHOOK_SECRET": secret}, {})
    assert "***" not in str(caught.value)


async def test_an_endless_response_of_a_receiver_is_not_buffered(
    store_address: Address,
) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        with suppress(ConnectionError):
            while True:
                await answer.write(b"x" * 65_536)
                sent += 65_536
        return answer

    async with (
        receiving(handler=flood) as receiver,
        keyed(store_address, team(workers=[WORKER], workflows={})) as it,
    ):
        await it.directory.set_budget(team_subject(it.ids["search"]), {"month": Decimal("0.03")})
        await it.ask("mine", "POST", "/v1/chat/completions", ASK | {"model": "w"})
        while Decimal((await _month(it))["held_usd"]):
            await asyncio.sleep(0.01)
        async with store_and_hooks(store_address, receiver.url) as (hooks,):
            assert await hooks.poll() == 1
            assert await hooks.poll() == 0, "the answer was read to no end, and it was sent again"
    assert sent < 20_000_000
