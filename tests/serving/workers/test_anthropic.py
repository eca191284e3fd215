"""Behaviour specific to the Anthropic Messages API."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import anthropic
import httpx2
import pytest

from conductor.errors import ContextOverflow, WorkerBusy, WorkerError, WorkerRefused, WorkerUnavailable
from conductor.model.call import Call, CallSite, Grammar, Sampling
from conductor.model.messages import (
    File,
    Image,
    Message,
    Native,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Toolset,
)
from conductor.model.operation import PromptCache, WireOptions
from conductor.model.reply import Delta, FinishReason
from conductor.model.terms import Terms
from conductor.model.usage import Usage
from conductor.model.worker import PoolMember
from conductor.plan.prompts import Prompts
from serving.clients import build_client
from serving.settings.model_access import ModelAccess
from serving.settings.settings import parse
from serving.workers.anthropic import AnthropicWorker, fault, thinking_for
from serving.workers.cache_marks import are_for_an_hour, least_tokens
from serving.workers.http_errors import ErrorMapper
from serving.workers.provider_account import ProviderAccount
from tests.conductor.team import Player
from tests.wires.anthropic import AnthropicWire
from tests.wires.server import Answer, WireServer, serving

USER = Message.of("user", "What is two and two?")
BARE = Call(messages=(USER,))


def words(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


SCHEMA: dict[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


async def ask(server: WireServer, call: Call = BARE, model: str = "claude-9", **settings: object):
    worker = AnthropicWorker(ProviderAccount("w", model, "sk-ant-test", server.url, **settings))  # type: ignore[arg-type]
    try:
        async with worker.open(call) as reply:
            return [delta async for delta in reply]
    finally:
        await worker.aclose()


async def test_a_minimal_call_sends_only_required_fields():
    async with serving(AnthropicWire()) as server:
        await ask(server)
    turns = [{"role": "user", "content": words("What is two and two?")}]
    assert server.body == {"model": "claude-9", "max_tokens": 4096, "messages": turns, "stream": True}
    assert server.requests[0].path == "/v1/messages"


def test_the_sdks_own_tracing_is_off():
    assert AnthropicWorker(ProviderAccount("w", "claude-9", "sk-ant-test"))._client._tracer is None


async def test_every_parameter_of_a_call_is_sent_except_the_seed():
    call = Call((USER,), Sampling(max_output_tokens=50, temperature=0.0, top_p=0.9, stop=("END",), seed=7, effort="high"), grammar=Grammar("root ::= ...", SCHEMA))  # fmt: skip
    async with serving(AnthropicWire()) as server:
        await ask(server, call)
    body = server.body
    assert (body["max_tokens"], body["temperature"], body["top_p"], body["stop_sequences"]) == (
        50,
        0.0,
        0.9,
        ["END"],
    )
    assert body["output_config"] == {
        "effort": "high",
        "format": {"type": "json_schema", "schema": SCHEMA},
    }
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert "seed" not in body


async def test_unsupported_schema_keywords_become_a_description():
    steps = {"type": "array", "items": {"type": "string"}, "maxItems": 3}
    schema = SCHEMA | {"properties": {"steps": steps}, "required": ["steps"]}
    async with serving(AnthropicWire()) as server:
        await ask(server, Call(messages=(USER,), grammar=Grammar("root ::= ...", schema)))
    steps_schema = server.body["output_config"]["format"]["schema"]["properties"]["steps"]
    assert "maxItems" not in steps_schema
    assert "maxItems: 3" in steps_schema["description"]
    assert steps["maxItems"] == 3, "the call's own schema stays as it is"


async def test_system_messages_come_first_and_adjacent_messages_of_one_role_are_merged():
    messages = (
        Message.of("system", "Be short."), USER, Message.of("system", "Be kind."), Message.of("user", "Please."),
        Message.of("assistant", "4"), Message.of("assistant", ""), Message.of("user", "Sure?"),
    )  # fmt: skip
    async with serving(AnthropicWire()) as server:
        await ask(server, Call(messages=messages))
    assert server.body["system"] == "Be short.\n\nBe kind."
    assert server.body["messages"] == [
        {"role": "user", "content": words("What is two and two?", "Please.")},
        {"role": "assistant", "content": words("4")},
        {"role": "user", "content": words("Sure?")},
    ]


async def test_a_lone_system_prompt_is_sent_as_a_question():
    async with serving(AnthropicWire()) as server:
        await ask(server, Call(messages=(Message.of("system", "Say four."),)))
    assert server.body["messages"] == [{"role": "user", "content": words("Say four.")}]
    assert "system" not in server.body


async def test_images_and_pdfs_are_sent_as_base64_or_as_a_url():
    parts = (
        Text("What?"),
        Image("data:image/png;base64,iVBORw0KGgo="),
        Image("https://pictures.example/cat.jpg"),
        File("a.pdf", "data:application/pdf;base64,JVBERi0xLjc="),
    )
    async with serving(AnthropicWire()) as server:
        await ask(server, Call(messages=(Message("user", parts),)), fetches_pictures=True)
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjc="}
    png = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert server.body["messages"][0]["content"] == [
        *words("What?"),
        {"type": "image", "source": png},
        {"type": "image", "source": {"type": "url", "url": "https://pictures.example/cat.jpg"}},
        {"type": "document", "title": "a.pdf", "source": pdf},
    ]


async def test_extra_body_overrides_the_request():
    async with serving(AnthropicWire()) as server:
        await ask(server, Call((USER,), Sampling(temperature=0.2)), extra_body={"temperature": 1, "top_k": 5})
    assert (server.body["temperature"], server.body["top_k"]) == (1, 5)


@pytest.mark.parametrize(
    ("model", "effort", "max_tokens", "thinking", "own_effort"),
    [
        ("claude-sonnet-4-20250514", "high", 100_000, {"type": "enabled", "budget_tokens": 16_384}, None),
        ("claude-sonnet-4-20250514", "high", 4096, {"type": "enabled", "budget_tokens": 2048}, None),
        ("claude-sonnet-4-20250514", "max", 1000, None, None),
        ("claude-sonnet-4-20250514", "none", 4096, None, None),
        ("claude-opus-4-5", "low", 4096, {"type": "enabled", "budget_tokens": 1024}, None),
        ("claude-3-7-sonnet-latest", "low", 4096, {"type": "enabled", "budget_tokens": 1024}, None),
        ("claude-3-5-haiku-latest", "high", 4096, None, None),
        ("claude-opus-4-6", "xhigh", 4096, {"type": "adaptive", "display": "summarized"}, "xhigh"),
        ("claude-opus-4-6", "minimal", 4096, {"type": "disabled"}, "low"),
        ("claude-opus-4-6", None, 4096, None, None),
    ],
)
def test_effort_is_mapped_to_the_models_parameters(model, effort, max_tokens, thinking, own_effort):
    assert thinking_for(model, effort, max_tokens) == (thinking, own_effort)


async def test_input_tokens_include_cache_reads_and_writes():
    answer = Answer(
        input_tokens=100, cached_tokens=60, output_tokens=9, reasoning_tokens=4, extra={"cache_written": 30}
    )
    async with serving(AnthropicWire(), answer) as server:
        deltas = await ask(server)
    assert deltas[-1].usage == Usage(100, 9, 60, 4, cache_write_tokens=30)


FOR_AN_HOUR: tuple[Any, ...] = ("1h",)
MIXED: tuple[Any, ...] = ("5m", "1h")
SPLIT = {"ephemeral_5m_input_tokens": 300, "ephemeral_1h_input_tokens": 700}
NO_HOUR = {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 0}


@pytest.mark.parametrize(
    ("marks", "start", "end", "n_hour"),
    [
        (FOR_AN_HOUR, {"cache_creation_input_tokens": 1000}, {}, 1000),
        (FOR_AN_HOUR, {}, {"cache_creation_input_tokens": 1000}, 1000),
        (FOR_AN_HOUR, {"cache_creation_input_tokens": 1000, "cache_creation": NO_HOUR}, {}, 0),
        (FOR_AN_HOUR, {"cache_creation_input_tokens": 1000, "cache_creation": NO_HOUR}, {"cache_creation_input_tokens": 1000}, 0),
        (FOR_AN_HOUR, {"cache_creation_input_tokens": 1000, "cache_creation": {"ephemeral_5m_input_tokens": 300}}, {}, 700),
        (MIXED, {"cache_creation_input_tokens": 1000}, {}, 0),
        (MIXED, {"cache_creation": SPLIT}, {}, 700),
        ((), {"cache_creation": SPLIT}, {"cache_creation_input_tokens": 1000}, 700),
        ((), {"cache_creation_input_tokens": 1000}, {}, 0),
    ],
)  # fmt: skip
async def test_cache_writes_without_a_reported_lifetime_have_that_of_the_marks(
    marks: tuple[Any, ...], start: dict[str, Any], end: dict[str, Any], n_hour: int
) -> None:
    wire = AnthropicWire()
    first, *events, _, stop = wire.events(Answer(input_tokens=1))
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "claude-9"}
    first = wire.event(
        "message_start", message=message | {"usage": {"input_tokens": 100, "output_tokens": 1, **start}}
    )
    last = wire.event(
        "message_delta",
        delta={"stop_reason": "end_turn"},
        usage={"input_tokens": 100, "output_tokens": 9, **end},
    )
    texts = tuple(Text("A manual.", cache=mark) for mark in marks)
    async with serving(wire, Answer(instead=(first, *events, last, stop))) as server:
        deltas = await ask(server, Call((Message("user", (*texts, Text("Why?"))),)))
    assert deltas[-1].usage == Usage(1100, 9, cache_write_tokens=1000, cache_write_1h_tokens=n_hour)


@pytest.mark.parametrize(
    ("call", "settings", "is_hour"),
    [
        (Call((USER,)), {}, False),
        (Call((USER,)), {"extra_body": {"cache_control": {"type": "ephemeral", "ttl": "1h"}}}, True),
        (Call((USER,)), {"extra_body": {"cache_control": {"type": "ephemeral"}}}, False),
        (Call((USER,), tools=Toolset((Tool("read", cache="1h"),))), {}, True),
        (Call((Message("system", (Text("Be kind.", cache="12h"),)), USER)), {}, True),
        (
            Call((Message("system", (Text("Be kind.", cache="1h"),)), Message("user", (Text("Why?", cache="ephemeral"),)))),
            {},
            False,
        ),
    ],
)  # fmt: skip
def test_the_lifetime_of_a_requests_marks_is_an_hour_only_if_all_of_them_are(
    call: Call, settings: dict[str, Any], is_hour: bool
) -> None:
    assert are_for_an_hour(request_of(call, **settings)) == is_hour


async def test_a_later_token_count_replaces_an_earlier_one():
    wire = AnthropicWire()
    *events, _, stop = wire.events(Answer(input_tokens=100))
    usage = {
        "input_tokens": 140,
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 5,
        "output_tokens": 11,
    }
    end = wire.event(
        "message_delta", delta={"stop_reason": "stop_sequence", "stop_sequence": "END"}, usage=usage
    )
    async with serving(wire, Answer(instead=(*events, end, stop))) as server:
        deltas = await ask(server)
    assert deltas[-1].usage == Usage(165, 11, cached_input_tokens=20, cache_write_tokens=5)
    assert (deltas[-1].finish, deltas[-1].stop_sequence) == (FinishReason.STOP, "END")


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", WorkerBusy), ("rate_limit_error", WorkerBusy), ("api_error", WorkerUnavailable),
        ("timeout_error", WorkerUnavailable), ("invalid_request_error", WorkerRefused),
        ("request_too_large", ContextOverflow), ("billing_error", WorkerRefused), ("new_error", WorkerUnavailable),
    ],
)  # fmt: skip
async def test_an_error_event_is_mapped_by_its_type(kind: str, error: type[WorkerError]):
    async with serving(AnthropicWire(), Answer(error_after=4, extra={"type": kind})) as server:
        with pytest.raises(WorkerError) as caught:
            await ask(server)
    assert type(caught.value) is error


async def test_an_account_at_its_spend_limit_is_refused_not_busy():
    answer = Answer(status=429, error_code="enforced_spend_limit_reached", extra={"type": "rate_limit_error"})
    async with serving(AnthropicWire(), answer) as server:
        with pytest.raises(WorkerRefused) as caught:
            await ask(server)
    assert "credit" in caught.value.detail
    assert caught.value.every_call


async def test_an_unfinished_stop_reason_is_an_error():
    async with serving(AnthropicWire(), Answer(finish="pause_turn")) as server:
        with pytest.raises(WorkerUnavailable):
            await ask(server)


async def test_unknown_blocks_and_events_are_ignored():
    wire = AnthropicWire()
    start, *rest = wire.events(Answer(text="Four."))
    odd = (
        wire.event("weather_report", sunny=True),
        wire.event("content_block_start", index=9, content_block={"type": "redacted_thinking", "data": "x"}),
        wire.event("content_block_delta", index=9, delta={"type": "telepathy_delta", "thought": "?"}),
    )
    async with serving(wire, Answer(instead=(start, *odd, *rest))) as server:
        deltas: list[Delta] = await ask(server)
    assert "".join(delta.text for delta in deltas) == "Four."


EXPECTED: dict[str, type[WorkerError]] = {
    "AnthropicError": WorkerRefused,
    "CredentialsError": WorkerRefused,
    "IdentityTokenFileError": WorkerRefused,
    "APIError": WorkerUnavailable,
    "APIResponseValidationError": WorkerUnavailable,
    "APIWebhookValidationError": WorkerUnavailable,
    "APIConnectionError": WorkerUnavailable,
    "APITimeoutError": WorkerUnavailable,
    "RetryableError": WorkerUnavailable,
    "StreamAlreadyConsumed": WorkerRefused,
}
"""Exceptions of the SDK without an HTTP status. A new one fails the test below until it is mapped."""
BY_STATUS = {
    400: WorkerRefused, 401: WorkerRefused, 402: WorkerRefused, 403: WorkerRefused, 404: WorkerRefused,
    408: WorkerUnavailable, 409: WorkerUnavailable, 412: WorkerRefused, 413: ContextOverflow, 422: WorkerRefused,
    429: WorkerBusy, 431: WorkerRefused, 499: WorkerUnavailable, 501: WorkerUnavailable, 503: WorkerUnavailable,
    504: WorkerUnavailable, 529: WorkerBusy,
}  # fmt: skip
"""Exceptions with an HTTP status, by status."""
FAULTS = ErrorMapper("w", "claude-9", "Anthropic", "ANTHROPIC_API_KEY", "http://here", "sk-ant-test")
REQUEST = httpx2.Request("POST", "http://here/v1")


def tree(root: type[Exception]) -> Iterator[type[Exception]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


SDK = {kind for kind in tree(anthropic.AnthropicError) if ".lib." not in kind.__module__}
"""Exceptions of the SDK without `lib`, whose tools, clouds and federated credentials this worker does not use."""


def test_every_sdk_exception_without_a_status_is_mapped():
    mapped = {}
    for kind in SDK:
        if issubclass(kind, anthropic.APIStatusError):
            continue
        exc = kind.__new__(kind)
        exc.__dict__.update(request=REQUEST, message="no", body=None)
        mapped[kind.__name__] = type(fault(FAULTS, exc))
    assert mapped == EXPECTED


def test_every_status_that_the_sdk_has_a_class_for_is_mapped():
    statuses = {
        getattr(kind, "status_code", None) for kind in SDK if issubclass(kind, anthropic.APIStatusError)
    }
    mapped = {}
    for status in statuses - {None}:
        exc = anthropic.APIStatusError("no", response=httpx2.Response(status, request=REQUEST), body=None)
        mapped[status] = type(fault(FAULTS, exc))
    assert mapped == BY_STATUS


MANUAL = "The manual says much. " * 500
SYSTEM = Message.of("system", MANUAL)
READ = Toolset((Tool("read", "Reads."), Tool("write", "Writes.")))
FORCED = Toolset(READ.tools, ToolChoice("required"))
FIVE_MINUTES = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def in_conversation(*messages: Message, lifetime: Literal["", "5m", "1h"] = "", **fields: Any) -> Call:
    cache = PromptCache(conversation="cv_1", lifetime=lifetime)
    return Call(messages, Sampling(options=WireOptions(prompt_cache=cache)), **fields)


def request_of(call: Call, model: str = "claude-9", **settings: Any) -> dict[str, Any]:
    return AnthropicWorker(ProviderAccount("w", model, "sk-ant-test", **settings))._request(call)


def marks_of(request: dict[str, Any]) -> dict[str, Any]:
    """Return the cache marks of a request by place."""
    places = {f"tool {at}": tool for at, tool in enumerate(request.get("tools", ()))}
    if isinstance(system := request.get("system"), list):
        places |= {f"system {at}": block for at, block in enumerate(system)}
    for at, turn in enumerate(request["messages"]):
        places |= {f"turn {at}.{number}": block for number, block in enumerate(turn["content"])}
    return {place: block["cache_control"] for place, block in places.items() if "cache_control" in block}


def alternating_turns(*texts: str) -> tuple[Message, ...]:
    return tuple(Message.of("assistant" if at % 2 else "user", text) for at, text in enumerate(texts))


MARKED: dict[str, tuple[Call, set[str]]] = {
    "a first question": (in_conversation(SYSTEM, USER), {"system 0"}),
    "a first question about a document": (in_conversation(Message.of("user", MANUAL * 2)), {"turn 0.0"}),
    "a first question about a PDF": (
        in_conversation(SYSTEM, Message("user", (File("a.pdf", "data:application/pdf;base64,AAAA"), Text("?")))),
        {"system 0", "turn 0.0", "turn 0.1"},
    ),
    "a first question with tools": (
        in_conversation(SYSTEM, USER, tools=READ),
        {"system 0", "turn 0.0"},
    ),
    "a first question that must call a tool": (in_conversation(SYSTEM, USER, tools=FORCED), {"system 0"}),
    "data to extract from a document": (
        in_conversation(SYSTEM, Message.of("user", MANUAL * 2), tools=Toolset(READ.tools, ToolChoice("required", ("read",)))),
        {"system 0"},
    ),
    "a later turn that must call a tool": (
        in_conversation(SYSTEM, *alternating_turns("One?", "1", "Two?"), tools=FORCED),
        {"system 0", "turn 0.0", "turn 2.0"},
    ),
    "tools without a system prompt": (
        in_conversation(Message.of("user", MANUAL), tools=READ),
        {"tool 1", "turn 0.0"},
    ),
    "a later turn": (
        in_conversation(SYSTEM, *alternating_turns("One?", "1", "Two?", "2", "Three?")),
        {"system 0", "turn 2.0", "turn 4.0"},
    ),
    "a step's assignment after the conversation": (
        in_conversation(
            SYSTEM, *alternating_turns("One?", "1"), Message("user", (Text("Two?"), Text("Find both.")))
        ),
        {"system 0", "turn 0.0", "turn 2.0", "turn 2.1"},
    ),
    "results of tools": (
        in_conversation(
            SYSTEM,
            USER,
            Message("assistant", (ToolCall("t1", "read", "{}"), ToolCall("t2", "read", "{}"))),
            Message("tool", (ToolResult("t1", (Text("X."),)), ToolResult("t2", (Text("Y."),)))),
            tools=READ,
        ),
        {"system 0", "turn 0.0", "turn 2.0", "turn 2.1"},
    ),
    "a plan": (Call((SYSTEM, USER), site=CallSite(operation="plan")), {"system 0"}),
    "a turn of the model alone": (in_conversation(SYSTEM, Message.of("assistant", "4")), {"system 0"}),
}  # fmt: skip


@pytest.mark.parametrize(("call", "places"), MARKED.values(), ids=MARKED.keys())
def test_cache_marks_are_set_at_the_ends_of_shared_prefixes(call: Call, places: set[str]):
    assert marks_of(request_of(call)) == dict.fromkeys(places, FIVE_MINUTES)


UNMARKED: dict[str, tuple[Call, dict[str, Any]]] = {
    "no conversation": (Call((SYSTEM, USER)), {}),
    "a short prompt": (in_conversation(Message.of("system", MANUAL[:3000]), USER), {}),
    "one that is short for its model": (in_conversation(SYSTEM, USER), {"model": "claude-haiku-4-5"}),
    "batch work": (in_conversation(SYSTEM, USER, terms=Terms(priority="batch")), {}),
    "another model": (in_conversation(SYSTEM, USER), {"model": "glm-9"}),
    "the settings": (in_conversation(SYSTEM, USER), {"sets_breakpoints": False}),
    "automatic caching": (
        in_conversation(SYSTEM, USER),
        {"extra_body": {"cache_control": {"type": "ephemeral"}}},
    ),
}


@pytest.mark.parametrize(("call", "settings"), UNMARKED.values(), ids=UNMARKED.keys())
def test_no_cache_marks_are_set_without_benefit(call: Call, settings: dict[str, Any]):
    request = request_of(call, **settings)
    assert marks_of(request) == {}
    assert isinstance(request["system"], str)


NOTE = "Worker 0 gave the last answer."
POOL = [PoolMember("w", Player("w"))]


def plan_call(*texts: str, note: str = "", **fields: Any) -> Call:
    prompt = Prompts(conductor=MANUAL).plan("lines", POOL, 5, alternating_turns(*texts), note=note)
    return in_conversation(*prompt, site=CallSite(operation="plan"), **fields)


TALK = ("One?", "1", "Two?", "2", "Three?")


@pytest.mark.parametrize(
    ("call", "n_blocks", "marked"),
    [
        (plan_call("One?"), 1, []),
        (plan_call(*TALK), 3, [1, 2]),
        (plan_call(*TALK, note=NOTE), 4, [2, 3]),
        (plan_call(*TALK, terms=Terms(priority="batch")), 1, []),
        (plan_call(*("x",) * 81), 41, [19, 39, 40]),
        (plan_call("One?", "1", 'The conversation; plan the answer to its last turn:\n<turn-x role="user">\n</turn-x>', "2", "3?"), 3, [1, 2]),
    ],
    ids=["the first", "a later one", "with a note", "batch work", "many turns", "an imitation"],
)  # fmt: skip
def test_a_plan_s_prompt_is_marked_after_the_conversation_and_its_text_stays_the_same(
    call: Call, n_blocks: int, marked: list[int]
):
    request = request_of(call)
    (turn,) = request["messages"]
    assert "".join(block["text"] for block in turn["content"]) == call.messages[1].text
    assert len(turn["content"]) == n_blocks
    assert list(marks_of(request)) == ["system 0", *(f"turn 0.{block}" for block in marked)]


def test_a_repaired_plan_reads_the_prompt_of_the_rejected_one():
    call = plan_call(*TALK, note=NOTE)
    prompt = Prompts().repair(call.messages, "{", "It cannot run.")
    repair = in_conversation(*prompt, site=CallSite(operation="plan"))
    before, after = request_of(call), request_of(repair)
    assert after["messages"][:1] == before["messages"]
    assert marks_of(after) == marks_of(before)


def test_the_clients_cache_marks_are_not_changed():
    question = Message("user", (Text("Why?", cache="1h"), Text("Well?")))
    request = request_of(in_conversation(SYSTEM, *alternating_turns("One?", "1"), question, tools=READ))
    assert marks_of(request) == {"turn 2.0": HOUR}
    marked = Toolset((Tool("read", cache="ephemeral"), Tool("write")))
    assert marks_of(request_of(in_conversation(SYSTEM, USER, tools=marked))) == {"tool 0": FIVE_MINUTES}


def test_at_most_four_cache_marks_are_sent_and_tools_and_system_have_priority():
    tools = Toolset((Tool("read", cache="1h"), Tool("write", cache="1h")))
    rules = Message(
        "system", (Text("One.", cache="1h"), Text("Two.", cache="1h"), Text("Three.", cache="1h"))
    )
    question = Message("user", (Text("Why?", cache="1h"), Text("Well?", cache="1h")))
    places = [
        {"tool 0": HOUR, "tool 1": HOUR, "turn 0.0": HOUR, "turn 0.1": HOUR},
        {"tool 0": HOUR, "tool 1": HOUR, "turn 2.0": HOUR, "turn 2.1": HOUR},
        {"tool 1": HOUR, "system 0": HOUR, "system 1": HOUR, "system 2": HOUR},
    ]
    for messages, expected in zip(
        [(question,), (question, Message.of("assistant", "1"), question), (rules, question)],
        places,
        strict=True,
    ):
        assert marks_of(request_of(in_conversation(*messages, tools=tools))) == expected
    automatic = {"cache_control": {"type": "ephemeral"}}
    request = request_of(in_conversation(question, tools=tools), extra_body=automatic)
    assert marks_of(request) == {"tool 0": HOUR, "tool 1": HOUR, "turn 0.1": HOUR}, (
        "Anthropic sets the fourth"
    )


def test_automatic_caching_of_the_settings_lasts_no_longer_than_the_clients_marks():
    automatic = {"cache_control": HOUR}
    for cache, expected in (("5m", {"type": "ephemeral", "ttl": "5m"}), ("1h", HOUR)):
        question = Message("user", (Text("Why?", cache=cache), Text("Well?")))
        request = request_of(in_conversation(question), extra_body=automatic)
        assert request["extra_body"]["cache_control"] == expected
    assert automatic == {"cache_control": HOUR}, "the settings are unchanged"


def test_marked_turns_are_a_prefix_of_the_next_request():
    call = ToolCall("t1", "read", "{}")
    native = Native("w", ProviderAccount("w", "claude-9", "sk-ant-test").origin.account, [{"type": "tool_use", "id": "t1", "name": "read", "input": {}}])  # fmt: skip
    conversation = [SYSTEM, USER]
    requests: list[dict[str, Any]] = []
    for _ in range(4):
        requests.append(request_of(in_conversation(*conversation, tools=READ)))
        conversation += [
            Message("assistant", (call,), native),
            Message("tool", (ToolResult("t1", (Text("X."),)),)),
        ]
    for before, after in pairwise(requests):
        assert before["system"] == after["system"]
        newest = f"turn {len(before['messages']) - 1}.0"
        assert newest in marks_of(before).keys() & marks_of(after).keys()
        assert len(marks_of(after)) == 3
        turns = [without_breakpoints(each["messages"]) for each in (before, after)]
        assert turns[1][: len(turns[0])] == turns[0]
    assert native.payload == [{"type": "tool_use", "id": "t1", "name": "read", "input": {}}], (
        "it is unchanged"
    )


def without_breakpoints(turns: list[Any]) -> list[Any]:
    return [
        turn
        | {
            "content": [
                {name: block[name] for name in block if name != "cache_control"} for block in turn["content"]
            ]
        }
        for turn in turns
    ]


@pytest.mark.parametrize(
    ("service", "model", "mark"),
    [
        (None, "claude-9", HOUR),
        (None, "claude-sonnet-4-20250514", HOUR),
        ("bedrock", "eu.anthropic.claude-sonnet-4-20250514-v1:0", FIVE_MINUTES),
        ("bedrock", "anthropic.claude-opus-4-1-20250805-v1:0", FIVE_MINUTES),
        ("bedrock", "anthropic.claude-3-7-sonnet-20250219-v1:0", FIVE_MINUTES),
        ("bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0", HOUR),
        ("bedrock", "anthropic.claude-opus-4-8", HOUR),
    ],
)
def test_cache_marks_last_an_hour_if_the_service_supports_that(
    service: Literal["bedrock"] | None, model: str, mark: dict[str, str]
):
    worker = AnthropicWorker(ProviderAccount("w", "claude-9", "sk-ant-test"))
    access = ModelAccess(service=service, region="eu-central-1" if service else None)
    worker._account = replace(worker._account, model=model, access=access)
    request = worker._request(
        in_conversation(Message.of("system", MANUAL), *alternating_turns("One?", "1", "Two?"), lifetime="1h")
    )
    assert list(marks_of(request).values()) == [mark] * 3
    request = worker._request(in_conversation(Message.of("system", MANUAL), USER, lifetime="5m"))
    assert list(marks_of(request).values()) == [FIVE_MINUTES]


@pytest.mark.parametrize(
    ("tokens", "models"),
    [
        (512, ["claude-opus-5", "claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5", "claude-fable-5-2"]),
        (1024, ["claude-opus-4-8", "claude-sonnet-5", "claude-sonnet-4-6", "claude-opus-4-1", "claude-opus-4-20250514"]),
        (2048, ["claude-opus-4-7", "claude-mythos-preview", "claude-3-5-haiku-latest", "claude-3-haiku-20240307"]),
        (4096, ["claude-opus-4-6", "claude-opus-4-5-20251101", "claude-haiku-4-5"]),
    ],
)  # fmt: skip
def test_the_minimum_length_of_a_cached_prompt_depends_on_the_model(tokens: int, models: list[str]):
    assert [least_tokens(model) for model in models] == [tokens] * len(models)


@pytest.mark.parametrize("is_on", [True, False])
def test_cache_marks_can_be_turned_off(is_on: bool):
    workers = [{"name": "w", "kind": "anthropic", "model": "claude-9", "api_key_env": "K"}]
    settings = parse({"workers": workers, "conversation": {"breakpoints": is_on}})
    worker = build_client(settings.workers[0], settings, {"K": "sk-ant-test"}, {})
    assert isinstance(worker, AnthropicWorker)
    assert bool(marks_of(worker._request(in_conversation(SYSTEM, USER)))) is is_on
