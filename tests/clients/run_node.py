"""`make clients`: run the table with the official Node SDKs and the AI SDK, one Node process per scenario."""

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from loadtest.rig.routers import make_key, running_router
from serving.database.address import parse_address
from tests.clients.run_agents import BUILD, install
from tests.clients.table import KILLED, TABLE
from tests.serving.api.served import Json, served

CLIENTS = (
    "openai chat", "openai responses", "anthropic messages", "ai-sdk chat", "ai-sdk responses", "ai-sdk messages",
)  # fmt: skip


async def ask(
    client: str, url: str, ask: Json, next_url: Callable[[], Awaitable[str]], key: str, within_s: float = 60
) -> Json:
    process = await asyncio.create_subprocess_exec(
        "node", "sdks.mjs", cwd=BUILD / "node", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"client": client, "url": url, "key": key, "ask": ask}).encode() + b"\n")
    output: Json = {}
    try:
        async with asyncio.timeout(within_s):
            while line := (await process.stdout.readline()).decode().strip():
                if line == "next":
                    process.stdin.write((await next_url()).encode() + b"\n")
                elif line.startswith("{"):
                    output = json.loads(line)
            await process.wait()
    except TimeoutError:
        process.kill()
        raise
    return output


async def kill_router(client: str) -> Json:
    """Kill a router between a tool call and its result, and continue with another router."""
    with TemporaryDirectory() as folder:
        address = parse_address(f"sqlite:///{Path(folder) / 'podium.db'}")
        key = await make_key(address)
        async with (
            running_router("client-first", address, KILLED.settings) as first,
            running_router("client-second", address, KILLED.settings) as second,
        ):

            async def other() -> str:
                if first.process.returncode is None:
                    first.kill()
                    await first.process.wait()
                return second.url

            return await ask(client, first.url, KILLED.ask, other, key.secret)


async def run(clients: Sequence[str]) -> int:
    """Run all rows for each client. Return the number that failed."""
    failed = 0
    for client in clients:
        faults: list[str] = []
        for scenario in (*TABLE, KILLED):
            try:
                if scenario is KILLED:
                    output = await kill_router(client)
                else:
                    async with served(scenario.settings) as api:

                        async def same(url: str = api.url) -> str:
                            return url

                        output = await ask(client, api.url, scenario.ask, same, "none")
            except (TimeoutError, AssertionError) as error:
                output = {"error": repr(error)}
            if output != scenario.output:
                faults.append(f"  {scenario.name}: saw {output}")
        n = len(TABLE) + 1
        print(f"node {client}: {n - len(faults)} of {n} scenarios", *faults, sep="\n", flush=True)
        failed += len(faults)
    return failed


def main(words: list[str]) -> int:
    if fault := install("node"):
        print(f"node: {fault}")
        return 1
    shutil.copy(Path(__file__).parent / "sdks.mjs", BUILD / "node" / "sdks.mjs")
    return min(asyncio.run(run([each for each in CLIENTS if not words or each.split()[0] in words])), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
