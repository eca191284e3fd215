"""Lists and look-ups: records of runs, models and health."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import Row, Select, text

from conductor.run.record import NO_ACCOUNT
from serving.accounts.replica_store import ReplicaStore
from serving.api.files import MOST_FILES
from serving.batches.database_store import DatabaseBatchStore
from serving.batches.memory_store import MemoryBatchStore
from serving.batches.model import Batch, StoredFile
from serving.batches.store import BatchStore
from serving.database.address import Address
from tests.databases import make_file
from tests.serving.api.served import ASK, Json, Served, plan, scripted, served, step, team
from tests.states import until


async def test_the_workflows_list_has_the_newest_first():
    async with served(team()) as api:
        ids = [(await api.ok())["podium"]["workflow_id"] for _ in range(3)]
        listed = (await api.http.get("/v1/workflows")).json()
        two = (await api.http.get("/v1/workflows", params={"limit": 2})).json()
    assert listed["object"] == "list"
    assert [each["id"] for each in listed["data"]] == ids[::-1]
    assert [each["id"] for each in two["data"]] == ids[:0:-1]


async def test_a_list_has_the_start_of_each_question_and_no_other_text():
    question = "Why is the sky blue? " * 20
    turns = [("user", "Hi."), ("assistant", "Hello."), ("user", question)]
    messages = [{"role": role, "content": content} for role, content in turns]
    async with served(team()) as api:
        await api.ok({"messages": messages})
        (listed,) = (await api.http.get("/v1/workflows")).json()["data"]
    assert listed["messages"] == [{"role": "user", "content": question[:200]}]
    assert (listed["content"], [step["prompt"] for step in listed["steps"]]) == (False, [[], []])


async def test_the_number_of_stored_records_is_limited():
    async with served(team(limits={"records": 2})) as api:
        ids = [(await api.ok())["podium"]["workflow_id"] for _ in range(3)]
        listed = (await api.http.get("/v1/workflows")).json()
        response = await api.http.get(f"/v1/workflows/{ids[0]}")
    assert [each["id"] for each in listed["data"]] == ids[:0:-1]
    assert (response.status_code, response.json()["error"]["param"]) == (404, "id")


async def test_an_invalid_limit_is_rejected_by_name():
    async with served(team()) as api:
        for limit in ("0", "-1", "many", "100000"):
            answer = await api.http.get("/v1/workflows", params={"limit": limit})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


async def test_a_record_contains_every_field():
    workers = [
        scripted("a", {"error": "busy", "retry_after_s": 0}, "A.", retry={"first_wait_s": 0.001}),
        scripted("b", "B."),
    ]
    async with served(team(workers=workers)) as api:
        id = (await api.ok())["podium"]["workflow_id"]
        record = await api.record(id)
    assert (record["id"], record["object"], record["status"], record["model"]) == (
        id,
        "workflow",
        "finished",
        "mini",
    )
    assert (record["answer"], record["finish_reason"], record["error"], record["rounds"]) == (
        "B.",
        "stop",
        None,
        1,
    )
    assert record["plan"] == [step("a", "Find a reason."), step("b", "Conclude.", [0])]
    assert record["plans"][0]["worker"] == "conductor"
    assert "team" in record["plans"][0]["prompt"][0]["content"]
    assert '"worker": "a"' in record["plans"][0]["output"]
    first, last = record["steps"]
    assert [(t["error"], t["worker"]) for t in first["attempts"]] == [("WorkerBusy", "a")]
    assert (first["output"], last["output"], last["served_by"]) == ("A.", "B.", "b")
    assert (
        0
        <= first["started_s"]
        <= first["first_token_s"]
        <= first["ended_s"]
        <= last["started_s"]
        <= last["ended_s"]
    )
    assert first["cost_usd"] == 0
    assert first["usage"]["output_tokens"] == 1


async def test_a_run_can_be_read_while_it_runs():
    stalling = scripted("b", {"text": "one two", "stall_after_tokens": 1})
    async with served(team(workers=[scripted("a", "A."), stalling])) as api:
        body = ASK | {"stream": True}
        async with api.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            id = answer.headers["x-podium-workflow-id"]
            await until(lambda: api.worker("b").open_calls == 1)
            record = await api.record(id)
            while record["steps"][1]["first_token_s"] is None:
                record = await api.record(id)
            listed = (await api.http.get("/v1/workflows")).json()["data"]
        assert (record["status"], [s["status"] for s in record["steps"]]) == ("running", ["done", "running"])
        assert (record["steps"][0]["output"], record["steps"][1]["output"], record["answer"]) == (
            "A.",
            None,
            "",
        )
        assert [each["id"] for each in listed] == [id]
        await api.quiet()
        assert (await api.record(id))["status"] == "cancelled"


async def test_the_models_list_has_every_name_and_its_kind():
    workers = [scripted("a", card="Finds reasons."), scripted("b")]
    async with served(team(workers=workers)) as api, api.sdk as sdk:
        listed = {model.id: model async for model in sdk.models.list()}
        one = await sdk.models.retrieve("duo")
        response = await api.http.get("/v1/models/nobody")
    kinds = {name: (model.model_extra or {})["podium"]["kind"] for name, model in listed.items()}
    assert kinds == {
        "mini": "conductor", "ultra": "conductor", "duo": "workflow", "conductor": "worker", "a": "worker", "b": "worker",
    }  # fmt: skip
    details = (listed["a"].model_extra or {})["podium"]
    assert set(details.pop("takes")) >= {"frequency_penalty", "logit_bias"}
    assert details == {
        "serves": ["chat", "text_completion"],
        "kind": "worker",
        "card": "Finds reasons.",
        "sees_images": False,
        "reads_pdfs": False,
        "calls_tools": True,
        "context_tokens": None,
        "price": {"input_usd_per_mtok": 0.0, "output_usd_per_mtok": 0.0},
        "circuit": "closed",
        "adapter": None,
        "in_pool": True,
        "model": "a",
        "provenance": "scripted",
    }
    assert (listed["conductor"].model_extra or {})["podium"]["in_pool"] is False
    assert one.id == "duo"
    assert (response.status_code, response.json()["error"]["param"]) == (404, "model")


async def test_the_models_list_marks_workers_that_are_not_models():
    real = {"name": "real", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    vote = {"name": "vote", "kind": "python", "factory": "evaluation.workers.majority:Majority"}
    async with served(team(workers=[scripted("a"), real, vote], workflows={})) as api:
        listed = (await api.http.get("/v1/models")).json()["data"]
    provenance = {
        each["id"]: each["podium"]["provenance"] for each in listed if each["podium"]["kind"] == "worker"
    }
    assert provenance == {"conductor": "scripted", "a": "scripted", "real": None, "vote": "program"}


async def test_a_models_name_may_contain_a_slash():
    async with served(team(workers=[scripted("org/a")], workflows={})) as api:
        assert (await api.http.get("/v1/models/org/a")).json()["id"] == "org/a"
        assert (await api.post({"model": "org/a"})).status_code == 200


async def test_the_sdk_retrieves_every_name_that_is_listed():
    names = ("org/a", "a/b/c", "ft:gpt-4o:acme::x1", "v1/models/x", "a.b-c_d")
    workers = [scripted(name) for name in names]
    async with served(team(workers=workers, workflows={})) as api, api.sdk as sdk:
        listed = [model async for model in sdk.models.list()]
        assert [await sdk.models.retrieve(model.id) for model in listed] == listed
        assert all(model.object == "model" and model.owned_by == "podium" for model in listed)
        with pytest.raises(openai.NotFoundError) as error:
            await sdk.models.retrieve("gpt-4o")
    assert (error.value.param, error.value.code) == ("model", "model_not_found")


async def test_every_listed_name_answers():
    async with served(team(plan(step(0)))) as api:
        listed = (await api.http.get("/v1/models")).json()["data"]
        for each in listed:
            assert (await api.post({"model": each["id"]})).status_code == 200


async def test_healthz_and_readyz():
    async with served(team()) as api:
        healthz, readyz = await asyncio.gather(api.http.get("/healthz"), api.http.get("/readyz"))
    assert (healthz.status_code, readyz.status_code) == (200, 200)
    assert readyz.json()["status"] == "ready"
    assert readyz.json()["workers"] == ["a", "b", "c"]


async def test_the_models_list_shows_the_model_behind_each_name():
    async with served(team()) as api:
        listed = {each["id"]: each["podium"] for each in (await api.http.get("/v1/models")).json()["data"]}
    assert listed["a"]["model"] == "a"
    assert listed["mini"]["conductor"] == {"worker": "conductor", "model": "conductor"}


async def test_rejected_settings_are_reported_until_new_ones_are_applied():
    async with served(team()) as api:
        api.service.refused = "The adapter is not there."
        report = (await api.http.get("/readyz")).json()
        await api.service.swap(api.service.pool)
        afterwards = (await api.http.get("/readyz")).json()
    assert report["refused_user_config"] == "The adapter is not there."
    assert "refused_user_config" not in afterwards


class CountedRows(ReplicaStore):
    """Counts the rows that it reads."""

    n_rows = 0

    async def read(self, query: Select[Any]) -> Sequence[Row[Any]]:
        rows = await super().read(query)
        self.n_rows += len(rows)
        return rows


async def add_files_and_batches(store: BatchStore, n: int) -> list[str]:
    """Two of each begin at a time. Every third file is of another purpose. Return the numbers, newest first."""
    for number in range(n):
        id, made_us, purpose = f"{number:032x}", 1 + number // 2, "user_data" if number % 3 else "batch"
        await store.add_file(StoredFile(f"file-{id}", NO_ACCOUNT, purpose, "a", 1, made_us, 2**60), b"x")
        await store.add(
            Batch(
                f"batch_{id}",
                NO_ACCOUNT,
                "",
                "failed",
                "file-1",
                "/v1/responses",
                {},
                made_us,
                made_us,
                2**60,
            )
        )
    return [f"{number:032x}" for number in reversed(range(n))]


async def all_pages(api: Served, path: str) -> list[str]:
    """Read pages of four rows until the end."""
    ids, after = list[str](), ""
    while True:
        page = (await api.http.get(f"{path}limit=4{after}")).json()
        ids += [each["id"][-32:] for each in page["data"]]
        if not page["has_more"]:
            return ids
        assert (len(page["data"]), page["last_id"]) == (4, page["data"][-1]["id"])
        after = f"&after={page['last_id']}"


async def test_files_and_batches_are_listed_page_by_page_without_reading_other_rows(
    store_address: Address,
) -> None:
    rows = CountedRows(store_address, renew_s=60)
    for store in (MemoryBatchStore(), DatabaseBatchStore(rows)):
        async with served(team(), batch_store=store) as api:
            newest_first = await add_files_and_batches(store, 9)
            rows.n_rows = 0
            assert await all_pages(api, "/v1/files?") == newest_first
            assert await all_pages(api, "/v1/batches?") == newest_first
            assert await all_pages(api, "/v1/files?order=asc&") == newest_first[::-1]
            assert await all_pages(api, "/v1/files?purpose=batch&") == newest_first[2::3]
            assert rows.n_rows <= 4 * (9 + 2 * 2), "each page reads `after` and one row more than it shows"
            of_another_purpose = f"/v1/files?purpose=batch&after=file-{newest_first[0]}"
            for path in (of_another_purpose, "/v1/files?after=file-1", "/v1/batches?after=batch_1"):
                missing = await api.http.get(path)
                assert (missing.status_code, missing.json()["error"]["param"]) == (404, "after")
    await rows.aclose()


async def test_the_number_of_files_per_team_is_limited(tmp_path: Path) -> None:
    rows = ReplicaStore(make_file(tmp_path / "podium.db"))
    numbers = (
        f"WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {MOST_FILES})"
    )
    insert = (
        f"INSERT INTO stored_file SELECT 'file-' || n, '', '', 'batch', 'a', 0, 1, {2**60}, '' FROM number"
    )
    async with aclosing(rows), served(team(), batch_store=DatabaseBatchStore(rows)) as api:
        async with (await rows.database()).writing() as connection:
            await connection.execute(text(insert.replace("SELECT", f"{numbers} SELECT", 1)))
        form: Json = {"data": {"purpose": "user_data"}, "files": {"file": ("a.txt", b"A.")}}
        refused = await api.http.post("/v1/files", **form)
        assert (refused.status_code, str(MOST_FILES) in refused.text) == (413, True)
        await api.http.delete("/v1/files/file-1")
        assert (await api.http.post("/v1/files", **form)).status_code == 200
