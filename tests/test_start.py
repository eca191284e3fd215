"""One start of the default through `podium serve`, from the first request to Ctrl-C: Ray Serve, two vLLM engines and
the shipped conductor. The settings also let the writer call tools.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import AuthenticationError, OpenAI

from cluster.local.processes import free_port, is_free, processes_of
from cluster.local.shared_memory import segments_of
from serving.settings.settings import load
from tests import secrets
from tests.clients.run_default import settings_with_tools
from tests.conftest import PODIUM, ROOT
from tests.keys import make_key, revoke_key, wait_until_rejected

PROVIDERS = ["gpt-5", "claude-sonnet-4", "gemini-2.5-pro"]
"""Workers whose API keys are set. The keys are not real, so no test may call them."""
ASK: Any = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
POEM: Any = {"messages": [{"role": "user", "content": "Write a four-line poem about the sea."}]}
"""Request for the writer, because programs answer in one piece."""
PLACES = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}  # fmt: skip
TOOL: Any = {"type": "function", "function": {"name": "look_up", "parameters": PLACES}}


@pytest.mark.timeout(900)
def test_a_new_users_server_streams_calls_tools_and_stops_cleanly(
    tmp_path: Path,
) -> None:
    port, began_s, planted = free_port(), secrets.now_s(), secrets.planted()
    url, store = f"http://127.0.0.1:{port}", {"PODIUM_STORE_URL": f"sqlite:///{tmp_path}/podium.db"}
    with secrets.serving(settings_with_tools(tmp_path), port, planted | store) as serving:
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        streams_what_its_conductor_planned(client)
        running = listens_on_loopback_only(f"{ROOT}:{port}:")
        planted["app"] = make_key(store, "app")
        wait_until_rejected(f"{url}/v1/models")
        with pytest.raises(AuthenticationError):
            client.chat.completions.create(model="writer", **ASK)
        calls_a_tool_and_reads_its_result(client.with_options(api_key=planted["app"]))
        revoke_key(store, "app")
        wait_until_rejected(f"{url}/v1/models", planted["app"])
        assert secrets.files_with(planted, began_s) == [], "while it runs"
        assert (memory := segments_of(running)), "Ray's and vLLM's"

        serving.send_signal(signal.SIGINT)
        printed, _ = serving.communicate(timeout=90)
    assert (serving.returncode, "No process is left running" in printed) == (0, True), printed
    assert [process for process in running if process.is_running()] == []
    assert is_free(port)
    assert [segment for segment in memory if segment.exists()] == []
    assert secrets.files_with(planted, began_s) == [], "after Ctrl-C"
    check = subprocess.run([PODIUM, "ledger", "check"], env=os.environ | store, stdout=sys.stderr)
    assert check.returncode == 0


def streams_what_its_conductor_planned(client: OpenAI) -> None:
    own = {"podium": {"progress": "events", "exclude_workers": PROVIDERS}}
    chunks = list(client.chat.completions.create(model="podium-mini", **POEM, stream=True, max_tokens=32, extra_body=own))  # fmt: skip
    updates = [chunk.model_extra["podium"] for chunk in chunks if chunk.model_extra]
    events = {event.get("type"): event for event in updates}
    assert events["plan_began"]["worker"] == "conductor"
    team = {each.name for each in load(ROOT / "cluster" / "local.yaml").workers}
    assert team >= {each["worker"] for each in updates if each.get("type") == "step_planned"} > set()
    assert (updates[-1]["fallback"], updates[-1]["cost_usd"]) == (None, 0)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert len([choice for choice in choices if choice.delta.content]) > 3
    assert choices[-1].finish_reason in ("stop", "length")


def calls_a_tool_and_reads_its_result(client: OpenAI) -> None:
    options: Any = {"model": "writer", "tools": [TOOL], "max_tokens": 300}
    choice = client.chat.completions.create(**ASK, **options, tool_choice="required", parallel_tool_calls=False).choices[0]  # fmt: skip
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)["city"] in PLACES["properties"]["city"]["enum"]) == ("look_up", True)  # fmt: skip
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "It is Paris."}
    messages = [*ASK["messages"], choice.message.model_dump(exclude_none=True), result]
    answer = client.chat.completions.create(**options | {"max_tokens": 32}, messages=messages, tool_choice="none")  # fmt: skip
    assert answer.choices[0].message.content


def listens_on_loopback_only(tag: str) -> list[psutil.Process]:
    """Return all its processes, vLLM's included, after checking that they listen on loopback only."""
    running = processes_of(tag)
    names = {process.name() for process in running if process.net_connections(kind="tcp")}
    assert any(re.search("VLLM", name) for name in names), names
    assert secrets.listening_beyond_loopback(running) == []
    return running
