"""Measure pools of API models against loopback providers that enforce their rules. `python -m
tests.serving.api_pools` prints the table.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import yaml

from tests.serving.api.served import Json, Served, served
from tests.wires import strict
from tests.wires.anthropic import AnthropicWire
from tests.wires.gemini import GeminiWire
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, Request, WireServer, serving

SETTINGS = Path(__file__).parents[2] / "cluster/api.yaml"
KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY"}
DEPLOYMENTS = {"team-large": "gpt-5", "team-small": "gpt-5-mini"}
"""Deployment names of the Azure resource, with the model of each."""
POOLS: dict[str, tuple[str, ...]] = {
    "OpenAI alone": ("openai",),
    "Anthropic alone": ("anthropic",),
    "Gemini alone": ("gemini",),
    "all three": ("openai", "anthropic", "gemini"),
    "Azure-like base URL": ("openai",),
}
CLIENTS: dict[str, Json] = {
    "OpenAI SDK": {},
    "OpenAI SDK, streaming": {"stream": True, "stream_options": {"include_usage": True}},
    "LangChain 1": {"stream": True},
    "LangChain 0.x": {"temperature": 0.7, "n": 1},
    "LangChain 0.x, streaming": {"temperature": 0.7, "n": 1, "stream": True},
    "LlamaIndex": {"temperature": 0.1, "stream": True},
    "lm-eval": {"temperature": 0, "seed": 1234, "max_tokens": 256, "stop": ["\n\n", "Question:"]},
    "everything": {"temperature": 1.5, "top_p": 0.9, "seed": 2**40, "max_tokens": 200_000, "stop": [*"ABCD", "END", "\n\n"]},
    "everything, streaming": {
        "temperature": 1.5, "top_p": 0.9, "seed": -1, "max_completion_tokens": 200_000, "stop": "END", "stream": True,
    },
} | {f"effort {level}": {"reasoning_effort": level, "temperature": 0.2, "top_p": 0.5}
     for level in ("none", "minimal", "low", "medium", "high", "xhigh", "max")}  # fmt: skip


@dataclass
class Count:
    requests: int = 0
    answers: int = 0
    plans: int = 0
    """Requests that ran a plan by the conductor."""
    calls: int = 0
    refused: list[str] = field(default_factory=list[str])
    """Messages of the upstream errors."""
    notes: int = 0


@asynccontextmanager
async def pool(name: str) -> AsyncIterator[tuple[Served, list[str], list[WireServer]]]:
    """Serve a shipped pool with its keys set and its providers on the loopback. Yield the API, the upstream errors
    and the servers.
    """
    is_azure, refused = name.startswith("Azure"), list[str]()
    respond = {
        "openai": strict.openai(lambda model: DEPLOYMENTS.get(model, "unknown") if is_azure else model),
        "anthropic": strict.anthropic,
        "gemini": strict.gemini,
    }
    wires = {"openai": OpenAIWire(), "anthropic": AnthropicWire(), "gemini": GeminiWire()}
    async with AsyncExitStack() as stack:
        servers = {kind: await stack.enter_async_context(serving(wire)) for kind, wire in wires.items()}
        for kind, server in servers.items():
            server.respond = _listener(respond[kind], refused)
        data: Json = yaml.safe_load(SETTINGS.read_text())
        for worker in data["workers"]:
            path = {"openai": "/openai/v1/" if is_azure else "/v1", "anthropic": "", "gemini": ""}[
                worker["kind"]
            ]
            worker["base_url"] = servers[worker["kind"]].url + path
            if is_azure and worker["kind"] == "openai":
                worker["model"] = "team-large" if worker["name"] == "gpt" else "team-small"
                worker["like"] = DEPLOYMENTS[worker["model"]]
        environment = {KEYS[kind]: f"key-of-{kind}" for kind in POOLS[name]}
        running = await stack.enter_async_context(served(data, environment))
        stack.push_async_callback(running.service.pool.aclose)
        yield running, refused, list(servers.values())


def _listener(respond: Any, refused: list[str]) -> Any:
    def listen(request: Request) -> Answer:
        answer: Answer = respond(request)
        if answer.status != 200:
            refused.append(f"{request.body.get('model', request.path)}: {answer.error}")
        return answer

    return listen


async def measure(name: str, clients: dict[str, Json] | None = None) -> Count:
    """Send the request of each client to both models of a pool, and count the results."""
    count = Count()
    async with pool(name) as (running, refused, servers), running.sdk as sdk:
        for params in (CLIENTS if clients is None else clients).values():
            for model in ("podium-mini", "podium-ultra"):
                count.requests += 1
                count.answers += await _ask(sdk, model, params)
                record = await running.newest()
                plans = [plan for plan in record["plans"] if plan["source"] in ("conductor", "repair")]
                count.plans += any(plan["rejected"] is None and plan["error"] is None for plan in plans)
                count.notes += sum(
                    len(each.get("notes") or ()) for each in [*record["plans"], *record["steps"]]
                )
        count.calls = sum(len(server.requests) for server in servers)
        count.refused = refused
    return count


async def _ask(sdk: openai.AsyncOpenAI, model: str, params: Json) -> bool:
    """Return whether the request got an answer. Running out of `max_tokens` while the model reasons counts as one."""
    try:
        completion = await sdk.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Why is the sky blue?"}], **params
        )
        if params.get("stream"):
            async for _ in completion:
                pass
        return True
    except openai.APIError:
        return False


async def table() -> str:
    lines = [
        "| pool | requests | answered | plans made | upstream calls | refused upstream | notes |",
        "| --- " * 7 + "|",
    ]
    answers: set[str] = set()
    for name in POOLS:
        count = await measure(name)
        answers.update(count.refused)
        cells = (count.requests, count.answers, count.plans, count.calls, len(count.refused), count.notes)
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, *(f"  refused: {line}" for line in sorted(answers))])


if __name__ == "__main__":
    print(asyncio.run(table()))
