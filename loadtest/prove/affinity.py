"""`podium prove affinity`: send conversations over two routers to a worker with three deployments, one of which
fails for a while.

A conversation should stay at the deployment of its first turn, whichever router receives the turn. There is one
row per phase: before the failure, during it and after it. `back after` is the time after the failure from which
on 99 % of the turns stay. The exit code is 1 if too few turns stay, or if requests fail.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import aiohttp
from typer import Option

from loadtest.prove.proof import conclude
from loadtest.rig import Json
from loadtest.rig.cache_provider import PRICES, CacheProvider, ProviderCall
from loadtest.rig.client import CHAT, open_session
from loadtest.rig.conversations import draw_words
from loadtest.rig.databases import DatabaseKind, empty_database, running_postgres
from loadtest.rig.prompt_caches import READ, STEP_TOKENS
from loadtest.rig.routers import prepare_process, running_router
from podium.command_line.options import parse_count, parse_seconds
from podium.command_line.program import Program

MODEL = "gpt-5"
ACCOUNTS = {f"RIG_ACCOUNT_{name.upper()}": name for name in ("one", "two", "three")}
"""API keys of the deployments, by the environment variables in which the routers find them."""
FAILING = "one"
TURNS = 10
FIRST_WORDS, MORE_WORDS = 900, 100
LEAST_STAYED = {"before": 0.99, "during": 0.6, "after": 0.95}
"""Lowest share of turns that stay. During the failure, a third of them must move."""
BACK_SHARE, BACK_TURNS, BACK_WITHIN_S = 0.99, 20, 15.0


@dataclass(frozen=True, slots=True)
class AffinityTurn:
    """AffinityTurn of a conversation after its first.

    Args:
        sent_s: when the request was sent, in seconds since the start.
        known_tokens: the tokens of the previous prompt.
        lost_tokens: those of them that were not read from a cache.
    """

    sent_s: float
    stayed: bool
    known_tokens: int
    lost_tokens: int


@dataclass(frozen=True)
class AffinityRow:
    """Result of one phase. `lost` is the share of the known tokens. `failures` are those of all phases."""

    phase: str
    turns: int
    stayed: float
    lost_tokens: int
    lost: float
    failures: Counter[str]
    back_after_s: str
    is_right: bool


class ConversationClients:
    """ConversationClients with one conversation each, and the outcome of their turns. Each turn goes to a random router."""

    def __init__(
        self, session: aiohttp.ClientSession, urls: Sequence[str], calls: list[ProviderCall], period_s: float
    ) -> None:
        self.turns: list[AffinityTurn] = []
        self.failures = Counter[str]()
        """Requests without an answer, by status and error code."""
        self._session, self._urls, self._calls, self._period_s = session, urls, calls, period_s
        self._began_s = time.monotonic()

    async def run(self, number: int) -> None:
        """Run the client with this number. It begins at a random time in the first period."""
        draws, mark = random.Random(number), f"conv-{number}-"
        messages: list[Json] = [{"role": "user", "content": f"{mark} {draw_words(draws, FIRST_WORDS)}"}]
        due_s, home, known_tokens = draws.uniform(0, self._period_s), "", 0
        for _ in range(TURNS):
            await asyncio.sleep(self._began_s + due_s - time.monotonic())
            n_before = len(self._calls)
            reply = await self._send(draws.choice(self._urls), messages)
            call = next((each for each in self._calls[n_before:] if each.mark == mark), None)
            due_s += self._period_s
            if reply is None or call is None:
                continue
            if home:
                lost = max(0, known_tokens - call.tokens[READ])
                self.turns.append(
                    AffinityTurn(due_s - self._period_s, call.account == home, known_tokens, lost)
                )
            home, known_tokens = home or call.account, call.prompt_tokens // STEP_TOKENS * STEP_TOKENS
            more = {"role": "user", "content": draw_words(draws, MORE_WORDS)}
            messages = [*messages, reply, more]

    async def _send(self, url: str, messages: list[Json]) -> Json | None:
        body = {"model": "worker", "messages": messages}
        try:
            async with self._session.post(url + CHAT, json=body) as response:
                answer = await response.json()
                if response.status == 200:
                    return answer["choices"][0]["message"]
                self.failures[f"{response.status} {answer['error']['code']}"] += 1
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            self.failures[type(exc).__name__] += 1
        return None


def summarize(
    turns: Sequence[AffinityTurn], failures: Counter[str], fails_s: float, recovers_s: float
) -> list[AffinityRow]:
    """Return a row for each phase. A deployment failed from `fails_s` to `recovers_s`."""
    after = sorted((each for each in turns if each.sent_s >= recovers_s), key=lambda each: each.sent_s)
    phases = {
        "before": [each for each in turns if each.sent_s < fails_s],
        "during": [each for each in turns if fails_s <= each.sent_s < recovers_s],
        "after": after,
    }
    back_s = find_return(after, recovers_s)
    rows: list[AffinityRow] = []
    for phase, each in phases.items():
        stayed = sum(turn.stayed for turn in each) / max(1, len(each))
        known_tokens, lost = sum(turn.known_tokens for turn in each), sum(turn.lost_tokens for turn in each)
        is_right, back = stayed >= LEAST_STAYED[phase] and not failures, ""
        if phase == "after":
            is_right &= back_s is not None and back_s <= BACK_WITHIN_S
            back = "never" if back_s is None else f"{back_s:.1f}"
        rows.append(
            AffinityRow(phase, len(each), stayed, lost, lost / max(1, known_tokens), failures, back, is_right)
        )
    return rows


def find_return(turns: Sequence[AffinityTurn], recovers_s: float) -> float | None:
    """Return the seconds after `recovers_s` from which on `BACK_SHARE` of at least `BACK_TURNS` turns stayed, or None
    if there is no such time. `turns` are those after `recovers_s`, in order.
    """
    back_s: float | None = None
    n_stayed = 0
    for n, turn in enumerate(reversed(turns), 1):
        n_stayed += turn.stayed
        if turn.stayed and n >= BACK_TURNS and n_stayed >= BACK_SHARE * n:
            back_s = turn.sent_s - recovers_s
    return back_s


def settings(url: str) -> Json:
    """Return the settings of the routers. `url` is the provider's."""
    deployments = [{"name": name, "api_key_env": variable} for variable, name in ACCOUNTS.items()]
    worker = {"name": "worker", "kind": "openai", "model": MODEL, "base_url": f"{url}/v1"}
    more = {"price": PRICES[MODEL], "deployments": deployments, "max_concurrency": 200}
    return {"workers": [worker | more]}


async def prove(kind: DatabaseKind, conversations: int, period_s: float, fault_s: float) -> list[AffinityRow]:
    """Run the proof over an empty database. A deployment fails for `fault_s` seconds from the fourth period on."""
    provider, fails_s = CacheProvider(first_s=0.05), 3.5 * period_s
    with TemporaryDirectory() as folder, running_postgres(is_durable=False) as postgres:
        address = await empty_database(kind, postgres, Path(folder))
        async with (
            provider.running() as url,
            running_router("affinity-0", address, settings(url), has_keys=False) as first,
            running_router("affinity-1", address, settings(url), has_keys=False) as second,
            open_session() as session,
        ):
            clients = ConversationClients(session, (first.url, second.url), provider.calls, period_s)
            async with asyncio.TaskGroup() as group:
                for number in range(conversations):
                    group.create_task(clients.run(number))
                await asyncio.sleep(fails_s)
                provider.failing.add(FAILING)
                await asyncio.sleep(fault_s)
                provider.failing.clear()
    return summarize(clients.turns, clients.failures, fails_s, fails_s + fault_s)


main = Program("podium prove affinity")


@main.command(
    help=(__doc__ or "").partition("\n\n")[0], epilog="Example: podium prove affinity --conversations 200"
)
def run(
    conversations: Annotated[int, Option(parser=parse_count, help="number of conversations")] = 1000,
    period_s: Annotated[float, Option(parser=parse_seconds, help="seconds between two turns")] = 40.0,
    fault_s: Annotated[float, Option(parser=parse_seconds, help="seconds of the failure")] = 20.0,
    store: Annotated[DatabaseKind, Option(help="database of the routers")] = DatabaseKind.POSTGRESQL,
) -> int:
    prepare_process()
    os.environ.update(ACCOUNTS)
    rows = asyncio.run(prove(store, conversations, period_s, fault_s))
    title = f"{conversations} conversations of {TURNS} turns, 2 routers, {len(ACCOUNTS)} deployments"
    return conclude(rows, title)
