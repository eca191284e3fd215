"""Context lengths: which workers can read a prompt, and the errors if none can."""

from collections import deque
from typing import Any

import pytest

from serving.settings.settings import parse
from serving.settings.worker_profile import context_limit_of
from tests.serving.api.served import Served, plan, scripted, served, step, team

LENGTHS = {
    "gpt-5": 400_000,
    "gpt-5-mini": 400_000,
    "openai/gpt-5-chat-latest": 128_000,
    "gpt-5.4": 1_050_000,
    "gpt-5.4-mini": 400_000,
    "gpt-6.1-sol": 1_050_000,
    "gpt-4.1-mini": 1_047_576,
    "ft:gpt-4o:acme::x1": 128_000,
    "gpt-4-0613": 8192,
    "o3": 200_000,
    "gpt-oss-120b": None,
    "claude-sonnet-4-5": 200_000,
    "anthropic/claude-sonnet-4.6": 1_000_000,
    "eu.anthropic.claude-3-7-sonnet-20250219-v1:0": 200_000,
    "claude-opus-4-20250514": 200_000,
    "claude-haiku-5-5": 1_000_000,
    "claude-fable-5": 1_000_000,
    "models/gemini-2.5-pro": 1_048_576,
    "gemini-3-pro-image-preview": None,
    "qwen3-32b": None,
}


@pytest.mark.parametrize("model", LENGTHS)
def test_a_known_model_has_its_providers_context_length(model: str) -> None:
    worker: dict[str, Any] = {"name": "a", "kind": "openai", "model": model}
    settings = parse({"workers": [worker]})
    assert context_limit_of(settings.workers[0], settings) == LENGTHS[model]
    settings = parse({"workers": [worker | {"context_tokens": 7}]})
    assert context_limit_of(settings.workers[0], settings) == 7
    settings = parse({"workers": [worker | {"model": "deployment-7", "like": model}]})
    assert context_limit_of(settings.workers[0], settings) == LENGTHS[model]


async def test_models_show_the_context_length_and_the_prices() -> None:
    price = {"input_usd_per_mtok": 3, "output_usd_per_mtok": 15, "cached_input_usd_per_mtok": 0.3, "cache_write_usd_per_mtok": 3.75, "cache_write_1h_usd_per_mtok": 6}  # fmt: skip
    workers = [scripted("a", context_tokens=8_000), scripted("b", context_tokens=32_000, price=price), scripted("c")]  # fmt: skip
    settings = team(workers=workers, models={"all": {}, "short": {"workers": ["a", "c"]}, "open": {"workers": ["c"]}})  # fmt: skip
    async with served(settings) as api:
        listed = (await api.http.get("/v1/models")).json()["data"]
    models = {each["id"]: each["podium"] for each in listed}
    lengths = {name: about.get("context_tokens") for name, about in models.items()}
    assert lengths == {"all": 32_000, "short": 8_000, "open": None, "duo": None, "conductor": None, "a": 8_000, "b": 32_000, "c": None}  # fmt: skip
    assert models["b"]["price"] == price


WORDS = "four five " * 4_000
"""Text of about 10,000 tokens."""


def lengths(*context: int | None, **models: Any) -> Any:
    """Return settings with workers `a`, `b` and so on of these context lengths."""
    names = "abcd"[: len(context)]
    workers = [scripted(name, context_tokens=each) for name, each in zip(names, context, strict=True)]
    return team(plan(step(0, "")), workers=workers, workflows={}, models={"mini": {}, **models})


def asks(words: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": words}], **more}


async def workers_of_newest(api: Served) -> list[str]:
    records = await api.service.store.get((await api.newest())["id"])
    assert records is not None
    return list(records.record.workers)


@pytest.mark.parametrize(
    ("context", "used"),
    [
        ((2_000, 50_000), ["b"]),
        ((2_000, None), ["b"]),
        ((None, 50_000), ["a", "b"]),
        ((9_000, 8_000), ["a"]),
        ((10_500, 50_000), ["b"]),  # no room for the answer
    ],
)
async def test_workers_with_a_too_short_context_are_not_in_the_plan(
    context: tuple[int | None, ...], used: list[str]
) -> None:
    async with served(lengths(*context)) as api:
        await api.ok(asks(WORDS))
        assert await workers_of_newest(api) == used
        await api.ok(asks("Short."))
        assert await workers_of_newest(api) == ["a", "b"]


async def test_a_conversation_too_long_for_every_worker_is_an_error_with_both_numbers() -> None:
    async with served(lengths(2_000, 4_000)) as api:
        answer = await api.post(asks(WORDS))
        assert api.worker("conductor").calls == deque()
        by_name = await api.post(asks(WORDS, model="a"))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "about 10,008 tokens" in error["message"]
    assert "4,000 tokens" in error["message"]
    assert by_name.status_code == 200  # the provider decides


async def test_turns_that_left_no_prompt_cache_count_too() -> None:
    """Turns that a worker answered by name, or that the client has pasted in, are unknown to the store."""
    async with served(lengths(2_000, 50_000)) as api:
        await api.ok(asks("Short."))
        later = [{"role": role, "content": WORDS} for role in ("assistant", "user") * 2]
        pasted = [
            *asks("Short.")["messages"],
            *later,
            {"role": "assistant", "content": "So."},
            *asks("And?")["messages"],
        ]
        await api.ok({"messages": pasted})
        assert await workers_of_newest(api) == ["b"]
    async with served(lengths(2_000, 4_000)) as api:
        await api.ok(asks("Short."))
        answer = await api.post({"messages": pasted})
        assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_a_non_latin_conversations_length_is_estimated_from_its_bytes() -> None:
    async with served(lengths(60_000, 60_000)) as api:
        await api.ok(asks("Почему небо голубое? " * 5_000))  # 105,000 characters, about 30,000 tokens
        assert await workers_of_newest(api) == ["a", "b"]


async def test_a_long_answer_needs_context_too() -> None:
    async with served(lengths(12_000, 50_000)) as api:
        await api.ok(asks(WORDS))
        assert await workers_of_newest(api) == ["a", "b"]
        await api.ok(asks(WORDS, max_tokens=4_000))
        assert await workers_of_newest(api) == ["b"]


@pytest.mark.parametrize(("max_tokens", "n_calls"), [(None, 1), (1_500, 1), (4_000, 0)])
async def test_a_fallback_without_space_for_the_answer_is_not_called(
    max_tokens: int | None, n_calls: int
) -> None:
    workers = [scripted("a", {"error": "unavailable"}, fallbacks=["b"]), scripted("b", context_tokens=12_000)]
    async with served({"workers": workers}) as api:
        answer = await api.post(asks(WORDS, model="a", max_tokens=max_tokens))
        assert len(api.worker("b").calls) == n_calls
    assert answer.status_code == 200 if n_calls else answer.json()["error"]["code"] == "worker_unavailable"
