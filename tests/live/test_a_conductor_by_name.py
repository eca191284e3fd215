"""`make serve CONDUCTOR=...` and `make demo CONDUCTOR=...` (set-up aside), with OpenAI on the loopback and
no engine. Named to run before the shared engines are up.
"""

import asyncio
import os
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest
import yaml

from cluster.local.processes import free_port
from serving.paths import ROOT
from tests.conftest import PODIUM
from tests.serving.api_pools import KEYS
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, serving

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
PLAN = '{"steps": [{"worker": 1, "subtask": "", "access": []}]}'


async def podium(*arguments: str, **keys: str) -> tuple[int | None, str]:
    """The command's end: its status, and what it printed. No other key than `keys` is set."""
    environment = {name: value for name, value in os.environ.items() if name not in KEYS.values()} | keys
    process = await asyncio.create_subprocess_exec(
        PODIUM, *arguments, "--port", str(free_port()), cwd=ROOT, env=environment, stdout=PIPE, stderr=STDOUT
    )
    printed, _ = await process.communicate()
    return process.returncode, " ".join(printed.decode().split())


async def test_the_worker_that_is_named_writes_the_plan_and_the_cheap_one_is_asked_the_user_s_own_words(
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
    asked = [request.body for request in upstream.requests]
    assert [body["model"] for body in asked] == ["gpt-6.1-sol", "gpt-6-luna"]
    assert asked[1]["messages"][-1]["content"] == "hi"
    assert asked[1]["max_completion_tokens"] == 16384, "its worker's own limit: thoughts count too"


@pytest.mark.parametrize(
    ("name", "told"),
    [("claude", "whose key is not set: set ANTHROPIC_API_KEY."), ("clod", "and no worker is called so.")],
)
async def test_who_cannot_lead_ends_the_start_with_the_remedy_before_ray_is_started(
    name: str, told: str
) -> None:
    status, printed = await podium(
        "serve", "--settings", "cluster/api.yaml", "--conductor", name, OPENAI_API_KEY="sk-1"
    )
    assert status == 1
    assert (
        f"The conductor is to be '{name}', {told} These can lead: gpt (key: OPENAI_API_KEY), gpt-fast"
        in printed
    )
