"""Behaviour specific to OpenAI's Chat Completions and compatible servers."""

from decimal import Decimal

import pytest

from conductor.errors import ContextOverflow, WorkerBusy, WorkerError, WorkerRefused, WorkerUnavailable
from conductor.model.call import Call, CallSite, Grammar, Sampling
from conductor.model.messages import File, Image, Message, Text
from conductor.model.operation import PromptCache, WireOptions
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import Usage
from serving.settings.known_models import Accepts
from serving.workers.openai import OpenAIWorker
from serving.workers.openai_responses import OpenAIResponsesWorker
from serving.workers.provider_account import ProviderAccount
from tests.wires.openai import OpenAIWire
from tests.wires.responses import ResponsesWire
from tests.wires.server import Answer, WireServer, serving, sse

USER = Message.of("user", "What is two and two?")
BARE = Call(messages=(USER,))
MARKED = Call(messages=(Message("user", (Text("What is two and two?", cache="1h"),)),))
PDF = "data:application/pdf;base64,JVBERi0xLjc="
PNG = "data:image/png;base64,iVBORw0KGgo="


SHORT = {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 0}


async def ask(
    server: WireServer,
    call: Call = BARE,
    model: str = "gpt-9",
    worker_type: type[OpenAIWorker] = OpenAIWorker,
    **settings: object,
) -> list[Delta]:
    worker = worker_type(ProviderAccount("w", model, "sk-test", f"{server.url}/v1", **settings))  # type: ignore[arg-type]
    try:
        async with worker.open(call) as reply:
            return [delta async for delta in reply]
    finally:
        await worker.aclose()


async def test_a_minimal_call_sends_only_required_fields():
    async with serving(OpenAIWire()) as server:
        await ask(server)
    assert server.body == {
        "model": "gpt-9",
        "messages": [{"role": "user", "content": "What is two and two?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert server.requests[0].headers["authorization"] == "Bearer sk-test"
    assert server.requests[0].path == "/v1/chat/completions"


async def test_every_parameter_of_a_call_is_sent():
    call = Call((Message.of("system", "Be short."), USER, Message.of("assistant", "4"), Message.of("user", "Sure?")), Sampling(max_output_tokens=50, temperature=0.0, top_p=0.9, stop=("END", "\n\n"), seed=7, effort="high"), grammar=Grammar("root ::= ...", {"type": "object"}), site=CallSite(operation="plan"))  # fmt: skip
    async with serving(OpenAIWire()) as server:
        await ask(server, call)
    body = server.body
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert (body["max_tokens"], body["temperature"], body["top_p"]) == (50, 0.0, 0.9)
    assert (body["stop"], body["seed"], body["reasoning_effort"]) == (["END", "\n\n"], 7, "high")
    schema = {"name": "plan", "strict": True, "schema": {"type": "object"}}
    assert body["response_format"] == {"type": "json_schema", "json_schema": schema}


async def test_a_grammar_without_a_json_schema_is_not_sent():
    async with serving(OpenAIWire()) as server:
        await ask(server, Call(messages=(USER,), grammar=Grammar("root ::= ...")))
    assert "response_format" not in server.body


def test_only_openai_itself_gets_max_completion_tokens():
    call = Call((USER,), Sampling(max_output_tokens=5))
    for base_url, longest in (
        (None, "max_completion_tokens"),
        ("https://eu.api.openai.com/v1", "max_completion_tokens"),
        ("https://openrouter.ai/api/v1", "max_tokens"),
        ("http://api.openai.com.evil.example/v1", "max_tokens"),
    ):
        request = OpenAIWorker(ProviderAccount("w", "gpt-9", "sk-test", base_url))._request(call)
        assert {key for key in request if key.startswith("max")} == {longest}


async def test_a_model_that_requires_max_completion_tokens_gets_it_at_any_server():
    call = Call((USER,), Sampling(max_output_tokens=5))
    async with serving(OpenAIWire()) as server:
        await ask(server, call, accepts=Accepts(output_limit_field="max_completion_tokens"))
    assert (server.body.get("max_tokens"), server.body["max_completion_tokens"]) == (None, 5)


@pytest.mark.parametrize(
    ("base", "path", "key"),
    [
        ("/openai/v1/", "/openai/v1/chat/completions", "authorization"),
        ("/openai/v1?api-version=preview", "/openai/v1/chat/completions?api-version=preview", "api-key"),
        ("/openai/deployments/d?api-version=2024-10-21", "/openai/deployments/d/chat/completions?api-version=2024-10-21", "api-key"),
    ],
)  # fmt: skip
async def test_azure_urls_keep_their_query_and_key_header(base: str, path: str, key: str):
    async with serving(OpenAIWire()) as server:
        worker = OpenAIWorker(ProviderAccount("w", "team-large", "sk-test", server.url + base))
        async with worker.open(BARE) as reply:
            assert "".join([delta.text async for delta in reply]) == "It is four."
        await worker.aclose()
    request = server.requests[0]
    assert request.path == path
    headers = {name: value for name, value in request.headers.items() if name in ("authorization", "api-key")}
    assert headers == {key: "Bearer sk-test" if key == "authorization" else "sk-test"}


async def test_tokens_that_arrive_together_are_one_delta_of_limited_length():
    text = " ".join(f"number-{n}" for n in range(60))
    whole = b"".join(OpenAIWire().events(Answer(text=text)))
    async with serving(OpenAIWire()) as server:
        worker = OpenAIWorker(ProviderAccount("w", "gpt-9", "sk-test", f"{server.url}/v1"))
        for read_along in (True, False):
            server.answers.append(Answer(instead=(whole,)))
            async with worker.open(Call((USER,), coalesce=not read_along)) as reply:
                texts = [delta.text async for delta in reply if delta.text]
            assert "".join(texts) == text
            assert len(texts) < 10
            assert max(map(len, texts)) <= (256 if read_along else 4096)
        await worker.aclose()


async def test_extra_body_overrides_the_request():
    extra = {"structured_outputs": {"grammar": "root ::= x"}, "temperature": 1}
    async with serving(OpenAIWire()) as server:
        await ask(server, Call((USER,), Sampling(temperature=0.2)), extra_body=extra)
    assert server.body["structured_outputs"] == {"grammar": "root ::= x"}
    assert server.body["temperature"] == 1


async def test_images_and_pdfs_are_sent_unchanged():
    pictures = (Image(PNG, "low"), Image("https://pictures.example/cat.jpg"))
    parts = (Text("What is this?"), *pictures, File("a.pdf", PDF))
    async with serving(OpenAIWire()) as server:
        await ask(server, Call(messages=(Message("user", parts),)), fetches_pictures=True)
    assert server.body["messages"][0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://pictures.example/cat.jpg", "detail": "auto"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}},
    ]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_is_read_from_both_field_names(name: str):
    async with serving(OpenAIWire(), Answer(reasoning="Hm, so.", extra={"reasoning_field": name})) as server:
        deltas = await ask(server)
    assert "".join(delta.reasoning for delta in deltas) == "Hm, so."


async def test_a_refusal_message_is_shown_and_counts_as_filtered():
    async with serving(OpenAIWire(), Answer(text="", extra={"refusal": "I will not."})) as server:
        deltas = await ask(server)
    assert "".join(delta.text for delta in deltas) == "I will not."
    assert deltas[-1].finish == FinishReason.CONTENT_FILTER


async def test_an_account_without_credit_is_refused_not_busy():
    answer = Answer(status=429, error_code="insufficient_quota", headers={"retry-after": "1"})
    async with serving(OpenAIWire(), answer) as server:
        with pytest.raises(WorkerRefused) as caught:
            await ask(server)
    assert "credit" in caught.value.detail
    assert caught.value.every_call


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=401, error="Incorrect API key provided: sk-***."),
        Answer(status=403, error="Your API key was reported as leaked. Please use another API key."),
        Answer(status=400, body=b'{"code": "Client specified an invalid argument", "error": "Incorrect API key provided: na***ys."}'),
        Answer(status=400, body=b'[{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key."}}]'),
    ],
    ids=["OpenAI", "Gemini", "xAI", "Gemini for OpenAI clients"],
)  # fmt: skip
async def test_every_providers_form_of_a_bad_key_is_recognised(answer: Answer):
    async with serving(OpenAIWire(), answer) as server:
        with pytest.raises(WorkerRefused) as caught:
            await ask(server)
    assert "Check the worker's API key" in caught.value.detail
    assert caught.value.every_call


@pytest.mark.parametrize(
    ("code", "kind", "error"),
    [
        ("context_length_exceeded", "invalid_request_error", ContextOverflow),
        ("rate_limit_exceeded", "requests", WorkerBusy),
        (None, "server_error", WorkerUnavailable),
        (None, "overloaded_error", WorkerBusy),
        (400, "BadRequestError", WorkerRefused),
        (None, "invalid_request_error", WorkerRefused),
        ("insufficient_quota", "insufficient_quota", WorkerRefused),
        (None, None, WorkerUnavailable),
    ],
)
async def test_an_error_inside_the_stream_is_mapped_by_its_code(
    code: str, kind: str, error: type[WorkerError]
):
    async with serving(OpenAIWire(), Answer(error_after=1, error_code=code, extra={"type": kind})) as server:
        with pytest.raises(WorkerError) as caught:
            await ask(server)
    assert type(caught.value) is error


async def test_missing_usage_stays_unknown():
    events = OpenAIWire().events(Answer(text="Four."))
    async with serving(OpenAIWire(), Answer(instead=(*events[:-2], events[-1]))) as server:
        deltas = await ask(server)
    assert deltas[-1] == Delta(finish=FinishReason.STOP, model="the-model-20261101")


@pytest.mark.parametrize(
    ("usage", "fields", "cost"),
    [
        ({"cost": 0.00123}, {}, Decimal("0.00123")),
        ({"cost": 0}, {}, Decimal(0)),
        ({}, {"podium": {"cost_usd": 0.25}}, Decimal("0.25")),
        ({"cost": {"total_cost": 3}}, {}, None),
        ({"cost": "free"}, {"podium": {"cost_usd": None}}, None),
    ],
)
async def test_a_cost_reported_by_the_server_is_read(usage: dict, fields: dict, cost: Decimal | None):
    wire = OpenAIWire()
    *events, done = wire.events(Answer(text="Four."))
    end = {
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "END"}],
        "model": "m",
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, **usage},
        **fields,
    }
    async with serving(wire, Answer(instead=(*events, sse(end), done))) as server:
        deltas = await ask(server)
    assert deltas[-1].cost_usd == cost
    assert deltas[-1].stop_sequence == "END", "as vLLM says it"


@pytest.mark.parametrize("model", ["claude-9", "gpt-9"])
@pytest.mark.parametrize(
    ("details", "n_hour"),
    [
        ({"cache_write_tokens": 100}, 100),
        ({"cache_creation_tokens": 100}, 100),
        ({"cache_creation_tokens": 100, "cache_creation_token_details": SHORT}, 0),
        ({"cache_write_tokens": 100, "cache_creation_token_details": SHORT | {"ephemeral_5m_input_tokens": 40}}, 60),
    ],
)  # fmt: skip
async def test_cache_writes_have_the_reported_lifetime_or_that_of_the_marks(
    model: str, details: dict[str, object], n_hour: int
):
    *events, _, done = OpenAIWire().events(Answer(text="Four."))
    usage = {"prompt_tokens": 120, "completion_tokens": 2, "prompt_tokens_details": details}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "model": "m", "usage": usage}
    expected = Usage(120, 2, cache_write_tokens=100, cache_write_1h_tokens=n_hour * (model == "claude-9"))
    async with serving(OpenAIWire(), Answer(instead=(*events, sse(end), done))) as server:
        assert (await ask(server, MARKED, model))[-1].usage == expected
    wire = ResponsesWire()
    usage = {"input_tokens": 120, "output_tokens": 2, "input_tokens_details": details}
    last = wire.event("response.completed", response={"status": "completed", "usage": usage})
    async with serving(wire, Answer(instead=(*wire.events(Answer(text="Four."))[:-1], last))) as server:
        answer = await ask(server, MARKED, model, worker_type=OpenAIResponsesWorker)
    assert answer[-1].usage == expected


async def test_comments_and_chunks_without_choices_are_ignored():
    wire = OpenAIWire()
    odd = (
        b": OPENROUTER PROCESSING\n\n",
        wire.chunk(Answer(), []),
        b'data: {"choices": null, "model": "m"}\n\n',
    )
    async with serving(wire, Answer(instead=(*odd, *wire.events(Answer(text="Four."))))) as server:
        deltas = await ask(server)
    assert "".join(delta.text for delta in deltas) == "Four."


@pytest.mark.parametrize(
    ("base_url", "key"),
    [
        (None, "cv_1"),
        ("https://eu.api.openai.com/v1", "cv_1"),
        ("https://ours.openai.azure.com/openai/v1", "cv_1"),
        ("https://openrouter.ai/api/v1", None),
        ("http://api.openai.com.evil.example/v1", None),
    ],
)
def test_the_conversation_is_the_cache_key_at_openai_and_azure(base_url: str | None, key: str | None):
    def call(cache: PromptCache) -> Call:
        return Call((USER,), Sampling(options=WireOptions(prompt_cache=cache)))

    account = ProviderAccount("w", "gpt-9", "sk-test", base_url)
    chat, responses = OpenAIWorker(account), OpenAIResponsesWorker(account)
    own, client = call(PromptCache(conversation="cv_1")), call(PromptCache("mine", conversation="cv_1"))
    for body in (chat._request, responses._body):
        assert body(own).get("prompt_cache_key") == key
        assert body(client)["prompt_cache_key"] == "mine", "a client's own key is sent everywhere"
