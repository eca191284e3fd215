"""Providers that refuse a prompt with an empty answer. Clients get an error as for a 4xx, and the call is billed."""

from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from conductor.errors import ContentFiltered
from conductor.model.terms import Refusals
from conductor.model.usage import Usage
from tests.serving.api.served import PRICE, Json, answer_text, scripted, served, step, team
from tests.wires.anthropic import AnthropicWire
from tests.wires.gemini import GeminiWire
from tests.wires.openai import OpenAIWire
from tests.wires.responses import ResponsesWire
from tests.wires.server import Answer, Wire, serving, sse

WORDS = "It is"
INSTEAD = scripted("b", "Instead.")


class Refusing(NamedTuple):
    """A wire and its finish reason for a refused prompt."""

    wire: Wire
    settings: Json
    path: str
    finish: str
    extra: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def answer(self, text: str = "", reasoning: str = "") -> Answer:
        return Answer(text, reasoning, self.finish, 5, output_tokens=3, extra=self.extra)


CHAT = Refusing(OpenAIWire(), {"kind": "openai"}, "/v1", "content_filter")
CLAUDE = Refusing(AnthropicWire(), {"kind": "anthropic"}, "", "refusal")
GEMINI = Refusing(GeminiWire(), {"kind": "gemini"}, "", "SAFETY")
WIRES = {"openai": CHAT, "anthropic": CLAUDE, "gemini": GEMINI}


def worker(refusing: Refusing, url: str, **settings: Any) -> Json:
    worker_settings = {"name": "a", "model": "m", "base_url": url + refusing.path, "price": PRICE}
    return worker_settings | refusing.settings | settings


@pytest.fixture(params=WIRES.values(), ids=WIRES.keys())
def refusing(request: pytest.FixtureRequest) -> Refusing:
    return request.param


async def ask(
    refusing: Refusing, answer: Answer, *, stream: bool = False, **settings: Any
) -> tuple[Any, Json]:
    """Return what a client gets from worker `a`, and the record of the run."""
    async with serving(refusing.wire) as upstream:
        upstream.respond = lambda _: answer
        workers = [worker(refusing, upstream.url, **({"on_content_filter": "fall_back"} | settings)), INSTEAD]
        async with served(team(workers=workers, workflows={})) as api:
            if stream:
                text: Any = answer_text(await api.events({"model": "a"}))
            else:
                response = await api.post({"model": "a"})
                text = response.json()
            record = await api.newest()
    assert len(upstream.requests) == 1
    return text, record


async def test_a_refusal_without_a_fallback_is_an_error_and_billed_as_reported(refusing: Refusing):
    text, record = await ask(refusing, refusing.answer())
    assert (text["error"]["code"], text["error"]["podium"]["worker"]) == ("content_filter", "a")
    assert record["cost_usd"] == pytest.approx(float(Decimal(11) / 10**6))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fallback_answers_and_the_refusal_is_a_recorded_attempt(refusing: Refusing, stream: bool):
    text, record = await ask(refusing, refusing.answer(), stream=stream, fallbacks=["b"])
    assert (text if stream else text["choices"][0]["message"]["content"]) == "Instead."
    (attempt,) = record["steps"][0]["attempts"]
    assert (attempt["worker"], attempt["error"]) == ("a", "ContentFiltered")
    assert attempt["cost_usd"] == pytest.approx(11e-6)
    assert record["cost_usd"] == pytest.approx(11e-6)


AS_STATUS = Answer(status=400, error="Blocked by the content filter.", error_code="content_filter")


@pytest.mark.parametrize("how", ["as a whole answer", "as a status", "in the stream"])
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_with_the_setting_a_refusal_is_returned_after_one_call(
    refusing: Refusing, how: str, inner: bool, stream: bool
):
    error = {"code": "content_filter", "message": "Blocked.", "status": 400}
    answers = {
        "as a whole answer": refusing.answer(),
        "as a status": AS_STATUS,
        "in the stream": Answer(instead=(sse({"error": error}),)),
    }
    async with serving(refusing.wire) as upstream:
        upstream.respond = lambda _: answers[how]
        own = worker(refusing, upstream.url, fallbacks=["b"])
        three = [step("b", "Begin."), step("a", "Go on.", [0]), step("b", "End.", [1])]
        async with served(team(workers=[own, INSTEAD], workflows={"three": three})) as api:
            answer = await api.post({"model": "three" if inner else "a", "stream": stream})
            await api.newest()
    assert '"content_filter"' in answer.text
    assert "Instead." not in answer.text
    assert answer.status_code == 400 or stream
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_shown_text_stays_and_the_filter_is_the_finish_reason(refusing: Refusing, stream: bool):
    text, record = await ask(refusing, refusing.answer(WORDS), stream=stream, fallbacks=["b"])
    assert (text if stream else text["choices"][0]["message"]["content"]) == WORDS
    assert record["steps"][0]["finish_reason"] == "content_filter"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_after_only_reasoning_uses_a_fallback(refusing: Refusing, stream: bool):
    text, record = await ask(refusing, refusing.answer(reasoning="Hm, no."), stream=stream, fallbacks=["b"])
    assert (text if stream else text["choices"][0]["message"]["content"]) == "Instead."
    cut, left_alone = record["steps"][0]["attempts"]
    assert (cut["worker"], cut["error"], cut["outcome"]) == ("a", "ContentFiltered", "cut")
    assert (left_alone["worker"], left_alone["outcome"]) == ("a", "left_alone")
    assert record["cost_usd"] == pytest.approx(11e-6)


async def test_with_the_setting_a_refusal_after_only_reasoning_is_returned(refusing: Refusing):
    thoughts = refusing.answer(reasoning="Hm, no.")
    text, _ = await ask(refusing, thoughts, fallbacks=["b"], on_content_filter="tell")
    assert text["error"]["code"] == "content_filter"


async def test_a_prompt_blocked_by_gemini_is_billed_for_its_input():
    blocked = Answer(input_tokens=5, extra={"block": "SAFETY"})
    text, record = await ask(GEMINI, blocked, fallbacks=["b"])
    assert text["choices"][0]["message"]["content"] == "Instead."
    assert record["cost_usd"] == pytest.approx(5e-6)


async def test_a_refusal_without_usage_is_billed_at_its_bound():
    silent = Answer(
        instead=(sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "content_filter"}]}),)
    )
    _, record = await ask(CHAT, silent, fallbacks=["b"])
    (attempt,) = record["steps"][0]["attempts"]
    assert (attempt["cost_is_bound"], record["cost_is_bound"]) == (True, True)
    assert record["cost_usd"] > 0.001


async def test_an_incomplete_response_without_text_counts_as_filtered():
    wire = ResponsesWire()
    usage = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}
    ended = {
        "id": "r",
        "status": "incomplete",
        "incomplete_details": {"reason": "content_filter"},
        "usage": usage,
    }
    events = (wire.event("response.incomplete", response=ended),)
    responses = Refusing(wire, {"kind": "openai", "api": "responses"}, "/v1", "")
    text, record = await ask(responses, Answer(instead=events), fallbacks=["b"])
    assert text["choices"][0]["message"]["content"] == "Instead."
    assert record["cost_usd"] == pytest.approx(11e-6)
    spent = record["usage"]
    assert spent["prompt_tokens_details"]["orchestration_input_tokens"] == 5
    assert spent["completion_tokens_details"]["orchestration_output_tokens"] == 3


@pytest.mark.parametrize("has_fallback", [True, False])
async def test_a_filtered_middle_step_passes_no_empty_output_on(refusing: Refusing, has_fallback: bool):
    three = [step("b", "Begin."), step("a", "Go on.", [0]), step("echo", "End.", [1])]
    echo = scripted("echo", "{question}")
    async with serving(refusing.wire) as upstream:
        upstream.respond = lambda _: refusing.answer()
        instead = {"fallbacks": ["b"], "on_content_filter": "fall_back"} if has_fallback else {}
        one = worker(refusing, upstream.url, **instead)
        async with served(team(workers=[one, INSTEAD, echo], workflows={"three": three})) as api:
            answer = (await api.post({"model": "three"})).json()
            record = await api.newest()
    if has_fallback:
        assert "Instead." in answer["choices"][0]["message"]["content"]
        assert record["steps"][1]["served_by"] == "b"
    else:
        assert (answer["error"]["code"], answer["error"]["podium"]["step"]) == ("content_filter", 1)


@pytest.mark.parametrize("rule", ["tell", "fall_back"])
async def test_a_setting_decides_whether_a_worker_answers_after_a_refused_plan(
    rule: str,
):
    async with serving(CHAT.wire) as upstream:
        upstream.respond = lambda _: CHAT.answer()
        boss = worker(CHAT, upstream.url, name="conductor", in_pool=False, on_content_filter=rule)
        settings = {"conductor": {"worker": "conductor"}, "workers": [boss, INSTEAD], "models": {"mini": {}}}
        async with served(settings) as api:
            answer = (await api.post()).json()
            record = await api.newest()
    if rule == "tell":
        assert answer["error"]["code"] == "content_filter"
    else:
        assert answer["choices"][0]["message"]["content"] == "Instead."
    assert record["plans"][0]["error"]["code"] == "content_filter"
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("rule", ["tell", "fall_back"])
async def test_a_worker_that_answers_without_a_plan_and_refuses_is_not_replaced(rule: str):
    async with serving(CHAT.wire) as upstream:
        upstream.respond = lambda _: CHAT.answer()
        settings = {
            "conductor": {"worker": "conductor"},
            "workers": [
                scripted("conductor", "No plan.", in_pool=False),
                worker(CHAT, upstream.url, on_content_filter=rule),
                INSTEAD,
            ],
            "models": {"mini": {}},
        }
        async with served(settings) as api:
            answer = (await api.post()).json()
            await api.newest()
    code = answer["error"]["code"] if rule == "tell" else answer["choices"][0]["message"]["content"]
    assert code == ("content_filter" if rule == "tell" else "Instead.")


def test_a_repeated_refusal_in_one_run_costs_nothing():
    refusals = Refusals()
    refusals.add("a", "chat", ContentFiltered("No.", worker="a", usage=Usage(5), cost_usd=Decimal(1)))
    again = refusals.earlier("a", "chat")
    assert isinstance(again, ContentFiltered)
    assert (again.usage, again.cost_usd) == (None, None), "it was not asked, and is not paid"
