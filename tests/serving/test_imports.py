"""Code that runs with the base packages alone."""

import pytest

from tests.base_only import with_base_only

pytestmark = pytest.mark.slow


def test_the_base_packages_suffice_without_a_local_model():
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


def test_without_vllm_settings_with_a_local_model_name_the_install_command():
    ended = with_base_only("from serving.app import build_app\nbuild_app({'settings': 'cluster/local.yaml'})")
    assert ended.returncode == 1
    assert "'conductor' needs vLLM" in ended.stderr
    assert "make setup SETTINGS=cluster/local.yaml" in ended.stderr
