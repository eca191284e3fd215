"""Tools on every provider's wire, against servers that sign their turns and reject changes."""

import copy
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from conductor.errors import WorkerRefused
from conductor.model.call import Call, Sampling
from conductor.model.messages import File, Image, Message, Native, Text, Tool, ToolChoice, ToolResult, Toolset
from conductor.model.reply import CallResult, FinishReason
from conductor.model.worker import Worker
from serving.settings.known_models import Accepts
from serving.workers.anthropic import AnthropicWorker
from serving.workers.chat_tools import messages_json
from serving.workers.gemini import GeminiWorker
from serving.workers.openai import OpenAIWorker
from serving.workers.openai_responses import OpenAIResponsesWorker
from serving.workers.provider_account import ProviderAccount
from tests.wires.anthropic import AnthropicWire
from tests.wires.gemini import GeminiWire
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, Wire, WireServer, serving
from tests.wires.signing import SigningAnthropic, SigningChat, SigningGemini, SigningResponses

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = Toolset((Tool("read", "Reads a file.", SCHEMA), Tool("write", "Writes a file.", SCHEMA)))
START = (Message.of("system", "Be short."), Message.of("user", "Mend it."))
PICTURE = Image("data:image/png;base64,aGVsbG8=")
PDF = File("a.pdf", "data:application/pdf;base64,JVBERi0xLjc=")


@dataclass(frozen=True)
class Provider:
    wire: Wire
    signing: Any
    worker: type[OpenAIWorker] | type[AnthropicWorker] | type[GeminiWorker]
    path: str = ""


PROVIDERS = {
    "chat": Provider(OpenAIWire(), SigningChat(), OpenAIWorker, "/v1"),
    "responses": Provider(OpenAIWire(), SigningResponses(), OpenAIResponsesWorker, "/v1"),
    "anthropic": Provider(AnthropicWire(), SigningAnthropic(), AnthropicWorker),
    "gemini": Provider(GeminiWire(), SigningGemini(), GeminiWorker),
}
each_provider = pytest.mark.parametrize("provider", PROVIDERS.values(), ids=PROVIDERS.keys())


@asynccontextmanager
async def asking(provider: Provider, key: str = "sk-one") -> AsyncIterator[tuple[Worker, WireServer]]:
    async with serving(provider.wire) as server:
        server.respond = provider.signing.respond
        yield make(provider, server, key), server


def make(provider: Provider, server: WireServer, key: str) -> Worker:
    accepts = Accepts(default_effort="high")
    family = "claude-opus-4-7" if provider.worker is AnthropicWorker else ""
    return provider.worker(
        ProviderAccount("w", "the-model", key, f"{server.url}{provider.path}", family=family, accepts=accepts)
    )


async def ask(worker: Worker, messages: tuple[Message, ...], tools: Toolset = TOOLS) -> CallResult:
    async with worker.open(Call(messages, Sampling(effort="high"), tools=tools)) as reply:
        async for _ in reply:
            pass
    return reply.result


def go_on(
    messages: tuple[Message, ...], result: CallResult, *, is_error: bool = False
) -> tuple[Message, ...]:
    """Return the conversation with the turn and the results of its calls, in reverse order."""
    parts = (Text(result.output),) if result.output else ()
    turn = Message("assistant", (*parts, *result.tool_calls), result.native)
    results = [
        ToolResult(call.id, (Text(f"it is {call.arguments}"), PICTURE), is_error)
        for call in result.tool_calls
    ]
    return (*messages, turn, *(Message("tool", (each,)) for each in reversed(results)))


@each_provider
async def test_tool_turns_are_sent_back_unchanged(provider: Provider):
    async with asking(provider) as (worker, _):
        first = await ask(worker, START)
        messages = go_on(START, first)
        second = await ask(worker, messages)
        messages = go_on(messages, second, is_error=True)
        third = await ask(worker, (*messages, Message.of("user", "And be quick.")))
        await worker.aclose()  # pyright: ignore[reportAttributeAccessIssue]
    assert [(each.name, json.loads(each.arguments)) for each in first.tool_calls] == [
        ("read", {"path": "a"}),
        ("read", {"path": "b"}),
    ]
    assert len({each.id for each in first.tool_calls}) == 2
    assert [each.name for each in second.tool_calls] == ["write"]
    assert (first.finish, second.finish) == (FinishReason.TOOL_CALLS, FinishReason.TOOL_CALLS)
    assert (third.output, third.finish, third.tool_calls) == ("done", FinishReason.STOP, ())


@each_provider
async def test_pdfs_of_users_and_tools_are_sent_unchanged(provider: Provider):
    conversation = (*START[:1], Message("user", (Text("Read it."), PDF)))
    async with asking(provider) as (worker, server):
        first = await ask(worker, conversation)
        assert json.dumps(server.body).count("JVBERi0xLjc=") == 1
        assistant, *tool_turns = go_on(conversation, first)[len(conversation) :]
        results = (
            Message("tool", tuple(replace(each, parts=(PDF,)) for each in message.tool_results))
            for message in tool_turns
        )
        await ask(worker, (*conversation, assistant, *results))
        assert json.dumps(server.body).count("JVBERi0xLjc=") == 3
        await worker.aclose()  # pyright: ignore[reportAttributeAccessIssue]


@each_provider
async def test_a_native_turn_round_trips_through_a_record(provider: Provider):
    async with asking(provider) as (worker, _):
        first = await ask(worker, START)
        assert first.native is not None
        stored_turn = replace(first.native, payload=json.loads(json.dumps(first.native.payload)))
        second = await ask(worker, go_on(START, replace(first, native=stored_turn)))
        await worker.aclose()  # pyright: ignore[reportAttributeAccessIssue]
    assert [each.name for each in second.tool_calls] == ["write"]


def _tamper(value: Any) -> Any:
    """Change every long text, except those that identify a part."""
    match value:
        case dict():
            return {k: v if k in ("type", "role", "id", "call_id", "name", "ids") else _tamper(v) for k, v in value.items()}  # fmt: skip
        case list():
            return [_tamper(each) for each in value]
        case str() if len(value) > 40:
            return value[:9] + ("B" if value[9] == "A" else "A") + value[10:]
        case _:
            return value


def _without_first(payload: Any) -> Any:
    match payload:
        case {"parts": parts, "ids": ids}:
            return {"parts": parts[1:], "ids": ids}
        case {"reasoning_content": _, **rest}:
            return rest
        case _:
            return payload[1:]


@each_provider
@pytest.mark.parametrize("change", [_tamper, _without_first], ids=["signature", "missing"])
async def test_the_test_servers_reject_changed_turns(provider: Provider, change: Callable[[Any], Any]):
    async with asking(provider) as (worker, _):
        first = await ask(worker, START)
        assert first.native is not None
        changed = replace(first.native, payload=change(copy.deepcopy(first.native.payload)))
        with pytest.raises(WorkerRefused):
            await ask(worker, go_on(START, replace(first, native=changed)))
        with pytest.raises(WorkerRefused):
            await ask(worker, go_on((*START, Message.of("user", "before")), first))
        await worker.aclose()  # pyright: ignore[reportAttributeAccessIssue]


@each_provider
@pytest.mark.parametrize("stranger", ["another key", "another worker"])
async def test_signatures_are_sent_only_to_their_own_account_and_worker(provider: Provider, stranger: str):
    async with asking(provider) as (worker, server):
        first = await ask(worker, START)
        assert first.native is not None
        other_worker = make(provider, server, "sk-two" if stranger == "another key" else "sk-one")
        native = first.native
        if stranger == "another worker":
            native = Native("someone", native.account, native.payload)
        server.respond = PLAIN[provider.worker]
        result = await ask(other_worker, go_on(START, replace(first, native=native)))
        request_text = json.dumps(server.body)
        await worker.aclose()  # pyright: ignore[reportAttributeAccessIssue]
        await other_worker.aclose()  # pyright: ignore[reportAttributeAccessIssue]
    assert result.output == "done"
    for sign in ("reasoning_content", 'encrypted_content"', "signature", "thoughtSignature"):
        assert f'"{sign}' not in request_text.replace('"reasoning.encrypted_content"', "")
    assert "it is" in request_text


def _answer_plainly(signing: Any) -> Callable[[Any], Any]:
    return lambda request: Answer(instead=tuple(signing.events(request, 2, [])))


PLAIN: dict[Any, Callable[[Any], Any]] = {
    each.worker: _answer_plainly(each.signing) for each in PROVIDERS.values()
}


@each_provider
async def test_a_call_of_an_unoffered_tool_is_an_error(provider: Provider):
    none = replace(TOOLS, choice=ToolChoice("none"))
    async with asking(provider) as (worker, server):
        server.respond = lambda request: _call_anyway(provider, request)
        with pytest.raises(WorkerRefused, match="the request offers none"):
            await ask(worker, START, none)
        assert not server.body["tools"]
        await worker.aclose()  # pyright: ignore[reportAttributeAccessIssue]


def _call_anyway(provider: Provider, request: Any) -> Any:
    request.body.setdefault("tools", None)
    return Answer(instead=tuple(provider.signing.events(request, 1, [("write", {"path": "c"})])))


@each_provider
async def test_a_custom_tool_is_sent_as_a_function_and_returned_as_text(provider: Provider):
    custom = Toolset((Tool("write", "Runs it.", kind="custom", namespace="shell"), Tool("read", "", SCHEMA)))
    async with asking(provider) as (worker, server):
        server.respond = lambda request: _call_custom(provider, request)
        result = await ask(worker, START, custom)
        tools_text = json.dumps(server.body["tools"])
        await worker.aclose()  # pyright: ignore[reportAttributeAccessIssue]
    call = result.tool_calls[0]
    assert (call.name, call.namespace, call.kind, call.arguments) == ("write", "shell", "custom", "ls -l")
    assert '"shell__write"' in tools_text
    assert '"input"' in tools_text


def _call_custom(provider: Provider, request: Any) -> Any:
    return Answer(instead=tuple(provider.signing.events(request, 1, [("shell__write", {"input": "ls -l"})])))


def test_reasoning_fields_never_replace_message_fields():
    thoughts = {"role": "system", "content": [{"type": "image_url"}], "tool_calls": [{}], "reasoning": "Hm."}
    turn = Message("assistant", (Text("Hi."),), thoughts=thoughts)
    assert messages_json([turn], lambda message: message.text) == [
        {"role": "assistant", "content": "Hi.", "reasoning": "Hm."}
    ]
