"""The real API over a real socket, with scripted workers; and what must be left of it at the end: nothing."""

import asyncio
import gc
import json
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2
import openai
import uvicorn

from conductor.run.ledger import BudgetLedger
from serving.accounts.account_ledgers import AccountLedgers
from serving.accounts.directory import Directory
from serving.api.app import build_api
from serving.batches.memory_store import MemoryBatchStore
from serving.batches.runner import Batches, Clock
from serving.batches.store import BatchStore
from serving.edge.reader import ReaderProtocol
from serving.egress.client import tls_context
from serving.pool import Engines, build_pool
from serving.runs.rows import now_us
from serving.runs.service import Service
from serving.runs.store import RecordStore
from serving.settings.settings import Settings, parse
from serving.workers.scripted import ScriptedWorker
from tests.serving.spans import SPANS
from tests.states import until

Json = dict[str, Any]
PRICE = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
ASK: Json = {"model": "mini", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}


def step(worker: str | int, subtask: str = "Do your part.", access: list[int] | str = ()) -> Json:  # type: ignore[assignment]
    """A step as a conductor writes it and as `podium.plan` takes it."""
    return {
        "worker": worker,
        "subtask": subtask,
        "access": access if isinstance(access, str) else list(access),
    }


def plan(*steps: Json) -> str:
    """What a conductor says to have these steps run."""
    return "\n".join(json.dumps(each) for each in steps)


TWO = plan(step("a", "Find a reason."), step("b", "Conclude.", [0]))


def scripted(name: str, *replies: Any, **settings: Any) -> Json:
    return {"name": name, "kind": "scripted", "replies": list(replies) or [f"{name} says so."], **settings}


def team(*plans: Any, workers: list[Json] | None = None, **settings: Any) -> Json:
    """Settings: a conductor that says `plans` in turn, three workers, a model, a workflow."""
    mine = workers or [
        scripted("a", "A reason: scattering.", price=PRICE),
        scripted("b", "Blue light scatters most.", price=PRICE),
        scripted("c", price=PRICE),
    ]
    return {
        "conductor": {"worker": "conductor"},
        "workers": [scripted("conductor", *(plans or (TWO,)), in_pool=False), *mine],
        "models": {"mini": {}, "ultra": {"rounds": 2}},
        "workflows": {"duo": [step("a", "Draft."), step("b", "Polish.", [0])]},
    } | settings


@dataclass
class Served:
    """A running API."""

    service: Service
    url: str
    http: httpx2.AsyncClient
    batches: Batches
    ledgers: list[BudgetLedger] = field(default_factory=list[BudgetLedger])
    sdks: list[openai.AsyncOpenAI | anthropic.AsyncAnthropic] = field(
        default_factory=list[openai.AsyncOpenAI | anthropic.AsyncAnthropic]
    )
    """Closed at the end: OpenAI's that is not starts a task when it is collected, on whatever loop there is by then."""

    def worker(self, name: str) -> ScriptedWorker:
        """The script itself, under all its layers."""
        found = next(wire for wire in self.service.pool.clients if wire.name == name)
        assert isinstance(found, ScriptedWorker)
        return found

    @property
    def sdk(self) -> openai.AsyncOpenAI:
        return self.openai()

    def openai(self, key: str = "none") -> openai.AsyncOpenAI:
        """A client of this API's own."""
        sdk = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=20)
        self.sdks.append(sdk)
        return sdk

    def anthropic(self, key: str = "none") -> anthropic.AsyncAnthropic:
        """A client of this API's own."""
        sdk = anthropic.AsyncAnthropic(base_url=self.url, api_key=key, max_retries=0, timeout=20)
        self.sdks.append(sdk)
        return sdk

    async def post(
        self, body: Any = None, path: str = "/v1/chat/completions", **podium: Any
    ) -> httpx2.Response:
        """`ASK` with what `body` changes, and with these `podium` fields."""
        asked = ASK | (body or {}) | ({"podium": podium} if podium else {})
        return await self.http.post(path, json=asked)

    async def ok(self, body: Any = None, path: str = "/v1/chat/completions", **podium: Any) -> Json:
        answer = await self.post(body, path, **podium)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def events(self, body: Any = None, **podium: Any) -> list[Any]:
        """A stream, whole: each event's JSON, `[DONE]` and comments as they stand."""
        asked = ASK | {"stream": True} | (body or {}) | ({"podium": podium} if podium else {})
        answer = await self.http.post("/v1/chat/completions", json=asked)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        return parsed(answer.text)

    async def record(self, id: str) -> Json:
        answer = await self.http.get(f"/v1/workflows/{id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def newest(self) -> Json:
        listed = (await self.http.get("/v1/workflows?limit=1")).json()["data"][0]
        return await self.record(listed["id"])

    def see_ledgers(self) -> int:
        """Note the ledgers that exist now, so that they can be looked at when their runs are over."""
        self.ledgers += [each for each in gc.get_objects() if type(each) is BudgetLedger]
        return len(self.ledgers)

    async def quiet(self) -> None:
        """Wait until nothing is left of any run; fail where something stays."""
        await until(lambda: self.service.running == 0, "no run under way")
        for wire in self.service.pool.clients:
            if isinstance(wire, ScriptedWorker):
                await until(lambda wire=wire: wire.open_calls == 0, f"no open call at {wire.name}")
        await until(lambda: not left_tasks(), f"no task left: {left_tasks()}")
        await until(lambda: not SPANS.open, f"no open span: {SPANS.open}")
        assert len(SPANS.started) == len(SPANS.ended)
        assert [ledger.holds for ledger in self.ledgers if ledger.holds] == []


def left_tasks() -> list[str]:
    """Tasks of runs: drivers, steps, and whatever a response started."""
    names: list[str] = []
    for task in asyncio.all_tasks():
        where = getattr(task.get_coro(), "__qualname__", "")
        if task.get_name().startswith(("run ", "step ", "guess ")) or where.startswith(
            ("RunResponse", "RunOpener", "_gone", "PlanRun", "CallTask", "_Conducting")
        ):
            names.append(f"{task.get_name()} {where}")
    return names


def parsed(stream: str) -> list[Any]:
    """Server-sent events, each of them one line here."""
    assert stream.endswith("\n\n")
    return [_event(block) for block in stream[:-2].split("\n\n")]


def _event(block: str) -> Any:
    if block.startswith(":"):
        return block
    assert block.startswith("data: "), block
    data = block.removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)


def said(events: list[Any]) -> str:
    """The answer in a stream."""
    return "".join(
        choice["delta"].get("content") or ""
        for event in events
        if isinstance(event, dict)
        for choice in event.get("choices", ())
    )


@asynccontextmanager
async def served(
    settings: Settings | Json,
    environ: Mapping[str, str] | None = None,
    engines: Engines | None = None,
    directory: Directory | None = None,
    ledgers: AccountLedgers | None = None,
    store: RecordStore | None = None,
    batch_store: BatchStore | None = None,
    clock: Clock = now_us,
) -> AsyncGenerator[Served]:
    """Serve `settings` on a free port of the loopback; at the end nothing may be left of any run."""
    checked = settings if isinstance(settings, Settings) else parse(settings)
    policies = directory.policies if directory else None
    service = Service(
        build_pool(checked, environ or {}, engines or {}), store, ledgers=ledgers, policies=policies
    )
    work = Batches(batch_store or MemoryBatchStore(), service, policies, clock)
    SPANS.clear()
    async with (
        listening(build_api(service, directory=directory, work=work)) as url,
        httpx2.AsyncClient(base_url=url, timeout=20, verify=tls_context()) as http,
    ):
        running = Served(service, url, http, work)
        try:
            yield running
        finally:
            await asyncio.gather(*(sdk.close() for sdk in running.sdks))
            await work.aclose()
        await running.quiet()


@asynccontextmanager
async def listening(app: Any) -> AsyncGenerator[str]:
    """Serve an ASGI app on a free port of the loopback; its address."""
    config = uvicorn.Config(app, http=ReaderProtocol, log_level="error", lifespan="off", ws="none")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.socket(
        proto=socket.IPPROTO_TCP
    ) as sock:  # asyncio switches Nagle off only where it reads that it is TCP
        sock.bind(("127.0.0.1", 0))
        await server.startup(sockets=[sock])
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            for listener in server.servers:
                listener.close()
            for connection in list(server.server_state.connections):
                connection.shutdown()
