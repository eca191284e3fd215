"""Invalid requests: each gets a quick 4xx in OpenAI's shape that names the field as the caller wrote it, and never a
5xx.
"""

import asyncio
import json
import statistics
import time
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from conductor.errors import BadTask
from conductor.model.messages import Image
from serving.api.choices import ChoicesResponse
from serving.api.dialects.chat.schema import ChatRequest
from serving.api.dialects.read_body import check_parts
from tests.serving.api.served import ASK, Served, scripted, served, step, team

USER = {"role": "user", "content": "hi"}
QUICK_S = 0.05
SIX = [step("a")] * 6


def parts(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": None}, "messages"),
    "empty messages": ({"messages": []}, "messages"),
    "messages as text": ({"messages": "hi"}, "messages"),
    "a message that is a text": ({"messages": ["hi"]}, "messages[0]"),
    "a bad role": ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role"),
    "no role": ({"messages": [USER, {"content": "x"}]}, "messages[1].role"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "empty content": ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    "content as a number": ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    "an image without url": (
        parts({"type": "image_url", "image_url": {}}),
        "messages[0].content[0].image_url.url",
    ),
    "an image without image": (parts({"type": "image_url"}), "messages[0].content[0].image_url"),
    "an image on a disk": (
        parts(
            USER | {"type": "text", "text": "x"},
            {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        ),
        "messages[0].content[1].image_url.url",
    ),
    "a text part without text": (parts({"type": "text"}), "messages[0].content[0].text"),
    "sound": (
        parts({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
        "messages[0].content[0].input_audio",
    ),
    "a file of nothing": (parts({"type": "file", "file": {"filename": "f"}}), "messages[0].content[0].file"),
    "a refusal of the user": (parts({"type": "refusal", "refusal": "no"}), "messages[0].content[0]"),
    "a refusal without words": (parts({"type": "refusal"}), "messages[0].content[0].refusal"),
    "a part of no sort": (parts({"type": "audio"}), "messages[0].content[0]"),
    "unknown model": ({"model": "nobody"}, "model"),
    "model as a number": ({"model": 7}, "model"),
    "nine answers": ({"n": 9}, "n"),
    "stream as a word": ({"stream": "maybe"}, "stream"),
    "stream options as a number": ({"stream_options": 7}, "stream_options"),
    "a temperature too high": ({"temperature": 3}, "temperature"),
    "top_p of nothing": ({"top_p": 0}, "top_p"),
    "no tokens": ({"max_tokens": 0}, "max_tokens"),
    "more tokens than there are": ({"max_completion_tokens": 10**30}, "max_completion_tokens"),
    "a seed too long": ({"seed": 2**63}, "seed"),
    "too many stop words": ({"stop": ["x"] * 17}, "stop"),
    "a stop number": ({"stop": ["x", 1]}, "stop[1]"),
    "an empty stop word": ({"stop": ["x", ""]}, "stop[1]"),
    "a picture that is none": (
        parts({"type": "image_url", "image_url": {"url": "data:image/png;base64,!!!"}}),
        "messages[0].content[0].image_url.url",
    ),
    "unknown model with a long name": ({"model": "x" * 100_000}, "model"),
    "an unknown effort": ({"reasoning_effort": "huge"}, "reasoning_effort"),
    "a tier of nobody": ({"service_tier": "batch"}, "service_tier"),
    "a tier in capitals": ({"service_tier": "Flex"}, "service_tier"),
    "a tier as a number": ({"service_tier": 7}, "service_tier"),
}
BAD_PODIUM: dict[str, tuple[Any, str]] = {
    "podium as a number": (7, "podium"),
    "an unknown field": ({"max_stps": 3}, "podium.max_stps"),
    "an unknown field of a common name": ({"text": 3}, "podium.text"),
    "a worker nobody has": ({"workers": ["a", "zed"]}, "podium.workers"),
    "an excluded worker nobody has": ({"exclude_workers": ["zed"]}, "podium.exclude_workers"),
    "no workers": ({"workers": []}, "podium.workers"),
    "workers as a text": ({"workers": "a"}, "podium.workers"),
    "a worker as a number": ({"workers": ["a", 1]}, "podium.workers[1]"),
    "all workers excluded": ({"exclude_workers": ["a", "b", "c"]}, "podium.exclude_workers"),
    "a worker outside the pool": ({"workers": ["conductor"]}, "podium.workers"),
    "no steps": ({"max_steps": 0}, "podium.max_steps"),
    "no rounds": ({"rounds": 0}, "podium.rounds"),
    "no money": ({"max_cost_usd": 0}, "podium.max_cost_usd"),
    "negative money": ({"max_cost_usd": -1}, "podium.max_cost_usd"),
    "money that is none": ({"max_cost_usd": "NaN"}, "podium.max_cost_usd"),
    "money without end": ({"max_cost_usd": "1e999999"}, "podium.max_cost_usd"),
    "money too small to write": ({"max_cost_usd": "1e-999999"}, "podium.max_cost_usd"),
    "no tokens for podium": ({"max_tokens": 0}, "podium.max_tokens"),
    "a negative deadline": ({"deadline_s": -1}, "podium.deadline_s"),
    "a deadline of no time": ({"deadline_s": 0}, "podium.deadline_s"),
    "a deadline as a word": ({"deadline_s": "soon"}, "podium.deadline_s"),
    "unknown progress": ({"progress": "loud"}, "podium.progress"),
    "an empty plan": ({"plan": []}, "podium.plan"),
    "a plan with a forward read": ({"plan": [step("a", "x", [1]), step("b")]}, "podium.plan[0]"),
    "a plan that reads itself": ({"plan": [step("a"), step("b", "x", [1])]}, "podium.plan[1]"),
    "a plan that reads backwards from nothing": ({"plan": [step("a", "x", [-1])]}, "podium.plan[0]"),
    "a plan with 6 steps": ({"plan": SIX}, "podium.plan[5]"),
    "a plan longer than its own limit": ({"plan": SIX[:3], "max_steps": 2}, "podium.plan[2]"),
    "a plan with a worker nobody has": ({"plan": [step("zed")]}, "podium.plan[0]"),
    "a plan with an excluded worker": (
        {"plan": [step("a"), step("b")], "exclude_workers": ["b"]},
        "podium.plan[1]",
    ),
    "a plan with a worker outside the pool": ({"plan": [step("conductor")]}, "podium.plan[0]"),
    "a plan with a number for a worker": ({"plan": [step(0)]}, "podium.plan[0].worker"),
    "a plan with a typing error": ({"plan": [{"worker": "a", "acces": []}]}, "podium.plan[0].acces"),
    "a plan that reads words": ({"plan": [step("a") | {"access": ["x"]}]}, "podium.plan[0].access[0]"),
    "a plan that reads true": (
        {"plan": [step("a"), step("a") | {"access": [True]}]},
        "podium.plan[1].access[0]",
    ),
    "a plan that reads some": ({"plan": [step("a", "x", "some")]}, "podium.plan[0].access"),
}
REQUESTS: dict[str, tuple[bytes, str]] = (
    {name: (json.dumps(ASK | body).encode(), param) for name, (body, param) in BAD.items()}
    | {
        name: (json.dumps(ASK | {"podium": podium}).encode(), param)
        for name, (podium, param) in BAD_PODIUM.items()
    }
    | {
        "no messages at all": (b'{"model": "mini"}', "messages"),
        "no model": (b'{"messages": [{"role": "user", "content": "hi"}]}', "model"),
        "invalid JSON": (b'{"model": "mini", ', "body"),
        "nothing": (b"", "body"),
        "no UTF-8": (b"\xff\xfe\x00", "body"),
        "half an escape": (b'{"model": "\\ud8"}', "body"),
        "brackets without end": (b"[" * 100_000, "body"),
        "a list": (b"[]", "body"),
        "a number": (b"7", "body"),
        "null": (b"null", "body"),
        "temperature NaN": (
            b'{"model":"mini","messages":[{"role":"user","content":"hi"}],"temperature":NaN}',
            "temperature",
        ),
    }
)


async def post(api: Served, content: bytes, path: str = "/v1/chat/completions") -> Any:
    return await api.http.post(path, content=content, headers={"content-type": "application/json"})


def times_s() -> tuple[float, float]:
    """Return the CPU time of this thread and the virtual time, which advances when anything waits."""
    return time.thread_time(), time.monotonic()


def since(began: tuple[float, float]) -> float:
    return max(now - then for now, then in zip(times_s(), began, strict=True))


async def test_invalid_input_returns_a_fast_4xx_that_names_the_field():
    """One warm server handles all requests. Times are medians of three."""
    slow: dict[str, float] = {}
    async with served(team()) as api:
        await api.ok()
        for name, (content, param) in REQUESTS.items():
            took: list[float] = []
            for _ in range(3):
                began = times_s()
                answer = await post(api, content)
                took.append(since(began))
            assert 400 <= answer.status_code < 500, (name, answer.text)
            body = answer.json()
            assert body.keys() == {"error"}, name
            assert body["error"].keys() >= {"message", "type", "param", "code"}, name
            assert body["error"]["param"] == param, (name, body)
            assert body["error"]["type"] == "invalid_request_error", name
            assert answer.status_code == (404 if name.startswith("unknown model") else 400), name
            assert len(body["error"]["message"]) < 1000, name
            slow[name] = statistics.median(took)
        assert len(api.worker("conductor").calls) == 1, "nothing was asked of anybody"
    assert max(slow.values()) < QUICK_S, sorted(slow.items(), key=lambda item: -item[1])[:3]


async def test_the_plans_endpoint_returns_the_same_errors_as_chat():
    async with served(team()) as api:
        for name, (content, _) in REQUESTS.items():
            chat, planned = await post(api, content), await post(api, content, "/v1/plans")
            assert (planned.status_code, planned.json()) == (chat.status_code, chat.json()), name


async def test_the_sdk_raises_its_own_errors_for_invalid_input():
    async with served(team()) as api, api.sdk as sdk:
        with pytest.raises(openai.BadRequestError) as bad:
            await sdk.chat.completions.create(
                model="mini", messages=[USER], extra_body={"podium": {"max_stps": 1}}
            )  # type: ignore[list-item]
        with pytest.raises(openai.NotFoundError) as unknown:
            await sdk.chat.completions.create(model="nobody", messages=[USER])  # type: ignore[list-item]
    assert (bad.value.param, bad.value.code, unknown.value.param) == ("podium.max_stps", "bad_task", "model")
    assert "Fields of `podium`" in bad.value.message
    assert "mini" in unknown.value.message, "it says which there are"


async def test_a_deeply_nested_body_is_rejected_with_that_reason():
    schema: dict[str, Any] = {}
    for _ in range(150):
        schema = {"type": "object", "properties": {"a": schema}}
    response_format = {"type": "json_schema", "json_schema": {"name": "deep", "schema": schema}}
    async with served(team()) as api:
        answer = await api.post({"messages": [USER], "response_format": response_format})
    assert answer.status_code == 400
    assert "nested too deeply" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("part", "n"), [({}, 700_000), ({"type": "text", "text": "x"}, 80_000)])
async def test_a_body_with_too_many_values_is_rejected_quickly(part: dict[str, Any], n: int):
    content = json.dumps(ASK | {"messages": [{"role": "user", "content": [part] * n}]}).encode()
    async with served(team()) as api:
        answer = await post(api, content)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body")


FIELDS = {f"a{n}": 1 for n in range(150_000)}
BATCH = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/workflows/wf_1/feedback", FIELDS),
        ("/v1/batches", BATCH | {"metadata": FIELDS}),
        ("/v1/conversations", {"metadata": FIELDS}),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
async def test_too_many_fields_are_rejected_without_naming_one(path: str, body: dict[str, Any], times: int):
    """Few enough to be parsed, but too many to report one by one."""
    content = json.dumps(body).replace('"a', '"b": 1, "a' if times == 2 else '"a').encode()
    async with served(team()) as api:
        answer = await api.http.post(path, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body")


async def test_an_admin_body_has_the_same_limit_of_values():
    content = json.dumps({"name": ["x"] * 200_001}).encode()
    async with served(team()) as api:
        answer = await api.http.post(
            "/v1/admin/teams", content=content, headers={"content-type": "application/json"}
        )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body")


async def test_audio_input_is_rejected_as_not_supported():
    async with served(team()) as api:
        error = (await api.post(parts({"type": "input_audio", "input_audio": {}}))).json()["error"]
        assert error["message"].startswith("messages[0].content[0].input_audio is not supported."), error


async def test_an_image_without_detail_and_a_refusal_in_the_history_are_accepted():
    image = {"url": "data:image/png;base64,AAAA", "detail": None}
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I would rather not."}]}
    message = {"role": "user", "content": [{"type": "image_url", "image_url": image}]}
    async with served(team(workers=[scripted("a", sees_images=True)], workflows={})) as api:
        await api.ok({"model": "a", "messages": [USER, refusal, message]})
        messages = api.worker("a").calls[0].messages
    assert messages[-2].text == "I would rather not."
    assert [part.detail for part in messages[-1].parts if isinstance(part, Image)] == ["auto"]


async def first_line(api: Served, head: bytes, body: list[bytes]) -> tuple[bytes, float]:
    """Send `head`, then `body` while the server reads. Return the status line and the time it took."""
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    began = times_s()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        + head
        + b"\r\n\r\n"
    )
    answered = asyncio.create_task(reader.readuntil(b"\r\n"))
    for piece in body:
        if answered.done():
            break
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    line = await answered
    took_s = since(began)
    rest = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(header.split(b":")[1])
        for header in rest.lower().split(b"\r\n")
        if header.startswith(b"content-length")
    )
    error = json.loads(await reader.readexactly(length))["error"]
    assert error["param"] == "body"
    writer.close()
    return line, took_s


async def test_a_body_of_50_mb_is_rejected_before_it_is_read():
    piece = b"x" * 65_536
    async with served(team()) as api:
        await api.ok()
        took: list[float] = []
        for _ in range(3):
            line, took_s = await first_line(api, b"content-length: 50000000", [piece] * 4)
            assert b" 413 " in line
            took.append(took_s)
    assert statistics.median(took) < QUICK_S


async def test_a_body_without_content_length_is_rejected_when_it_is_too_long():
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    async with served(team(limits={"max_body_bytes": 200_000})) as api:
        line, _ = await first_line(api, b"transfer-encoding: chunked", [chunk] * 1000)
    assert b" 413 " in line


async def test_a_50_mb_body_of_an_ordinary_client_returns_413():
    async with served(team()) as api:
        body = json.dumps(ASK | {"messages": [{"role": "user", "content": "x" * 50_000_000}]}).encode()
        answer = await post(api, body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (413, "body")
        assert "limits.max_body_bytes" in answer.json()["error"]["message"]
        assert (await api.post()).status_code == 200


async def test_unknown_routes_and_methods_return_openai_errors():
    async with served(team()) as api:
        nowhere = await api.http.get("/v1/nowhere")
        wrong = await api.http.get("/v1/chat/completions")
    assert (nowhere.status_code, wrong.status_code) == (404, 405)
    assert nowhere.json()["error"].keys() >= {"message", "type", "param", "code"}
    assert wrong.headers["allow"] == "POST"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(["a", "b", "c", "conductor", "mini", "duo", "zed", ""])
PLANNED = st.fixed_dictionaries(
    {"worker": NAMES | JSON},
    optional={
        "subtask": st.text(max_size=9) | JSON,
        "access": st.just("all") | st.lists(st.integers(-2, 6), max_size=4) | JSON,
    },
)
PODIUM = st.fixed_dictionaries(
    {},
    optional={
        "workers": st.lists(NAMES, max_size=3) | JSON, "exclude_workers": st.lists(NAMES, max_size=3) | JSON,
        "max_steps": st.integers(-1, 9) | JSON, "rounds": st.integers(0, 3) | JSON,
        "max_cost_usd": st.floats() | st.decimals().map(str) | JSON, "max_tokens": st.integers() | JSON,
        "deadline_s": st.floats(min_value=0.5) | JSON, "progress": st.sampled_from(["off", "events", "reasoning"]) | JSON,
        "trace": st.booleans() | JSON, "plan": st.lists(PLANNED, max_size=7) | JSON,
    },
)  # fmt: skip
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "system", "developer", "assistant", "tool"]),
        "content": st.text(max_size=30) | JSON,
    }
)
BODY = st.fixed_dictionaries(
    {"model": NAMES | JSON, "messages": st.lists(MESSAGE, max_size=3) | JSON},
    optional={
        "stream": st.booleans() | JSON, "stream_options": st.just({"include_usage": True}) | JSON, "n": st.integers(0, 2) | JSON,
        "temperature": st.floats() | JSON, "top_p": st.floats() | JSON, "seed": st.integers() | JSON,
        "max_tokens": st.integers() | JSON, "max_completion_tokens": st.integers(min_value=1) | JSON,
        "stop": st.text() | st.lists(st.text(), max_size=18) | JSON,
        "reasoning_effort": st.sampled_from(["none", "low", "high", "max"]) | JSON, "podium": PODIUM | JSON,
    },
)  # fmt: skip
ONE_SERVER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
"""Settings that allow one server for all examples of a test."""


@pytest.fixture
async def warm():
    async with served(team()) as api:
        yield api


def has_expected_status(answer: Any) -> bool:
    """Accept a 504, which a tight deadline in the request causes."""
    return answer.status_code < 500 or answer.status_code == 504


@ONE_SERVER
@given(body=BODY | JSON, path=st.sampled_from(["/v1/chat/completions", "/v1/plans"]))
async def test_no_json_body_causes_a_5xx(warm: Served, body: Any, path: str):
    answer = await post(warm, json.dumps(body).encode(), path)
    assert has_expected_status(answer), answer.text
    assert '"error":{' not in answer.text or answer.status_code != 200, answer.text


@ONE_SERVER
@given(
    podium=PODIUM,
    model=st.sampled_from(["mini", "ultra", "duo", "a"]),
    path=st.sampled_from(["/v1/chat/completions", "/v1/plans"]),
)
async def test_no_podium_field_causes_a_5xx(warm: Served, podium: Any, model: str, path: str):
    answer = await post(warm, json.dumps(ASK | {"model": model, "podium": podium}).encode(), path)
    assert has_expected_status(answer), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["param"].startswith(("podium", "body")), answer.text


@ONE_SERVER
@given(content=st.binary(max_size=200), path=st.sampled_from(["/v1/chat/completions", "/v1/plans"]))
async def test_no_byte_sequence_causes_a_5xx(warm: Served, content: bytes, path: str):
    answer = await post(warm, content, path)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["param"]


@ONE_SERVER
@given(id=st.text(min_size=1, max_size=20), limit=st.text(max_size=9))
async def test_no_look_up_request_causes_a_5xx(warm: Served, id: str, limit: str):
    from urllib.parse import quote

    name = quote(id, safe="", errors="surrogatepass")
    for path in (
        f"/v1/workflows/{name}",
        f"/v1/models/{name}",
        f"/v1/workflows?limit={quote(limit, safe='', errors='surrogatepass')}",
    ):
        answer = await warm.http.get(path)
        assert answer.status_code < 500, (path, answer.text)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [{}] * 2000}] * 160},
        {"messages": [USER], "stop": [0] * 100_000},
        {"messages": [USER], "podium": {"exclude_workers": [0] * 100_000}},
        {"messages": [USER], "podium": {"plan": [{}] * 100_000}},
    ],
)
def test_only_the_first_faults_of_a_body_are_collected(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as error:
        ChatRequest.model_validate_json(json.dumps({"model": "a"} | body))
    assert error.value.error_count() < 10


def numbers(n: int) -> bytes:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": ["N"]}}}
    body = json.dumps({"model": "a", "messages": [USER], "tools": [tool]})
    return body.replace('"N"', ",".join("1" * n)).encode()


async def test_a_body_with_too_many_numbers_is_rejected() -> None:
    async with served(team()) as api:
        headers = {"content-type": "application/json"}
        for n, status in ((400_000, 400), (1_000, 200)):
            answer = await api.http.post("/v1/chat/completions", content=numbers(n), headers=headers)
            assert (answer.status_code, "Split it into several requests" in answer.text) == (
                status,
                status == 400,
            )


@pytest.mark.parametrize("text", ["1, " * 400_000, '"1\\", ' * 190_000], ids=["commas", "quotes"])
async def test_commas_in_a_text_do_not_count_as_values(text: str) -> None:
    async with served(team()) as api:
        await api.ok({"model": "a", "messages": [{"role": "user", "content": text}]})


def test_an_unterminated_string_is_scanned_once() -> None:
    with pytest.raises(BadTask, match="Split it into several requests"):
        check_parts(b"," * 400_000 + b'"' + b'\\"' * 500_000)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_a_conversation_with_too_many_messages_and_parts_is_rejected(path: str) -> None:
    kind = "input_text" if path == "/v1/responses" else "text"
    messages = [{"role": "user", "content": [{"type": kind, "text": "x"}] * 2000}] * 11
    body = {"model": "a", "max_tokens": 9, "messages": messages, "input": messages}
    async with served(team()) as api:
        answer = await api.http.post(path, json=body)
        assert (answer.status_code, "20000 messages and parts" in answer.text) == (413, True)
        assert not api.worker("a").calls


async def test_a_probe_is_answered_between_the_starts_of_several_answers() -> None:
    turns = list[int]()
    n_turns = 0

    class Answer(Response):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            turns.append(n_turns)
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async def count() -> None:
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    async def receive() -> Message:
        return await asyncio.Event().wait() or {}

    async def send(_: Message) -> None:
        pass

    counting = asyncio.create_task(count())
    await ChoicesResponse([Answer() for _ in range(4)])({"type": "http"}, receive, send)
    counting.cancel()
    assert len(set(turns)) == 4
