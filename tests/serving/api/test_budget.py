"""Budgets as callers see them: `GET /v1/budget`, the response header, and the error of a call that does not fit."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.accounts.budget_limits import next_start
from serving.accounts.hold import key_subject, team_subject
from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK, scripted, served, team

PATHS: dict[str, Any] = {
    "/v1/chat/completions": ASK,
    "/v1/messages": ASK | {"max_tokens": 100},
    "/v1/responses": {"model": "mini", "input": "Why?"},
    "/v1/completions": {"model": "a", "prompt": "Why?"},
}


async def test_every_key_sees_only_its_own_and_its_teams_budget(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        await it.directory.set_budget(key_subject(it.ids["mine"]), {"day": Decimal("0.5")})
        await it.directory.set_budget(team_subject(it.ids["search"]), {"month": Decimal(2)})
        assert (await it.ask("mine", "POST", "/v1/chat/completions", ASK)).status_code == 200
        await it.store.aclose()  # flushes the bills
        mine = (await it.ask("mine", "GET", "/v1/budget")).json()
        spent = Decimal(mine["key"]["day"]["spent_usd"])
        assert spent > 0
        assert mine["key"]["day"] | {"resets_at": ""} == {"limit_usd": "0.5", "spent_usd": f"{spent:f}", "held_usd": "0", "left_usd": f"{Decimal('0.5') - spent:f}", "resets_at": ""}  # fmt: skip
        assert (mine["key"]["month"]["limit_usd"], mine["key"]["month"]["left_usd"]) == (None, None)
        assert Decimal(mine["team"]["month"]["left_usd"]) == 2 - spent
        assert mine["left_usd"] == mine["key"]["day"]["left_usd"]
        assert (mine["key"]["id"], mine["team"]["id"]) == (it.ids["mine"], it.ids["search"])
        assert mine["api_key"] == (await it.ask("admin", "GET", f"/v1/admin/keys/{it.ids['mine']}")).json()
        assert (mine["api_key"]["scopes"], mine["api_key"]["team"]["name"]) == (["run", "read"], "search")
        same_team = (await it.ask("only run", "GET", "/v1/budget")).json()
        assert same_team["team"] == mine["team"]
        assert Decimal(same_team["key"]["day"]["spent_usd"]) == 0
        other = (await it.ask("other team", "GET", "/v1/budget")).json()
        assert (other["left_usd"], Decimal(other["team"]["month"]["spent_usd"])) == (None, 0)
        assert (await it.ask("alone", "GET", "/v1/budget")).json()["team"] is None


async def test_without_keys_there_is_no_budget() -> None:
    async with served(team()) as api:
        answer = await api.http.get("/v1/budget")
        assert answer.json() == {
            "object": "budget",
            "api_key": None,
            "left_usd": None,
            "key": None,
            "team": None,
        }
        assert "x-podium-budget-left-usd" not in (await api.post()).headers


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_header_states_the_tightest_remaining_budget(path: str, stream: bool, tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        await it.directory.set_budget(key_subject(it.ids["mine"]), {"month": Decimal(3), "day": Decimal(2)})
        await it.directory.set_budget(team_subject(it.ids["search"]), {"day": Decimal(1)})
        answer = await it.ask("mine", "POST", path, PATHS[path] | {"stream": stream})
        assert answer.headers["x-podium-budget-window"] == "team day"
        assert Decimal("0.9") < Decimal(answer.headers["x-podium-budget-left-usd"]) < 1
        unlimited = await it.ask("alone", "POST", path, PATHS[path])
        assert "x-podium-budget-left-usd" not in unlimited.headers


@pytest.mark.parametrize("path", PATHS)
async def test_an_error_over_the_budget_states_the_calls_cost_and_the_rest(path: str, tmp_path: Path) -> None:
    dear = {"input_usd_per_mtok": 0, "output_usd_per_mtok": 100_000}
    settings = team(workers=[scripted("a", price=dear)], workflows={})
    async with keyed(tmp_path, settings) as it:
        await it.directory.set_budget(team_subject(it.ids["search"]), {"day": Decimal(5)})
        answer = await it.ask("mine", "POST", path, PATHS[path] | {"model": "a", "max_tokens": 100, "max_output_tokens": 100} if path != "/v1/responses" else {"model": "a", "input": "Why?", "max_output_tokens": 100})  # fmt: skip
        # Codex treats this status as an exhausted quota.
        assert answer.status_code == (429 if path == "/v1/responses" else 402)
        error = answer.json()["error"]
        assert "could cost $10 ($6.4 with the shortest answer), which exceeds the rest of the team's budget for today" in error["message"]  # fmt: skip
        assert Decimal(answer.headers["x-podium-budget-left-usd"]) == 5
        if path != "/v1/messages":
            assert error["podium"]["cost"] == "$10"


@pytest.mark.parametrize(
    ("podium", "message"),
    [
        (
            {"max_cost_usd": 5},
            "could cost $10 ($6.4 with the shortest answer), which exceeds the rest of the run's budget",
        ),
        ({"max_tokens": 60}, "tokens, which exceeds the rest of the run's budget"),
    ],
)
async def test_a_request_over_its_own_limit_gets_the_reason(podium: Any, message: str) -> None:
    dear = {"input_usd_per_mtok": 0, "output_usd_per_mtok": 100_000}
    async with served(team(workers=[scripted("a", price=dear)], workflows={})) as api:
        answer = await api.post({"model": "a", "max_tokens": 100}, **podium)
        assert answer.status_code == 402
        assert message in answer.json()["error"]["message"]


@given(st.dates(max_value=date(9998, 12, 31)))
def test_budgets_reset_at_the_start_of_the_next_day_and_month(today: date) -> None:
    midnight = datetime(today.year, today.month, today.day, tzinfo=UTC)
    next_month = datetime(today.year + today.month // 12, today.month % 12 + 1, 1, tzinfo=UTC)
    now = midnight + timedelta(hours=23, minutes=59)
    assert next_start("day", now) == midnight + timedelta(days=1)
    assert next_start("month", now) == next_month
