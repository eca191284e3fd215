"""Code that runs with the base packages alone."""

import pytest

from tests.base_only import with_base_only

pytestmark = pytest.mark.slow


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
