"""Heavy imports stay in one place each: what a module loads, seen from a fresh interpreter."""

import subprocess
import sys

import pytest

SDKS = {"openai", "anthropic", "google.genai"}
MODELS = {"torch", "vllm", "transformers"}
WEB = {"fastapi", "starlette", "uvicorn"}

ABSENT = {
    "conductor.engine": SDKS | MODELS | WEB | {"ray", "pydantic", "yaml", "opentelemetry", "httpx2"},
    "serving.settings": SDKS | MODELS | WEB | {"ray", "opentelemetry", "httpx2"},
    "serving.telemetry": SDKS | MODELS | WEB | {"ray", "grpc"},
    "serving.pool": SDKS | MODELS | WEB | {"ray"},
    "serving.workers.openai": MODELS | WEB | {"ray", "anthropic", "google.genai"},
    "serving.workers.anthropic": MODELS | WEB | {"ray", "openai", "google.genai"},
    "serving.workers.gemini": MODELS | WEB | {"ray", "openai", "anthropic"},
    "serving.api.app": SDKS | MODELS | {"ray"},
}


@pytest.mark.parametrize(("module", "absent"), ABSENT.items(), ids=ABSENT.keys())
def test_a_module_loads_only_what_it_needs(module: str, absent: set[str]):
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert module in loaded
    assert not absent & set(loaded)


def test_a_pool_of_scripts_loads_no_sdk():
    code = (
        "import sys; from serving.pool import build_pool; from serving.settings import parse;"
        "build_pool(parse({'workers': [{'name': 'a', 'kind': 'scripted'}]}), {}, {}); print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not SDKS & set(loaded)
