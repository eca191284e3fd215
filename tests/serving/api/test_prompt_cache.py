"""Prompt caching over real sockets: cache marks reach the provider in place, prefixes stay the same between turns,
and cache reads and writes are reported and billed.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from loadtest.rig.cache_provider import PRICES
from loadtest.rig.prompt_caches import READ, WRITTEN, MessagesPrompt, PrefixCache
from tests.serving.api.served import ASK, PRICE, Json, Served, plan, scripted, served, step, team
from tests.serving.api.test_upstreams import remote
from tests.serving.workers.test_http import PROVIDERS, Provider
from tests.wires.server import Answer, serving, sse

ANTHROPIC, OPENAI, GEMINI = PROVIDERS["anthropic"], PROVIDERS["openai"], PROVIDERS["gemini"]
FIVE_MINUTES: Json = {"cache_control": {"type": "ephemeral"}}
STATED: Json = {"cache_control": {"type": "ephemeral", "ttl": "5m"}}
HOUR: Json = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.330.565; cc_entrypoint=cli; cch={};"
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjc="}
SCHEMA: Json = {"type": "object", "properties": {"path": {"type": "string"}}}


def text(words: str, **more: Any) -> Json:
    return {"type": "text", "text": words, **more}


def ours(provider: Provider, url: str, plans: str = "", **settings: Any) -> Json:
    """Return settings with worker `a` at the provider, and a conductor."""
    model = "claude-9" if provider is ANTHROPIC else "gpt-9"
    worker = remote(provider, url, sees_images=True, reads_pdfs=True, **({"model": model} | settings))
    return team(*([plans] if plans else []), workers=[worker, scripted("b", "Bee.")], workflows={})


def marks(body: Json) -> list[tuple[str, Any]]:
    """Return every cache mark of a body with its path, in the order of the prompt."""
    return list(_marks(body, ""))


def _marks(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _marks(each, f"{path}[{index}]")
    if isinstance(value, dict):
        for name in sorted(
            value, key=lambda name: ["tools", "system", "messages", "input", name].index(name)
        ):
            if name in ("cache_control", "prompt_cache_breakpoint"):
                yield path, value[name]
            yield from _marks(value[name], f"{path}.{name}" if path else name)


MARKED: Json = {
    "model": "a",
    "max_tokens": 500,
    "system": [text("You are terse."), text("The manual: ...", **HOUR)],
    "tools": [
        {"name": "read", "description": "Reads.", "input_schema": SCHEMA},
        {"name": "write", "description": "Writes.", "input_schema": SCHEMA, **HOUR},
    ],
    "messages": [
        {"role": "user", "content": [text("Look."), {"type": "image", "source": PNG}, text("Well?")]},
        {"role": "assistant", "content": [text("I read."), {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "x"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [text("X.")]}]},
        {"role": "assistant", "content": "X."},
        {"role": "user", "content": [text("And now?")]},
    ],
}  # fmt: skip
PLACES = {
    "a user's words": ((0, 0), "messages[0].content[0]"),
    "a picture": ((0, 1), "messages[0].content[1]"),
    "an assistant's words": ((1, 0), "messages[1].content[0]"),
    "a call": ((1, 1), "messages[1].content[1]"),
    "a result": ((2, 0), "messages[2].content[0]"),
    "the last words": ((4, 0), "messages[4].content[0]"),
}


def with_mark_at(turn: int, block: int, mark: Json) -> Json:
    body = json.loads(json.dumps(MARKED))
    body["messages"][turn]["content"][block] |= mark
    return body


@pytest.mark.parametrize(("where", "path"), PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize("mark", [FIVE_MINUTES, STATED, HOUR], ids=["no ttl", "5m", "1h"])
@pytest.mark.parametrize("stream", [False, True])
async def test_cache_control_reaches_anthropic_at_the_same_place(
    where: Any, path: str, mark: Json, stream: bool
):
    body = with_mark_at(*where, mark)
    async with serving(ANTHROPIC.wire) as upstream, served(ours(ANTHROPIC, upstream.url)) as api:
        answer = await api.http.post("/v1/messages", json=body | {"stream": stream})
        assert answer.status_code == 200, answer.text
        upstream_body = upstream.body
    assert marks(upstream_body) == [
        ("tools[1]", HOUR["cache_control"]),
        ("system[1]", HOUR["cache_control"]),
        (path, mark["cache_control"]),
    ]
    assert [block["text"] for block in upstream_body["system"]] == ["You are terse.", "The manual: ..."]


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ([{"type": "document", "source": PDF, **HOUR}, text("?")], "messages[0].content[0]"),
        ([{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "D"}, **HOUR}, text("?")], "messages[0].content[0]"),
        ([{"type": "search_result", "source": "s", "title": "t", "content": [text("c")], **HOUR}, text("?")], "messages[0].content[0]"),
        ([text("a"), text(" \n", **HOUR), text("?")], "messages[0].content[0]"),
    ],
)  # fmt: skip
async def test_other_blocks_keep_their_cache_marks(content: list[Json], path: str):
    async with serving(ANTHROPIC.wire) as upstream, served(ours(ANTHROPIC, upstream.url)) as api:
        body = {"model": "a", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
        answer = await api.http.post("/v1/messages", json=body)
        assert answer.status_code == 200, answer.text
        assert marks(upstream.body) == [(path, HOUR["cache_control"])]


async def test_a_cache_mark_on_the_request_applies_to_its_last_block():
    async with serving(ANTHROPIC.wire) as upstream, served(ours(ANTHROPIC, upstream.url)) as api:
        body = {"model": "a", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}], **HOUR}
        assert (await api.http.post("/v1/messages", json=body)).status_code == 200
        assert marks(upstream.body) == [("messages[0].content[0]", HOUR["cache_control"])]


async def test_cache_marks_of_chat_completions_reach_anthropic():
    body = {
        "model": "a",
        "messages": [
            {"role": "system", "content": [text("S", **HOUR)]},
            {"role": "user", "content": [text("U"), text("V", **FIVE_MINUTES)]},
            {"role": "assistant", "content": "A", **FIVE_MINUTES},
            {"role": "user", "content": "W"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}, **HOUR}],
    }
    async with serving(ANTHROPIC.wire) as upstream, served(ours(ANTHROPIC, upstream.url)) as api:
        await api.ok(body)
        assert marks(upstream.body) == [
            ("tools[0]", HOUR["cache_control"]),
            ("system[0]", HOUR["cache_control"]),
            ("messages[0].content[1]", FIVE_MINUTES["cache_control"]),
            ("messages[1].content[0]", FIVE_MINUTES["cache_control"]),
        ]


@pytest.mark.parametrize(
    ("mark", "param"),
    [({"type": "ephemeral", "ttl": "2h"}, "cache_control.ttl"), ({"type": "forever"}, "cache_control.type")],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_an_invalid_cache_mark_is_rejected_with_its_place(mark: Json, param: str, path: str):
    async with served(team()) as api:
        content = [text("x", cache_control=mark)]
        body = {"model": "a", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
        answer = await api.http.post(path, json=body)
    assert answer.status_code == 400
    assert f"messages[0].content[0].{param}" in answer.json()["error"]["message"]


TOO_MANY = "A maximum of 4 blocks with cache_control may be provided. Found 5."


def chat_with_marks(n: int) -> Json:
    """A chat with a mark on a tool, and marks on `n` - 1 texts of two messages."""
    words = [text(str(number), **FIVE_MINUTES) for number in range(1, n)]
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}, **FIVE_MINUTES}
    messages = [{"role": "system", "content": words[:1]}, {"role": "user", "content": words[1:]}]
    return {"model": "a", "messages": messages, "tools": [tool]}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"])
async def test_a_request_with_more_than_four_marks_is_rejected_as_by_anthropic(path: str):
    body = chat_with_marks(5)
    if "messages" in path:
        tool = {"name": "f", "input_schema": SCHEMA, **FIVE_MINUTES}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("X.", **FIVE_MINUTES)]}
        called = [
            MARKED["messages"][1],
            {"role": "user", "content": [result, *body["messages"][1]["content"]]},
        ]
        body = {"model": "a", "max_tokens": 9, "tools": [tool], "messages": [ASK["messages"][0], *called]}
    async with served(team()) as api:
        answer = await api.http.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["message"], error["param"]) == (TOO_MANY, "cache_control")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"])
async def test_a_request_with_an_hours_mark_after_a_shorter_one_is_rejected_with_the_field(path: str):
    async with serving(ANTHROPIC.wire) as upstream, served(ours(ANTHROPIC, upstream.url)) as api:
        for first, then, status in ((FIVE_MINUTES, HOUR, 400), (STATED, HOUR, 400), (HOUR, STATED, 200)):
            words = [text("One.", **first), text("Two.", **then)]
            body = {"model": "a", "max_tokens": 9, "messages": [{"role": "user", "content": words}]}
            answer = await api.http.post(path, json=body)
            assert answer.status_code == status, answer.text
            if status == 400:
                assert answer.json()["error"]["param"] == "cache_control.ttl"


async def test_marks_are_in_the_order_of_the_prompt_wherever_the_client_writes_them():
    turns = [
        {"role": "user", "content": [text("One.", **FIVE_MINUTES)]},
        {"role": "system", "content": [text("Be terse.", **HOUR)]},
    ]
    async with serving(ANTHROPIC.wire) as upstream, served(ours(ANTHROPIC, upstream.url)) as api:
        answer = await api.http.post("/v1/chat/completions", json={"model": "a", "messages": turns})
        assert answer.status_code == 200, answer.text
        lifetimes = [mark for _, mark in marks(upstream.body)]
        answer = await api.http.post("/v1/chat/completions", json={"model": "a", "messages": turns[::-1]})
        assert answer.status_code == 200, answer.text
    assert lifetimes == [HOUR["cache_control"], FIVE_MINUTES["cache_control"]]


async def test_openais_breakpoints_for_a_claude_model_last_no_longer_than_those_before():
    short, long = ({"prompt_cache_breakpoint": {"mode": "explicit", "ttl": ttl}} for ttl in ("30m", "12h"))
    parts = [{"type": "input_text", "text": "x", **mark} for mark in (long, short, long)]
    async with serving(ANTHROPIC.wire) as upstream, served(ours(ANTHROPIC, upstream.url)) as api:
        body = {"model": "a", "input": [{"role": "user", "content": parts}]}
        answer = await api.http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        lifetimes = [mark.get("ttl", "5m") for _, mark in marks(upstream.body)]
    assert lifetimes == ["1h", "5m", "5m"]


async def test_a_cache_mark_on_the_request_counts_unless_its_last_block_has_one():
    async with serving(ANTHROPIC.wire) as upstream, served(ours(ANTHROPIC, upstream.url)) as api:
        words = [text(str(number), **FIVE_MINUTES) for number in range(4)]
        body = {
            "model": "a",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": words}],
            **FIVE_MINUTES,
        }
        assert (await api.http.post("/v1/messages", json=body)).status_code == 200
        words.append(text("4"))
        answer = await api.http.post("/v1/messages", json=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, TOO_MANY)


@pytest.mark.parametrize("api_of_worker", ["chat", "responses"])
async def test_a_claude_model_behind_another_api_gets_at_most_four_marks(api_of_worker: str):
    marked: Json = {"prompt_cache_breakpoint": {"mode": "explicit"}}  # OpenAI accepts many
    part = {"type": "input_text", "text": "x", **marked}
    turns = [{"role": role, "content": [part, part]} for role in ("system", "user", "user", "user")]
    async with serving(OPENAI.wire) as upstream:
        if api_of_worker == "responses":
            upstream.respond = lambda request: Answer(instead=(RESPONSES,))
        settings = ours(OPENAI, upstream.url, model="claude-9", api=api_of_worker)
        async with served(settings) as api:
            answer = await api.http.post("/v1/responses", json={"model": "a", "input": turns})
            assert answer.status_code == 200, answer.text
        places = [path for path, _ in marks(upstream.body)]
    field = "messages" if api_of_worker == "chat" else "input"
    assert places == [f"{field}[{turn}].content[{part}]" for turn in (0, 3) for part in (0, 1)]


async def test_the_steps_of_a_plan_share_the_marked_prefix():
    plans = plan(step("a", "Find."), step("a", "Weigh."), step("a", "Conclude.", [0, 1]))
    body = MARKED | {"model": "mini", "messages": [{"role": "user", "content": [text("Well?", **HOUR)]}]}
    async with serving(ANTHROPIC.wire) as upstream:
        settings = ours(ANTHROPIC, upstream.url, plans, system_prompt="You are the first.")
        async with served(settings) as api:
            answer = await api.http.post("/v1/messages", json=body)
            assert answer.status_code == 200, answer.text
            bodies = [request.body for request in upstream.requests]
    assert len(bodies) == 3
    hour = HOUR["cache_control"]
    assert {json.dumps(marks(each)) for each in bodies} == {
        json.dumps([("tools[1]", hour), ("system[2]", hour), ("messages[0].content[0]", hour)])
    }
    prefixes = {
        json.dumps([each["tools"], each["system"], each["messages"][0]["content"][0]]) for each in bodies
    }
    assert len(prefixes) == 1
    assert all(len(each["messages"][0]["content"]) == 2 for each in bodies), (
        "the assignment comes after the mark"
    )


def tool_call_events(provider: Provider, id: str) -> tuple[bytes, ...]:
    """Return the events of an answer that calls `read`."""
    if provider is ANTHROPIC:
        event = ANTHROPIC.wire.event  # type: ignore[union-attr]
        usage = {"input_tokens": 10, "output_tokens": 1}
        return (
            event("message_start", message={"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}),
            event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": "\n\n"}),
            event("content_block_start", index=1, content_block={"type": "tool_use", "id": id, "name": "read", "input": {}}),
            event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": '{"path": "x"}'}),
            event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 5}),
            event("message_stop"),
        )  # fmt: skip
    call = {"index": 0, "id": id, "function": {"name": "read", "arguments": '{"path": "x"}'}}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}  # fmt: skip
    return sse({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}), sse(end), b"data: [DONE]\n\n"


async def test_a_tool_run_sends_earlier_turns_unchanged_with_at_most_four_marks():
    """Claude Code moves its mark to the newest result each time."""
    async with serving(ANTHROPIC.wire) as upstream, served(ours(ANTHROPIC, upstream.url)) as api:
        upstream.answers.extend(Answer(instead=tool_call_events(ANTHROPIC, f"toolu_{n}")) for n in range(4))
        body = MARKED | {"messages": [{"role": "user", "content": [text("Go.", **FIVE_MINUTES)]}]}
        for _ in range(4):
            answer = (await api.http.post("/v1/messages", json=body)).json()
            (use,) = [block for block in answer["content"] if block["type"] == "tool_use"]
            history = json.loads(
                json.dumps(body["messages"]).replace(json.dumps(FIVE_MINUTES)[1:-1], '"x": 0')
            )
            result = {"type": "tool_result", "tool_use_id": use["id"], "content": "X.", **FIVE_MINUTES}
            message = {"role": "assistant", "content": answer["content"]}
            body = body | {"messages": [*history, message, {"role": "user", "content": [result]}]}
        answer = (await api.http.post("/v1/messages", json=body)).json()
        assert answer["stop_reason"] == "end_turn"
        bodies = [request.body for request in upstream.requests]
        listed = (await api.http.get("/v1/workflows")).json()["data"]
    assert len(listed) == 1, "one run"
    for before, after in pairwise(bodies):
        assert (before["tools"], before["system"]) == (after["tools"], after["system"])
        unmarked = [json.loads(json.dumps(each["messages"]).replace(', "cache_control": {"type": "ephemeral"}', "")) for each in (before, after)]  # fmt: skip
        assert unmarked[1][: len(unmarked[0])] == unmarked[0]
        assert "cache_control" in after["messages"][-1]["content"][0]
    assert [len(marks(each)) for each in bodies] == [3, 4, 4, 4, 4]
    assert all(
        not block.get("text", "x").isspace() for turn in bodies[-1]["messages"] for block in turn["content"]
    )


@pytest.mark.parametrize("provider", [ANTHROPIC, OPENAI], ids=["anthropic", "openai"])
async def test_each_chat_request_is_a_prefix_of_the_next(provider: Provider):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "One?"}]
    async with serving(provider.wire) as upstream, served(ours(provider, upstream.url)) as api:
        for _ in range(3):
            answer = await api.ok({"model": "a", "messages": messages})
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "And?"}]
        bodies = [request.body for request in upstream.requests]
    for before, after in pairwise(bodies):
        assert after["messages"][: len(before["messages"])] == before["messages"]
        assert after.get("system") == before.get("system")


def bill(bodies: Sequence[Json]) -> list[Counter[str]]:
    """Return the tokens of each request to Anthropic by the name of their price."""
    cache, tokens = PrefixCache(), list[Counter[str]]()
    for body in bodies:
        prompt = MessagesPrompt(body, "account")
        tokens.append(prompt.read(cache, 0))
        prompt.write(cache, 0)
    return tokens


def with_whole_prompt(body: Json) -> Json:
    """Return a request for a plan whose conversation is one block without a mark."""
    (turn,) = body["messages"]
    return body | {
        "messages": [turn | {"content": [text("".join(each["text"] for each in turn["content"]))]}]
    }


async def test_a_claude_conductor_reads_the_conversation_of_its_last_plan_from_the_cache():
    model, to_b = "claude-sonnet-4-6", plan(step("b", ""))
    async with serving(ANTHROPIC.wire) as upstream:
        upstream.respond = lambda _: Answer(text=to_b)
        conductor = remote(ANTHROPIC, upstream.url, name="conductor", model=model, in_pool=False)
        settings: Json = {
            "conductor": {"worker": "conductor", "format": "steps"},
            "workers": [conductor, scripted("b", "Bee.", price={"input_usd_per_mtok": 0, "output_usd_per_mtok": 0})],
            "models": {"mini": {}},
        }  # fmt: skip
        async with served(settings) as api:
            messages: list[Json] = [{"role": "user", "content": "A long document. " * 5000}]
            for _ in range(4):
                await api.ok({"model": "mini", "messages": messages})
                messages += [
                    {"role": "assistant", "content": "Bee."},
                    {"role": "user", "content": "And now?"},
                ]
        bodies = [request.body for request in upstream.requests]
    first, second, *later = bill(bodies)
    assert first[WRITTEN] == 0, "there may be no other plan"
    assert second[WRITTEN] > 20_000
    assert all(tokens[READ] > 20_000 and tokens[WRITTEN] < 100 for tokens in later)
    usd, usd_before = (
        sum(n * PRICES[model][price] for tokens in bill(each) for price, n in tokens.items()) / 1_000_000
        for each in (bodies, list(map(with_whole_prompt, bodies)))
    )
    print("USD", usd, usd_before)
    assert usd < 0.7 * usd_before


HINTS: Json = {"prompt_cache_key": "session-1", "prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "explicit", "ttl": "30m"}}  # fmt: skip
RESPONSES = b"".join(
    sse({"type": kind, "response": {"model": "gpt-9", "usage": {"input_tokens": 9, "output_tokens": 1}}})
    for kind in ("response.created", "response.completed")
)


@pytest.mark.parametrize("api_of_worker", ["chat", "responses"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("model", ["a", "mini"])
async def test_cache_hints_reach_openai(api_of_worker: str, path: str, model: str):
    body = {"input": "Why?"} if "responses" in path else {"messages": ASK["messages"]}
    async with serving(OPENAI.wire) as upstream:
        if api_of_worker == "responses":
            upstream.respond = lambda request: Answer(instead=(RESPONSES,))
        plans = plan(step("a", "Find."), step("a", "Conclude.", [0]))
        async with served(ours(OPENAI, upstream.url, plans, api=api_of_worker)) as api:
            answer = await api.http.post(path, json={"model": model, **body, **HINTS})
            assert answer.status_code == 200, answer.text
            record = await api.newest()
    assert len(upstream.requests) == (2 if model == "mini" else 1)
    for request in upstream.requests:
        assert {name: request.body.get(name) for name in HINTS} == HINTS
    assert not any("prompt_cache" in line for line in record.get("left_out", ())), record["left_out"]


async def test_a_long_cache_key_is_shortened_consistently():
    async with serving(OPENAI.wire) as upstream, served(ours(OPENAI, upstream.url)) as api:
        for _ in range(2):
            await api.ok({"model": "a", "prompt_cache_key": "k" * 500})
        keys = [request.body["prompt_cache_key"] for request in upstream.requests]
    assert len(set(keys)) == 1
    assert len(keys[0]) == 64


async def test_a_cache_key_with_personal_data_is_sent_and_stored_as_a_digest():
    async with serving(OPENAI.wire) as upstream, served(ours(OPENAI, upstream.url)) as api:
        for key in ("trip of ada@example.org", "trip of ada@example.org", "trip of bob@example.org"):
            await api.ok({"model": "a", "prompt_cache_key": key})
        one, again, other = (request.body["prompt_cache_key"] for request in upstream.requests)
    assert one == again != other
    assert "@" not in one


@pytest.mark.parametrize("field", HINTS)
async def test_a_server_that_rejects_a_hint_gets_none_from_then_on(field: str):
    def respond(request: Any) -> Answer:
        return (
            Answer(status=400, error=f"property '{field}' is unsupported")
            if field in request.body
            else Answer()
        )

    async with serving(OPENAI.wire) as upstream, served(ours(OPENAI, upstream.url)) as api:
        upstream.respond = respond
        for _ in range(2):
            await api.ok({"model": "a", **HINTS})
        bodies = [request.body for request in upstream.requests]
    assert [field in body for body in bodies] == [True, False, False]
    assert all(name in body for body in bodies for name in HINTS.keys() - {field})


async def test_hints_are_not_sent_to_other_providers():
    for provider in (ANTHROPIC, GEMINI):
        async with serving(provider.wire) as upstream, served(ours(provider, upstream.url)) as api:
            await api.ok({"model": "a", **HINTS})
            assert not HINTS.keys() & upstream.body.keys()


@pytest.mark.parametrize(
    ("model", "mark", "expected"),
    [
        ("gpt-9", {"prompt_cache_breakpoint": {"mode": "explicit"}}, {"mode": "explicit"}),
        ("gpt-9", {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}, {"mode": "explicit", "ttl": "12h"}),
        ("gpt-9", HOUR, None),
        ("anthropic/claude-9", HOUR, HOUR["cache_control"]),
        ("mistral-9", HOUR, None),
    ],
)  # fmt: skip
async def test_cache_marks_are_sent_to_openai_servers_that_accept_them(model: str, mark: Json, expected: Any):
    body = {
        "model": "a",
        "messages": [
            {"role": "system", "content": [text("S", **mark)]},
            {"role": "user", "content": [text("U")]},
        ],
    }
    async with serving(OPENAI.wire) as upstream, served(ours(OPENAI, upstream.url, model=model)) as api:
        await api.ok(body)
        positions, messages = marks(upstream.body), upstream.body["messages"]
    assert positions == ([] if expected is None else [("messages[0].content[0]", expected)])
    assert messages[1]["content"] == "U"
    if expected is None:
        assert messages[0]["content"] == "S"


SYSTEMS: dict[str, Any] = {
    "a block of its own": lambda line: [text(line), text("You help.", **FIVE_MINUTES)],
    "blocks without marks": lambda line: [text(line), text("You help.")],
    "the first line": lambda line: f"{line}\nYou help.",
    "indented, with others": lambda line: f"  {line}\n{line}\n\nYou help.",
}


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS.keys())
@pytest.mark.parametrize("provider", [OPENAI, GEMINI], ids=["openai", "gemini"])
@pytest.mark.parametrize("model", ["a", "mini"])
async def test_lines_that_change_with_every_request_are_removed(provider: Provider, system: Any, model: str):
    history = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "X."}]},
        {"role": "assistant", "content": "X."},
        {"role": "user", "content": "Well?"},
    ]
    bodies: list[str] = []
    async with serving(provider.wire) as upstream:
        settings = ours(
            provider, upstream.url, plan(step("a", "Find."), step("b", "End.", [0])), system_prompt="P"
        )
        async with served(settings) as api:
            for cch in ("71fea", "0aaa9"):
                body = MARKED | {"model": model, "system": system(BILLING.format(cch)), "messages": history}
                answer = await api.http.post("/v1/messages", json=body)
                assert answer.status_code == 200, answer.text
                bodies.append(json.dumps(upstream.body))
            lines = (
                json.dumps([call.messages[1].text for call in api.worker("conductor").calls])
                if model == "mini"
                else ""
            )
    assert "billing" not in bodies[0] + lines
    assert "You help." in bodies[0]
    assert bodies[0] == bodies[1], (
        "one prefix, whatever the line says, in the marks around calls of tools too"
    )


@pytest.mark.parametrize(("model", "is_kept"), [("claude-9", True), ("glm-9", False)])
async def test_the_billing_line_is_sent_only_to_anthropic(model: str, is_kept: bool):
    line = BILLING.format("71fea")
    body = MARKED | {"system": [text(line), text("You help.", **HOUR)]}
    async with serving(ANTHROPIC.wire) as upstream, served(ours(ANTHROPIC, upstream.url, model=model)) as api:
        assert (await api.http.post("/v1/messages", json=body)).status_code == 200
        system = upstream.body["system"]
    assert system == [*([text(line)] if is_kept else []), text("You help.", **HOUR)]


async def test_requests_that_differ_only_in_cache_hints_are_equal():
    settings = team(cache={"keep_s": 60})
    async with served(settings) as api:
        hits: list[Any] = []
        for cch, mark in (("71fea", FIVE_MINUTES), ("0aaa9", {})):
            body = {
                "model": "a", "max_tokens": 9, "system": [text(BILLING.format(cch)), text("S", **mark)],
                "messages": [{"role": "user", "content": [text("U", **mark)]}],
            }  # fmt: skip
            hits.append((await api.http.post("/v1/messages", json=body)).headers.get("x-podium-cache"))
    assert hits == [None, "hit"]


RATES = {
    "input_usd_per_mtok": 10,
    "output_usd_per_mtok": 100,
    "cached_input_usd_per_mtok": 1,
    "cache_write_usd_per_mtok": 12.5,
    "cache_write_1h_usd_per_mtok": 20,
}
CACHED = Answer(
    input_tokens=1000,
    cached_tokens=600,
    output_tokens=10,
    extra={"cache_written": 300, "cache_written_1h": 100},
)
COST = (100 * 10 + 600 * 1 + 200 * 12.5 + 100 * 20 + 10 * 100) / 1e6


async def usage_by(api: Served, path: str, stream: bool) -> Json:
    body = {"input": "Why?"} if "responses" in path else {"messages": ASK["messages"], "max_tokens": 50}
    more = {"stream_options": {"include_usage": True}} if "chat" in path and stream else {}
    answer = await api.http.post(path, json={"model": "a", "stream": stream, **body, **more})
    assert answer.status_code == 200, answer.text
    if not stream:
        return answer.json()["usage"]
    usage: Json = {}
    for line in answer.text.splitlines():
        data = line.removeprefix("data: ")
        event = json.loads(data) if line.startswith("data: {") else {}
        usage |= (event.get("message") or event.get("response") or event).get("usage") or {}
    return usage


@pytest.mark.parametrize("stream", [False, True])
async def test_cache_reads_and_writes_are_reported_in_each_dialect_and_priced(stream: bool):
    async with serving(ANTHROPIC.wire) as upstream, served(ours(ANTHROPIC, upstream.url, price=RATES)) as api:
        upstream.answers.extend([CACHED] * 3)
        chat = (await usage_by(api, "/v1/chat/completions", stream))["prompt_tokens_details"]
        costs = [(await api.newest())["cost_usd"]]
        messages = await usage_by(api, "/v1/messages", stream)
        costs.append((await api.newest())["cost_usd"])
        responses = (await usage_by(api, "/v1/responses", stream))["input_tokens_details"]
        record = await api.newest()
    assert costs == [pytest.approx(COST)] * 2
    assert record["cost_usd"] == pytest.approx(COST)
    expected = {"cached_tokens": 600, "cache_write_tokens": 300, "cache_write_1h_tokens": 100}
    assert {name: chat[name] for name in expected} == expected
    assert {name: responses[name] for name in expected} == expected
    assert (messages["input_tokens"], messages["cache_read_input_tokens"]) == (100, 600)
    assert messages["cache_creation_input_tokens"] == 300
    if not stream:
        tiers = {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 100}
        assert messages["cache_creation"] == tiers


async def test_a_chat_that_waits_for_tools_reports_cached_tokens():
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 80}}
    first, _, done = tool_call_events(OPENAI, "call_1")
    end = sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "usage": usage})
    tools = [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}]
    async with serving(OPENAI.wire) as upstream, served(ours(OPENAI, upstream.url, price=PRICE)) as api:
        upstream.answers.append(Answer(instead=(first, end, done)))
        usage_json = (await api.ok({"model": "a", "tools": tools}))["usage"]
    assert (usage_json["prompt_tokens"], usage_json["prompt_tokens_details"]["cached_tokens"]) == (100, 80)
    assert usage_json["total_tokens"] == 105
