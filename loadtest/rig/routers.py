"""Router processes, API keys in their store, and clients. All proofs use them."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from loadtest.rig import ROOT, Json, RigError
from loadtest.rig.processes import stop
from loadtest.sse import BrokenStreamError, SseReader
from podium.command_line.process import allow_open_files, restore_interrupts
from serving.accounts.account_policy import AccountPolicy
from serving.accounts.caller import DEFAULT_SCOPES, Scope
from serving.accounts.directory import Directory
from serving.accounts.hold import key_subject, team_subject
from serving.database.address import Address

LOGS = ROOT / "build" / "prove"
STARTS_WITHIN_S = 120.0
PRICE: Json = {"input_usd_per_mtok": 0, "output_usd_per_mtok": 500}


def scripted(name: str, *replies: str | Json, **more: object) -> Json:
    """Return the settings of a scripted worker. `more` has further settings of the worker."""
    return {"name": name, "kind": "scripted", "replies": [*replies], "max_concurrency": 1000, **more}


def prepare_process() -> None:
    """Raise the limit of open files. SIGTERM and Ctrl-C stop every process of the proof."""
    allow_open_files()
    restore_interrupts()
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def url_of(address: Address) -> str:
    """Return `address` as a URL, including the password."""
    return address.dsn or f"sqlite:///{address.path}"


@dataclass
class RouterProcess:
    process: asyncio.subprocess.Process
    url: str
    owner: str

    def kill(self) -> None:
        self.process.kill()

    def move_clock(self) -> None:
        """Make the router read its clock file again."""
        self.process.send_signal(signal.SIGUSR1)


@asynccontextmanager
async def running_router(
    name: str,
    address: Address,
    settings: Json,
    *,
    has_keys: bool = True,
    clock: Path | None = None,
    watch: bool = False,
) -> AsyncGenerator[RouterProcess]:
    """Run a router with the log build/prove/NAME.log. `clock` is the file with the shift of its clock."""
    LOGS.mkdir(parents=True, exist_ok=True)
    orders: Json = {"address": url_of(address), "settings": settings, "has_keys": has_keys, "watch": watch}
    orders["clock"] = clock and str(clock)
    log = LOGS / f"{name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "loadtest.rig.router"),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
        )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(orders).encode() + b"\n")
        async with asyncio.timeout(STARTS_WITHIN_S):
            line = await process.stdout.readline()
        if not line:
            raise RigError(f"The router {name} did not start. See its log: {log}")
        reply = orjson.loads(line)
        yield RouterProcess(process, reply["url"], reply["owner"])
    finally:
        await stop(process)


@asynccontextmanager
async def running_routers(
    name: str, address: Address, settings: Json, n: int, clock: Path | None = None
) -> AsyncGenerator[list[RouterProcess]]:
    """Run `n` routers that require keys while the block runs."""
    async with AsyncExitStack() as stack:
        names = [f"{name}-{number}" for number in range(n)]
        yield [
            await stack.enter_async_context(running_router(each, address, settings, clock=clock))
            for each in names
        ]


@dataclass(frozen=True)
class RouterKey:
    """API key of a team, in a store."""

    secret: str = field(repr=False)
    key_id: str
    team_id: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret}"}


async def make_key(address: Address, cap_usd: Decimal | None = None, name: str = "proof") -> RouterKey:
    """Create a new team and a key for it. `cap_usd` is the team's monthly budget, or None for no budget."""
    directory = Directory(address)
    try:
        team = await directory.create_team(name)
        key, info = await directory.create_key(name, name, {*DEFAULT_SCOPES, Scope.RUN, Scope.READ})
        if cap_usd is not None:
            await directory.set_budget(team_subject(team.id), {"month": cap_usd})
            await directory.set_budget(key_subject(info.id), {"month": 2 * cap_usd})
        return RouterKey(key.reveal(), info.id, team.id)
    finally:
        await directory.aclose()


async def make_keys(
    address: Address, keys: Mapping[str, tuple[str, Collection[str], Json]]
) -> dict[str, str]:
    """Create keys and their teams from team, scopes and policy by name. Return the secrets by name."""
    directory, secrets = Directory(address), dict[str, str]()
    try:
        for team in dict.fromkeys(team for team, _, _ in keys.values()):
            await directory.create_team(team)
        for name, (team, scopes, policy) in keys.items():
            key, info = await directory.create_key(name, team, {Scope(each) for each in scopes})
            await directory.change_key_policy(info.id, AccountPolicy(**policy))
            secrets[name] = key.reveal()
        return secrets
    finally:
        await directory.aclose()


@dataclass
class RouterAnswer:
    """Response as a client sees it.

    Args:
        status: the HTTP status, or 0 if there was no response.
        run_id: the run id from the header.
        is_broken: whether the connection broke, or the stream ended without `[DONE]` or an error.
        ends_early: whether the transfer ended normally although the stream was incomplete.
    """

    status: int = 0
    run_id: str = ""
    text: str = ""
    is_whole: bool = False
    is_broken: bool = False
    ends_early: bool = False
    code: str = ""


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    *,
    stream: bool = False,
    headers: Mapping[str, str] | None = None,
    max_tokens: int | None = None,
    **podium: Any,
) -> RouterAnswer:
    """Send a request to a router. Errors are recorded in the answer instead of raised."""
    body: Json = {"model": model, "messages": [{"role": "user", "content": "Why?"}], "stream": stream}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if podium:
        body["podium"] = podium
    answer = RouterAnswer()
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
            answer.status = response.status
            answer.run_id = response.headers.get("x-podium-workflow-id", "")
            if stream and response.status == 200:
                await _read_stream(response, answer)
            else:
                _read_whole(await response.read(), answer)
    except (aiohttp.ClientError, TimeoutError, OSError):
        answer.is_broken = True
    return answer


def _read_whole(content: bytes, answer: RouterAnswer) -> None:
    try:
        reply = orjson.loads(content)
    except orjson.JSONDecodeError:  # sent by Ray Serve or a proxy
        answer.code = f"{answer.status} without a code"
        return
    if answer.status not in (200, 202):
        answer.code = reply.get("error", {}).get("code") or ""
        return
    if "choices" in reply:
        answer.text = reply["choices"][0]["message"]["content"]
    answer.run_id = answer.run_id or reply.get("id", "")
    answer.is_whole = True


async def _read_stream(response: aiohttp.ClientResponse, answer: RouterAnswer) -> None:
    reader = SseReader(time.perf_counter())
    try:
        async for line in response.content:
            reader.take(line)
    except BrokenStreamError as broken:
        # Half an event is no error of the server, but an incomplete stream.
        answer.code = "" if broken.kind == "no_json" else broken.kind
    finally:
        answer.text = reader.result.text
    answer.is_whole = reader.is_done and not answer.code
    answer.is_broken = answer.ends_early = not (answer.is_whole or answer.code)
