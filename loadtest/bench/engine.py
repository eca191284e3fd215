"""Compare tokens per second and time to first token through the router with those of vLLM alone.

Both sides use the same engine in the same replica, because two engines would compete for cores. vLLM alone is
driven inside that replica (`direct_engine.py`), where no token leaves the process. On the router's side,
requests pass HTTP, HAProxy, the router, Serve's handle and the replica, in Serve's production mode. The
client runs on the same machine, so its CPU time counts against the router.

First tokens are compared one question at a time, in turn, with a third way: an empty ingress behind the same
HAProxy that passes on the replica's output over Serve's handle. The time that it adds to vLLM alone is the
least that a router on Serve can add.

Each side sends several lines of questions concurrently, and the questions of a line one after another. Every
answer has `TOKENS` tokens. The sides take turns, and the side that starts alternates between rounds. No
question is sent twice, so no answer is cached.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from loadtest.bench.figures import Figure, figure
from loadtest.rig import RigError
from loadtest.rig.client import BenchClient, chat
from loadtest.rig.ray_server import HERE, application, production_environment, start_isolated

ROUNDS = 3
LINES = {1: 4, 8: 2, 32: 2}
"""Numbers of concurrent lines to measure, each with the number of questions per line in a round."""
FIRST_TOKENS = 20
"""Number of first tokens measured for each way in a round."""
TOKENS = 32
BUILDERS = "loadtest.bench.direct_engine"
DIRECT = "/direct"
_numbers = itertools.count(100)


@dataclass(frozen=True, slots=True)
class EngineSide:
    """Result of one side in one round: tokens per second, and the milliseconds to each first token."""

    tokens_per_s: float
    first_token_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EngineRound:
    """Results of both sides in one round. They are measured one after the other."""

    router: EngineSide
    bare: EngineSide


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Median milliseconds to the first token in one round, for each way."""

    router: float
    ingress: float
    bare: float


def figures(rounds: Mapping[int, Sequence[EngineRound]], first: Sequence[FirstTokens]) -> list[Figure]:
    """Compute the figures from rounds by number of concurrent lines, and from those of first tokens."""
    ours = [each.router - each.bare for each in first]
    least = [each.ingress - each.bare for each in first]
    by_count = itertools.chain(*(_figures_at(count, rounds[count]) for count in rounds))
    return [
        figure("vllm_ttft_added_ms", ours),
        figure("vllm_ingress_ttft_added_ms", least),
        figure("vllm_ttft_over_ingress", [a / b for a, b in zip(ours, least, strict=True)]),
        *by_count,
    ]


def _figures_at(count: int, rounds: Sequence[EngineRound]) -> list[Figure]:
    router, bare = [each.router for each in rounds], [each.bare for each in rounds]
    ratios = [ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in zip(router, bare, strict=True)]
    return [
        figure(f"vllm_tokens_over_bare_{count}", ratios),
        figure(f"vllm_tokens_per_s_{count}", [side.tokens_per_s for side in router]),
        figure(f"vllm_bare_tokens_per_s_{count}", [side.tokens_per_s for side in bare]),
        figure(f"vllm_ttft_ms_{count}", [ms for side in router for ms in side.first_token_ms]),
        figure(f"vllm_bare_ttft_ms_{count}", [ms for side in bare for ms in side.first_token_ms]),
    ]


def questions(count: int, each: int) -> list[list[str]]:
    """Return `count` lines of `each` questions. All questions differ and ask for a long story."""
    return [
        [f"Story {next(_numbers)}: tell me at length about a fox, a mill and a river." for _ in range(each)]
        for _ in range(count)
    ]


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """Measure `ROUNDS` rounds at each concurrency, on a separate Serve. Takes about three minutes."""
    served = [
        application("podium", "/", f"{BUILDERS}:build", settings=str(HERE / "engine.yaml")),
        application("direct", DIRECT, f"{BUILDERS}:build_ingress"),
    ]
    ready = ("/readyz", f"{DIRECT}/")
    async with start_isolated("engine", served, ready=ready, env=production_environment()) as (client, _):
        for count in LINES:
            await _round(client, count, 1, router_first=True)
        first = [await _compare_first_tokens(client) for _ in range(1 + ROUNDS)][1:]  # without the warm-up
        rounds: dict[int, list[EngineRound]] = {count: [] for count in LINES}
        for number in range(ROUNDS):
            for count, each in LINES.items():
                rounds[count].append(await _round(client, count, each, router_first=number % 2 == 0))
                tick()
    return figures(rounds, first)


async def _round(client: BenchClient, count: int, each: int, *, router_first: bool) -> EngineRound:
    sides: dict[str, EngineSide] = {}
    for name in ("router", "bare") if router_first else ("bare", "router"):
        ask = _ask_router if name == "router" else _ask_engine
        sides[name] = await ask(client, questions(count, each))
    return EngineRound(**sides)


async def _compare_first_tokens(client: BenchClient) -> FirstTokens:
    async def of_router() -> float:
        (ms,) = (await _ask_router(client, questions(1, 1))).first_token_ms
        return ms

    async def of_ingress() -> float:
        ((question,),) = questions(1, 1)
        return await _ask_ingress(client, question)

    async def of_bare() -> float:
        (ms,) = (await _ask_engine(client, questions(1, 1))).first_token_ms
        return ms

    ways, took_ms = (of_router, of_ingress, of_bare), (list[float](), list[float](), list[float]())
    for turn in range(FIRST_TOKENS):
        for way in range(turn, turn + len(ways)):  # rotate the order
            took_ms[way % len(ways)].append(await ways[way % len(ways)]())
    return FirstTokens(*map(median, took_ms))


async def _ask_ingress(client: BenchClient, question: str) -> float:
    body, began_s = {"prompt": question, "max_tokens": TOKENS}, time.monotonic()
    async with client.session.post(f"{client.url}{DIRECT}/stream", json=body) as response:
        if response.status != 200 or not await response.content.readany():
            raise RigError(f"The empty ingress returned status {response.status}.")
        first_ms = 1000 * (time.monotonic() - began_s)
        await response.read()
    return first_ms


async def _ask_engine(client: BenchClient, lines: list[list[str]]) -> EngineSide:
    result = await client.post_json(f"{DIRECT}/", {"lines": lines, "max_tokens": TOKENS})
    first_token_ms = tuple(1000 * first_s for first_s in result["first_token_s"])
    return EngineSide(result["tokens"] / result["wall_s"], first_token_ms)


async def _ask_router(client: BenchClient, lines: list[list[str]]) -> EngineSide:
    async def ask(question: str) -> tuple[float, int]:
        usage = {"include_usage": True}
        body = chat("writer", question=question, max_tokens=TOKENS, stream_options=usage)
        result, _ = await client.stream(body)
        if result.first_token_ms is None or not result.output_tokens:
            raise RigError("The engine's answer has no tokens.")
        return result.first_token_ms, result.output_tokens

    async def ask_line(line: list[str]) -> list[tuple[float, int]]:
        return [await ask(question) for question in line]

    began_s = time.monotonic()
    answers = list(itertools.chain(*await asyncio.gather(*(ask_line(line) for line in lines))))
    wall_s = time.monotonic() - began_s
    return EngineSide(
        sum(tokens for _, tokens in answers) / wall_s, tuple(first_ms for first_ms, _ in answers)
    )
