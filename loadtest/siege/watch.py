"""Ordinary clients during a siege. They record what they observe, and the server's memory."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from loadtest import percentile
from loadtest.rig.client import REQUEST_ERRORS, BenchClient, chat
from loadtest.sse import StreamResult

STREAMS = 20
REQUEST_EVERY_S = 1.0
PROBE_EVERY_S = 0.05
LOOK_EVERY_S = 0.2
TOKENS_PER_S = 20
"""Tokens per second of the worker `talker` in siege.yaml."""
LATE_S = 30.0
"""A stream counts as lost if it ends more than this many seconds later than expected."""
GIVE_UP_S = 20.0
"""A request counts as lost if it has no answer after this many seconds."""
QUICK_TEXT = "One scripted answer."
"""Answer of the worker `quick` in siege.yaml."""
SLOWEST_GAP_S = 1.0
HEALTH_P99_S = 0.5
MOST_GROWTH = 1.1
"""Largest accepted ratio of the server's memory a minute after an attack to that before it."""


@dataclass(frozen=True, slots=True)
class SiegeResult:
    """Observations of ordinary clients during one attack."""

    streams: int
    whole: int
    n_requests: int
    answered: int
    slowest_gap_s: float
    health_p99_s: float
    worst_chat_s: float = 0.0
    """Latency of the slowest ordinary request without streaming."""
    memory: "Memory" = field(default_factory=lambda: Memory())
    lost: tuple[str, ...] = ()
    """Why the first few lost requests were lost."""
    breaches: tuple[str, ...] = ()
    """Behaviour that the server must never show."""
    attacked: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Counters of the attacker."""

    @property
    def missed(self) -> list[str]:
        """Descriptions of the limits that were exceeded."""
        checks = {
            "a stream was incomplete or changed": self.whole != self.streams,
            "a request got no answer": self.answered != self.n_requests or not self.n_requests,
            f"a stream paused for {self.slowest_gap_s:.1f} s": self.slowest_gap_s >= SLOWEST_GAP_S,
            f"/healthz took {self.health_p99_s:.1f} s (p99)": self.health_p99_s >= HEALTH_P99_S,
            "the memory did not recover": self.memory.after_mb > MOST_GROWTH * self.memory.before_mb,
            "the memory grew again in a second round": self.memory.again_mb
            > MOST_GROWTH * self.memory.after_mb,
        }
        return [what for what, is_missed in checks.items() if is_missed] + [*self.breaches]

    @property
    def withstood(self) -> bool:
        """True if no limit was exceeded."""
        return not self.missed


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory before an attack, at its peak, and a minute after it. `again_mb` is that after the
    second round, if there is one.
    """

    before_mb: float = 0.0
    peak_mb: float = 0.0
    after_mb: float = 0.0
    again_mb: float = 0.0


class OrdinaryClients:
    """Clients that use the server normally from the first loopback address. They expect `text`, and call
    `look` every `LOOK_EVERY_S`.
    """

    def __init__(
        self,
        url: str,
        text: str,
        streams: int = STREAMS,
        key: str = "",
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._url, self._text, self._streams, self._look = url, text, streams, look
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._worst_chat_s = 0.0
        self._losses: list[str] = []
        self._probes_s: list[float] = []
        self._n_requests = self._answered = 0
        self._over = asyncio.Event()

    async def run(self, has_begun: asyncio.Event) -> SiegeResult:
        """Run the streams to their end. Set `has_begun` once all of them have started."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, headers=self._headers) as session:
            client = BenchClient(session, self._url)
            streams = [asyncio.create_task(self._stream(client)) for _ in range(self._streams)]
            await asyncio.sleep(1)
            has_begun.set()
            watches = (self._keep_asking(client), self._probe(session), self._keep_looking())
            others = [asyncio.create_task(each) for each in watches]
            results = await asyncio.gather(*streams)
            self._over.set()
            await asyncio.gather(*others)
        return self._result([each for each in results if each is not None])

    def _result(self, results: Sequence[StreamResult]) -> SiegeResult:
        gaps_ms = [gap for each in results for gap in each.token_gaps_ms]
        return SiegeResult(
            streams=self._streams,
            whole=sum(each.text == self._text for each in results),
            n_requests=self._n_requests,
            answered=self._answered,
            slowest_gap_s=max(gaps_ms, default=math.inf) / 1000,
            health_p99_s=percentile(self._probes_s, 99),
            worst_chat_s=self._worst_chat_s,
            lost=tuple(self._losses[:3]),
        )

    async def _stream(self, client: BenchClient) -> StreamResult | None:
        try:
            async with asyncio.timeout(len(self._text.split()) / TOKENS_PER_S + LATE_S):
                result, _ = await client.stream(chat("talker"))
        except REQUEST_ERRORS as exc:
            self._losses.append(f"stream: {type(exc).__name__}: {exc}")
            return None
        return result

    async def _keep_asking(self, client: BenchClient) -> None:
        """Send a request every second on a new connection, whether or not the previous one was answered."""

        async def ask() -> None:
            self._n_requests += 1
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(GIVE_UP_S):
                    answer = await client.post_json("/v1/chat/completions", chat("quick"))
                self._answered += answer["choices"][0]["message"]["content"] == QUICK_TEXT
            except REQUEST_ERRORS as exc:
                self._losses.append(f"request: {type(exc).__name__}: {exc}")
            self._worst_chat_s = max(self._worst_chat_s, time.monotonic() - began_s)

        async with asyncio.TaskGroup() as tasks:
            while not self._over.is_set():
                tasks.create_task(ask())
                await asyncio.sleep(REQUEST_EVERY_S)

    async def _probe(self, session: aiohttp.ClientSession) -> None:
        """Probe `/healthz` on new connections. A failed probe counts as `GIVE_UP_S`."""
        while not self._over.is_set():
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(GIVE_UP_S), session.get(f"{self._url}/healthz") as response:
                    is_up = response.status == 200
            except (aiohttp.ClientError, TimeoutError):
                is_up = False
            self._probes_s.append(time.monotonic() - began_s if is_up else GIVE_UP_S)
            await asyncio.sleep(PROBE_EVERY_S)

    async def _keep_looking(self) -> None:
        while not self._over.is_set():
            self._look()
            await asyncio.sleep(LOOK_EVERY_S)
