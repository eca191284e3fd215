"""The open loop: requests are sent when they are due, whether or not earlier ones were answered, and timed from when they were due.

A closed loop asks a slow server less, and so hides the queue ("coordinated omission"). This one does not wait. What it cannot
send, because too many are open, is recorded as not started.
"""

import asyncio
import random
from typing import Any

import aiohttp
import orjson

from loadtest.arrivals import arrivals
from loadtest.asking import CHAT, STREAMED, Asking, failure, patience
from loadtest.recording import LEFT, OK, Recording, Sample
from loadtest.scenarios import Scenario
from loadtest.sse import BrokenStreamError, Reader

LONGEST_LINE_BYTES = 1 << 22
GRACE_S = 5.0
"""Beside the deadline, for an answer to arrive."""


def run(scenario: Scenario, url: str, asking: Asking, recording: Recording) -> None:
    """Run `scenario` against `url`, to its end or to Ctrl-C.

    At its end what was sent may finish within its deadline; at Ctrl-C it is left.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    asyncio.run(_Loop(scenario, url, asking, recording).drive())


class _Loop:
    def __init__(self, scenario: Scenario, url: str, asking: Asking, recording: Recording) -> None:
        self._scenario, self._url, self._asking, self._recording = scenario, url, asking, recording
        self._patience = random.Random(scenario.seed + 2)

    async def drive(self) -> None:
        """Send what is due when it is due; then wait for the rest."""
        scenario, under_way = self._scenario, set[asyncio.Task[None]]()
        due = arrivals(scenario.rate, scenario.duration_s, scenario.shape, random.Random(scenario.seed))
        mix = random.Random(scenario.seed + 1)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=5, sock_read=self._asking.deadline_s + GRACE_S
        )
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(
                connector=connector, timeout=timeout, read_bufsize=LONGEST_LINE_BYTES
            ) as session,
            asyncio.TaskGroup() as group,
        ):
            for due_s in due:
                (kind,) = mix.choices(list(scenario.mix), list(scenario.mix.values()))
                await self._until(due_s)
                if len(under_way) >= scenario.at_most:
                    self._recording.not_started(kind, due_s)
                    continue
                task = group.create_task(self._ask(session, kind, due_s))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await self._until(scenario.duration_s)
            await self._drain(under_way)

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self._recording.now_s))

    async def _drain(self, under_way: set[asyncio.Task[None]]) -> None:
        if under_way:
            await asyncio.wait(under_way, timeout=self._asking.deadline_s + GRACE_S)
        for task in under_way:
            task.cancel()

    async def _ask(self, session: aiohttp.ClientSession, kind: str, due_s: float) -> None:
        leaves_after = patience(self._patience) if kind == "cancel" else None
        with self._recording.request(kind, due_s) as sample:
            try:
                async with session.post(self._url + CHAT, json=self._asking.body(kind)) as response:
                    if response.status != 200:
                        sample.outcome = failure(response.status, await response.read())
                    elif kind in STREAMED:
                        await self._read(response, sample, leaves_after)
                    else:
                        content = await response.read()
                        sample.answered(_json(content), self._recording.took_ms(sample))
            except BrokenStreamError as broken:
                sample.outcome = broken.kind
            except TimeoutError:
                sample.outcome = "timeout"
            except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionResetError):
                sample.outcome = "cut"
            except (aiohttp.ClientError, OSError, ValueError) as exc:
                sample.outcome = type(exc).__name__

    async def _read(self, response: aiohttp.ClientResponse, sample: Sample, leaves_after: int | None) -> None:
        reader = Reader(self._recording.began + sample.due_s)
        async for line in response.content:
            reader.take(line)
            if reader.events == leaves_after and not reader.done:
                response.close()  # unread: the server sees its client go
                sample.outcome = LEFT
                return
        sample.heard(reader.end())
        sample.outcome = OK


def _json(content: bytes) -> Any:
    """What a whole answer says; None where it is no JSON."""
    try:
        return orjson.loads(content)
    except ValueError:
        return None
