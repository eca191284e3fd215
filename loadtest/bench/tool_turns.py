"""Podium's own time between a tool's result and the next tool call, with a worker that takes no time.

In this time, Podium loads the run from the store, resumes it until the next tool call, and stores it again.
The three routers are those of `metering.py`: one keeps runs in memory and needs no key, and one runs over
each database with a key, a budget and a price. A request without tools is the reference.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from loadtest import percentile
from loadtest.bench.figures import Figure, figure, reading
from loadtest.bench.metering import running_sides
from loadtest.rig import Json
from loadtest.rig.client import CHAT, BenchClient, chat

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
    """Milliseconds of one router: medians of tool round trips and of plain requests by round, and all trips."""

    trips_ms: list[float] = field(default_factory=list[float])
    plain_ms: list[float] = field(default_factory=list[float])
    every_ms: list[float] = field(default_factory=list[float])


def figures(sides: Mapping[str, Turns]) -> list[Figure]:
    results: list[Figure] = []
    for name, side in sides.items():
        ratios = [trip / plain for trip, plain in zip(side.trips_ms, side.plain_ms, strict=True)]
        results += [
            figure(f"tool_turn_p50_ms_{name}", side.trips_ms),
            reading(f"tool_turn_p99_ms_{name}", percentile(side.every_ms, 99)),
            figure(f"tool_turn_over_request_{name}", ratios),
        ]
    return results


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """Measure the three routers. Takes about a minute."""
    with TemporaryDirectory() as folder:
        async with running_sides("tool-turns", AGENT, Path(folder)) as clients:
            sides = {name: Turns() for name in clients}
            for client in clients.values():
                await _round(client)  # warm-up: opens everything that opens on first use
            for _ in range(ROUNDS):
                for name, client in clients.items():
                    trips_ms, plain_ms = await _round(client)
                    sides[name].trips_ms.append(median(trips_ms))
                    sides[name].plain_ms.append(median(plain_ms))
                    sides[name].every_ms.extend(trips_ms)
                tick()
            return figures(sides)


async def _round(client: BenchClient) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each tool round trip and of each plain request. They take turns."""
    trips_ms: list[float] = []
    plain_ms: list[float] = []
    for _ in range(TURNS):
        request = chat("agent", tools=TOOLS)
        first = await client.post_json(CHAT, request)
        began_s = time.perf_counter()
        second = await client.post_json(CHAT, _with_results(request, first))
        trips_ms.append((time.perf_counter() - began_s) * 1000)
        await client.post(CHAT, _with_results(_with_results(request, first), second))
        began_s = time.perf_counter()
        await client.post(CHAT, chat("agent"))
        plain_ms.append((time.perf_counter() - began_s) * 1000)
    return trips_ms, plain_ms


def _with_results(request: Json, answer: Json) -> Json:
    """Return the agent's next request, which contains the results of the tool calls in `answer`."""
    message = answer["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "seven"} for call in message["tool_calls"]
    ]
    return request | {"messages": [*request["messages"], message, *results]}
