"""Policies of teams and keys over a real socket: what they reject, reduce and keep."""

import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.reply import Delta, Reply
from conductor.model.usage import Price
from serving.accounts.account_policy import AccountPolicy
from serving.database.address import Address
from serving.telemetry.logs import JsonLines
from serving.workers.http_errors import ErrorMapper
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import ASK, PRICE, TWO, plan, scripted, step, team
from tests.serving.spans import SPANS

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "look_up"}}


def settings(*plans: Any, **changes: Any) -> Any:
    boss = scripted("conductor", *(plans or (TWO,)), in_pool=False, local=True, fallbacks=["a"])
    cloud = scripted("cloud", "From far.", provider="openai", region="us", local=False, price=PRICE)
    down = scripted("down", {"error": "unavailable"}, fallbacks=["cloud"], retry={"attempts": 1})
    mine = [scripted("a", "A.", price=PRICE, region="eu"), scripted("b", "B.", price=PRICE), cloud, down]
    return team(workers=mine, workflows={"far": [step("cloud", "Go.")]}, **changes) | {
        "workers": [boss, *mine]
    }


@pytest.fixture
async def it(tmp_path: Path) -> AsyncGenerator[Keyed]:
    async with keyed(tmp_path, settings()) as running:
        yield running


async def limit(it: Keyed, kind: str, name: str, **policy: Any) -> Any:
    answer = await it.ask("admin", "POST", f"/v1/admin/{kind}/{it.ids[name]}/policy", policy)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ask(it: Keyed, who: str = "mine", **body: Any) -> Any:
    podium = body.pop("podium", None)
    return await it.ask(who, "POST", CHAT, ASK | body | ({"podium": podium} if podium else {}))


@pytest.mark.parametrize(
    ("policy", "body", "param", "message"),
    [
        ({"max_steps": 1}, {"podium": {"plan": [step("a"), step("b")]}}, "podium.plan", "limits the number of steps to 1, but the plan has 2"),
        ({"max_rounds": 1}, {"podium": {"rounds": 2}}, "podium.rounds", "limits the number of rounds to 1"),
        ({"max_effort": "low"}, {"reasoning_effort": "high"}, "reasoning_effort", "limits the reasoning effort to 'low'"),
        ({"tools": []}, {"tools": [TOOL]}, "tools", "does not allow the tool 'look_up'"),
        ({"tools": ["other"]}, {"tools": [TOOL], "model": "a", "tool_choice": "none"}, "tools", "does not allow the tool 'look_up'"),
        ({"store_content": False}, {"podium": {"keep": True}}, "podium.keep", "does not allow storing text"),
        ({"store_content": False}, {"podium": {"background": True}}, "podium.background", "does not allow storing text"),
    ],
)  # fmt: skip
async def test_an_error_names_the_forbidden_field_and_the_policy_command(
    it: Keyed, policy: Any, body: Any, param: str, message: str
) -> None:
    for kind, name in (("keys", "mine"), ("teams", "search")):
        await limit(it, kind, name, **policy)
        answer = await ask(it, **body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (403, "not_allowed", param)
        assert message in error["message"]
        assert f"`podium {kind} policy`" in error["message"]
        assert not [call for wire in it.api.service.pool.clients for call in wire.calls]  # type: ignore[attr-defined]
        lifted = {field: AccountPolicy.model_fields[field].default for field in policy}
        await limit(it, kind, name, **{field: [*value] if isinstance(value, frozenset) else value for field, value in lifted.items()})  # fmt: skip
    assert (await ask(it, model="a")).status_code == 200


ASKING = {
    CHAT: {"messages": ASK["messages"]},
    "/v1/completions": {"prompt": "Why?"},
    "/v1/embeddings": {"input": "Why?"},
    "/v1/responses": {"input": "Why?"},
    "/v1/responses/compact": {"input": "Why?"},
    "/v1/messages": {"messages": ASK["messages"], "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": ASK["messages"]},
    "/v1/plans": {"messages": ASK["messages"]},
}
"""Paths that take a model, with the other fields that they need."""


@pytest.mark.parametrize("path", ASKING)
@pytest.mark.parametrize(
    ("policy", "name"),
    [
        ({"models": ["a"]}, "mini"),
        ({"models": ["a"]}, "b"),
        ({"models": ["a"]}, "far"),
        ({"exclude_workers": ["a"]}, "a"),
        ({"local_only": True}, "far"),
        ({"providers": ["openai"]}, "mini"),
        ({"regions": ["eu"]}, "b"),
    ],
)
async def test_a_forbidden_model_gets_the_same_404_as_an_unknown_one(
    it: Keyed, path: str, policy: Any, name: str
) -> None:
    await limit(it, "keys", "mine", **policy)
    may_be_told = {each["id"] for each in (await it.ask("mine", "GET", "/v1/models")).json()["data"]}
    messages = []
    for model in (name, "absent"):
        answer = await it.ask("mine", "POST", path, ASKING[path] | {"model": model})
        error = answer.json()["error"]
        assert (answer.status_code, error.get("code", "model_not_found")) == (404, "model_not_found")
        messages.append(error["message"].replace(repr(model), "X"))
    assert messages[0] == messages[1]
    suggested = messages[0].partition(" Try ")[2].partition(".")[0]
    assert {each for each in suggested.split(", ") if each} <= may_be_told
    listed = [await it.ask("mine", "GET", f"/v1/models/{model}") for model in (name, "absent")]
    assert {each.status_code for each in listed} == {404}
    assert not [call for wire in it.api.service.pool.clients for call in wire.calls]  # type: ignore[attr-defined]


@pytest.mark.parametrize("field", ["workers", "exclude_workers", "plan"])
async def test_a_forbidden_worker_gets_the_same_400_as_an_unknown_one(it: Keyed, field: str) -> None:
    await limit(it, "teams", "search", local_only=True)
    messages = []
    for name in ("cloud", "absent"):
        named = [step(name)] if field == "plan" else [name]
        answer = await ask(it, podium={field: named})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "bad_task")
        assert error["param"].startswith(f"podium.{field}")
        messages.append(error["message"].replace(repr(name), "X"))
    assert messages[0] == messages[1]


async def test_without_a_permitted_conductor_a_model_needs_a_plan_in_the_request(it: Keyed) -> None:
    await limit(it, "keys", "mine", workers=["b"])
    assert (await ask(it, model="mini")).status_code == 404
    assert (await ask(it, model="mini", podium={"plan": [step("b")]})).status_code == 200


async def test_an_error_suggests_only_permitted_workers(tmp_path: Path) -> None:
    embeds = {"name": "vectors", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1:9", "serves": ["embeddings"]}  # fmt: skip
    workers = [scripted("a"), scripted("b"), embeds]
    async with keyed(tmp_path, team(workers=workers)) as it:
        body = {"model": "a", "input": "Why?"}
        for who, points in (("mine", False), ("other team", True)):
            await limit(it, "keys", "mine", models=["a", "b"])
            answer = await it.ask(who, "POST", "/v1/embeddings", body)
            assert answer.status_code == 400
            assert ("vectors" in answer.text) is points, answer.text


async def test_a_tool_in_a_namespace_is_checked_by_its_full_name(it: Keyed) -> None:
    inside = {
        "type": "namespace",
        "name": "crm",
        "description": "d",
        "tools": [{"type": "function", "name": "look_up"}],
    }
    body = {"model": "a", "input": "Why?", "tools": [inside]}
    for allowed, status in (("look_up", 400), ("crm.look_up", 200)):
        await limit(it, "teams", "search", tools=[allowed])
        answer = await it.ask("mine", "POST", "/v1/responses", body)
        assert answer.status_code == status, answer.text
    assert (await ask(it, model="a")).status_code == 200


async def test_a_policy_joins_those_of_the_key_and_its_team_only(it: Keyed) -> None:
    await limit(it, "teams", "search", max_steps=3, models=["mini", "a", "b"])
    policy = await limit(it, "keys", "mine", max_steps=5, models=["mini", "a", "far"])
    assert policy["policy"]["max_steps"] == 5
    assert (policy["in_force"]["max_steps"], sorted(policy["in_force"]["models"])) == (3, ["a", "mini"])
    listed = {who: [each["id"] for each in (await it.ask(who, "GET", "/v1/models")).json()["data"]] for who in ("mine", "only run", "other team")}  # fmt: skip
    assert listed["mine"] == ["mini", "a"]
    assert listed["only run"] == ["mini", "a", "b"]
    assert "far" in listed["other team"]
    assert (await it.ask("mine", "GET", "/v1/models/b")).status_code == 404


async def test_a_conductor_cannot_see_or_call_forbidden_workers(
    tmp_path: Path,
) -> None:
    evil = plan(step(2, "Ask the cloud."), step("cloud", "Ask it by name."))
    async with keyed(tmp_path, settings(evil)) as it:
        await limit(it, "teams", "search", local_only=True, exclude_workers=["down"])
        answer = await ask(it)
        assert answer.status_code == 200
        assert answer.json()["podium"]["fallback"]
        assert not it.api.worker("cloud").calls
        (call, *_) = it.api.worker("conductor").calls
        assert "cloud" not in call.messages[-1].text
        assert (await ask(it, "other team")).status_code == 200


async def test_a_forbidden_worker_is_no_fallback(it: Keyed) -> None:
    assert (await ask(it, "other team", model="down")).status_code == 200
    assert len(it.api.worker("cloud").calls) == 1
    await limit(it, "keys", "mine", local_only=True)
    answer = await ask(it, model="down")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_unavailable")
    assert len(it.api.worker("cloud").calls) == 1


async def test_the_conductors_fallback_plans_if_the_conductor_is_forbidden(it: Keyed) -> None:
    await limit(it, "keys", "mine", exclude_workers=["conductor"])
    assert (await ask(it)).status_code == 200
    assert not it.api.worker("conductor").calls
    assert it.api.worker("a").calls[0].site.operation == "plan"


async def test_policy_limits_reduce_steps_rounds_cost_and_effort(tmp_path: Path) -> None:
    thinker = scripted("a", "A.", effort="max", price=PRICE)
    three = plan(step("a", "x"), step("a", "y"), step("a", "z"))
    async with keyed(
        tmp_path, team(three, workers=[thinker], workflows={}, models={"mini": {"rounds": 3}})
    ) as it:
        await limit(it, "keys", "mine", max_steps=2, max_rounds=1, max_effort="low", max_cost_usd="0.5")
        answer = (await ask(it)).json()
        assert answer["podium"]["rounds"] == 1
        record = (await it.ask("mine", "GET", f"/v1/workflows/{answer['podium']['workflow_id']}")).json()
        assert all(len(each["steps"]) <= 2 for each in record["plans"])
        assert {call.sampling.effort for call in it.api.worker("a").calls} == {"low"}
        await limit(it, "keys", "mine", max_cost_usd="0.000001")
        refused = await ask(it, model="a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (402, "budget_exceeded")


async def test_a_run_whose_texts_may_not_be_stored_has_only_numbers(it: Keyed) -> None:
    await limit(it, "teams", "search", store_content=False)
    answer = (await ask(it)).json()
    assert answer["choices"][0]["message"]["content"] == "B."
    record = (await it.ask("mine", "GET", f"/v1/workflows/{answer['podium']['workflow_id']}")).json()
    assert record["content"] is False
    assert record["usage"]["total_tokens"] > 0
    assert record["answer"] == "… [2 characters]"
    assert "sky" not in str(record)
    header = it.headers("mine") | {"idempotency-key": "one"}
    refused = await it.api.http.post(CHAT, json=ASK, headers=header)
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "Idempotency-Key")


QUOTE = 'your input was flagged for moderation: "my HIV test, mail me at jane@doe.org"'


class Moderated:
    """Worker whose provider refuses each prompt and quotes it."""

    def __init__(self, name: str, price: Price | None) -> None:
        self.name = name

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, "none", self._deltas())

    async def _deltas(self) -> AsyncGenerator[Delta]:
        yield Delta("")
        raise ErrorMapper(self.name, "m", "OpenAI", "KEY", "http://h", "").by_status(403, QUOTE, {})


def moderation(*, content: bool) -> Any:
    worker = {"name": "strict", "kind": "python", "factory": f"{__name__}:Moderated"}
    guarded = worker | {"name": "guarded", "fallbacks": ["a"], "in_pool": False}
    workers = [worker, guarded, scripted("a"), scripted("b"), scripted("c")]
    return team(workers=workers, workflows={}, telemetry={"content": content})


@pytest.mark.parametrize(
    ("policy", "in_log", "in_spans"),
    [
        ({}, "jane@doe.org", "jane@doe.org"),
        ({"redact_personal_data": True}, "[e-mail address removed]", "[e-mail address removed]"),
        ({"store_content": False}, None, "jane@doe.org"),
        ({"trace_content": False}, "jane@doe.org", None),
    ],
)
async def test_a_provider_error_that_quotes_the_prompt_follows_the_policy_in_logs_and_traces(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    policy: Any,
    in_log: str | None,
    in_spans: str | None,
) -> None:
    caplog.set_level(logging.INFO, "podium")
    async with keyed(tmp_path, moderation(content=True)) as it:
        await limit(it, "keys", "mine", **policy)
        for model in ("strict", "guarded"):
            await ask(it, model=model)
        await it.api.quiet()
        described = [span.status.description or "" for span in SPANS.ended]
    lines = [JsonLines().format(each) for each in caplog.records if each.getMessage().startswith("workflow")]
    assert len(lines) == 2, "one failed, one was answered by a fallback"
    for texts, mark in ((lines, in_log), ([text for text in described if text], in_spans)):
        assert texts
        for text in texts:
            assert ("HIV" in text, "jane@" in text) == (mark is not None, mark == "jane@doe.org"), text
            assert mark is None or mark in text
            assert "403" in text
    assert all("ContentFiltered" in line for line in lines)
    assert ("provider_status: 403" in "".join(lines)) is (in_log is None)


async def test_spans_contain_no_provider_text_if_content_is_off(tmp_path: Path) -> None:
    async with keyed(tmp_path, moderation(content=False)) as it:
        await ask(it, model="strict")
        await it.api.quiet()
        described = [span.status.description for span in SPANS.ended if span.status.description]
    assert described
    assert "HIV" not in str(described)


async def test_a_record_states_whether_it_may_be_used_for_training(it: Keyed) -> None:
    await limit(it, "teams", "search", train_on_content=False)
    for who, may in (("mine", False), ("other team", True)):
        id = (await ask(it, who)).json()["podium"]["workflow_id"]
        assert (await it.ask(who, "GET", f"/v1/workflows/{id}")).json()["training"] is may


async def test_an_unreadable_policy_rejects_every_request(store_address: Address) -> None:
    async with keyed(store_address, settings()) as it:
        assert (await ask(it)).status_code == 200
        database = await it.directory.open()
        async with database.writing() as connection:
            await connection.exec_driver_sql('UPDATE team SET policy = \'{"max_steps": 1, "unknown": 2}\'')
        await limit_nothing(it)
        answer = await ask(it)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")


async def limit_nothing(it: Keyed) -> None:
    """Make the server look keys up again, by a change of nothing."""
    assert (await it.ask("admin", "POST", "/v1/admin/teams", {"name": "nobody's"})).status_code == 201


async def test_an_invalid_policy_is_rejected_with_its_field(it: Keyed) -> None:
    path = f"/v1/admin/teams/{it.ids['search']}/policy"
    for body, message in (({"max_stepz": 1}, "max_stepz"), ({"max_cost_usd": -1}, "max_cost_usd")):
        answer = await it.ask("admin", "POST", path, body)
        assert answer.status_code == 400
        assert message in answer.text
    assert (await it.ask("admin", "GET", path)).json()["policy"]["max_steps"] is None
    assert Decimal((await limit(it, "teams", "search", max_cost_usd="0.10"))["policy"]["max_cost_usd"]) == Decimal("0.10")  # fmt: skip
