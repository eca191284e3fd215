"""Records of runs: retention in memory, and lists."""

import asyncio
from decimal import Decimal
from pathlib import Path

import httpx2
from msgspec.structs import replace

from conductor.model.failure import Attempt
from conductor.model.messages import Message, PendingCall, Text, ToolCall, ToolResult
from conductor.model.reply import CallResult
from conductor.model.usage import Usage
from conductor.run.plan_record import PlanRecord, StepRecord
from conductor.run.record import Account, Record, RunRecords
from conductor.run.task import Task
from conductor.run.turns import ClientReply, GivenResult, Segment, StepTurn
from serving.accounts.caller import ANONYMOUS
from serving.api.record_json import usage, workflow
from serving.settings.sections import LimitSettings
from serving.store.memory_store import MemoryStore
from serving.store.unflushed_run import weight
from tests.serving.api.keyed import keyed
from tests.serving.api.served import Json, scripted, served, team


def record(id: str, *, created: float = 0, answer: str = "") -> Record:
    return Record(id, Task((), model="mini"), created, answer=answer)


async def list_ids(store: MemoryStore) -> list[str]:
    return [run.record.id for run in (await store.newest(100, ANONYMOUS)).runs]


async def test_the_newest_records_are_kept_up_to_a_number() -> None:
    store = MemoryStore(lambda: LimitSettings(records=3))
    for id, began in (("a", 1), ("b", 2), ("d", 4), ("c", 3)):
        await store.put(RunRecords(record(id, created=began)))
    assert await list_ids(store) == ["d", "c", "b"]
    assert await store.get("a") is None
    assert (await store.newest(1, ANONYMOUS)).runs == [RunRecords(record("d", created=4), has_content=False)]


async def test_the_newest_records_are_kept_up_to_a_weight() -> None:
    store = MemoryStore(lambda: LimitSettings(records_bytes=100_000))
    for n in range(10):
        await store.put(RunRecords(record(f"r{n}", created=n, answer="x" * 30_000)))
    assert await list_ids(store) == ["r9", "r8"]
    await store.put(RunRecords(record("huge", created=10, answer="x" * 300_000)))
    assert await list_ids(store) == ["huge"]
    await store.put(RunRecords(record("small", created=11)))
    assert await list_ids(store) == ["small"]


async def test_storing_a_record_again_replaces_it() -> None:
    store = MemoryStore(lambda: LimitSettings(records_bytes=100_000))
    for _ in range(10):
        await store.put(RunRecords(record("same", answer="x" * 30_000)))
    await store.put(RunRecords(record("other", created=1)))
    assert await list_ids(store) == ["other", "same"]


async def test_the_key_with_the_most_records_loses_its_oldest() -> None:
    limits = LimitSettings(records=4, records_bytes=200_000)
    store = MemoryStore(lambda: limits)

    async def put(id: str, key: str, n: int, answer: str = "") -> None:
        await store.put(RunRecords(replace(record(id, created=n, answer=answer), account=Account(key))))

    await put("few", "one", 0)
    for n in range(1, 6):
        await put(f"r{n}", "other", n)
    assert await list_ids(store) == ["r5", "r4", "r3", "few"]
    await put("huge", "third", 6, "x" * 300_000)
    assert await list_ids(store) == ["huge", "r5", "r4", "few"]
    await put("r7", "other", 7)
    assert await list_ids(store) == ["r7", "r5", "few"]


async def test_the_current_limits_apply() -> None:
    limits = LimitSettings(records=3)
    store = MemoryStore(lambda: limits)
    for n in range(3):
        await store.put(RunRecords(record(f"r{n}", created=n)))
    limits = LimitSettings(records=1)
    await store.put(RunRecords(record("r3", created=3)))
    assert await list_ids(store) == ["r3"]


def test_a_text_shared_by_several_steps_is_weighed_once() -> None:
    prompt = (Message.of("user", "x" * 100_000),)
    steps = tuple(StepRecord(n, "a", "", (), 0.0, prompt=prompt) for n in range(5))
    one = replace(record("one"), plans=(PlanRecord(0, 0, "client", 0.0, steps=steps[:1]),))
    five = replace(record("five"), plans=(PlanRecord(0, 0, "client", 0.0, steps=steps),))
    assert weight(RunRecords(one)) == weight(RunRecords(five)) > 100_000


def test_the_text_of_an_inner_run_is_weighed() -> None:
    inner = record("inner", answer="x" * 50_000)
    result = CallResult("", "team", "m", Usage(), None, None, inner_run=inner.id)
    steps = (StepRecord(0, "team", "", (), 0.0, result=result),)
    outer = replace(record("outer"), plans=(PlanRecord(0, 0, "client", 0.0, steps=steps),))
    assert weight(RunRecords(outer, {inner.id: inner})) > 50_000


def test_the_record_of_a_tool_run_counts_all_its_turns() -> None:
    def call(n_input: int, cost_usd: str, *attempts: Attempt) -> CallResult:
        return CallResult("x", "a", "a", Usage(n_input, 50), Decimal(cost_usd), None, attempts=attempts)

    failed = Attempt("b", "WorkerUnavailable", "Gone.", cost_usd=Decimal("0.5"))
    look = PendingCall(0, ToolCall("1", "look", "{}"))
    reply = ClientReply((GivenResult(0, ToolResult("1", (Text("r"),))),))
    turn = StepTurn(call(100_000, "1", failed), (look,), reply.results)
    step = StepRecord(0, "a", "", (), 0.0, "done", result=call(1_000, "0.01"), turns=(turn,))
    segment = Segment((0,), "", Usage(100_000, 50), Decimal("1.5"), reply)
    plans = (PlanRecord(0, 0, "worker", 0.0, steps=(step,)),)
    whole = replace(record("wf_1"), status="finished", plans=plans, segments=(segment,))
    shown = workflow(whole)
    assert (shown["usage"]["total_tokens"], shown["cost_usd"]) == (101_100, 1.51)
    assert shown["usage"]["prompt_tokens_details"]["orchestration_input_tokens"] == 100_000
    assert usage(whole)["total_tokens"] == 1_050
    shown_turn = shown["steps"][0]["turns"][0]
    assert (shown_turn["usage"]["input_tokens"], shown_turn["cost_usd"]) == (100_000, 1.0)
    assert [each["cost_usd"] for each in shown_turn["attempts"]] == [0.5]


async def test_a_list_has_the_lengths_of_texts_and_the_record_the_texts() -> None:
    text = "word " * 1000
    async with served(team(workers=[scripted("a", text)], workflows={})) as api:
        id = (await api.ok({"model": "a"}))["podium"]["workflow_id"]
        listed = (await api.http.get("/v1/workflows")).json()["data"][0]
        whole = await api.record(id)
    assert whole["answer"] == whole["steps"][0]["output"] == text
    assert (whole["content"], listed["content"]) == (True, False)
    assert listed["answer"] == listed["steps"][0]["output"] == f"… [{len(text)} characters]"
    assert len(str(listed)) < 5_000
    assert {*listed, "feedback"} == {*whole}


async def test_records_show_plan_only_runs_ages_and_attempts_of_failed_steps(tmp_path: Path) -> None:
    broken = scripted("broken", {"error": "unavailable"}, in_pool=False)
    slow = scripted("slow", "one two three", tokens_per_s=4, in_pool=False)
    settings = team(workers=[scripted("a"), broken, slow], workflows={})
    async with keyed(tmp_path, settings) as it:

        async def run_of(who: str, model: str, path: str = "/v1/chat/completions") -> Json:
            body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
            return (await it.ask(who, "POST", path, body)).json()

        async def runs_of(team: str) -> httpx2.Response:
            return await it.ask("admin", "GET", f"/v1/workflows?team={team}")

        await run_of("mine", "mini", "/v1/plans")
        await run_of("other team", "broken")
        [planned] = (await runs_of("search")).json()["data"]
        assert planned["plan_only"] is True
        [failed] = (await runs_of("sales")).json()["data"]
        assert "plan_only" not in failed
        assert failed == (await runs_of(it.ids["sales"])).json()["data"][0]
        assert (await runs_of("nobody")).status_code == 404
        [step] = (await it.ask("admin", "GET", f"/v1/workflows/{failed['id']}")).json()["steps"]
        assert len(step["attempts"]) == len(step["error"]["podium"]["attempts"]) > 0

        asking = asyncio.create_task(run_of("mine", "slow"))
        await asyncio.sleep(0.3)
        [id] = it.api.service.sessions.running
        workflow = (await it.ask("mine", "GET", f"/v1/workflows/{id}")).json()
        assert 0.2 < workflow["now_s"] < 3
        await asking
        assert "now_s" not in (await it.ask("mine", "GET", f"/v1/workflows/{id}")).json()
