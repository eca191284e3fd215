"""The ordinary clients, and what they felt."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from bench.client import Client, chat
from bench.server import BenchError
from loadtest.sse import BrokenStreamError, Felt

STREAMS = 20
REQUEST_EVERY_S = 1.0
PROBE_EVERY_S = 0.05
GIVE_UP_S = 20.0
"""A request without an answer by then is lost."""
QUICK_TEXT = "One scripted answer."
"""Of the worker `quick` in siege.yaml."""
SLOWEST_GAP_S = 1.0
HEALTH_P99_S = 0.5


@dataclass(frozen=True, slots=True)
class Result:
    """What ordinary clients felt during one attack."""

    streams: int
    whole: int
    asked: int
    answered: int
    slowest_gap_s: float
    health_p99_s: float
    lost: tuple[str, ...] = ()
    """Why, for the first few that were."""

    @property
    def held(self) -> bool:
        """Whether every bound was kept."""
        return (
            self.whole == self.streams
            and self.answered == self.asked > 0
            and self.slowest_gap_s < SLOWEST_GAP_S
            and self.health_p99_s < HEALTH_P99_S
        )


class Watch:
    """Ordinary clients of one server, from the loopback's first address.

    Args:
        url: of the server.
        text: that each stream must give, whole.
        streams: how many run at once.
    """

    def __init__(self, url: str, text: str, streams: int = STREAMS) -> None:
        self._url, self._text, self._streams = url, text, streams
        self._began = 0
        self._lost: list[str] = []
        self._probes_s: list[float] = []
        self._asked = self._answered = 0
        self._over = asyncio.Event()

    async def run(self, under_attack: asyncio.Event) -> Result:
        """From the start of the streams to the end of the last one; `under_attack` is set once all of them have begun to talk."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True)
        ) as session:
            client = Client(session, self._url)
            streams = [asyncio.create_task(self._stream(client)) for _ in range(self._streams)]
            await asyncio.sleep(1)
            under_attack.set()
            others = [
                asyncio.create_task(self._request_now_and_then(client)),
                asyncio.create_task(self._probe(session)),
            ]
            felt = await asyncio.gather(*streams)
            self._over.set()
            await asyncio.gather(*others)
        return self._result([each for each in felt if each is not None])

    def _result(self, felt: Sequence[Felt]) -> Result:
        gaps_ms = [gap for each in felt for gap in each.token_gaps_ms]
        probes_s = sorted(self._probes_s)
        return Result(
            streams=self._streams,
            whole=sum(each.text == self._text for each in felt),
            asked=self._asked,
            answered=self._answered,
            slowest_gap_s=max(gaps_ms, default=float("inf")) / 1000,
            health_p99_s=probes_s[min(len(probes_s) - 1, int(len(probes_s) * 0.99))]
            if probes_s
            else float("inf"),
            lost=tuple(self._lost[:3]),
        )

    async def _stream(self, client: Client) -> Felt | None:
        try:
            felt, _ = await client.stream(chat("talker"))
        except (BrokenStreamError, BenchError, aiohttp.ClientError, TimeoutError) as exc:
            self._lost.append(f"stream: {type(exc).__name__}: {exc}")
            return None
        return felt

    async def _request_now_and_then(self, client: Client) -> None:
        """A new request every second, on a new connection, whether or not the one before has its answer."""

        async def ask() -> None:
            self._asked += 1
            try:
                async with asyncio.timeout(GIVE_UP_S):
                    answer = await client.answered("/v1/chat/completions", chat("quick"))
                self._answered += answer["choices"][0]["message"]["content"] == QUICK_TEXT
            except (BenchError, aiohttp.ClientError, TimeoutError) as exc:
                self._lost.append(f"request: {type(exc).__name__}: {exc}")

        async with asyncio.TaskGroup() as asking:
            while not self._over.is_set():
                asking.create_task(ask())
                await asyncio.sleep(REQUEST_EVERY_S)

    async def _probe(self, session: aiohttp.ClientSession) -> None:
        """`/healthz`, each time on a new connection; one that fails counts as the longest wait."""
        while not self._over.is_set():
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(GIVE_UP_S), session.get(f"{self._url}/healthz") as response:
                    is_up = response.status == 200
            except (aiohttp.ClientError, TimeoutError):
                is_up = False
            self._probes_s.append(time.monotonic() - began_s if is_up else GIVE_UP_S)
            await asyncio.sleep(PROBE_EVERY_S)
