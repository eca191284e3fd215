"""Parameters that a model does not accept are omitted, limited or emulated, with a note on the record."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from conductor.errors import WorkerBusy, WorkerError, WorkerUnavailable
from conductor.model.call import Call, CallSite, Sampling
from conductor.model.messages import Message
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import Usage
from conductor.model.worker import Worker
from conductor.plan.grammars import grammar
from serving.dispatch import stop_sequences
from serving.dispatch.model_parameters import ModelProfile, fit
from serving.dispatch.stop_sequences import UNREAD, cut_at
from serving.settings.known_models import LEVELS, Accepts, accepts_by_name
from serving.settings.model_access import overlay
from serving.settings.settings import parse
from serving.settings.worker_profile import accepts_of
from serving.workers.anthropic import AnthropicWorker
from serving.workers.gemini import GeminiWorker
from serving.workers.openai import OpenAIWorker
from serving.workers.provider_account import ProviderAccount
from serving.workers.scripted import ScriptedReply, ScriptedWorker
from tests.serving.dispatch.routes import dispatcher, route
from tests.wires import strict
from tests.wires.anthropic import AnthropicWire
from tests.wires.gemini import GeminiWire
from tests.wires.openai import OpenAIWire
from tests.wires.server import WireServer, serving

USER = Message.of("user", "What is two and two?")
PROVIDERS: dict[str, tuple[Any, Any, Any, str, Any]] = {
    "openai": (OpenAIWire, strict.openai(), OpenAIWorker, "/v1", strict.OPENAI),
    "anthropic": (AnthropicWire, strict.anthropic, AnthropicWorker, "", strict.CLAUDE),
    "gemini": (GeminiWire, strict.gemini, GeminiWorker, "", strict.GEMINI),
}
MODELS = [(kind, model) for kind, parts in PROVIDERS.items() for model in parts[4]]
NASTY = [
    Call(
        (USER,),
        Sampling(
            max_output_tokens=200_000, temperature=1.5, top_p=0.9, stop=("END", "\n\n", *"ABCD"), seed=2**40
        ),
    ),
    Call((USER,), Sampling(max_output_tokens=12_000, temperature=0.0, top_p=None, stop=("END",), seed=-1)),
    Call((USER,), Sampling(max_output_tokens=12_000, temperature=None, top_p=0.5, stop=("\n",), seed=7)),
    Call((USER,), Sampling(max_output_tokens=12_000, temperature=1.0, top_p=1.0)),
    Call((USER,), Sampling(max_output_tokens=2000, temperature=0.3, top_p=0.3)),
    Call((USER,), Sampling(max_output_tokens=12_000, top_k=20, min_p=0.1, repetition_penalty=1.1)),
    Call((USER,), Sampling(max_output_tokens=12_000, top_k=0, min_p=0.0, repetition_penalty=1.0)),
    Call(
        (USER,),
        Sampling(max_output_tokens=12_000, temperature=0.0),
        grammar=grammar("steps", 3, 5, may_accept=True),
        site=CallSite(operation="plan"),
    ),
]


def fitting(worker: Worker, model: str, accepts: Accepts) -> Worker:
    return dispatcher(route(worker, profile=ModelProfile(model, accepts)))


@asynccontextmanager
async def fitted(kind: str, model: str) -> AsyncGenerator[tuple[Worker, WireServer]]:
    """Yield a worker for `model`, with the known limits of the model, at a provider that enforces its rules."""
    wire, respond, worker_of, path, _ = PROVIDERS[kind]
    accepts = accepts_by_name(kind, model)
    async with serving(wire()) as server:
        server.respond = respond
        worker = worker_of(ProviderAccount("w", model, "key", server.url + path, accepts=accepts))
        yield fitting(worker, model, accepts), server
        await worker.aclose()


@pytest.mark.parametrize(("kind", "model"), MODELS)
async def test_a_known_model_rejects_no_request_at_any_effort(kind: str, model: str):
    async with fitted(kind, model) as (worker, _):
        for call in NASTY:
            for effort in (None, *LEVELS):
                async with worker.open(
                    replace(call, sampling=replace(call.sampling, effort=effort))
                ) as reply:
                    finishes = [delta.finish async for delta in reply if delta.finish]
                assert len(finishes) == 1


@pytest.mark.parametrize(
    ("kind", "model", "expected"),
    [
        ("openai", "gpt-4o", {"temperature": 0.3, "top_p": 0.3, "stop": ["END"], "seed": 7}),
        ("openai", "gpt-5.2", {"temperature": 0.3, "top_p": 0.3, "seed": 7}),
        ("openai", "gpt-5", {"seed": 7}),
        ("anthropic", "claude-haiku-4-5", {"temperature": 0.3, "stop_sequences": ["END"]}),
        (
            "anthropic",
            "claude-sonnet-4-20250514",
            {"temperature": 0.3, "top_p": 0.3, "stop_sequences": ["END"]},
        ),
        ("anthropic", "claude-sonnet-5-5", {"stop_sequences": ["END"]}),
    ],
)
async def test_parameters_that_a_model_accepts_are_sent(kind: str, model: str, expected: dict[str, Any]):
    call = Call((USER,), Sampling(max_output_tokens=9000, temperature=0.3, top_p=0.3, stop=("END",), seed=7))
    async with fitted(kind, model) as (worker, server), worker.open(call) as reply:
        [_ async for _ in reply]
    parameters = {
        name: server.body[name]
        for name in ("temperature", "top_p", "stop", "stop_sequences", "seed")
        if name in server.body
    }
    assert parameters == expected


@pytest.mark.parametrize(
    ("kind", "model", "expected", "left_out"),
    [
        ("openai", "gpt-4o", {}, ["top_k", "min_p", "repetition_penalty"]),
        ("anthropic", "claude-haiku-4-5", {"top_k": 20}, ["min_p", "repetition_penalty"]),
        ("anthropic", "claude-sonnet-5-5", {}, ["top_k", "min_p", "repetition_penalty"]),
        ("gemini", "gemini-2.5-flash", {"topK": 20}, ["min_p", "repetition_penalty"]),
    ],
)
async def test_samplers_are_sent_only_to_models_that_accept_them(
    kind: str, model: str, expected: dict[str, Any], left_out: list[str]
):
    call = Call((USER,), Sampling(max_output_tokens=9000, top_k=20, min_p=0.1, repetition_penalty=1.1))
    async with fitted(kind, model) as (worker, server), worker.open(call) as reply:
        [_ async for _ in reply]
    body = server.body | server.body.get("generationConfig", {})
    names = ("top_k", "topK", "min_p", "repetition_penalty")
    assert {name: body[name] for name in names if name in body} == expected
    assert [note.split()[0] for note in reply.notes] == left_out


@pytest.mark.parametrize(
    ("worker", "samplers"),
    [
        ({"model": "my-model"}, ()),
        ({"model": "my-model", "base_url": "https://eu.api.openai.com/v1"}, ()),
        ({"model": "my-model", "base_url": "http://127.0.0.1:1/v1"}, Accepts().samplers),
        ({"model": "my-model", "accepts": {"samplers": ["top_k"]}}, ("top_k",)),
        ({"model": "openai/gpt-4o", "base_url": "https://openrouter.ai/api/v1"}, ()),
    ],
)
def test_openais_own_models_accept_no_samplers(worker: dict[str, Any], samplers: tuple[str, ...]):
    own: Any = parse({"workers": [{"name": "w", "kind": "openai", "api_key_env": "K"} | worker]}).workers[0]
    assert accepts_of(own).samplers == samplers


def test_an_unknown_model_gets_every_parameter_without_a_note():
    call = Call(
        (USER,),
        Sampling(
            max_output_tokens=10**6,
            temperature=1.9,
            top_p=0.1,
            stop=tuple("abcdefgh"),
            seed=2**62,
            effort="xhigh",
            top_k=7,
            min_p=0.5,
            repetition_penalty=2,
        ),
        grammar=grammar("steps", 2, 2),
    )
    assert fit(call, accepts_by_name("openai", "qwen3-32b"), "qwen3-32b") == (call, ())


def test_every_note_names_the_parameter_and_the_model():
    call = Call(
        (USER,),
        Sampling(
            max_output_tokens=200_000,
            temperature=1.5,
            top_p=0.9,
            stop=("END", "\n"),
            seed=2**40,
            effort="xhigh",
        ),
        grammar=grammar("steps", 2, 2),
    )
    old = Accepts(max_temperature=1, temperature_with_top_p=False, blank_stop_sequences=False, seed="int32",
                  efforts=("none", "low"), json_schema=False, max_output_tokens=8192)  # fmt: skip
    request, notes = fit(call, old, "m-1")
    assert (
        request.sampling.temperature,
        request.sampling.top_p,
        request.sampling.stop,
        request.sampling.seed,
        request.sampling.effort,
    ) == (
        1,
        None,
        ("END",),
        None,
        "low",
    )
    assert (request.sampling.max_output_tokens, request.grammar) == (8192, None)
    assert notes == (
        "effort was changed from xhigh to low, the nearest level that m-1 accepts.",
        "temperature was lowered to 1, the maximum that m-1 accepts.",
        "top_p was omitted, because m-1 does not accept it together with temperature.",
        "1 of 2 stop sequences were applied by Podium, because m-1 does not accept them.",
        "seed was omitted, because m-1 accepts only 32-bit integers.",
        "max_output_tokens was lowered to 8192, the maximum that m-1 accepts.",
        "The JSON schema was omitted, because m-1 does not accept JSON schemas.",
    )


def test_omitting_a_default_value_leaves_no_note():
    call = Call((USER,), Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0, repetition_penalty=1))
    assert fit(call, Accepts(samplers=()), "m")[1] == ()
    assert fit(call, Accepts(sampling="never"), "m")[1] == ()
    assert fit(call, Accepts(temperature_with_top_p=False), "m")[1] == ()


@pytest.mark.parametrize(
    ("effort", "efforts", "expected"),
    [
        ("none", ("minimal", "low"), "minimal"), ("max", ("low", "high"), "high"), ("minimal", ("none", "low"), "none"),
        ("low", ("low", "high"), "low"), ("low", (), None), ("odd", ("low",), None), ("odd", None, "odd"), (None, ("low",), None),
    ],
)  # fmt: skip
def test_an_effort_is_mapped_to_the_nearest_supported_one(
    effort: str | None, efforts: tuple[str, ...] | None, expected: str | None
):
    assert Accepts(efforts=efforts).effort(effort) == expected


def test_settings_override_what_is_known_from_the_name():
    own = Accepts(stop_sequences=2)
    accepts = overlay(accepts_by_name("openai", "gpt-5"), own)
    assert (accepts.stop_sequences, accepts.sampling) == (2, "never")


@pytest.mark.parametrize(
    ("kind", "model", "like"),
    [
        ("openai", "ft:gpt-4o-2024-08-06:acme", "gpt-4o"),
        ("openai", "openai/gpt-5-mini-2025-08-07", "gpt-5"),
        ("openai", "gpt-7.2-nova", "gpt-6.1-sol"),
        ("anthropic", "us.anthropic.claude-haiku-4-5-20251001-v1:0", "claude-haiku-4-5"),
        ("anthropic", "claude-opus-6", "claude-opus-5-5"),
        ("gemini", "models/gemini-3.1-pro-preview", "gemini-3.1-pro-preview"),
        ("openai", "mistral-gpt-5-alike-o3", "mistral"),
    ],
)
def test_model_names_match_with_dates_prefixes_and_newer_numbers(kind: str, model: str, like: str):
    assert accepts_by_name(kind, model) == accepts_by_name(kind, like)


async def pieces(texts: list[str], finish: FinishReason = FinishReason.LENGTH) -> AsyncGenerator[Delta]:
    for text in texts:
        yield Delta(text)
    yield Delta(finish=finish, usage=Usage(1, 2))


TEXT = st.text("abE", max_size=12)


@example(["E", "b", "E"], ["b", "EbE"])
@example(["EbE"], ["b", "EbE"])
@given(st.lists(TEXT, max_size=6), st.lists(st.text("abE", min_size=1, max_size=3), min_size=1, max_size=3))
async def test_an_answer_ends_before_the_first_stop_sequence_however_it_is_split(
    texts: list[str], stops: list[str]
):
    whole = "".join(texts)
    ends = [(at + len(stop), at) for stop in stops if (at := whole.find(stop)) >= 0]
    cut = min(ends)[1] if ends else None  # the stop sequence that is complete first
    deltas = [delta async for delta in cut_at(stops, pieces(texts))]
    assert "".join(delta.text for delta in deltas) == whole[:cut]
    matches = [delta.stop_sequence for delta in deltas if delta.stop_sequence]
    assert [whole.find(stop) for stop in matches] == ([] if cut is None else [cut])
    assert [delta.finish for delta in deltas if delta.finish] == [
        FinishReason.LENGTH if cut is None else FinishReason.STOP
    ]
    assert [delta.usage for delta in deltas if delta.usage] == [Usage(1, 2)]


async def test_text_is_streamed_immediately_except_for_a_possible_stop_sequence():
    texts = [delta.text async for delta in cut_at(["END"], pieces(["one ", "two E", "N", "G", "LISH"]))]
    assert texts == ["one ", "two ", "", "ENG", "LISH", ""]


@pytest.mark.parametrize("error", [WorkerUnavailable, WorkerBusy])
async def test_an_answer_cut_at_a_stop_sequence_is_complete_although_its_stream_breaks(
    error: type[WorkerError],
):
    async def broken() -> AsyncGenerator[Delta]:
        yield Delta("four. END of")
        raise error("gone")

    assert [(d.text, d.finish) async for d in cut_at(["END"], broken())] == [
        ("four. ", None),
        ("", FinishReason.STOP),
    ]
    with pytest.raises(error):
        [d async for d in cut_at(["STOP"], broken())]


async def endless() -> AsyncGenerator[Delta]:
    """Yield an answer that continues long after its stop sequence."""
    yield Delta("four. END of")
    while True:
        await asyncio.sleep(0.01)
        yield Delta("more")


async def test_after_a_stop_sequence_the_cost_is_not_awaited_until_the_deadline():
    deadline_at_s = time.monotonic() + 0.5
    deltas = [d async for d in cut_at(["END"], endless(), deadline_at_s)]
    assert time.monotonic() < deadline_at_s
    assert "".join(d.text for d in deltas) == "four. "
    assert deltas[-1].finish is FinishReason.STOP
    assert [d.notes for d in deltas if d.billed_at_bound] == [UNREAD.notes]


async def test_without_a_deadline_the_rest_is_read_for_a_limited_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stop_sequences, "REST_S", 0.1)
    async with asyncio.timeout(5):
        deltas = [d async for d in cut_at(["END"], endless())]
    assert any(d.billed_at_bound for d in deltas)


async def test_a_very_long_stop_sequence_is_matched_quickly():
    began_s = time.process_time()
    stops = ["E" * 1_000_000] * 4
    texts = [delta.text async for delta in cut_at(stops, pieces(["one", "two", "three"] * 10))]
    assert "".join(texts) == "onetwothree" * 10
    assert time.process_time() - began_s < 1


async def test_an_aborted_call_leaves_nothing_open():
    script = ScriptedWorker("w", [ScriptedReply("one two three", stall_after_tokens=2)])
    worker = fitting(script, "m", Accepts(stop_sequences=0))
    async with worker.open(Call((USER,), Sampling(stop=("END",)))) as reply:
        async for delta in reply:
            if "one" in delta.text:
                break
    assert script.open_calls == 0
    assert script.calls[0].sampling.stop == ()
