"""`/v1/conversations`, and responses in conversations, with the official SDK."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.conversations import ConversationItem
from pydantic import TypeAdapter

from conductor.model.messages import Image, Message
from serving.database.address import Address
from serving.database.clock import now_us
from serving.redaction.secrets import redact_secrets
from serving.store.conversations import MOST_BYTES
from serving.store.retention import DAY_US, STEP
from tests.serving.api.keyed import keyed
from tests.serving.api.served import Json, scripted, served, team
from tests.serving.api.test_responses_later import TOOLS, noise, pack_item, results, unpack_item
from tests.serving.api.tool_caller import tool_caller
from tests.serving.store.stores import replicas

ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)
MESSAGE: Json = {"type": "message", "role": "user", "content": "My name is Ann."}


def one_worker(*says: Any) -> Json:
    return team(workers=[scripted("a", *says)], workflows={})


async def list_turns(sdk: openai.AsyncOpenAI, id: str) -> list[str]:
    """Return a summary of the items of a conversation."""
    page = await sdk.conversations.items.list(id, order="asc", limit=100)
    for item in page.data:
        ITEM.validate_python(item.to_dict(), strict=False)
    return [_short(item.to_dict()) for item in page.data]


def _short(item: Any) -> str:
    if item["type"] == "message":
        return f"{item['role']}: {item['content'][0]['text']}"
    return f"{item['type']}: {item.get('name') or item.get('output')}"


async def test_a_conversation_is_created_read_changed_and_deleted(store_address: Address) -> None:
    async with replicas(store_address, n=2) as (one, other), one.api.sdk as sdk, other.api.sdk as there:
        conversation = await sdk.conversations.create(items=[MESSAGE], metadata={"a": "b"})  # type: ignore[list-item]
        assert (await there.conversations.retrieve(conversation.id)).to_dict() == conversation.to_dict()
        assert (conversation.object, conversation.metadata, conversation.created_at > 1_000_000) == (
            "conversation",
            {"a": "b"},
            True,
        )
        changed = await there.conversations.update(conversation.id, metadata={"c": "d"})
        assert (await sdk.conversations.retrieve(conversation.id)).metadata == changed.metadata == {"c": "d"}
        more = await sdk.conversations.items.create(conversation.id, items=EVERY_SORT)
        assert len({item.id for item in more.data}) == len(EVERY_SORT)
        assert (more.first_id, more.last_id, more.has_more) == (more.data[0].id, more.data[-1].id, False)
        assert (await list_turns(there, conversation.id))[:2] == [
            "user: My name is Ann.",
            "developer: Be short.",
        ]
        one_item = await there.conversations.items.retrieve(
            more.data[1].id or "", conversation_id=conversation.id
        )
        assert one_item.to_dict() == more.data[1].to_dict()
        assert (await sdk.conversations.items.delete(more.data[0].id or "", conversation_id=conversation.id)).id == conversation.id  # fmt: skip
        assert len(await list_turns(there, conversation.id)) == len(EVERY_SORT)
        deletion = await there.conversations.delete(conversation.id)
        assert (deletion.object, deletion.deleted) == ("conversation.deleted", True)
        for read in (
            sdk.conversations.retrieve(conversation.id),
            sdk.conversations.items.list(conversation.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await read
        assert not await one.rows("SELECT 1 FROM conversation_item")


EVERY_SORT: list[Any] = [
    {"role": "developer", "content": "Be short."},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Fine.", "annotations": []}]},
    {"role": "user", "content": [{"type": "input_text", "text": "Look."}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "seen"},
    {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "***"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "patched"},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
]  # fmt: skip


async def test_items_are_listed_page_by_page_in_either_order(store_address: Address) -> None:
    async with replicas(store_address, n=1) as (one,), one.api.sdk as sdk:
        words: list[Any] = [{"role": "user", "content": f"word {n}"} for n in range(7)]
        conversation = await sdk.conversations.create(items=words)
        for order in ("asc", "desc"):
            items = [
                item async for item in sdk.conversations.items.list(conversation.id, limit=3, order=order)
            ]
            texts = [_short(item.to_dict()) for item in items]
            assert texts == [f"user: word {n}" for n in (range(7) if order == "asc" else range(6, -1, -1))]
        with pytest.raises(openai.BadRequestError, match="after"):
            await sdk.conversations.items.list(conversation.id, after="msg_x")


async def test_a_response_gets_its_conversation_and_is_appended_to_it(store_address: Address) -> None:
    settings = one_worker("Hello Ann.", "You are Ann.", "Good bye.")
    async with replicas(store_address, settings) as (one, other), one.api.sdk as sdk, other.api.sdk as there:
        conversation = await sdk.conversations.create(items=[MESSAGE])  # type: ignore[list-item]
        first = await sdk.responses.create(model="a", input="Hello.", conversation=conversation.id)
        assert first.conversation is not None
        assert first.conversation.id == conversation.id
        assert await list_turns(there, conversation.id) == (BEFORE := ["user: My name is Ann.", "user: Hello.", "assistant: Hello Ann."])  # fmt: skip
        stream = await there.responses.create(
            model="a", input="Who am I?", conversation={"id": conversation.id}, stream=True, store=False
        )
        async for event in stream:
            if event.type == "response.completed":  # it is stored before the client gets this event
                assert await list_turns(sdk, conversation.id) == [
                    *BEFORE,
                    "user: Who am I?",
                    "assistant: Hello Ann.",
                ]
        turns = [(m.role, m.text) for m in other.api.worker("a").calls[-1].messages]
        assert turns == [("user", "My name is Ann."), ("user", "Hello."), ("assistant", "Hello Ann."), ("user", "Who am I?")]  # fmt: skip
        later = await sdk.responses.create(
            model="a", input="And?", conversation=conversation.id, background=True
        )
        async with asyncio.timeout(10):
            while "user: And?" not in await list_turns(there, conversation.id):
                await asyncio.sleep(0.05)
        assert (await there.responses.retrieve(later.id)).conversation == first.conversation
        items = await sdk.responses.input_items.list(later.id)
        assert [_short(item.to_dict()) for item in items.data] == ["user: And?"], "its own, not its history"
        counted = await sdk.responses.input_tokens.count(model="a", input="x", conversation=conversation.id)
        assert counted.input_tokens > (await sdk.responses.input_tokens.count(model="a", input="x")).input_tokens  # fmt: skip


async def test_a_repeated_request_adds_its_turn_once(store_address: Address) -> None:
    async with replicas(store_address, one_worker("One.")) as (one, other), one.api.sdk as sdk, other.api.sdk as there:  # fmt: skip
        conversation = await sdk.conversations.create()
        again: Json = {"model": "a", "input": "Hi.", "conversation": conversation.id, "extra_headers": {"Idempotency-Key": "k"}}  # fmt: skip
        await asyncio.gather(*(each.responses.create(**again) for each in (sdk, there, sdk)))
        assert await list_turns(sdk, conversation.id) == (turn := ["user: Hi.", "assistant: One."])
        both = (sdk.responses.create(model="a", input="Hi.", conversation=conversation.id) for _ in range(3))
        await asyncio.gather(*both)
        assert await list_turns(sdk, conversation.id) == turn * 4, "whole turns, one after another"
        for item in (await sdk.conversations.items.list(conversation.id)).data:
            await sdk.conversations.items.delete(item.id or "", conversation_id=conversation.id)
        await there.responses.create(**again)
        assert await list_turns(sdk, conversation.id) == [], "what was deleted does not come back"


async def test_tool_turns_continue_in_their_conversation(store_address: Address) -> None:
    settings = team(workers=[tool_caller("a", text="I look.")], workflows={})
    async with replicas(store_address, settings) as (one, other), one.api.sdk as sdk, other.api.sdk as there:
        conversation = await sdk.conversations.create()
        body: Json = {"model": "a", "tools": TOOLS[:1], "conversation": conversation.id}
        first = await sdk.responses.create(input="Hi.", **body)
        turns = ["user: Hi.", "assistant: I look.", "function_call: look"]
        assert await list_turns(sdk, conversation.id) == turns
        other_one = await sdk.conversations.create()
        elsewhere: Json = body | {"conversation": other_one.id}
        with pytest.raises(openai.BadRequestError, match=conversation.id) as wrong:
            await there.responses.create(input=results(first, "seen"), **elsewhere)
        assert wrong.value.param == "conversation"
        assert await list_turns(sdk, other_one.id) == []
        for each in (there, sdk, there):  # the same results get the same answer again
            response = await each.responses.create(input=results(first, "seen"), **body)
            assert response.output_text == "Done: seen."
        assert await list_turns(sdk, conversation.id) == [
            *turns,
            "function_call_output: seen",
            "assistant: Done: seen.",
        ]
        items = (await sdk.conversations.items.list(conversation.id, order="asc")).data
        await sdk.conversations.items.delete(items[2].id or "", conversation_id=conversation.id)
        after = await sdk.responses.create(model="a", input="And?", conversation=conversation.id)
        assert after.output_text == "Done: nothing.", "a result whose call was deleted is shown to nobody"


async def test_failed_or_invalid_requests_add_no_turn() -> None:
    async with served(one_worker({"error": "refused"})) as api, api.sdk as sdk:
        conversation = await sdk.conversations.create()
        answer = await api.http.post("/v1/responses", json={"model": "a", "input": "x", "conversation": conversation.id})  # fmt: skip
        assert answer.status_code >= 400
        assert await list_turns(sdk, conversation.id) == []
        with pytest.raises(openai.NotFoundError, match="conv_x"):
            await sdk.responses.create(model="a", input="x", conversation="conv_x")
        for body, param in REFUSED:
            refused = await api.http.post("/v1/conversations", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text


async def test_old_turns_are_removed_and_the_conversation_with_its_last_one(store_address: Address) -> None:
    async with replicas(store_address, one_worker("One."), n=1) as (one,), one.api.sdk as sdk:
        conversation, other = [await sdk.conversations.create(items=[MESSAGE]) for _ in "ab"]  # type: ignore[list-item]
        many: list[Json] = [{"id": f"msg_{n}", "type": "message"} for n in range(2 * STEP)]
        await one.api.service.conversations.append(other.id, many)
        old = {"at": now_us() - 31 * DAY_US}
        await one.change("UPDATE conversation_item SET made_us = :at", **old)
        await one.change("UPDATE conversation SET made_us = :at, changed_us = :at", **old)
        await sdk.responses.create(model="a", input="Hi.", conversation=conversation.id)
        await one.records.remove_old(now_us())
        assert await list_turns(sdk, conversation.id) == ["user: Hi.", "assistant: One."]
        with pytest.raises(openai.NotFoundError):
            await sdk.conversations.retrieve(other.id)
        await one.change("UPDATE conversation SET n_bytes = n_bytes + :much", much=MOST_BYTES)
        for request in (
            sdk.responses.create(model="a", input="x", conversation=conversation.id),
            sdk.conversations.items.create(conversation.id, items=[MESSAGE]),  # type: ignore[list-item]
        ):
            with pytest.raises(openai.APIStatusError, match="is full"):
                await request


REFUSED: list[tuple[Json, str]] = [
    ({"items": [{"role": "user", "content": "x"}] * 21}, "items"),
    ({"items": [{"type": "item_reference", "id": "msg_1"}]}, "items[0].type"),
    ({"items": [{"role": "user", "content": "x"}, {"type": "odd"}]}, "items[1].type"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a"),
]


async def test_a_policy_that_keeps_no_text_allows_no_conversation(tmp_path: Path) -> None:
    async with keyed(tmp_path, one_worker("One.")) as it:
        conversation_id = (await it.ask("mine", "POST", "/v1/conversations", {})).json()["id"]
        await it.ask("admin", "POST", f"/v1/admin/teams/{it.ids['search']}/policy", {"store_content": False})
        for path, body in (
            ("/v1/conversations", {}),
            (f"/v1/conversations/{conversation_id}", {"metadata": {"said": "My name is Ann."}}),
            (f"/v1/conversations/{conversation_id}/items", {"items": [MESSAGE]}),
            ("/v1/responses", {"model": "a", "input": "x", "conversation": conversation_id}),
        ):
            refused = await it.ask("mine", "POST", path, body)
            assert refused.status_code == 403, refused.text
            assert "does not allow storing text" in refused.json()["error"]["message"]


async def test_secrets_are_not_stored() -> None:
    secret = f"sk-{'Ab1' * 16}"
    async with served(one_worker("One.")) as api, api.sdk as sdk:
        conversation = await sdk.conversations.create(items=[{"role": "user", "content": f"It is {secret}."}])
        await sdk.responses.create(model="a", input=f"Again: {secret}", conversation=conversation.id)
        assert secret not in str(await list_turns(sdk, conversation.id))
        for changed in (
            await sdk.conversations.create(metadata={"key": secret}),
            await sdk.conversations.update(conversation.id, metadata={"key": secret}),
        ):
            assert changed.metadata == {"key": "[secret removed]"}


async def test_secrets_inside_a_compaction_are_not_stored() -> None:
    secret = f"sk-{'Ab1' * 16}"
    item = {"type": "compaction", "encrypted_content": pack_item(Message.of("user", f"It is {secret}."))}
    async with served(one_worker("One.")) as api, api.sdk as sdk:
        created: Any = (await api.http.post("/v1/conversations", json={"items": [item]})).json()
        stored: Any = (await sdk.conversations.items.list(created["id"])).data[0].to_dict()
        assert unpack_item(stored["encrypted_content"]) == (Message.of("user", "It is [secret removed]."),)
        await sdk.responses.create(model="a", input="Which?", conversation=created["id"])
        assert [m.text for m in api.worker("a").calls[-1].messages] == ["It is [secret removed].", "Which?"]


async def test_a_compaction_that_resembles_a_secret_is_stored_unchanged() -> None:
    pictures = (Message("user", (Image(f"data:image/png;base64,{noise(700_000, n)}"),)) for n in range(99))
    content = next(text for each in pictures if redact_secrets(text := pack_item(each)) != text)
    item = {"type": "compaction", "encrypted_content": content}
    async with served(one_worker("One.")) as api:
        created: Any = (await api.http.post("/v1/conversations", json={"items": [item, MESSAGE]})).json()
        listed: Any = (await api.http.get(f"/v1/conversations/{created['id']}/items")).json()["data"]
        assert listed[-1]["encrypted_content"] == content


async def test_a_lone_surrogate_in_an_answer_is_replaced() -> None:
    async with served(one_worker("Half \ud83d of it.")) as api, api.sdk as sdk:
        conversation = await sdk.conversations.create()
        answer = await sdk.responses.create(model="a", input="Say it.", conversation=conversation.id)
        assert answer.output_text == "Half \ufffd of it."
        assert await list_turns(sdk, conversation.id) == ["user: Say it.", "assistant: Half \ufffd of it."]
        listed = (await api.http.get("/v1/workflows")).json()["data"]
        assert [run["status"] for run in listed] == ["finished"]


async def test_a_conversation_with_too_many_parts_cannot_be_continued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serving.api.request.MOST_PARTS", 200)
    async with served(one_worker("One.")) as api, api.sdk as sdk:
        conversation = await sdk.conversations.create()
        many: Any = [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 101}] * 2
        await sdk.conversations.items.create(conversation.id, items=many)
        with pytest.raises(openai.APIStatusError, match="more than 200 messages and parts"):
            await sdk.responses.create(model="a", input="x", conversation=conversation.id)
