"""Servers that end without a signal: the demo, with a loopback OpenAI as its conductor, and one that cannot start."""

import asyncio
import os
import stat
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest
import yaml

from cluster.local.processes import ServeError, free_port, processes_of
from cluster.local.server import Server
from tests import secrets
from tests.conftest import PODIUM, ROOT
from tests.serving.api_pools import KEYS
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, serving

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
PLAN = '{"steps": [{"worker": 1, "subtask": "", "access": []}]}'


async def podium(*arguments: str, **keys: str) -> tuple[int | None, str]:
    """Run the command without provider keys except `keys`. Return its exit status and its output."""
    environment = {name: value for name, value in os.environ.items() if name not in KEYS.values()} | keys
    process = await asyncio.create_subprocess_exec(
        PODIUM, *arguments, "--port", str(free_port()), cwd=ROOT, env=environment, stdout=PIPE, stderr=STDOUT
    )
    printed, _ = await process.communicate()
    return process.returncode, " ".join(printed.decode().split())


async def test_the_named_worker_plans_and_the_cheapest_gets_the_question(
    tmp_path: Path,
) -> None:
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = lambda request: (
            Answer(text=PLAN) if "response_format" in request.body else Answer("Hello!")
        )
        settings = yaml.safe_load((ROOT / "cluster/api.yaml").read_text())
        for worker in settings["workers"]:
            if worker["kind"] == "openai":
                worker["base_url"] = f"{upstream.url}/v1"
        path = tmp_path / "api.yaml"
        path.write_text(yaml.safe_dump(settings))
        status, printed = await podium(
            "demo", "hi", "--settings", str(path), "--conductor", "gpt", OPENAI_API_KEY="sk-1"
        )
    assert status == 0, printed
    assert "gpt writes a plan" in printed
    assert "step 1 gpt-fast: answer the question" in printed
    assert "Answer Hello!" in printed
    assert all(shown in printed.lower() for shown in ("cost", "trace"))
    bodies = [request.body for request in upstream.requests]
    assert [body["model"] for body in bodies] == ["gpt-6.1-sol", "gpt-6-luna"]
    assert bodies[1]["messages"][-1]["content"] == "hi"
    assert bodies[1]["max_completion_tokens"] == 16384, "its worker's own limit: thoughts count too"


def test_a_failed_start_leaves_rays_logs_without_secrets(tmp_path: Path) -> None:
    began_s, planted = secrets.now_s(), secrets.planted()
    settings = yaml.safe_load((ROOT / "cluster/scripted.yaml").read_text())
    settings["workers"] += [
        {"name": "gpt", "kind": "openai", "model": "m", "api_key_env": "OPENAI_API_KEY", "base_url": "http://127.0.0.1:1"},
        {"name": "own", "kind": "python", "factory": "tests.live.only_outside_replicas:make"},
    ]  # fmt: skip
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(settings))
    server = Server(settings=path, port=0, env=planted, log=tmp_path / "server.log", ready_within_s=300)
    with pytest.raises(ServeError, match="exited before it was ready") as failed:
        server.__enter__()
    logs = [
        server.log,
        *(tmp_path / "server.ray/serve").glob("controller_*.log"),
    ]  # Ray may end before it forwards them
    assert any("no replica can make it" in log.read_text() for log in logs)
    assert str(tmp_path / "server.ray") in str(failed.value)
    assert list((tmp_path / "server.ray").glob("raylet.*")), "Ray's logs are kept"
    assert stat.S_IMODE((tmp_path / "server.ray").stat().st_mode) == 0o700
    assert secrets.files_with(planted, began_s) == []
    assert not processes_of(server.tag)
