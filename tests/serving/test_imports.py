"""Heavy imports stay in one place each: what a module loads, seen from a fresh interpreter."""

import subprocess
import sys

import pytest

from tests.base_only import MODELS, with_base_only

SDKS = {"openai", "anthropic", "google.genai"}
WEB = {"fastapi", "starlette", "uvicorn"}

ABSENT = {
    "conductor.run.team": SDKS | MODELS | WEB | {"ray", "pydantic", "yaml", "opentelemetry", "httpx2"},
    "serving.settings.settings": SDKS | MODELS | WEB | {"ray", "opentelemetry", "httpx2"},
    "serving.accounts.account_ledger": SDKS | MODELS | WEB | {"ray", "opentelemetry", "httpx2", "alembic"},
    "serving.telemetry.spans": SDKS | MODELS | WEB | {"ray", "grpc"},
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
        "import sys; from serving.pool import build_pool; from serving.settings.settings import parse;"
        "build_pool(parse({'workers': [{'name': 'a', 'kind': 'scripted'}]}), {}, {}); print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not SDKS & set(loaded)


def test_the_base_packages_are_enough_to_build_and_route_where_no_local_model_is_served():
    code = """
import cluster.local.child, cluster.local.demo_run, cluster.local.serve, ray.serve.scripts
from cluster.local.environment import fast_environment
from serving.app import build_app
from serving.deployments.router import Router
from serving.pool import build_pool
from serving.settings.settings import load

keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), "planted")
os.environ.update(keys)
fast_environment()
for settings in ("cluster/api.yaml", "cluster/scripted.yaml"):
    build_app({"settings": settings})
    build_pool(load(settings), os.environ, {})
"""
    ended = with_base_only(code)
    assert ended.returncode == 0, ended.stderr


def test_settings_with_a_local_model_say_what_to_install_where_vllm_is_not():
    ended = with_base_only("from serving.app import build_app\nbuild_app({'settings': 'cluster/local.yaml'})")
    assert ended.returncode == 1
    assert "'conductor' needs vLLM" in ended.stderr
    assert "make setup SETTINGS=cluster/local.yaml" in ended.stderr


def test_building_an_application_with_local_models_loads_none_of_their_libraries():
    code = "import sys; from serving.app import build_app; build_app({'settings': 'cluster/local.yaml'}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not MODELS & set(loaded.stdout.split())
