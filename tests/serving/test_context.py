"""How long a prompt each worker can read, and who is told."""

from typing import Any

import pytest

from serving.settings.settings import parse
from serving.settings.worker_profile import context_limit_of
from tests.serving.api.served import scripted, served, team

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
def test_a_model_that_is_known_has_its_providers_length(model: str) -> None:
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
