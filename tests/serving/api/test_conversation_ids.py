"""Ids of conversations: from the client, or from its first messages. Keys never share them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK, Json, Served, served, team

SKY, SEA = ASK["messages"][0]["content"], "Why is the sea salty?"
CODE = json.dumps({"device_id": "d", "account_uuid": "", "session_id": "0b5e9a52"})
OLD_CODE = "user_abc_account__session_6f9619ff-8b86-d011-b42d-00c04fc964ff"
BILLING = "x-anthropic-billing-header: cc_version=2.1.330.565; cch={};"


def turn(words: str) -> Json:
    return {"role": "user", "content": words}


async def id_of(
    api: Served, body: Json, path: str = "/v1/chat/completions", headers: Json | None = None
) -> str:
    answer = await api.http.post(path, json={"model": "a"} | body, headers=headers or {})
    assert answer.status_code == 200, answer.text
    run = answer.headers["x-podium-workflow-id"]
    record = (await api.http.get(f"/v1/workflows/{run}", headers=headers or {})).json()
    assert record["conversation"].startswith("cv_")
    return record["conversation"]


def chat(*words: str, **more: Any) -> Json:
    return {"messages": [turn(each) for each in words], **more}


def message(user_id: str | None, *words: str, **more: Any) -> Json:
    named = {"metadata": {"user_id": user_id}} if user_id else {}
    return {"messages": [turn(each) for each in words], "max_tokens": 50, **named, **more}


async def test_requests_with_the_same_first_message_are_one_conversation() -> None:
    history = [turn(SKY), {"role": "assistant", "content": "Scattering."}, turn("And at night?")]
    async with served(team()) as api:
        first = await id_of(api, chat(SKY))
        assert await id_of(api, {"messages": history}) == first
        assert await id_of(api, chat(SKY), "/v1/chat/completions") == first
        assert await id_of(api, message(None, SKY), "/v1/messages") == first
        assert await id_of(api, {"input": SKY}, "/v1/responses") == first
        assert await id_of(api, chat(SEA)) != first
        system = {"role": "system", "content": "Be brief."}
        assert await id_of(api, {"messages": [system, turn(SKY)]}) != first


async def test_a_name_from_the_client_precedes_the_first_messages_as_id() -> None:
    async with served(team()) as api:
        named = await id_of(api, chat(SKY, podium={"conversation": "trip"}))
        assert await id_of(api, chat(SEA, podium={"conversation": "trip"}, prompt_cache_key="k")) == named
        keyed_id = await id_of(api, chat(SKY, prompt_cache_key="trip"))
        assert await id_of(api, {"input": SKY, "prompt_cache_key": "trip"}, "/v1/responses") == keyed_id
        assert await id_of(api, chat(SEA, prompt_cache_key="trip")) != keyed_id, "one of its application"
        session = await id_of(api, message(CODE, SKY), "/v1/messages")
        assert await id_of(api, message(CODE, SEA), "/v1/messages") == session
        old = await id_of(api, message(OLD_CODE, SKY), "/v1/messages")
        assert await id_of(api, message(OLD_CODE.replace("abc", "xyz"), SEA), "/v1/messages") == old
        first = await id_of(api, chat(SKY))
        assert len({named, keyed_id, session, old, first}) == 5
        other = await id_of(api, message("somebody", SKY), "/v1/messages")
        assert other == first


async def test_a_conversation_has_a_name_only_from_the_client() -> None:
    requests: list[tuple[str, Json, bool]] = [
        ("/v1/chat/completions", chat(SKY), False),
        ("/v1/chat/completions", chat(SKY, podium={"conversation": "trip"}), True),
        ("/v1/chat/completions", chat(SKY, prompt_cache_key="trip"), False),
        ("/v1/messages", message(None, SKY), False),
        ("/v1/messages", message("somebody", SKY), False),
        ("/v1/messages", message(CODE, SKY), True),
        ("/v1/responses", {"input": SKY}, False),
    ]
    async with served(team()) as api:
        for path, body, is_named in requests:
            answer = await api.http.post(path, json={"model": "a"} | body)
            assert answer.status_code == 200, answer.text
            assert _is_named(api) is is_named
        response = {"model": "a", "input": "Go on.", "previous_response_id": answer.json()["id"]}
        await api.http.post("/v1/responses", json=response)
        assert _is_named(api)


def _is_named(api: Served) -> bool:
    """Return whether the newest call belongs to a conversation that the client named."""
    cache = api.worker("a").calls[-1].sampling.options.prompt_cache
    assert cache is not None
    return cache.is_named


async def test_only_the_session_in_the_metadata_is_used() -> None:
    async with served(team()) as api:
        for user_id, noted in ((CODE, False), (OLD_CODE, False), ("u", True)):
            answer = await api.http.post("/v1/messages", json=message(user_id, SKY) | {"model": "a"})
            record = await api.record(answer.headers["x-podium-workflow-id"])
            assert ("metadata" in json.dumps(record)) == noted


@pytest.mark.parametrize(
    "user_id",
    [
        "{",
        "[1]",
        "{}",
        '{"session_id": 1}',
        "null",
        "5",
        "_session_short",
        "\ud800",
        "[" * 1900,
        "[" * 20_000,
    ],
    ids=lambda user_id: ascii(user_id[:40]),
)
async def test_other_user_ids_are_not_sessions(user_id: str) -> None:
    async with served(team()) as api:
        first = await id_of(api, message(None, SKY), "/v1/messages")
        body = json.dumps(message(user_id, SKY) | {"model": "a"}).encode()
        answer = await api.http.post(
            "/v1/messages", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 200, answer.text
        assert (await api.record(answer.headers["x-podium-workflow-id"]))["conversation"] == first


async def test_a_line_that_changes_with_each_request_does_not_change_the_id() -> None:
    async with served(team()) as api:
        ids = [
            await id_of(
                api, message(None, SKY, system=[{"type": "text", "text": BILLING.format(n)}]), "/v1/messages"
            )
            for n in range(2)
        ]
    assert ids[0] == ids[1]


async def test_a_chain_of_responses_keeps_the_first_id() -> None:
    async with served(team()) as api:
        ids, before = list[str](), None
        for words in (SKY, "And at night?", "And at dawn?"):
            more = {"previous_response_id": before} if before else {"podium": {"conversation": "sky"}}
            answer = await api.http.post("/v1/responses", json={"model": "a", "input": words, **more})
            before = answer.json()["id"]
            ids.append((await api.record(answer.headers["x-podium-workflow-id"]))["conversation"])
        assert ids == ids[:1] * 3
        named = (await api.http.post("/v1/conversations", json={})).json()["id"]
        first = await id_of(api, {"input": SKY, "conversation": named}, "/v1/responses")
        assert await id_of(api, {"input": "Go on.", "conversation": named}, "/v1/responses") == first


async def test_different_keys_never_share_a_conversation(tmp_path: Path) -> None:
    async with keyed(tmp_path) as running:
        ids = [
            await id_of(running.api, chat(SKY, podium={"conversation": "trip"}), headers=running.headers(who))
            for who in ("mine", "other team", "alone", "mine")
        ]
    assert ids[0] == ids[3]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("name", ["", "x" * 201, 5])
async def test_an_invalid_conversation_name_is_an_error_with_its_field(name: Any) -> None:
    async with served(team()) as api:
        answer = await api.post({"model": "a"}, conversation=name)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "podium.conversation")
        assert (await api.post({"model": "a"}, conversation="x" * 200)).status_code == 200
