"""Open loop: each request is sent when it is due, whether or not earlier ones were answered, and is timed
from then.

A closed loop sends fewer requests to a slow server and so hides the queue ("coordinated omission"). The open
loop does not wait. If too many requests are open when another one is due, that one is recorded as not
started.
"""

import asyncio
import random

import aiohttp

from loadtest.arrivals import arrivals
from loadtest.recording import LEFT, OK, Recording, Sample
from loadtest.request_options import CHAT, STREAMED, RequestOptions, failure, parse_json, patience
from loadtest.scenarios import Scenario
from loadtest.sse import BrokenStreamError, SseReader

MAX_LINE_BYTES = 1 << 22
GRACE_S = 5.0
"""Seconds added to the deadline, so that an answer that is sent in time can arrive."""


def run(scenario: Scenario, url: str, options: RequestOptions, recording: Recording) -> None:
    """Run `scenario`. At its end, open requests may finish; Ctrl-C drops them and is raised."""
    asyncio.run(_Loop(scenario, url, options, recording).run())


class _Loop:
    def __init__(self, scenario: Scenario, url: str, options: RequestOptions, recording: Recording) -> None:
        self._scenario, self._url, self._options, self._recording = scenario, url, options, recording
        self._patience = random.Random(scenario.seed + 2)
        self._open: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Send each request when it is due, then wait for the open ones."""
        scenario = self._scenario
        due = arrivals(scenario.rate, scenario.duration_s, scenario.shape, random.Random(scenario.seed))
        mix = random.Random(scenario.seed + 1)
        async with self._session() as session, asyncio.TaskGroup() as group:
            for due_s in due:
                (kind,) = mix.choices(list(scenario.mix), list(scenario.mix.values()))
                await self._sleep_until(due_s)
                if len(self._open) >= scenario.at_most:
                    self._recording.not_started(kind, due_s)
                    continue
                task = group.create_task(self._ask(session, kind, due_s))
                self._open.add(task)
                task.add_done_callback(self._open.discard)
            await self._sleep_until(scenario.duration_s)
            await self._drain()

    def _session(self) -> aiohttp.ClientSession:
        patience_s = self._options.deadline_s + GRACE_S
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=patience_s)
        connector = aiohttp.TCPConnector(limit=0)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=MAX_LINE_BYTES)

    async def _sleep_until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self._recording.now_s))

    async def _drain(self) -> None:
        if self._open:
            await asyncio.wait(self._open, timeout=self._options.deadline_s + GRACE_S)
        for task in self._open:
            task.cancel()

    async def _ask(self, session: aiohttp.ClientSession, kind: str, due_s: float) -> None:
        leaves_after = patience(self._patience) if kind == "cancel" else None
        with self._recording.request(kind, due_s) as sample:
            try:
                async with session.post(self._url + CHAT, json=self._options.body(kind)) as response:
                    if response.status != 200:
                        sample.outcome = failure(response.status, await response.read())
                    elif kind in STREAMED:
                        await self._read(response, sample, leaves_after)
                    else:
                        content = await response.read()
                        sample.take_answer(parse_json(content), self._recording.since_due_ms(sample))
            except BrokenStreamError as broken:
                sample.outcome = broken.kind
            except TimeoutError:
                sample.outcome = "timeout"
            except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionResetError):
                sample.outcome = "cut"
            except (aiohttp.ClientError, OSError, ValueError) as exc:
                sample.outcome = type(exc).__name__

    async def _read(self, response: aiohttp.ClientResponse, sample: Sample, leaves_after: int | None) -> None:
        reader = SseReader(self._recording.began + sample.due_s)
        async for line in response.content:
            reader.take(line)
            if reader.events == leaves_after and not reader.is_done:
                response.close()  # unread data makes the server notice the disconnect
                sample.outcome = LEFT
                return
        sample.take_stream(reader.end())
        sample.outcome = OK
