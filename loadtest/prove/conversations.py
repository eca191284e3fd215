"""`podium prove conversations`: send long conversations through Podium, and compare the cost of their prompts with
that of calling the provider directly.

The provider is a fake that caches prompts and bills them by the published rules of Anthropic and OpenAI
(`loadtest/rig/prompt_caches.py`). The conductor names the same worker in each plan, except that every twelfth plan
(with the agent: every fourth) names another one. There is one row per conversation and route. The exit code is 1 if a
cost is above its aim, or if the ledger and the provider's bill differ.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import aiohttp
from typer import BadParameter, Option

from loadtest.prove.audit import rows, wait_until_settled
from loadtest.prove.first_token import PLAN, conductor
from loadtest.prove.proof import cells, conclude
from loadtest.rig import Json, RigError
from loadtest.rig.cache_provider import PRICES, CacheProvider, ProviderCall, cached_share
from loadtest.rig.client import open_session
from loadtest.rig.conversations import (
    AGENT_TOOL_TURNS,
    SCENARIOS,
    TURNS,
    ClientRequest,
    ClientScenario,
    Clock,
    replay,
)
from loadtest.rig.databases import Postgres, empty_database, running_postgres
from loadtest.rig.routers import RouterProcess, make_key, prepare_process, running_routers
from podium.command_line.options import parse_count
from podium.command_line.program import Program
from podium.command_line.terminal import console, table
from serving.accounts.money import to_usd
from serving.database.migrate import open_database

WORKER, OTHER, MINI = "first", "second", "podium-mini"
ACCOUNTS = {f"RIG_ACCOUNT_{number}": f"account-{number}" for number in (1, 2)}
"""API keys of the provider, by the environment variables in which the routers find them."""
DIRECT = {"x-api-key": "account-1"}
RUNS_BY_HAND = 10
SPENT_BY_RUN = "SELECT run_id, sum(amount) FROM ledger GROUP BY run_id"


@dataclass(frozen=True)
class ClientRoute:
    """Route of a client's requests.

    Args:
        model: the requested model, or "" to call the provider directly.
        count: the number of routers, which receive the requests in turn, and of accounts at the provider.
        aim: the highest cost of the prompts, relative to calling the provider directly.
    """

    name: str
    model: str = ""
    count: int = 1
    aim: float | None = None


ROUTES = (
    ClientRoute("direct"),
    ClientRoute("worker by name", WORKER, aim=1.02),
    ClientRoute(MINI, MINI, aim=1.10),
    ClientRoute(f"{MINI}, 2 accounts, 2 routers", MINI, count=2, aim=1.15),
)


@dataclass(frozen=True)
class ConversationRow:
    """Result of one conversation on one route. `cached` is the share of the prompts' tokens that was read from a cache. A
    turn has moved if it had another model or account than the turn before.
    """

    conversation: str
    route: str
    input_usd: float
    ratio: float
    aim: str
    cached: float
    moved_turns: int
    ledger_minus_bill_usd: str
    is_right: bool


@dataclass
class ConversationOutcome:
    """Outcome of one conversation. `ledger_usd` is None without a router. `costs_usd` is the sum of `GET /v1/costs`."""

    calls: list[ProviderCall]
    moved_turns: int = 0
    calls_by_run: dict[str, list[ProviderCall]] = field(default_factory=dict[str, list[ProviderCall]])
    ledger_usd: dict[str, Decimal] | None = None
    costs_usd: Decimal = Decimal()

    @property
    def input_usd(self) -> Decimal:
        return sum((each.input_usd for each in self.calls), Decimal())

    @property
    def difference_usd(self) -> Decimal | None:
        if self.ledger_usd is None:
            return None
        return sum(self.ledger_usd.values()) - sum((each.cost_usd for each in self.calls), Decimal())

    @property
    def is_in_costs(self) -> bool:
        """True if `GET /v1/costs` has the sum of the ledger."""
        return self.ledger_usd is None or self.costs_usd == sum(self.ledger_usd.values())


def settings(scenario: ClientScenario, url: str, n_accounts: int) -> Json:
    """Return the settings of the routers. `url` is the provider's."""
    plans = [PLAN.format(WORKER)] * (scenario.other_every - 1) + [PLAN.format(OTHER)]
    accounts = [{"name": ACCOUNTS[name], "api_key_env": name} for name in [*ACCOUNTS][:n_accounts]]
    base_url = url if scenario.kind == "anthropic" else f"{url}/v1"
    shared = {"kind": scenario.kind, "base_url": base_url, "deployments": accounts}
    workers = [
        {"name": name, "model": model, "price": PRICES[model], **shared}
        for name, model in ((WORKER, scenario.model), (OTHER, scenario.other))
    ]
    return {
        "conductor": {"worker": "conductor", "format": "steps"},
        "workers": [conductor(*plans), *workers],
        "models": {MINI: {"max_steps": 4, "rounds": 1}},
    }


async def run_conversation(
    scenario: ClientScenario, route: ClientRoute, postgres: Postgres, folder: Path, turns: int
) -> ConversationOutcome:
    """Send a conversation on a route. The routers use a new database of `postgres`, because leases in SQLite end when
    the clock is moved.
    """
    clock, address = Clock(folder / "clock"), await empty_database("postgresql", postgres, folder)
    provider = CacheProvider(tool_turns=AGENT_TOOL_TURNS, clock=clock.now_s)
    result = ConversationOutcome(provider.calls)
    async with AsyncExitStack() as stack:
        urls, headers = [await stack.enter_async_context(provider.running())], DIRECT
        routers, database = list[RouterProcess](), None
        if route.model:
            database = await stack.enter_async_context(await open_database(address))
            headers = (await make_key(address)).headers
            router_settings = settings(scenario, urls[0], route.count)
            running = running_routers("conversations", address, router_settings, route.count, clock.path)
            routers = await stack.enter_async_context(running)
            urls = [each.url for each in routers]
        session = await stack.enter_async_context(open_session(headers))
        places = list[tuple[str, str]]()

        async def send(number: int, request: ClientRequest) -> Json:
            clock.advance(request.after_s, routers)
            n_before = len(provider.calls)
            body = {"model": route.model or scenario.model, **request.body}
            async with session.post(urls[number % len(urls)] + scenario.path, json=body) as response:
                content = await response.text()
                if response.status != 200:
                    raise RigError(f"Turn {number} returned status {response.status}: {content[:300]}")
                answer: Json = await response.json()
            calls = provider.calls[n_before:]
            run_id = response.headers.get("x-podium-workflow-id", "")
            result.calls_by_run.setdefault(run_id, []).extend(calls)
            places.extend([(each.account, each.model) for each in calls if each.is_whole][-1:])
            return answer

        await replay(scenario.client(1), send, turns)
        result.moved_turns = sum(before != after for before, after in pairwise(places))
        if database is not None:
            await wait_until_settled(database, result.calls_by_run)
            entries = await rows(database, SPENT_BY_RUN)
            result.ledger_usd = {run_id: to_usd(int(amount)) for run_id, amount in entries}
            result.costs_usd = await _sum_costs(session, urls[0])
    return result


async def _sum_costs(session: aiohttp.ClientSession, url: str) -> Decimal:
    now = datetime.now(UTC)  # the clock of the routers is ahead
    days = {"from": f"{now - timedelta(days=1):%F}", "to": f"{now + timedelta(days=30):%F}"}
    async with session.get(f"{url}/v1/costs", params=days) as response:
        response.raise_for_status()
        answer: Json = await response.json()
    return sum((Decimal(each["cost_usd"]) for each in answer["data"]), Decimal())


async def prove(
    scenarios: Sequence[ClientScenario], routes: Sequence[ClientRoute], turns: int
) -> list[tuple[ConversationRow, ConversationOutcome]]:
    """Send each conversation on each route. The first route calls the provider directly."""
    results: list[tuple[ConversationRow, ConversationOutcome]] = []
    with running_postgres(is_durable=False) as postgres:
        for scenario in scenarios:
            direct_usd = Decimal()
            for route in routes:
                with TemporaryDirectory() as folder:
                    outcome = await run_conversation(scenario, route, postgres, Path(folder), turns)
                direct_usd = direct_usd or outcome.input_usd
                row = _row(scenario, route, outcome, float(outcome.input_usd / direct_usd))
                results.append((row, outcome))
                sys.stderr.write(" | ".join(cells(row)) + "\n")
    return results


def _row(
    scenario: ClientScenario, route: ClientRoute, outcome: ConversationOutcome, ratio: float
) -> ConversationRow:
    difference_usd = outcome.difference_usd
    return ConversationRow(
        scenario.name,
        route.name,
        float(outcome.input_usd),
        ratio,
        f"{route.aim:.2f}" if route.aim else "-",
        cached_share(outcome.calls),
        outcome.moved_turns,
        "-" if difference_usd is None else f"{difference_usd:f}",
        (route.aim is None or ratio <= route.aim) and not difference_usd and outcome.is_in_costs,
    )


def print_by_hand(outcome: ConversationOutcome, title: str) -> None:
    """Print the bill of the first runs with its tokens and prices, and compare it with the ledger and `GET /v1/costs`."""
    sums = table(right=("run", "price", "tokens", "$ per million", "$"), title=title)
    for run_id, calls in [*outcome.calls_by_run.items()][:RUNS_BY_HAND]:
        kinds = {(call.model, price): 0 for call in calls for price in call.tokens if call.tokens[price]}
        for model, price in kinds:
            each = [call for call in calls if call.model == model]
            tokens = sum(call.tokens[price] for call in each)
            rate, cost_usd = PRICES[model][price], sum((call.usd(price) for call in each), Decimal())
            sums.add_row(run_id, f"{model} {price}", str(tokens), f"{rate:g}", f"{cost_usd:f}")
        total_usd = sum((call.cost_usd for call in calls), Decimal())
        entered_usd = (outcome.ledger_usd or {}).get(run_id, Decimal())
        sums.add_row(run_id, "sum", "", "", f"{total_usd:f}")
        sums.add_row(run_id, "ledger minus sum", "", "", f"{entered_usd - total_usd:f}", end_section=True)
    out = console()
    out.print(sums)
    ledger_usd = sum((outcome.ledger_usd or {}).values(), Decimal())
    out.print(f"All runs: ledger {ledger_usd:f}, GET /v1/costs {outcome.costs_usd:f}")


main = Program("podium prove conversations")


@main.command(
    help=(__doc__ or "").partition("\n\n")[0], epilog="Example: podium prove conversations --scenario chat"
)
def run(
    scenario: Annotated[list[str] | None, Option(help="conversation; repeatable", show_default="all")] = None,
    turns: Annotated[int, Option(parser=parse_count, help="highest number of requests")] = TURNS,
    by_hand: Annotated[bool, Option(help="print the bills of ten runs per row")] = False,
) -> int:
    names = [each.name for each in SCENARIOS]
    if unknown := {*(scenario or ())} - {*names}:
        raise BadParameter(f"unknown: {', '.join(sorted(unknown))}. Choose from {', '.join(names)}.")
    prepare_process()
    os.environ.update(ACCOUNTS)
    chosen = [each for each in SCENARIOS if each.name in (scenario or names)]
    results = asyncio.run(prove(chosen, ROUTES, turns))
    for row, outcome in results if by_hand else ():
        if outcome.ledger_usd is not None:
            print_by_hand(outcome, f"{row.conversation}, {row.route}: the first {RUNS_BY_HAND} runs")
    return conclude([row for row, _ in results], f"Conversations of {turns} turns at most")
