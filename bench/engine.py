"""What the way to an engine takes away: tokens per second and first token through the router, over vLLM by itself.

Both sides ask the same engine, in the same replica: two would take each other's cores. Bare vLLM is driven inside that replica
(`bare_engine.py`), where no token leaves its process; the router's side goes through HTTP, HAProxy, the router, its handle and
the replica, in Serve's mode for production. The client of that side runs on the same machine, and its work counts against the router.

Each side asks `at_once` lines of questions, one after another in a line, every answer as long as `TOKENS`. Sides take turns, and
which begins changes from round to round. No question is asked twice, so that no answer is found in the cache.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.client import Client, Json, chat
from bench.figures import Figure, figure
from bench.isolated import alone
from bench.server import HERE, BenchError, application, production

ROUNDS = 3
LINES = {1: 4, 8: 2, 32: 2}
"""At once: questions of each line in a round."""
TOKENS = 32
BUILDERS = "bench.bare_engine"
DOOR = "/door"
_numbers = itertools.count(100)


@dataclass(frozen=True, slots=True)
class Side:
    """What one side did in one round: tokens per second, and each first token's milliseconds."""

    tokens_per_s: float
    first_token_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """Both sides, one after the other."""

    router: Side
    bare: Side


def figures(rounds: dict[int, Sequence[Round]]) -> list[Figure]:
    """From the rounds, by how many were asked at once; the first token's figure is of one at a time."""
    added_ms = [median(each.router.first_token_ms) - median(each.bare.first_token_ms) for each in rounds[1]]
    return [figure("vllm_ttft_added_ms", added_ms), *itertools.chain(*(_level(n, rounds[n]) for n in rounds))]


def _level(at_once: int, rounds: Sequence[Round]) -> list[Figure]:
    def first_ms(side: str) -> list[float]:
        return [ms for each in rounds for ms in getattr(each, side).first_token_ms]

    over = [each.router.tokens_per_s / each.bare.tokens_per_s for each in rounds]
    return [
        figure(f"vllm_tokens_over_bare_{at_once}", over),
        figure(f"vllm_tokens_per_s_{at_once}", [each.router.tokens_per_s for each in rounds]),
        figure(f"vllm_bare_tokens_per_s_{at_once}", [each.bare.tokens_per_s for each in rounds]),
        figure(f"vllm_ttft_ms_{at_once}", first_ms("router")),
        figure(f"vllm_bare_ttft_ms_{at_once}", first_ms("bare")),
    ]


def questions(at_once: int, each: int) -> list[list[str]]:
    """So many lines of so many questions, all new, and each a long story."""
    return [
        [f"Story {next(_numbers)}: tell me at length about a fox, a mill and a river." for _ in range(each)]
        for _ in range(at_once)
    ]


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """`ROUNDS` rounds at each number at once, on a Serve of its own; about three minutes."""
    served = [
        application("podium", "/", f"{BUILDERS}:build", settings=str(HERE / "engine.yaml")),
        application("door", DOOR, f"{BUILDERS}:build_door"),
    ]
    async with alone("engine", served, ready=("/readyz", f"{DOOR}/"), env=production()) as (client, _):
        for at_once in LINES:
            await _round(client, at_once, 1, router_first=True)
        rounds: dict[int, list[Round]] = {at_once: [] for at_once in LINES}
        for number in range(ROUNDS):
            for at_once, each in LINES.items():
                rounds[at_once].append(await _round(client, at_once, each, router_first=number % 2 == 0))
                tick()
    return figures(rounds)


async def _round(client: Client, at_once: int, each: int, *, router_first: bool) -> Round:
    sides: dict[str, Side] = {}
    for name in ("router", "bare") if router_first else ("bare", "router"):
        ask = _router if name == "router" else _bare
        sides[name] = await ask(client, questions(at_once, each))
    return Round(**sides)


async def _bare(client: Client, lines: list[list[str]]) -> Side:
    told = await client.answered(f"{DOOR}/", {"lines": lines, "max_tokens": TOKENS})
    return Side(told["tokens"] / told["wall_s"], tuple(1000 * first for first in told["first_token_s"]))


async def _router(client: Client, lines: list[list[str]]) -> Side:
    async def one(question: str) -> tuple[float, int]:
        body: Json = chat(
            "writer", question=question, max_tokens=TOKENS, stream_options={"include_usage": True}
        )
        seen, _ = await client.stream(body)
        if seen.first_token_ms is None or not seen.output_tokens:
            raise BenchError("the engine answered without a word")
        return seen.first_token_ms, seen.output_tokens

    async def ask(line: list[str]) -> list[tuple[float, int]]:
        return [await one(question) for question in line]

    began_s = time.monotonic()
    told = await asyncio.gather(*(ask(line) for line in lines))
    wall_s = time.monotonic() - began_s
    every = [one for line in told for one in line]
    return Side(sum(tokens for _, tokens in every) / wall_s, tuple(first_ms for first_ms, _ in every))
