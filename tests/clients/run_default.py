"""`make clients CLIENTS=default`: run the table with the official Python and Node SDKs against the default settings
of `make serve` plus a tool call parser. Runs two real vLLM engines.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import anthropic
import openai

from cluster.local.server import SETTINGS, Server
from tests.clients import run_node
from tests.clients.default_table import UNABLE, default_rows
from tests.clients.python_sdks import CLIENTS
from tests.clients.run_agents import BUILD, ROOT, install
from tests.serving.api.served import Json

AT_ONCE = 8
"""Concurrent scenarios. The engines batch their calls."""
PATIENCE_S = 240.0
OWNER = "  - name: writer\n"
ENGINE = "    engine:\n      <<: *engine\n"
CALLS = ENGINE + "      tool_call_parser: hermes\n"
FAULTS = (openai.OpenAIError, anthropic.AnthropicError, TimeoutError, RuntimeError, ValueError, KeyError)
"""Errors by which an SDK, or the code that reads its result, reports a bad answer."""
Ask = Callable[[str, Json], Awaitable[Json]]


def settings_with_tools(folder: Path) -> Path:
    """Write the default settings, with a tool call parser for the answering engine."""
    before, owner, after = (ROOT / SETTINGS).read_text().partition(OWNER)
    assert owner
    assert ENGINE in after
    path = folder / "default.yaml"
    path.write_text(before + owner + after.replace(ENGINE, CALLS, 1))
    return path


def clients(has_node: bool) -> dict[str, Ask]:
    def python(name: str) -> Ask:
        return lambda url, ask: CLIENTS[name](url, ask, lambda: _same(url), "none")

    def node(name: str) -> Ask:
        return lambda url, ask: run_node.ask(name, url, ask, lambda: _same(url), "none", PATIENCE_S)

    asks = {f"python {name}": python(name) for name in CLIENTS}
    return asks | ({f"node {name}": node(name) for name in run_node.CLIENTS} if has_node else {})


async def _same(url: str) -> str:
    return url


async def run(url: str, has_node: bool) -> int:
    """Run all rows. Return the number that failed."""
    room, failed = asyncio.Semaphore(AT_ONCE), 0

    async def see(ask: Ask, request: Json) -> Json:
        async with room:
            try:
                return await asyncio.wait_for(ask(url, request), PATIENCE_S)
            except FAULTS as error:  # what the client saw
                return {"text": "", "turns": [], "status": -1, "error": repr(error)[:300]}

    async def table(name: str, ask: Ask) -> int:
        rows = default_rows()
        outputs = await asyncio.gather(*(see(ask, scenario.ask) for scenario, _ in rows))
        faults = [
            f"  {scenario.name}: saw {each}"
            for (scenario, row), each in zip(rows, outputs, strict=True)
            if not row.holds(each)
        ]
        print(
            f"default {name}: {len(rows) - len(faults)} of {len(rows)} scenarios",
            *faults,
            sep="\n",
            flush=True,
        )
        return len(faults)

    failed = sum(await asyncio.gather(*(table(name, ask) for name, ask in clients(has_node).items())))
    for name, reason in UNABLE.items():
        print(f"default, not asked: {name}: {reason}")
    return failed


def main(words: list[str]) -> int:
    """Install, serve, run and report. If PODIUM_URL is set, use the server there instead of starting one."""
    fault = install("node")
    if fault:
        print(f"node: {fault}")
    else:
        shutil.copy(Path(__file__).parent / "sdks.mjs", BUILD / "node" / "sdks.mjs")
    if url := os.environ.get("PODIUM_URL"):
        failed = asyncio.run(run(url, not fault))
    else:
        with (
            TemporaryDirectory() as folder,
            Server(settings=settings_with_tools(Path(folder)), port=0) as server,
        ):
            failed = asyncio.run(run(server.url, not fault))
    return min(failed + bool(fault), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
