"""Model names in conductor prompts: the public name, never the owner's name for it."""

from typing import Any

import pytest

from serving.settings.settings import parse
from serving.settings.worker_profile import public_name


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        ({"kind": "openai", "model": "gpt-5"}, "gpt-5"),
        ({"kind": "anthropic", "model": "claude-sonnet-5-5"}, "claude-sonnet-5-5"),
        ({"kind": "openai", "model": "ft:gpt-4o-mini:acme:layoffs:9abc"}, ""),
        ({"kind": "openai", "model": "acme-merger", "base_url": "https://127.0.0.1/v1"}, ""),
        ({"kind": "openai", "model": "acme", "base_url": "https://127.0.0.1/v1", "like": "gpt-5"}, "gpt-5"),
        ({"kind": "openai", "model": "arn:aws:sagemaker:eu-west-1:123456789012:endpoint"}, ""),
        ({"kind": "vllm", "model": "Qwen/Qwen2.5-1.5B-Instruct"}, "Qwen2.5-1.5B-Instruct"),
        ({"kind": "vllm", "model": "/srv/clients/acme/"}, ""),
        ({"kind": "vllm", "model": "./../acme"}, ""),
        ({"kind": "vllm", "model": "models/smollm2-135m"}, ""),
        ({"kind": "vllm", "model": "models/smollm2-135m", "like": "SmolLM2"}, "SmolLM2"),
        ({"kind": "scripted", "replies": ["x"]}, ""),
    ],
)
def test_only_public_model_names_are_shown(worker: dict[str, Any], expected: str) -> None:
    settings = parse({"workers": [{"name": "w", **worker}]})
    assert public_name(settings.worker("w"), settings) == expected


def test_workers_of_one_engine_have_its_name() -> None:
    engine = {"name": "a", "kind": "vllm", "model": "models/a", "like": "SmolLM2"}
    settings = parse({"workers": [engine, {"name": "b", "kind": "vllm", "deployment": "a"}]})
    assert public_name(settings.worker("b"), settings) == "SmolLM2"
