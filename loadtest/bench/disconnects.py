"""Disconnect clients during a run, and measure the time until every upstream call of the run is closed.

Each run is a plan of three inner steps and an answer, all served by `upstream` in this process. One clock
therefore measures the whole time: from just before the client closes its socket until the last upstream
connection of the run has closed. A client disconnects at a random moment after the first call of its stage.
Half of the clients stream.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from loadtest.bench.figures import Figure, figure, p95, reading
from loadtest.bench.first_call import TOKEN
from loadtest.rig import RigError
from loadtest.rig.client import CHAT, BenchClient, chat
from loadtest.rig.fake_openai import FakeOpenAI, Script, UpstreamCall

INNER = '{"worker": "inner", "subtask": "Say it.", "access": []}\n'
PLAN = INNER * 3 + '{"worker": "answer", "subtask": "Say all.", "access": [0, 1, 2]}\n'
SCRIPTS = {
    "conductor": Script(TOKEN.findall(PLAN), 0.05, 1 / 60),
    "inner": Script(["word "] * 30, 0.2, 1 / 100),
    "answer": Script(["word "] * 30, 0.1, 1 / 60),
    "brief": Script(TOKEN.findall("The first of a few words."), 0.1, 1 / 1000),
}
"""Scripts of the models in upstream.yaml. `brief` is for `tokens.py`."""
STAGES = {"planning": "conductor", "inner": "inner", "answer": "answer"}
"""Stages of a run, each with the model whose first call starts it."""
EACH = 26
CONCURRENT = 2
STAYS_S = 0.35
"""Longest time that a client stays in its stage before it disconnects. Every stage lasts longer."""
GIVE_UP_S = 5.0


@dataclass(frozen=True, slots=True)
class Disconnect:
    """One client that disconnected, and the number of calls that stayed open.

    Args:
        closed_ms: the milliseconds until the last call was closed, or the limit `GIVE_UP_S` if a call stayed
            open.
    """

    stage: str
    closed_ms: float
    calls_left: int


def script_of(call: UpstreamCall) -> Script:
    return SCRIPTS[call.model]


def figures(disconnects: Sequence[Disconnect], runs_left: int) -> list[Figure]:
    """Compute the figures from clients that disconnected during a call, and the runs still active at the end."""
    closed_ms = [each.closed_ms for each in disconnects]
    by_stage = {stage: [each.closed_ms for each in disconnects if each.stage == stage] for stage in STAGES}
    return [
        figure("disconnect_to_closed_p95_ms", closed_ms, p95),
        figure("disconnect_to_closed_p50_ms", closed_ms),
        *(figure(f"disconnect_{stage}_p95_ms", times_ms, p95) for stage, times_ms in by_stage.items()),
        reading("disconnects", len(disconnects)),
        reading("disconnect_calls_left", sum(each.calls_left for each in disconnects) + runs_left),
    ]


async def disconnect(url: str, upstream: FakeOpenAI, number: int, stage: str) -> Disconnect | None:
    """Disconnect a moment after the stage begins. Return None if no call was open by then."""
    run = f"run-leave{number}-"
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    body = json.dumps(chat("podium-mini", question=run, stream=number % 2 == 0)).encode()
    head = f"POST {parts.path}{CHAT} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    reading_answer = asyncio.create_task(reader.read())
    try:
        async with asyncio.timeout(30):
            await upstream.wait_until_called(run, STAGES[stage])
        await asyncio.sleep(random.uniform(0, STAYS_S))
        open_calls = upstream.open_calls(run)
        left_s = time.monotonic()
    finally:
        reading_answer.cancel()
        writer.close()
    if not open_calls:
        return None
    try:
        async with asyncio.timeout(GIVE_UP_S):
            await upstream.wait_until_idle(run)
    except TimeoutError:
        return Disconnect(stage, 1000 * GIVE_UP_S, len(upstream.open_calls(run)))
    last_s = max(call.closed_s or left_s for call in upstream.calls_of(run))
    return Disconnect(stage, 1000 * (last_s - left_s), 0)


async def measure(client: BenchClient, upstream: FakeOpenAI, tick: Callable[[], None]) -> list[Figure]:
    """Run `EACH` clients per stage, `CONCURRENT` at a time, stages in turn."""
    slots = asyncio.Semaphore(CONCURRENT)

    async def one(number: int) -> Disconnect | None:
        async with slots:
            result = await disconnect(client.url, upstream, number, list(STAGES)[number % len(STAGES)])
        tick()
        return result

    try:
        results = await asyncio.gather(*(one(number) for number in range(EACH * len(STAGES))))
    except TimeoutError as exc:
        raise RigError("A run did not reach its stage within 30 s.") from exc
    return figures([each for each in results if each is not None], await client.wait_until_idle(GIVE_UP_S))
