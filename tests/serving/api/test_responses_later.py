"""Later requests about a response: its result, its input, its events again, and responses after it."""

import asyncio
import base64
import random
import zlib
from pathlib import Path
from typing import Any

import openai
import pytest

from conductor.errors import BadTask, TooLarge
from conductor.model.messages import File, Image, Message, Native, Text, ToolCall, ToolResult
from serving.accounts.caller import Scope
from serving.api.attachments import file_by_id, to_file
from serving.api.dialects.read_body import PartCount
from serving.api.dialects.responses.compaction import pack, unpack
from serving.database.address import Address
from serving.edge.checks import PACKED_MARK
from serving.settings.sections import LimitSettings
from tests.serving.api.keyed import keyed
from tests.serving.api.served import Json, Served, scripted, served, team
from tests.serving.api.tool_caller import tool_caller
from tests.serving.store.stores import replicas

ANSWER = "Blue light scatters most."
PATH = "/v1/responses"
TOOLS: list[Any] = [
    {"type": "function", "name": "look", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "agents", "description": "d",
     "tools": [{"type": "function", "name": "spawn", "parameters": {"type": "object"}}]},
]  # fmt: skip


def results(response: Any, *gave: str) -> list[Any]:
    """Return the results that a client sends for the calls of a response."""
    calls = [item for item in response.output if hasattr(item, "call_id")]
    return [
        {"type": f"{call.type}_output", "call_id": call.call_id, "output": text}
        for call, text in zip(calls, gave, strict=True)
    ]


async def test_a_response_can_be_retrieved_until_it_is_deleted() -> None:
    async with served(team()) as api, api.sdk as sdk:
        response = await sdk.responses.create(
            model="mini", input="Why?", instructions="Be short.", metadata={"a": "b"}
        )
        again = await sdk.responses.retrieve(response.id)
        whole, original = again.to_dict(), response.to_dict()
        assert {n: v for n, v in whole.items() if n != "podium"} == {
            n: v for n, v in original.items() if n != "podium"
        }
        items = await sdk.responses.input_items.list(response.id)
        assert [item.to_dict()["content"] for item in items.data] == [
            [{"type": "input_text", "text": "Why?"}]
        ]
        await sdk.responses.delete(response.id)
        for request in (sdk.responses.retrieve(response.id), sdk.responses.delete(response.id)):
            with pytest.raises(openai.NotFoundError):
                await request
        record = await api.newest()
        assert (record["content"], record["answer"]) == (False, "… [25 characters]"), "the run's numbers stay"


async def test_a_response_that_was_not_stored_cannot_be_retrieved() -> None:
    async with served(team()) as api, api.sdk as sdk:
        response = await sdk.responses.create(model="mini", input="Why?", store=False)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(response.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            await sdk.responses.create(model="mini", input="And?", previous_response_id=response.id)


async def test_a_response_after_another_has_its_turns_and_not_its_instructions() -> None:
    async with (
        served(team(workers=[scripted("a", "One.", "Two.", "Three.")], workflows={})) as api,
        api.sdk as sdk,
    ):
        one = await sdk.responses.create(model="a", input="First?", instructions="Rhyme.")
        two = await sdk.responses.create(model="a", input="Second?", previous_response_id=one.id)
        three = await sdk.responses.create(model="a", input="Third?", previous_response_id=two.id)
        turns = [(m.role, m.text) for m in api.worker("a").calls[-1].messages]
        items = await sdk.responses.input_items.list(three.id)
    assert turns == [("user", "First?"), ("assistant", "One."), ("user", "Second?"), ("assistant", "Two."), ("user", "Third?")]  # fmt: skip
    assert (three.previous_response_id, three.output_text) == (two.id, "Three.")
    assert len(items.data) == 1


async def test_items_are_referred_to_by_their_ids() -> None:
    async with served(team(workers=[scripted("a", "One.", "Two.")], workflows={})) as api, api.sdk as sdk:
        one = await sdk.responses.create(model="a", input="First?")
        item = (await sdk.responses.input_items.list(one.id)).data[0]
        refer: list[Any] = [
            {"type": "item_reference", "id": id}
            for id in (item.to_dict()["id"], one.output[0].to_dict()["id"])
        ]
        await sdk.responses.create(model="a", input=[*refer, {"role": "user", "content": "Second?"}])
        texts = [m.text for m in api.worker("a").calls[-1].messages]
    assert texts == ["First?", "One.", "Second?"]


@pytest.mark.parametrize("by_history", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_run_is_one_response_per_wait(by_history: bool, stream: bool) -> None:
    worker = tool_caller("a", [["look"], ["patch", "spawn"]], text="I look first.")
    async with served(team(workers=[worker], workflows={})) as api, api.sdk as sdk:
        history: list[Any] = [{"role": "user", "content": "Go."}]

        async def create(new: list[Any], before: Any = None) -> Any:
            history.extend(new)
            link: Json = {"input": history} if by_history else {"input": new}
            if before and not by_history:
                link["previous_response_id"] = before.id
            answer: Any = await sdk.responses.create(model="a", tools=TOOLS, stream=stream, **link)
            answer = [event async for event in answer][-1].response if stream else answer
            history.extend(item.to_dict() for item in answer.output)
            return answer

        one = await create([] if by_history else history[:1])
        two = await create(results(one, "seen"), one)
        three = await create(list(reversed(results(two, "patched", "spawned"))), two)
        assert [item.type for item in one.output] == ["message", "function_call"]
        assert one.output[0].phase == "commentary"
        assert [(c.type, c.name, getattr(c, "namespace", None)) for c in two.output[1:]] == [
            ("custom_tool_call", "patch", None), ("function_call", "spawn", "agents"),
        ]  # fmt: skip
        assert three.output_text == "Done: seen, patched, spawned."
        runs = (await api.http.get("/v1/workflows")).json()["data"]
        assert len(runs) == 1, "one run, and three responses"
        assert len({one.id, two.id, three.id}) == 3
        for response in (one, two, three):
            retrieved = await sdk.responses.retrieve(response.id)
            assert retrieved.output == response.output
            assert (retrieved.usage, retrieved.status) == (response.usage, "completed")
        items = await sdk.responses.input_items.list(two.id)
        assert next(item.to_dict() for item in items.data)["output"] == "seen"
        again = await create(results(two, "patched", "spawned"), two) if not by_history else three
        assert (again.id, again.output_text) == (three.id, three.output_text), (
            "the same results: the same answer"
        )
        four = await create([{"role": "user", "content": "Thanks."}], three)
        roles = [m.role for m in _calls_of(api)[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant", "user"]
    assert four.id[:-2] != three.id[:-2], "another run"


def _calls_of(api: Served) -> list[Any]:
    worker: Any = next(wire for wire in api.service.pool.clients if wire.name == "a")
    return worker.requests


async def test_a_response_after_tools_is_retrieved_with_its_own_fields() -> None:
    async with (
        served(team(workers=[tool_caller("a", [["look"], ["look"]])], workflows={})) as api,
        api.sdk as sdk,
    ):
        body: Any = {"model": "a", "tools": TOOLS}
        one = await sdk.responses.create(**body, input="Go.", metadata={"turn": "1"})
        link: Any = {"previous_response_id": one.id, "input": results(one, "seen")}
        two = await sdk.responses.create(
            **body, **link, metadata={"turn": "2"}, reasoning={"summary": "auto"}
        )
        for response in (one, two):
            retrieved = await sdk.responses.retrieve(response.id)
            assert retrieved.to_dict() | {"podium": None} == response.to_dict() | {"podium": None}
        hidden: Any = {"previous_response_id": two.id, "input": results(two, "seen"), "store": False}
        three = await sdk.responses.create(**body, **hidden)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(three.id)
        assert (await sdk.responses.retrieve(two.id)).metadata == {"turn": "2"}


async def test_a_background_response_can_be_polled_cancelled_and_streamed_again() -> None:
    slow = scripted("slow", {"text": "x y", "stall_after_tokens": 1})
    async with (
        served(team(workers=[scripted("a", "One two three."), slow], workflows={})) as api,
        api.sdk as sdk,
    ):
        response = await sdk.responses.create(model="a", input="Go.", background=True)
        assert response.status == "in_progress"
        responses: list[Any] = []

        async def look() -> None:
            responses.append(await sdk.responses.retrieve(response.id))

        while not responses or responses[-1].status == "in_progress":
            await look()
        assert (responses[-1].status, responses[-1].output_text, responses[-1].background) == (
            "completed",
            "One two three.",
            True,
        )
        stalled = await sdk.responses.create(model="slow", input="Go.", background=True)
        with pytest.raises(openai.BadRequestError, match="Cancel it before you delete it"):
            await sdk.responses.delete(stalled.id)
        with pytest.raises(openai.BadRequestError, match="still in progress"):
            await sdk.responses.create(model="a", input="x", previous_response_id=stalled.id)
        for _ in range(2):
            assert (await sdk.responses.cancel(stalled.id)).status == "cancelled"


async def test_a_background_stream_can_be_resumed_after_any_event() -> None:
    async with served(team()) as api, api.sdk as sdk:
        stream = await sdk.responses.create(
            model="mini", input="Go.", background=True, stream=True, reasoning={"summary": "auto"}
        )
        live: list[Any] = [event.to_dict() async for event in stream]
        id = live[0]["response"]["id"]
        for after in range(len(live)):
            resumed = await sdk.responses.retrieve(id, stream=True, starting_after=after)
            again: list[Any] = [event.to_dict() async for event in resumed]
            assert [(e["type"], e["sequence_number"], e.get("delta")) for e in again] == [
                (e["type"], e["sequence_number"], e.get("delta")) for e in live[after + 1 :]
            ]


async def test_any_stored_response_can_be_streamed_again() -> None:
    async with served(team()) as api, api.sdk as sdk:
        response = await sdk.responses.create(model="mini", input="Go.")
        events: list[Any] = [event async for event in await sdk.responses.retrieve(response.id, stream=True)]
        assert events[-1].response.output_text == ANSWER
        with pytest.raises(openai.BadRequestError, match="starting_after"):
            await sdk.responses.retrieve(response.id, stream=True, starting_after=3)


async def test_input_is_counted_and_compacted_without_a_call() -> None:
    async with served(team(workers=[scripted("a", "Ann.")], workflows={})) as api, api.sdk as sdk:
        counted = await sdk.responses.input_tokens.count(model="a", input="Why is the sky blue?")
        assert 3 <= counted.input_tokens <= 10
        with pytest.raises(openai.NotFoundError, match="unknown"):
            await sdk.responses.input_tokens.count(model="unknown", input="Why is the sky blue?")
        short = await sdk.responses.compact(model="a", input=[{"role": "user", "content": "I am Ann."}])
        assert not api.worker("a").calls
        item: Any = short.output[0].to_dict()
        await sdk.responses.create(model="a", input=[item, {"role": "user", "content": "Who am I?"}])
        assert [m.text for m in api.worker("a").calls[-1].messages] == ["I am Ann.", "Who am I?"]


MOST_BODY_BYTES = LimitSettings().max_body_bytes


def noise(n_bytes: int, seed: int = 1) -> str:
    """Base64 text that cannot be compressed to less than its bytes."""
    return base64.b64encode(random.Random(seed).randbytes(n_bytes)).decode()


def pack_item(*messages: Message) -> str:
    return pack(messages, MOST_BODY_BYTES)


def unpack_item(content: str) -> tuple[Message, ...]:
    return unpack(content, "input[0]", PartCount(MOST_BODY_BYTES))


@pytest.mark.parametrize(
    "text",
    ["漢" * 3_900_000, '"\n' * 4_000_000, "x" * 17_000_000, "\ud800" * 1000],
    ids=["wide", "escaped", "long", "half"],
)
def test_a_compaction_round_trips(text: str) -> None:
    messages = (Message.of("user", text), Message.of("assistant", "Yes."))
    assert unpack_item(pack_item(*messages)) == messages


@pytest.mark.parametrize(
    "message",
    [
        Message.of("user", "漢" * 6_000_000),
        Message("user", (Image(f"data:image/png;base64,{noise(13_300_000)}"),)),
    ],
    ids=["unpacked", "packed"],
)
def test_messages_too_large_for_a_request_are_not_compacted(message: Message) -> None:
    with pytest.raises(TooLarge, match="max_body_bytes"):
        pack_item(message)


def test_several_compactions_together_are_limited_to_a_body() -> None:
    half = pack_item(Message.of("user", "x" * (MOST_BODY_BYTES // 2)))
    assert len(half) < 100_000
    count = PartCount(MOST_BODY_BYTES)
    unpack(half, "input[0]", count)
    with pytest.raises(TooLarge, match="max_body_bytes"):
        unpack(half, "input[1]", count)


async def test_a_compaction_of_images_can_be_sent() -> None:
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,iVBORw0KGgoA{noise(750_000)}"}
    worker = scripted("a", "Ann.", sees_images=True)
    async with served(team(workers=[worker], workflows={})) as api, api.sdk as sdk:
        short = await sdk.responses.compact(model="a", input=[{"role": "user", "content": [picture] * 9}])
        item: Any = short.output[0].to_dict()
        assert len(item["encrypted_content"]) > 9_000_000
        await sdk.responses.create(model="a", input=[item, {"role": "user", "content": "What is it?"}])
        message = api.worker("a").calls[-1].messages[0]
        assert [each.url for each in message.parts if isinstance(each, Image)] == [picture["image_url"]] * 9


async def test_a_conversation_is_compacted_only_if_its_text_can_be_sent() -> None:
    limits = {"max_text_bytes": 3000}
    async with (
        served(team(workers=[scripted("a", "Ann.")], workflows={}, limits=limits)) as api,
        api.sdk as sdk,
    ):
        conversation = await sdk.conversations.create(items=[{"role": "user", "content": "x" * 2000}])
        body: Any = {"model": "a", "conversation": conversation.id, "input": "y" * 2000}
        answer = await api.http.post(f"{PATH}/compact", json=body)
        assert (answer.status_code, "limits.max_text_bytes" in answer.text) == (413, True)


def test_a_compaction_written_by_a_client_has_the_limits_of_items() -> None:
    native = Message("assistant", (Text("x"),), Native("claude", "", [{"type": "web_search"}]))
    assert unpack_item(pack_item(native)) == (Message.of("assistant", "x"),)
    thoughts = {
        "reasoning_content": "Hm.",
        "role": "system",
        "content": "x",
        "tool_calls": [],
        "reasoning": 1,
    }
    thoughtful = Message("assistant", (Text("x"),), thoughts=thoughts)
    assert unpack_item(pack_item(thoughtful))[0].thoughts == {"reasoning_content": "Hm."}
    asking = Message("user", (Text("x"),), thoughts={"reasoning_content": "Hm."})
    assert unpack_item(pack_item(asking)) == (Message.of("user", "x"),)
    pictures = [
        Message("user", (Image("file:///x"),)),
        Message("tool", (ToolResult("1", (Image("gopher://x"),)),)),
        Message("system", (Image("https://example.com/x.png"),)),
        Message("user", (ToolCall("1", "look", "{}"),)),
        Message("assistant", (ToolResult("1"),)),
        Message("tool", (Text("x"),)),
    ]
    files = [
        Message("user", (file,))
        for file in (
            File("a.pdf", "http://10.0.0.1/a.pdf"),
            File("a.pdf", "data:application/pdf;base64,AAAA"),
            File("a.txt\n</file>", text="x"),
            File("a.txt", "data:application/pdf;base64,JVBERi0=", text="x"),
        )
    ]
    own = Message("user", (to_file("a.pdf", "JVBERi0="), to_file("ä.txt", "eA=="), file_by_id("file-1")))
    assert unpack_item(pack_item(own)) == (own,)
    for message in (*pictures, *files):
        with pytest.raises(BadTask, match="encrypted_content"):
            unpack_item(pack_item(message))


async def test_any_replica_can_return_any_response(store_address: Address) -> None:
    worker = tool_caller("a", [["look"]])
    async with replicas(store_address, team(workers=[worker], workflows={})) as (first, second):
        one, other = first.api.sdk, second.api.sdk
        body: Json = {"model": "a", "input": "Go.", "tools": TOOLS}
        waits = await one.responses.create(**body, background=True, stream=True)
        live: list[Any] = [event.to_dict() async for event in waits]
        id = live[0]["response"]["id"]
        assert [item["type"] for item in live[-1]["response"]["output"]] == ["function_call"]
        again: list[Any] = [
            event.to_dict() async for event in await other.responses.retrieve(id, stream=True)
        ]
        assert [(e["type"], e["sequence_number"]) for e in again] == [
            (e["type"], e["sequence_number"]) for e in live
        ]
        retrieved = await other.responses.retrieve(id)
        goes_on = await other.responses.create(
            model="a",
            previous_response_id=id,
            input=results(retrieved, "seen"),
            tools=TOOLS,
            background=True,
            stream=True,
        )
        live = [event.to_dict() async for event in goes_on]
        response = await one.responses.retrieve(live[0]["response"]["id"])
        assert response.output_text == "Done: seen."
        later = await one.responses.retrieve(response.id, stream=True, starting_after=3)
        numbers = [event.sequence_number async for event in later]
        assert numbers == [event["sequence_number"] for event in live[4:]]
        for sdk in (one, other):
            assert (await sdk.responses.retrieve(response.id)).output_text == "Done: seen."
            assert [item.type for item in (await sdk.responses.retrieve(id)).output] == ["function_call"]
        await one.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(response.id)


async def test_a_response_of_another_team_is_treated_as_missing(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        body = {"model": "mini", "input": "Why?"}
        mine = (await it.ask("mine", "POST", PATH, body)).json()
        for who, status in (
            ("mine", 200),
            ("only read", 200),
            ("admin", 200),
            ("other team", 404),
            ("only run", 403),
        ):
            assert (await it.ask(who, "GET", f"{PATH}/{mine['id']}")).status_code == status, who
        link = body | {"previous_response_id": mine["id"]}
        for who, status in (("mine", 200), ("other team", 400), ("only run", 400)):
            assert (await it.ask(who, "POST", PATH, link)).status_code == status, who
        refer = body | {"input": [{"type": "item_reference", "id": mine["output"][0]["id"]}]}
        assert (await it.ask("other team", "POST", PATH, refer)).status_code == 400
        own = (await it.ask("only run", "POST", PATH, body)).json()
        link = body | {"previous_response_id": own["id"]}
        assert (await it.ask("only run", "POST", PATH, link)).status_code == 200


async def test_a_stream_ends_when_its_readers_key_is_revoked(
    tmp_path: Path,
) -> None:
    slow = scripted("slow", {"text": "x y", "stall_after_tokens": 1})
    settings = team(workers=[slow], workflows={}, limits={"heartbeat_s": 0.1})
    async with keyed(tmp_path, settings) as it:
        body = {"model": "slow", "input": "Go.", "background": True}
        path = f"{PATH}/{(await it.ask('mine', 'POST', PATH, body)).json()['id']}"

        async def read(who: str, start: asyncio.Event) -> str:
            text = ""
            url = f"{path}?stream=true"
            async with it.api.http.stream("GET", url, headers=it.headers(who)) as answer:
                async for line in answer.aiter_lines():
                    text += line
                    start.set()
            return text

        key, key_record = await it.directory.create_key("second", "search", {Scope.READ})
        it.secrets["second"] = key.reveal()
        starts = {who: asyncio.Event() for who in ("second", "mine")}
        second, mine = (asyncio.create_task(read(who, start)) for who, start in starts.items())
        for start in starts.values():
            await start.wait()
        assert (await it.ask("admin", "DELETE", f"/v1/admin/keys/{key_record.id}")).status_code == 200
        text = await second
        assert "response.created" in text
        assert not mine.done()
        assert (await it.ask("second", "GET", path)).status_code == 401
        assert (await it.ask("mine", "POST", f"{path}/cancel")).status_code == 200
        assert "cancelled" in await mine
        assert "cancelled" not in text


def packed_json(text: bytes) -> str:
    """A compaction item's content of a client's own making."""
    return PACKED_MARK + base64.urlsafe_b64encode(zlib.compress(text, 9)).decode()


@pytest.mark.parametrize(
    "text",
    [
        b'[{"type":"Message","role":"user","parts":[]}' + b',{"type":"Message","role":"user","parts":[]}' * 60_000 + b"]",
        b"[" + b"[]," * 600_000 + b"[]]",
        b"[" + b"1," * 600_000 + b"1]",
    ],
    ids=["messages", "arrays", "numbers"],
)  # fmt: skip
def test_a_compaction_has_at_most_as_many_parts_as_a_body(text: bytes) -> None:
    with pytest.raises(BadTask, match="Split it into several requests"):
        unpack_item(packed_json(text))


async def test_several_compactions_have_at_most_as_many_parts_as_one() -> None:
    empty = b'{"type":"Message","role":"user","parts":[]}'
    item = {"type": "compaction", "encrypted_content": packed_json(b"[%s]" % b",".join([empty] * 15_000))}
    async with served(team(workers=[scripted("a", "Ann.")], workflows={})) as api:
        for path, body in (
            (PATH, {"model": "a", "input": [item] * 4}),
            (f"{PATH}/input_tokens", {"input": [item] * 4}),
            ("/v1/conversations", {"items": [item] * 20}),
        ):
            answer = await api.http.post(path, json=body)
            assert (answer.status_code, "Split it into several requests" in answer.text) == (400, True)
        answer = await api.http.post(
            PATH, json={"model": "a", "input": [item, {"role": "user", "content": "x"}]}
        )
        assert answer.status_code == 200


async def test_a_compaction_with_too_many_messages_is_rejected() -> None:
    long = pack_item(*[Message("user", ())] * 21_000)
    async with served(team(workers=[scripted("a", "Ann.")], workflows={})) as api:
        items = [{"type": "compaction", "encrypted_content": long}, {"role": "user", "content": "x"}]
        for path in (PATH, f"{PATH}/input_tokens", f"{PATH}/compact"):
            answer = await api.http.post(path, json={"model": "a", "input": items})
            assert answer.status_code == 413
        assert not api.worker("a").calls


async def test_many_references_to_one_response_load_it_once() -> None:
    async with served(team(workers=[scripted("a", "Ann.")], workflows={})) as api, api.sdk as sdk:
        lines: Any = [{"role": "user", "content": f"Line {n}."} for n in range(50)]
        response = await sdk.responses.create(model="a", input=lines)
        items = await sdk.responses.input_items.list(response.id, limit=100, order="asc")
        looks, find = 0, api.service.records

        async def count(*args: Any) -> Any:
            nonlocal looks
            looks += 1
            return await find(*args)

        api.service.records = count
        references: Any = [{"type": "item_reference", "id": item.id} for item in items.data]
        await sdk.responses.create(model="a", input=references)
        assert [m.text for m in api.worker("a").calls[-1].messages] == [f"Line {n}." for n in range(50)]
        assert looks == 1
