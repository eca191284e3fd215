"""Our own time for a tool's round trip: from its result to the next call, the worker taking none.

In it the run is taken from the store, goes on, calls a tool again and is written down. The same three routers as
`metering.py`: one that keeps runs in memory and asks for no key, and one over each database, with key, budget and
price. A request that is answered without tools stands beside it, as the unit.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from loadtest.bench.figures import Figure, figure, reading
from loadtest.bench.metering import running_sides
from loadtest.rig import Json
from loadtest.rig.client import CHAT, BenchClient, chat
from program.percentile import percentile

ROUNDS, TURNS = 6, 40
AGENT: Json = {
    "name": "agent",
    "kind": "scripted",
    "replies": [
        {"text": "Let me look.", "calls": [{"name": "read", "arguments": {"path": "x"}}]},
        {"text": "Once more.", "calls": [{"name": "read", "arguments": {"path": "y"}}]},
        "It is an answer of some words.",
    ],
}
TOOLS: list[Json] = [
    {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
]


@dataclass(frozen=True, slots=True)
class Turns:
    """What was measured of one router: medians of each round, and every round trip; milliseconds."""

    trips_ms: list[float] = field(default_factory=list[float])
    plain_ms: list[float] = field(default_factory=list[float])
    every_ms: list[float] = field(default_factory=list[float])


def figures(sides: Mapping[str, Turns]) -> list[Figure]:
    """From each router's."""
    found: list[Figure] = []
    for name, side in sides.items():
        ratios = [trip / plain for trip, plain in zip(side.trips_ms, side.plain_ms, strict=True)]
        found += [
            figure(f"tool_turn_p50_ms_{name}", side.trips_ms),
            reading(f"tool_turn_p99_ms_{name}", percentile(side.every_ms, 99)),
            figure(f"tool_turn_over_request_{name}", ratios),
        ]
    return found


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """About a minute."""
    with TemporaryDirectory() as folder:
        async with running_sides("tool-turns", AGENT, Path(folder)) as clients:
            sides = {name: Turns() for name in clients}
            for client in clients.values():
                await _round(client)  # what is opened at the first need is open then
            for _ in range(ROUNDS):
                for name, client in clients.items():
                    trips_ms, plain_ms = await _round(client)
                    sides[name].trips_ms.append(median(trips_ms))
                    sides[name].plain_ms.append(median(plain_ms))
                    sides[name].every_ms.extend(trips_ms)
                tick()
            return figures(sides)


async def _round(client: BenchClient) -> tuple[list[float], list[float]]:
    """Round trips, and requests without tools, in turn; milliseconds."""
    trips_ms: list[float] = []
    plain_ms: list[float] = []
    for _ in range(TURNS):
        asked = chat("agent", tools=TOOLS)
        first = await client.post_json(CHAT, asked)
        began_s = time.perf_counter()
        second = await client.post_json(CHAT, _with_results(asked, first))
        trips_ms.append((time.perf_counter() - began_s) * 1000)
        await client.post(CHAT, _with_results(_with_results(asked, first), second))
        began_s = time.perf_counter()
        await client.post(CHAT, chat("agent"))
        plain_ms.append((time.perf_counter() - began_s) * 1000)
    return trips_ms, plain_ms


def _with_results(asked: Json, answer: Json) -> Json:
    """The next request of an agent whose tool gave a word."""
    said = answer["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "seven"} for call in said["tool_calls"]
    ]
    return asked | {"messages": [*asked["messages"], said, *results]}
