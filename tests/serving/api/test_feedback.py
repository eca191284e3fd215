"""Feedback on runs: author, storage, reading, filters, limits, and removal with the texts of the run."""

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from podium.cli import main as podium
from serving.database.address import Address
from serving.database.clock import now_us
from serving.store.retention import DAY_US
from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK, Json, Served, served, team
from tests.serving.store.stores import replicas
from training.jsonl_questions import read_questions

FEEDBACK: Json = {
    "score": 0.25,
    "labels": ["wrong", "too long", "wrong"],
    "comment": "Not so.",
    "expected": "42",
}
SECRET = "sk-ant-api03-" + "a1B2c3D4" * 10


async def give(api: Served, id: str, body: Json) -> Any:
    return await api.http.post(f"/v1/workflows/{id}/feedback", json=body)


async def ids_with_feedback(api: Served) -> list[str]:
    return [run["id"] for run in (await api.http.get("/v1/workflows?rated=true")).json()["data"]]


async def ask(api: Served) -> str:
    return str((await api.ok())["podium"]["workflow_id"])


async def give_and_read(giver: Served, reader: Served) -> str:
    """Give and replace feedback, read and find it, and return the run's id."""
    id, _ = await ask(giver), await ask(giver)
    # It is written in the background.
    while (await reader.http.get(f"/v1/workflows/{id}")).status_code == 404:
        await asyncio.sleep(0.02)
    assert (await reader.record(id))["feedback"] == []
    assert (await give(giver, id, {"score": 1})).status_code == 200
    answer = await give(giver, id, FEEDBACK)
    assert (answer.status_code, answer.json()["object"]) == (200, "workflow.feedback")
    [feedback] = (await reader.record(id))["feedback"]
    assert {name: feedback[name] for name in FEEDBACK} == FEEDBACK | {"labels": ["wrong", "too long"]}
    return id


async def test_feedback_is_stored_in_memory_with_the_run() -> None:
    async with served(team()) as api:
        id = await give_and_read(api, api)
        assert await ids_with_feedback(api) == [id]
        await api.service.store.remove_texts(id)
        [feedback] = (await api.record(id))["feedback"]
        assert (feedback["score"], feedback["comment"], feedback["expected"]) == (0.25, "", "")
        answer = await give(api, id, {"comment": "Late."})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "comment")
        assert (await give(api, id, {"score": 0})).status_code == 200


async def test_feedback_is_stored_for_all_routers_and_removed_with_the_runs_texts(
    store_address: Address,
) -> None:
    async with replicas(store_address, team()) as (one, other):
        id = await give_and_read(one.api, other.api)
        await one.records.aclose()  # flushes the runs to the store
        assert await ids_with_feedback(other.api) == [id]
        await one.records.remove_old(now_us() + 31 * DAY_US)
        [feedback] = (await other.api.record(id))["feedback"]
        assert (feedback["score"], feedback["labels"], feedback["comment"], feedback["expected"]) == (0.25, ["wrong", "too long"], "", "")  # fmt: skip
        await one.records.remove_old(now_us() + 401 * DAY_US)
        assert await one.rows("SELECT * FROM run_feedback") == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "score"),
        ({"score": 1.5}, "score"),
        ({"score": "NaN"}, "score"),
        ({"labels": [""]}, "labels[0]"),
        ({"labels": ["\x1b[2J"]}, "labels[0]"),
        ({"labels": ["x"] * 21}, "labels"),
        ({"comment": "x" * 4001}, "comment"),
        ({"expected": "x" * 20_001}, "expected"),
        ({"stars": 5}, "stars"),
    ],
)
async def test_feedback_is_limited_and_an_error_names_its_field(body: Json, param: str) -> None:
    async with served(team()) as api:
        answer = await give(api, await ask(api), body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert (await give(api, "wf_none", {"score": 1})).status_code == 404


async def test_only_the_runs_team_may_give_feedback_and_its_policy_applies(
    tmp_path: Path,
) -> None:
    async with keyed(tmp_path) as it:
        id = (await it.ask("mine", "POST", "/v1/chat/completions", ASK)).headers["x-podium-workflow-id"]
        path = f"/v1/workflows/{id}/feedback"
        statuses = {who: (await it.ask(who, "POST", path, {"score": 1})).status_code for who in it.secrets}
        assert statuses == {"wrong": 401, "mine": 200, "other team": 404, "only run": 200, "only read": 403, "alone": 404, "admin": 403}  # fmt: skip
        await it.ask("mine", "POST", path, {"comment": f"My key is {SECRET}."})
        record = (await it.ask("admin", "GET", f"/v1/workflows/{id}")).json()
        assert len(record["feedback"]) == 2, "one a key"
        assert SECRET not in json.dumps(record)
        await it.ask(
            "admin", "POST", f"/v1/admin/keys/{it.ids['only run']}/policy", {"redact_personal_data": True}
        )
        answer = await it.ask("only run", "POST", path, {"comment": "Ask ann@example.com."})
        assert answer.json()["comment"] == "Ask [e-mail address removed]."
        await it.ask("admin", "POST", f"/v1/admin/teams/{it.ids['search']}/policy", {"store_content": False})
        answer = await it.ask("mine", "POST", path, {"expected": "7"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (403, "expected")
        assert (await it.ask("mine", "POST", path, {"score": 0, "labels": ["bad"]})).status_code == 200


async def test_the_command_gives_feedback_and_exports_questions_for_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(team()) as api:
        first, second = await ask(api), await ask(api)

        async def run(*words: str) -> int:
            return await asyncio.to_thread(podium, ["feedback", *words, "--url", api.url])

        assert await run(first, "--score", "0", "--expected", "1,024", "--label", "wrong") == 0
        assert await run(second, "--score", "1", "--comment", "Well done.") == 0
        assert await run(second) == 1
        assert "Set at least one" in capsys.readouterr().err
        file = tmp_path / "questions.jsonl"
        assert await run("export", str(file)) == 0
        assert "1 question" in capsys.readouterr().err
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, "only its owner may read users' texts"
        [question] = read_questions(str(file))
        assert (question.id, question.expected, question.grader) == (f"feedback/{first}", "1,024", "numeric")
        assert question.text == "Why is the sky blue?"
        assert await run("export", str(file)) == 1, "a file is not written over"
