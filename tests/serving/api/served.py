"""The real API over a real socket with scripted workers, and the check that each test leaves nothing behind."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Generator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import uvicorn

from conductor.run.ledger import BudgetLedger
from serving.accounts.account_ledgers import AccountLedgers
from serving.accounts.budget_webhooks import BudgetWebhooks
from serving.accounts.directory import Directory
from serving.accounts.ledger_store import LedgerStore
from serving.api.app import build_api
from serving.api.dialects.responses.conversations import ConversationTurns
from serving.api.dialects.table import DIALECTS
from serving.api.feed import Feeds
from serving.batches.memory_store import MemoryBatchStore
from serving.batches.runner import Batches, Clock
from serving.batches.store import BatchStore
from serving.database.clock import now_us
from serving.database.writer import Writer
from serving.edge.exchange import WaitingRoom
from serving.edge.policy import HttpPolicy
from serving.edge.protocol import ReaderProtocol, guard_protocol
from serving.egress.client import tls_context
from serving.pool import Engines, build_pool
from serving.sessions.live_settings import LiveSettings
from serving.sessions.service import Service
from serving.settings.settings import Settings, parse
from serving.store.conversations import ConversationStore
from serving.store.database_store import DatabaseStore
from serving.store.journal import RunJournal
from serving.store.prompt_caches import PromptCaches
from serving.store.shared_circuits import SharedCircuits
from serving.store.store import StoreFactory
from serving.telemetry.measurement import MeasurementSink
from serving.workers.scripted import ScriptedWorker
from tests.serving.spans import SPANS
from tests.states import until

Json = dict[str, Any]
PRICE = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
ASK: Json = {"model": "mini", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}

TIMEOUT_S = 120.0
"""Timeout of clients. Generous, so that only a hanging request reaches it on a busy machine."""


def step(worker: str | int, subtask: str = "Do your part.", access: list[int] | str = ()) -> Json:  # type: ignore[assignment]
    """Return a step for a conductor's plan or `podium.plan`."""
    return {
        "worker": worker,
        "subtask": subtask,
        "access": access if isinstance(access, str) else list(access),
    }


def plan(*steps: Json) -> str:
    return "\n".join(json.dumps(each) for each in steps)


TWO = plan(step("a", "Find a reason."), step("b", "Conclude.", [0]))


def scripted(name: str, *replies: Any, **settings: Any) -> Json:
    return {"name": name, "kind": "scripted", "replies": list(replies) or [f"{name} says so."], **settings}


def team(*plans: Any, workers: list[Json] | None = None, **settings: Any) -> Json:
    """Return settings with a conductor that gives `plans` in turn, three workers, two models and a workflow."""
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
    service: Service
    url: str
    http: httpx2.AsyncClient
    batches: Batches
    feeds: Feeds
    connections: set[ReaderProtocol]
    """Open connections, as seen by the server."""
    ledgers: list[BudgetLedger]
    earlier: set[asyncio.Task[Any]]
    """Tasks that existed before the server."""
    sdks: list[openai.AsyncOpenAI | anthropic.AsyncAnthropic] = field(
        default_factory=list[openai.AsyncOpenAI | anthropic.AsyncAnthropic]
    )
    """Clients to close at the end. An unclosed OpenAI client starts a task on whatever loop exists when it is
    collected.
    """

    def worker(self, name: str) -> ScriptedWorker:
        """Return the scripted worker beneath its wrappers."""
        client = next(wire for wire in self.service.pool.clients if wire.name == name)
        assert isinstance(client, ScriptedWorker)
        return client

    @property
    def sdk(self) -> openai.AsyncOpenAI:
        return self.openai()

    def openai(self, key: str = "none") -> openai.AsyncOpenAI:
        sdk = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=TIMEOUT_S)
        self.sdks.append(sdk)
        return sdk

    def anthropic(self, key: str = "none") -> anthropic.AsyncAnthropic:
        sdk = anthropic.AsyncAnthropic(base_url=self.url, api_key=key, max_retries=0, timeout=TIMEOUT_S)
        self.sdks.append(sdk)
        return sdk

    async def post(
        self, body: Any = None, path: str = "/v1/chat/completions", **podium: Any
    ) -> httpx2.Response:
        """Send `ASK` with the changes in `body` and these `podium` fields."""
        request_body = ASK | (body or {}) | ({"podium": podium} if podium else {})
        return await self.http.post(path, json=request_body)

    async def ok(self, body: Any = None, path: str = "/v1/chat/completions", **podium: Any) -> Json:
        answer = await self.post(body, path, **podium)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def events(self, body: Any = None, **podium: Any) -> list[Any]:
        """Return the JSON of each event of a stream. `[DONE]` and comments stay strings."""
        request_body = ASK | {"stream": True} | (body or {}) | ({"podium": podium} if podium else {})
        answer = await self.http.post("/v1/chat/completions", json=request_body)
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

    async def quiet(self) -> None:
        """Wait until no run has left anything. Fail if something stays."""
        await until(lambda: self.service.running == 0, "no run under way")
        await until(lambda: not self.service._pools._retired, "no replaced pool in use")
        for wire in self.service.pool.clients:
            if isinstance(wire, ScriptedWorker):
                await until(lambda wire=wire: wire.open_calls == 0, f"no open call at {wire.name}")
        await until(
            lambda: not left_tasks(self.earlier),
            lambda: f"no task left: {left_tasks(self.earlier)}",
            every_s=0.05,  # listing all tasks is expensive
        )
        await until(lambda: not SPANS.open, f"no open span: {SPANS.open}")
        assert len(SPANS.started) == len(SPANS.ended)
        open_holds = [ledger.holds for ledger in self.ledgers if ledger.holds]
        assert open_holds == [], open_holds


SERVER_WIDE = {
    each.__code__
    for each in (
        Batches._sweep_on,
        Batches._work_on,
        BudgetWebhooks._look_on,
        DatabaseStore._remove_on,
        DatabaseStore._sweep_on,
        DatabaseStore._watch,
        RunJournal._write_on,
        LedgerStore._beat_on,
        LiveSettings._follow,
        SharedCircuits._look_on,
        Writer._work,
    )
}
"""Code of background tasks that a server always runs."""
TESTS = str(Path(__file__).parents[2])


def left_tasks(earlier: AbstractSet[asyncio.Task[Any]] = frozenset()) -> list[str]:
    """Return the coroutines of tasks that a run or response has left. Excludes tasks of servers, of tests and in
    `earlier`.
    """
    others = asyncio.all_tasks() - {asyncio.current_task()} - earlier
    codes = [getattr(task.get_coro(), "cr_code", None) for task in others]
    return [
        code.co_qualname if code else "?"
        for code in codes
        if code is None or not (code in SERVER_WIDE or code.co_filename.startswith(TESTS))
    ]


_LEDGERS = list[list[BudgetLedger]]()
_make_ledger = BudgetLedger.__init__


def _make_and_note(self: BudgetLedger, *args: Any, **named: Any) -> None:
    _make_ledger(self, *args, **named)
    for ledger in _LEDGERS:
        ledger.append(self)


BudgetLedger.__init__ = _make_and_note


@contextmanager
def noting_ledgers() -> Generator[list[BudgetLedger]]:
    """Collect every ledger that is created in the block."""
    ledgers = list[BudgetLedger]()
    _LEDGERS.append(ledgers)
    try:
        yield ledgers
    finally:
        _LEDGERS[:] = [each for each in _LEDGERS if each is not ledgers]


def parsed(stream: str) -> list[Any]:
    """Parse server-sent events of one line each."""
    assert stream.endswith("\n\n")
    return [_event(block) for block in stream[:-2].split("\n\n")]


def _event(block: str) -> Any:
    if block.startswith(":"):
        return block
    assert block.startswith("data: "), block
    data = block.removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)


def answer_text(events: list[Any]) -> str:
    """Return the answer in a stream."""
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
    open_store: StoreFactory | None = None,
    batch_store: BatchStore | None = None,
    clock: Clock = now_us,
    conversations: ConversationStore | None = None,
    meter: MeasurementSink | None = None,
    prompt_caches: PromptCaches | None = None,
) -> AsyncGenerator[Served]:
    """Serve `settings` on a free port of the loopback, and check at the end that no run has left anything."""
    checked = settings if isinstance(settings, Settings) else parse(settings)
    policies = directory.policies if directory else None
    service = Service(
        build_pool(checked, environ or {}, engines or {}),
        open_store,
        meter,
        ledgers=ledgers,
        policies=policies,
        conversations=conversations,
        keep_turn=ConversationTurns(),
        prompt_caches=prompt_caches,
    )
    work = Batches(batch_store or MemoryBatchStore(), service, policies, clock)
    app = build_api(service, directory=directory, work=work)
    SPANS.clear()
    earlier = asyncio.all_tasks()
    connections = set[ReaderProtocol]()
    async with (
        listening(app, connections) as url,
        httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S, verify=tls_context()) as http,
    ):
        with noting_ledgers() as new_ledgers:
            running = Served(service, url, http, work, app.state.feeds, connections, new_ledgers, earlier)
            try:
                yield running
            finally:
                await asyncio.gather(*(sdk.close() for sdk in running.sdks))
                await work.aclose()
            await running.quiet()
            await service.pool.aclose()


@asynccontextmanager
async def listening(app: Any, connections: set[ReaderProtocol] | None = None) -> AsyncGenerator[str]:
    """Serve an ASGI app on a free port of the loopback and yield its address. Its open connections are in
    `connections`.
    """
    policy = HttpPolicy.of(Settings.model_construct())
    room = WaitingRoom(policy.max_waiting, policy.max_unfinished_bytes)
    protocol = guard_protocol(policy, room, DIALECTS.error_body, ReaderProtocol)
    config = uvicorn.Config(app, http=protocol, log_level="error", lifespan="off", ws="none")
    config.load()
    server = uvicorn.Server(config)
    if connections is not None:
        server.server_state.connections = connections  # type: ignore[assignment]
    server.lifespan = config.lifespan_class(config)
    # `asyncio` disables Nagle's algorithm only if the protocol is explicitly TCP.
    with socket.socket(proto=socket.IPPROTO_TCP) as sock:
        sock.bind(("127.0.0.1", 0))
        await server.startup(sockets=[sock])
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            for listener in server.servers:
                listener.close()
            for connection in list(server.server_state.connections):
                connection.shutdown()
