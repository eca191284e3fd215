"""`GET /v1/costs`: ten runs match costs computed by hand, in the ledger and in the report. Also visibility and
filters.
"""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from conductor.model.messages import Message
from conductor.model.reply import CallResult, FinishReason
from conductor.model.usage import Price, Usage
from conductor.run.plan_record import PlanRecord, StepRecord
from conductor.run.record import Account, Record, RunRecords
from conductor.run.task import Task
from serving.accounts.caller import DEFAULT_SCOPES, Scope
from serving.accounts.directory import Directory
from serving.database.address import Address
from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK, PRICE, Json, Served, scripted, served, team
from tests.serving.store.stores import replicas
from tests.states import until

PICO = 10**12
DAY_S = 86_400
FIRST_DAY = 20_420
"""2025-11-28."""
CLAUDE = {"input_usd_per_mtok": "3", "output_usd_per_mtok": "15", "cached_input_usd_per_mtok": "0.3", "cache_write_usd_per_mtok": "3.75", "cache_write_1h_usd_per_mtok": "6"}  # fmt: skip
GPT = {"input_usd_per_mtok": "1.25", "output_usd_per_mtok": "10", "cached_input_usd_per_mtok": "0.125"}


async def costs(api: Served, **params: str) -> Json:
    answer = await api.http.get("/v1/costs", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def record(n: int) -> Record:
    """Return run number `n`: a plan by `conductor`, a step by `small`, and the answer by `claude`."""
    usage = Usage(10_000 + n, 100 + n, 7_000, 0, 1_000, 300)
    rates = {name: Decimal(rate) for name, rate in CLAUDE.items()}
    answer = _call("claude", usage, Price(**rates))
    calls = [
        _call("conductor", Usage(500, 20), Price(Decimal(1), Decimal(2))),
        _call("small", Usage(1_000, 50 + n), Price(Decimal("0.1"), Decimal("0.4"))),
        answer,
    ]
    steps = tuple(_step(index, each) for index, each in enumerate(calls[1:]))
    plans = (PlanRecord(0, 0, "conductor", 0.0, "conductor", (), steps, calls[0], 0.5),)
    account = Account(f"k{n % 2}", f"t{n % 2}")
    created = float((FIRST_DAY + n // 4) * DAY_S + 60 * n)
    task = Task((Message.of("user", "Why?"),), model="mini" if n % 3 else "ultra")
    return Record(f"wf_{n}", task, created, plans=plans, status="finished", answer="Words.", account=account)


def _call(worker: str, usage: Usage, price: Price) -> CallResult:
    return CallResult(
        "Words.", worker, "m", usage, price.of(usage), FinishReason.STOP, saved_usd=price.savings(usage)
    )


def _step(index: int, result: CallResult) -> StepRecord:
    return StepRecord(index, result.worker, "", (), 0.1, "done", (), result, 0.2, 0.3, result.worker, 0.4)


def by_hand(n: int) -> tuple[int, int, int]:
    """Return the cost and savings of run `n`, and the cost of its answer at the baseline price, in pico-dollars."""
    input_tokens, output_tokens = 10_000 + n, 100 + n
    fresh = input_tokens - 7_000 - 1_000
    answer = (
        fresh * 3_000_000 + 7_000 * 300_000 + 700 * 3_750_000 + 300 * 6_000_000 + output_tokens * 15_000_000
    )
    plan = 500 * 1_000_000 + 20 * 2_000_000
    step = 1_000 * 100_000 + (50 + n) * 400_000
    saved = 7_000 * 2_700_000 - 700 * 750_000 - 300 * 3_000_000
    baseline = (input_tokens - 7_000) * 1_250_000 + 7_000 * 125_000 + output_tokens * 10_000_000
    return answer + plan + step, saved, baseline


def pico(usd: str) -> int:
    amount = Decimal(usd) * PICO
    assert amount == int(amount), "the amount is exact"
    return int(amount)


async def test_the_report_of_ten_runs_matches_costs_calculated_by_hand(store_address: Address) -> None:
    settings = team(baseline={"model": "gpt-5", "price": GPT})
    expected = [by_hand(n) for n in range(10)]
    async with replicas(store_address, settings, n=1) as (router,):
        for n in range(10):
            await router.records.put(RunRecords(replace(record(n), owner=router.records.owner)))
        await router.records.aclose()
        period = {"from": "2025-11-28", "to": "2025-12-05"}
        whole = await costs(router.api, **period)
        assert (whole["from"], whole["to"], whole["baseline"]) == ("2025-11-28", "2025-12-05", "gpt-5")
        for by in ("day", "team", "key", "model", "worker", "day,team", "day,team,key,model,worker"):
            groups = (await costs(router.api, by=by, **period))["data"]
            sums = [sum(pico(group[name]) for group in groups) for name in ("cost_usd", "saved_usd", "baseline_usd")]  # fmt: skip
            assert sums == [sum(each) for each in zip(*expected, strict=True)], by
            assert sum(group["calls"] for group in groups) == 30
        days = (await costs(router.api, by="day", **period))["data"]
        assert [(day["day"], day["runs"], pico(day["cost_usd"])) for day in days] == [
            (f"2025-11-{28 + day}", len(of_day), sum(cost for cost, _, _ in of_day))
            for day, of_day in enumerate([expected[:4], expected[4:8], expected[8:]])
        ]
        workers = {each["worker"]: each for each in (await costs(router.api, by="worker", **period))["data"]}
        assert workers["claude"]["cached_tokens"] == 70_000
        assert (workers["claude"]["cache_write_tokens"], workers["claude"]["cache_write_1h_tokens"]) == (
            10_000,
            3_000,
        )
        assert (workers["conductor"]["baseline_usd"], workers["small"]["saved_usd"]) == ("0", "0")
        (old,) = (await costs(router.api, by="model,day", **period | {"to": "2025-11-28"}))["data"][:1]
        assert old.keys() >= {"model", "day"}
        assert "worker" not in old


async def test_answers_of_unknown_cost_are_excluded_from_cost_and_estimate() -> None:
    settings = team(baseline={"model": "gpt-5", "price": GPT})
    async with served(settings) as api:
        for n in range(2):
            await api.service.store.put(RunRecords(record(n)))
        period = {"from": "2025-11-28", "to": "2025-11-28", "by": "day"}
        (before,) = (await costs(api, **period))["data"]
        await api.service.store.put(RunRecords(with_unknown_cost(record(2))))
        (day,) = (await costs(api, **period))["data"]
    expected = [by_hand(0), by_hand(1)]
    assert pico(before["baseline_usd"]) == pico(day["baseline_usd"]) == sum(each[2] for each in expected)
    assert (day["runs"], day["unknown_costs"], before["unknown_costs"]) == (3, 1, 0)
    plan_and_step = by_hand(2)[0] - pico(
        f"{(record(2).answering or _call('', Usage(), Price(Decimal(0), Decimal(0)))).cost_usd:f}"
    )
    assert pico(day["cost_usd"]) == sum(each[0] for each in expected) + plan_and_step


def with_unknown_cost(record: Record) -> Record:
    """The same run with an answer of unknown cost."""
    (plan,) = record.plans
    *steps, last = plan.steps
    assert last.result is not None
    result = replace(last.result, cost_usd=None, saved_usd=None)
    return replace(record, plans=(replace(plan, steps=(*steps, replace(last, result=result))),))


async def test_the_report_matches_the_ledger_and_the_answers(store_address: Address) -> None:
    directory = Directory(store_address)
    workers = [scripted(name, f"{name} says this.", price=PRICE) for name in "abc"]
    try:
        keys = [
            await directory.create_key(name, None, scopes)
            for name, scopes in (("one", {*DEFAULT_SCOPES}), ("other", {*DEFAULT_SCOPES}), ("admin", {Scope.ADMIN}))
        ]  # fmt: skip
        headers = [{"authorization": f"Bearer {key.reveal()}"} for key, _ in keys]
        async with replicas(store_address, team(workers=workers), n=1, directory=directory) as (router,):
            costs_usd = [Decimal(0), Decimal(0)]
            for n in range(10):
                body = ASK | {"model": ("mini", "duo", "a")[n % 3]}
                answer = await router.api.http.post("/v1/chat/completions", json=body, headers=headers[n % 2])
                assert answer.status_code == 200, answer.text
                costs_usd[n % 2] += Decimal(str(answer.json()["podium"]["cost_usd"]))
            await router.records.aclose()

            async def page(who: int) -> Json:
                answer = await router.api.http.get("/v1/costs", params={"by": "key"}, headers=headers[who])
                assert answer.status_code == 200, answer.text
                return answer.json()

            async with asyncio.timeout(10):  # bills are written in the background
                while Decimal((await page(2))["ledger"]["cost_usd"]) < sum(costs_usd):
                    await asyncio.sleep(0.01)
            pages = [await page(who) for who in range(3)]
            whole = pages[2]["data"]
            assert {group["key_id"]: Decimal(group["cost_usd"]) for group in whole} == {
                info.id: usd for (_, info), usd in zip(keys[:2], costs_usd, strict=True)
            }
            assert pages[2]["ledger"] == {
                "cost_usd": f"{sum(costs_usd).normalize():f}",
                "difference_usd": "0",
            }
            for own, (_, info) in zip(pages[:2], keys[:2], strict=True):
                assert [group["key_id"] for group in own["data"]] == [info.id]
                assert own["ledger"] is None, "of administrators only"
            assert pages[0]["baseline"] is None
            assert pages[0]["data"][0]["baseline_usd"] is None
    finally:
        await directory.aclose()


async def test_a_call_cancelled_before_its_first_token_is_in_the_teams_report(
    store_address: Address,
) -> None:
    directory = Directory(store_address)
    settings = team(workers=[scripted("a", "A.", price=PRICE, delay_s=30)], workflows={})
    try:
        keys = [await directory.create_key(scope, None, {scope}) for scope in (Scope.ADMIN, Scope.RUN)]
        admin, client = ({"authorization": f"Bearer {key.reveal()}"} for key, _ in keys)
        async with replicas(store_address, settings, n=1, directory=directory) as (router,):
            body = ASK | {"model": "a", "max_tokens": 1000}
            request = asyncio.create_task(
                router.api.http.post("/v1/chat/completions", json=body, headers=client)
            )
            await until(lambda: router.api.worker("a").calls)
            request.cancel()
            await until(lambda: not router.api.service.running)
            await router.records.aclose()
            params = {"by": "worker"}
            async with asyncio.timeout(10):  # bills are written in the background
                while not (
                    page := (await router.api.http.get("/v1/costs", params=params, headers=admin)).json()
                )["ledger"]:
                    await asyncio.sleep(0.01)
        assert [(each["worker"], each["calls"], each["unknown_costs"]) for each in page["data"]] == [
            ("a", 1, 1)
        ]
        assert page["ledger"]["difference_usd"] == page["ledger"]["cost_usd"] > "0"
    finally:
        await directory.aclose()


async def test_a_team_sees_only_its_own_costs_even_without_a_database(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        for who in ("mine", "other team", "alone"):
            assert (await it.ask(who, "POST", "/v1/chat/completions", ASK)).status_code == 200
        groups: dict[str, list[Any]] = {}
        for who in ("mine", "only read", "other team", "alone", "admin"):
            page = (await it.ask(who, "GET", "/v1/costs?by=team,key")).json()
            groups[who] = [(group["team_id"], group["key_id"]) for group in page["data"]]
    mine, others, alone = (
        (it.ids["search"], it.ids["mine"]),
        (it.ids["sales"], it.ids["other team"]),
        (None, it.ids["alone"]),
    )
    assert groups == {
        "mine": [mine],
        "only read": [mine],
        "other team": [others],
        "alone": [alone],
        "admin": [alone, *sorted([mine, others])],
    }


WRONG = {
    "by": ({"by": "day,wrker"}, "wrker"),
    "no field": ({"by": ","}, "is empty"),
    "a day that is none": ({"from": "2025-11-31"}, "from"),
    "before 1970": ({"to": "0001-01-05"}, "to"),
    "begins before 1970": ({"from": "1969-12-31", "to": "1970-01-05"}, "from"),
    "backwards": ({"from": "2025-11-02", "to": "2025-11-01"}, "must not be after"),
    "a day before all others": ({"to": "0001-01-05"}, "to"),
    "a day before 1970": ({"from": "1969-12-31", "to": "1970-01-02"}, "from"),
    "93 days": ({"from": "2025-08-31", "to": "2025-12-01"}, "at most 92 days"),
}


@pytest.mark.parametrize("what", WRONG)
async def test_an_invalid_report_request_is_an_error_with_its_field(what: str) -> None:
    params, words = WRONG[what]
    async with served(team()) as api:
        answer = await api.http.get("/v1/costs", params=params)
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["error"]["message"] + answer.json()["error"]["param"]
        assert (await api.http.get("/v1/costs?from=2025-09-01&to=2025-12-01")).status_code == 200


async def test_a_report_with_too_many_groups_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("serving.store.run_costs", "serving.api.costs"):
        monkeypatch.setattr(f"{module}.MOST_GROUPS", 1)
    async with served(team()) as api:
        await api.ok()
        answer = await api.http.get("/v1/costs?by=worker")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "by")
        assert len((await costs(api, by="model"))["data"]) == 1


async def test_runs_steps_and_lists_show_the_cached_share_and_the_savings(store_address: Address) -> None:
    async with replicas(store_address, n=1) as (router,):
        await router.records.put(RunRecords(replace(record(0), owner=router.records.owner)))
        await router.records.aclose()
        shown = await router.api.record("wf_0")
        (listed,) = (await router.api.http.get("/v1/workflows")).json()["data"]
    saved_usd = by_hand(0)[1] / PICO
    for run in (shown, listed):
        assert (run["conversation"], run["cached_share"], run["saved_usd"]) == (None, 0.609, saved_usd)
        assert [(step["cached_share"], step["saved_usd"]) for step in run["steps"]] == [
            (0.0, 0.0),
            (0.7, saved_usd),
        ]
        assert (run["plans"][0]["cached_share"], run["plans"][0]["saved_usd"]) == (0.0, 0.0)
