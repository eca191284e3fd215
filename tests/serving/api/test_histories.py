"""Histories that clients send: what Podium returned is accepted in every dialect, and reaches each provider in a form
that it accepts.
"""

import base64
import json
from typing import Any

import pytest

from conductor.model.call import Call
from conductor.run.call_bound import input_bound
from serving.api.dialects.chat.dialect import ChatDialect
from serving.sessions.run_admission import bytes_of
from tests.serving.api.served import Json, Served, plan, served, step, team
from tests.serving.api.test_prompt_cache import ANTHROPIC, GEMINI, OPENAI, ours, text
from tests.serving.workers.test_http import PROVIDERS, Provider
from tests.wires.server import Answer, serving, sse

NAMES = ["$lookup", "a b", "functions.read:0", "查询", "😀", "x" * 300, "é" * 65]
ARGUMENTS = ["{}", '{"a": {"b": [1, null]}}', "", "not json", "[1]", "null", '"x"', '{"n": 123456789012345678901234567890}', '{"a":']  # fmt: skip
DIALECTS = ["/v1/chat/completions", "/v1/messages", "/v1/responses"]
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}


def calling(name: str, arguments: str, thoughts: str = "") -> Answer:
    """Return an answer of OpenAI's wire that calls a tool."""
    call = {"index": 0, "id": "call_up.stream/1", "function": {"name": name, "arguments": arguments}}
    deltas: list[Json] = [{"role": "assistant"}, *([{"reasoning_content": thoughts}] if thoughts else [])]
    deltas += [{"content": "\n\n"}, {"tool_calls": [call]}]
    choices = [{"index": 0, "delta": delta} for delta in deltas]
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 10, "completion_tokens": 400}
    chunks = [sse({"choices": [choice]}) for choice in choices]
    return Answer(instead=(*chunks, sse({"choices": [end], "usage": usage}), b"data: [DONE]\n\n"))


class Client:
    """Client that keeps a conversation in one dialect and sends responses back unchanged, as an agent does."""

    def __init__(self, api: Served, path: str, model: str = "a") -> None:
        self._api, self._path, self._model = api, path, model
        self._turns: list[Json] = []

    async def say(self, words: str) -> list[str]:
        """Ask a question and return the ids of the resulting calls."""
        self._turns.append({"role": "user", "content": words})
        return await self._ask()

    async def give(self, ids: list[str]) -> list[str]:
        """Send results for the calls, and return the ids of new calls."""
        match self._path:
            case "/v1/messages":
                blocks = [{"type": "tool_result", "tool_use_id": id, "content": "R"} for id in ids]
                self._turns.append({"role": "user", "content": blocks})
            case "/v1/responses":
                self._turns += [{"type": "function_call_output", "call_id": id, "output": "R"} for id in ids]
            case _:
                self._turns += [{"role": "tool", "tool_call_id": id, "content": "R"} for id in ids]
        return await self._ask()

    async def _ask(self) -> list[str]:
        field = "input" if self._path == "/v1/responses" else "messages"
        body: Json = {"model": self._model, field: self._turns}
        if self._path == "/v1/messages":
            tools: list[Json] = [{"name": "get", "input_schema": SCHEMA}]
            body |= {"max_tokens": 500, "thinking": {"type": "adaptive", "display": "summarized"}}
        elif self._path == "/v1/responses":
            tools = [{"type": "function", "name": "get", "parameters": SCHEMA}]
            body |= {"store": False, "reasoning": {"summary": "auto"}}
        else:
            tools = [{"type": "function", "function": {"name": "get", "parameters": SCHEMA}}]
        answer = await self._api.http.post(self._path, json=body | {"tools": tools})
        assert answer.status_code == 200, answer.text
        return self._keep(answer.json())

    def _keep(self, answer: Json) -> list[str]:
        match self._path:
            case "/v1/messages":
                self._turns.append({"role": "assistant", "content": answer["content"]})
                return [each["id"] for each in answer["content"] if each["type"] == "tool_use"]
            case "/v1/responses":
                self._turns += answer["output"]
                return [each["call_id"] for each in answer["output"] if each["type"] == "function_call"]
            case _:
                self._turns.append(answer["choices"][0]["message"])
                return [each["id"] for each in self._turns[-1].get("tool_calls", ())]


ODD = [*((name, "{}") for name in NAMES), *(("get", arguments) for arguments in ARGUMENTS)]


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("model", ["a", "mini"])
async def test_tool_calls_returned_to_a_client_are_accepted_again(path: str, model: str):
    async with serving(OPENAI.wire) as upstream:
        settings = ours(OPENAI, upstream.url, plan(step("a", "Find.")))
        async with served(settings) as api:
            for name, arguments in ODD:
                client = Client(api, path, model)
                upstream.answers.append(calling(name, arguments))
                ids = await client.say("Go.")
                assert len(ids) == 1, (name, arguments)
                assert await client.give(ids) == []
                assert await client.say("And?") == []
                for message in upstream.body["messages"]:
                    for call in message.get("tool_calls", ()):
                        assert isinstance(json.loads(call["function"]["arguments"]), dict)


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize(
    "answer",
    [Answer(text=""), Answer(text="\n\n"), Answer(text="", reasoning="Hm."), Answer(extra={"refusal": "I will not."})],
    ids=["nothing", "blank", "thoughts alone", "a refusal"],
)  # fmt: skip
async def test_answers_returned_to_a_client_are_accepted_again(path: str, answer: Answer):
    for provider in (OPENAI, ANTHROPIC):
        if provider is ANTHROPIC and answer.extra:
            continue
        async with serving(provider.wire) as upstream, served(ours(provider, upstream.url)) as api:
            client = Client(api, path)
            upstream.answers.append(answer)
            await client.say("Go.")
            assert await client.say("And?") == []


HISTORY = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
    {"role": "user", "content": "And tomorrow?"},
]
TOOLS = [{"type": "function", "function": {"name": "get", "parameters": SCHEMA}}]
THOUGHTS: list[Json] = [
    {"reasoning_content": "I should look."},
    {"reasoning": "I should look."},
    {"reasoning_details": [{"type": "reasoning.text", "text": "I should look.", "signature": "s"}]},
    {"reasoning_content": "I should look.", "reasoning": "I should look."},
]


def thinking(thoughts: Json) -> list[Json]:
    return [each | (thoughts if each["role"] == "assistant" else {}) for each in HISTORY]


@pytest.mark.parametrize("thoughts", THOUGHTS)
async def test_reasoning_in_the_history_is_forwarded_to_a_worker_by_name(thoughts: Json):
    async with serving(OPENAI.wire) as upstream, served(ours(OPENAI, upstream.url, model="kimi-9")) as api:
        await api.ok({"model": "a", "messages": thinking(thoughts), "tools": TOOLS})
        (message,) = [each for each in upstream.body["messages"] if each["role"] == "assistant"]
    assert {name: message[name] for name in thoughts} == thoughts


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_reasoning_in_other_dialects_reaches_the_worker(path: str):
    """A later question starts a new run, so the reasoning is only in the history."""
    async with serving(OPENAI.wire) as upstream, served(ours(OPENAI, upstream.url, model="kimi-9")) as api:
        client = Client(api, path)
        upstream.answers.append(calling("get", "{}", "I should look."))
        ids = await client.say("Weather?")
        assert await client.give(ids) == []
        await client.say("And tomorrow?")
        message = next(each for each in upstream.body["messages"] if each.get("tool_calls"))
    if path == "/v1/messages":
        assert "I should look." in message["reasoning_content"]
    else:
        assert "reasoning_content" in message


async def test_reasoning_of_other_workers_is_not_sent_to_plan_steps():
    plans = plan(step("a", "Find."))
    async with serving(OPENAI.wire) as upstream, served(ours(OPENAI, upstream.url, plans)) as api:
        await api.ok({"model": "mini", "messages": thinking(THOUGHTS[0]), "tools": TOOLS})
        assert "I should look." not in json.dumps(upstream.body)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "reasoning_details"])
async def test_forwarded_reasoning_counts_as_text(name: str):
    """It counts towards the hold of the call, the key's tokens per minute, the text limit and the memory budget."""
    long_text = "data:x " + "I should look. " * 20_000
    thoughts: Any = (
        [{"type": "reasoning.text", "text": long_text}] if name == "reasoning_details" else long_text
    )
    request = ChatDialect().parse(json.dumps({"model": "a", "messages": thinking({name: thoughts})}).encode())
    assert request.text_chars > len(long_text)
    assert request.token_estimate > len(long_text) // 4
    assert bytes_of(request.conversation) > len(long_text)
    assert input_bound(Call(messages=request.conversation)) > len(long_text)
    async with served(team(limits={"max_text_bytes": 100_000})) as api:
        answer = await api.post({"model": "a", "messages": thinking({name: thoughts})})
        assert answer.status_code == 413


async def test_a_server_that_rejects_reasoning_gets_none_from_then_on():
    def respond(request: Any) -> Answer:
        refuses = "reasoning_content" in json.dumps(request.body)
        return (
            Answer(status=400, error="property 'reasoning_content' is unsupported") if refuses else Answer()
        )

    async with serving(OPENAI.wire) as upstream, served(ours(OPENAI, upstream.url, model="llama-9")) as api:
        upstream.respond = respond
        for _ in range(2):
            await api.ok({"model": "a", "messages": thinking(THOUGHTS[0]), "tools": TOOLS})
        assert len(upstream.requests) == 3


async def test_a_rejected_reasoning_of_one_client_does_not_affect_others():
    def respond(request: Any) -> Answer:
        refuses = "too strange" in json.dumps(request.body)
        return (
            Answer(status=400, error="reasoning_details: must be a list of thoughts") if refuses else Answer()
        )

    strange, own = (
        {"reasoning_details": [{"text": thought}]} for thought in ("too strange", "I should look.")
    )
    async with serving(OPENAI.wire) as upstream, served(ours(OPENAI, upstream.url, model="kimi-9")) as api:
        upstream.respond = respond
        await api.ok({"model": "a", "messages": thinking(strange), "tools": TOOLS})
        await api.ok({"model": "a", "messages": thinking(own), "tools": TOOLS})
        assert "I should look." in json.dumps(upstream.body)


def refuse_blank(request: Any) -> Answer:
    """Enforce Anthropic's rule: text content blocks must be non-empty, and contain non-whitespace text."""
    body = request.body
    blocks = [block for turn in body["messages"] for block in turn["content"]]
    inner = [each for block in blocks if block["type"] == "tool_result" for each in block["content"]]
    texts = [block["text"] for block in (*blocks, *inner) if block["type"] == "text"]
    system = body.get("system", "x")
    texts += [system] if isinstance(system, str) else [block["text"] for block in system]
    if not all(map(str.strip, texts)):
        return Answer(status=400, error="messages: text content blocks must contain non-whitespace text")
    if body["messages"][-1]["role"] == "assistant":
        return Answer(status=400, error="This model does not support assistant message prefill.")
    return Answer()


BLANKS = ["", " ", "\n\n", "\t", "\u00a0", "\u3000"]


@pytest.mark.parametrize("blank", BLANKS)
@pytest.mark.parametrize("model", ["a", "mini"])
async def test_blank_text_is_omitted_for_anthropic(blank: str, model: str):
    call = HISTORY[1]["tool_calls"]  # type: ignore[index]
    histories: list[list[Json]] = [
        [{"role": "user", "content": blank}],
        [{"role": "system", "content": blank}, {"role": "user", "content": "Hello."}],
        [{"role": "system", "content": "S"}, {"role": "user", "content": [text(blank), text("Hello."), text(blank)]}],
        [{"role": "user", "content": "A"}, {"role": "assistant", "content": blank}, {"role": "user", "content": "B"}],
        [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": blank}],
        [{"role": "user", "content": "A"}, {"role": "assistant", "content": blank, "tool_calls": call}, {"role": "tool", "tool_call_id": "call_1", "content": blank}],
    ]  # fmt: skip
    async with serving(ANTHROPIC.wire) as upstream:
        upstream.respond = refuse_blank
        async with served(ours(ANTHROPIC, upstream.url, plan(step("a", "Find.")))) as api:
            for messages in histories:
                await api.ok({"model": model, "messages": messages, "tools": TOOLS})


@pytest.mark.parametrize("blank", BLANKS)
async def test_blank_blocks_of_messages_are_omitted_for_anthropic(blank: str):
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text(blank)], "is_error": True}
    use = {"type": "tool_use", "id": "t", "name": "get", "input": {}}
    body = {
        "model": "a", "max_tokens": 9, "system": [text(blank), text("S", cache_control={"type": "ephemeral"}), text(blank)],
        "tools": [{"name": "get", "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": [text("A")]},
            {"role": "assistant", "content": [text(blank), use, text(blank)]},
            {"role": "user", "content": [result, text(blank)]},
        ],
    }  # fmt: skip
    async with serving(ANTHROPIC.wire) as upstream, served(ours(ANTHROPIC, upstream.url)) as api:
        upstream.respond = refuse_blank
        answer = await api.http.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text


PICTURES = {
    "image/jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "image/png": b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0d",
    "image/gif": b"GIF89a\x01\x00\x01\x00",
    "image/webp": b"RIFF\x1a\x00\x00\x00WEBPVP8L",
}
DECLARED = [
    ("image/jpg", "image/jpeg"), ("image/JPEG", "image/jpeg"), ("IMAGE/Jpg", "image/jpeg"), ("image/pjpeg", "image/jpeg"),
    ("image/x-png", "image/png"), ("image/PNG", "image/png"), ("Image/Gif", "image/gif"), ("image/WEBP", "image/webp"),
    ("image/jpeg", "image/png"), ("image/png", "image/jpeg"),
]  # fmt: skip


def picture_of(provider: Provider, body: Json) -> tuple[str, str]:
    """Return the media type and content of the only picture in a body."""
    if provider is ANTHROPIC:
        source = body["messages"][0]["content"][1]["source"]
        return source["media_type"], source["data"]
    if provider is GEMINI:
        inline = body["contents"][0]["parts"][1]["inlineData"]
        return inline["mime_type"], inline["data"]
    header, _, data = body["messages"][0]["content"][1]["image_url"]["url"].partition(";base64,")
    return header.removeprefix("data:"), data


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS.keys())
@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("scheme", ["data", "DATA"])
async def test_an_images_media_type_is_detected_from_its_data(provider: Provider, path: str, scheme: str):
    async with serving(provider.wire) as upstream, served(ours(provider, upstream.url)) as api:
        for declared, real in DECLARED:
            data = base64.b64encode(PICTURES[real]).decode()
            url = f"{scheme}:{declared};base64,{data}"
            match path:
                case "/v1/messages":
                    picture: Json = {
                        "type": "image",
                        "source": {"type": "base64", "media_type": declared, "data": data},
                    }
                    body: Json = {
                        "max_tokens": 9,
                        "messages": [{"role": "user", "content": [text("?"), picture]}],
                    }
                case "/v1/responses":
                    content = [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": url}]
                    body = {"input": [{"role": "user", "content": content}]}
                case _:
                    content = [text("?"), {"type": "image_url", "image_url": {"url": url}}]
                    body = {"messages": [{"role": "user", "content": content}]}
            answer = await api.http.post(path, json={"model": "a", **body})
            assert answer.status_code == 200, answer.text
            media_type, encoded = picture_of(provider, upstream.body)
            assert (media_type, encoded.replace("-", "+").replace("_", "/")) == (real, data)
