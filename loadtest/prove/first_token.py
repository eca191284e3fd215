"""`podium prove first-token`: compare the time to the first answer token through `podium-mini` with that of
the worker's own server.

Both are measured over HTTP, with a key and a store. A scripted conductor writes a plan in the time that 20
tokens take at 50 per second. The plan has one step that passes the user's words to a worker, which is a local
server with a set delay before its first token. The lower bound is the plan's time plus the worker's time.
`added` is the rest.

The second table compares the turns of a conversation after its first, through `podium-mini` and by the worker's
name. `course` says what a turn did about its plan, with the median ratio of these turns:

- `ask`: the worker was called after the plan.
- `speculate`: the worker of the last turn was called while the conductor wrote the plan.
- `stay`: the worker was called without a plan.

`--url` measures a running server instead, such as that of `make serve`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

from typer import Option

from loadtest import percentile
from loadtest.rig import Json
from loadtest.rig.cache_provider import PRICES, CacheProvider, ProviderCall
from loadtest.rig.client import BenchClient, chat, open_session
from loadtest.rig.fake_openai import SHORT, FakeOpenAI, Script
from loadtest.rig.routers import make_key, prepare_process, running_router, scripted
from podium.command_line.options import parse_count, parse_url
from podium.command_line.process import machine
from podium.command_line.program import Program
from podium.command_line.terminal import console, table
from serving.database.address import sqlite_address
from serving.workers.scripted import TOKEN

PLAN = '{{ "worker" : "{}" , "subtask" : "" , "access" : [ ] }}\n'
PLAN_S = 0.4
"""Duration of the plan: 20 tokens at 50 per second."""
FIRST_TOKENS_S = (0.1, 0.5, 2.0)
ROUNDS, WARM_UP = 10, 3
TURNS = 20
MODEL, OTHER_MODEL = "gpt-5", "gpt-4.1"
QUESTION = "What is word number {0} of all the words that this conversation has so far? " * 20


@dataclass(frozen=True)
class FirstTokenTimes:
    """Seconds to the first token, directly and through Podium, and until the plan's step was complete."""

    direct_s: float
    through_s: float
    planned_s: float

    @property
    def over_direct(self) -> float:
        """Time to first token through Podium, divided by the direct time."""
        return self.through_s / self.direct_s

    @property
    def overhead_s(self) -> float:
        """Seconds that Podium adds to the plan's step and the worker's own time to first token."""
        return self.through_s - self.planned_s - self.direct_s


def conductor(*plans: str) -> Json:
    """Return the settings of a conductor that writes `plans` in turn, each in `PLAN_S`."""
    tokens_per_s = len(TOKEN.findall(plans[0])) / PLAN_S
    return scripted("conductor", *plans, tokens_per_s=tokens_per_s, in_pool=False)


def _settings(url: str, *plans: str) -> Json:
    worker = {"name": "direct", "kind": "openai", "model": "slow-tail", "base_url": url}
    return {
        "conductor": {"worker": "conductor", "format": "steps"},
        "workers": [conductor(*plans), worker],
        "models": {"podium-mini": {"max_steps": 4, "rounds": 1}},
    }


async def _ask_both(direct: BenchClient, podium: BenchClient) -> FirstTokenTimes:
    alone, _ = await direct.stream(chat("direct"))
    through, _ = await podium.stream(chat("podium-mini"))
    record = await podium.record(through.totals["workflow_id"])
    assert alone.first_token_ms is not None
    assert through.first_token_ms is not None
    return FirstTokenTimes(
        alone.first_token_ms / 1000, through.first_token_ms / 1000, record["steps"][0]["planned_s"]
    )


async def measure(folder: Path, first_s: float, rounds: int = ROUNDS) -> list[FirstTokenTimes]:
    """Measure `rounds` questions after a warm-up, with a worker whose first token takes `first_s`."""
    address = sqlite_address(folder / f"{first_s}.db")
    key = await make_key(address)
    async with (
        FakeOpenAI(lambda _: Script(SHORT, first_s)).running() as url,
        running_router("first-token", address, _settings(url, PLAN.format("direct"))) as router,
        open_session(key.headers) as session,
    ):
        direct, podium = BenchClient(session, url.removesuffix("/v1")), BenchClient(session, router.url)
        turns = [await _ask_both(direct, podium) for _ in range(WARM_UP + rounds)]
    return turns[WARM_UP:]


def _row(first_s: float, turns: list[FirstTokenTimes]) -> list[str]:
    columns = [(t.direct_s, t.planned_s, t.through_s) for t in turns]
    times = (median(each) for each in zip(*columns, strict=True))
    return [
        f"{first_s:g}",
        *(f"{each:.3f}" for each in times),
        f"{median(t.over_direct for t in turns):.2f}",
        f"{1000 * median(t.overhead_s for t in turns):.1f}",
    ]


@dataclass(frozen=True)
class MeasuredTurn:
    """FirstTokenTimes of a conversation after its first. Calls are lost if they were cancelled: by the provider's bill, and by the
    record of the run.
    """

    by_name_s: float
    mini_s: float
    course: str
    is_kept: bool
    lost_tokens: int = 0
    lost_usd: Decimal = Decimal()
    recorded_usd: Decimal = Decimal()


def course_of(record: Json) -> tuple[str, bool]:
    """Return what a turn did about its plan, and whether its speculative call answered."""
    guess = next((each for each in record["plans"] if each["source"] == "conversation"), None)
    plan = next((each for each in record["plans"] if each["source"] == "conductor"), None)
    if guess is None or plan is None:
        return ("stay", False) if plan is None else ("ask", False)
    is_early = plan["ended_s"] is None or guess["started_s"] < plan["ended_s"]
    return ("speculate", bool(plan["accepted"])) if is_early else ("ask", False)


async def ask_turns(
    podium: BenchClient, worker: str, turns: int, calls: Sequence[ProviderCall] = ()
) -> list[MeasuredTurn]:
    """Send two equal conversations, one through `podium-mini` and one by the worker's name. Return the turns after
    the first. If `worker` is "", it is the worker that answers first. `calls` are the provider's.
    """
    messages: list[Json] = []
    measured: list[MeasuredTurn] = []
    for number in range(turns):
        messages = [*messages, {"role": "user", "content": QUESTION.format(number)}]
        n_before = len(calls)
        mini, _ = await podium.stream({"model": "podium-mini", "messages": messages})
        record = await podium.record(mini.totals["workflow_id"])
        new_calls = calls[n_before:]
        worker = worker or record["steps"][-1]["served_by"]
        alone, _ = await podium.stream({"model": worker, "messages": messages})
        messages.append({"role": "assistant", "content": mini.text})
        assert mini.first_token_ms is not None
        assert alone.first_token_ms is not None
        lost = [each for each in new_calls if not each.is_whole]
        paid_usd = sum((each.cost_usd for each in new_calls if each.is_whole), Decimal())
        recorded_usd = (
            Decimal(str(record["cost_usd"])) - paid_usd if new_calls and record["cost_usd"] else Decimal()
        )
        turn = MeasuredTurn(
            *(alone.first_token_ms / 1000, mini.first_token_ms / 1000, *course_of(record)),
            sum(each.tokens.total() for each in lost),
            sum((each.cost_usd for each in lost), Decimal()),
            recorded_usd,
        )
        measured.append(turn)
    return measured[1:]


async def measure_turns(folder: Path, first_s: float, turns: int, *, is_priced: bool) -> list[MeasuredTurn]:
    """Measure the turns of a conversation with a worker whose first token takes `first_s` seconds. The conductor names
    another worker in every twelfth plan. The tokens of both have a price, or are free.
    """
    address = sqlite_address(folder / f"turns-{first_s}-{is_priced}.db")
    key, provider = await make_key(address), CacheProvider(first_s=first_s)
    async with provider.running() as url:
        router_settings = _settings(f"{url}/v1", *[PLAN.format("direct")] * 11, PLAN.format("other"))
        planner, worker = router_settings["workers"]
        free = dict.fromkeys(PRICES[MODEL], 0)
        router_settings["workers"] = [planner] + [
            worker | {"name": name, "model": model, "price": PRICES[model] if is_priced else free}
            for name, model in (("direct", MODEL), ("other", OTHER_MODEL))
        ]
        async with (
            running_router("first-token-turns", address, router_settings) as router,
            open_session(key.headers) as session,
        ):
            return await ask_turns(BenchClient(session, router.url), "direct", turns, provider.calls)


def _turns_row(first_s: str, pool: str, turns: Sequence[MeasuredTurn]) -> list[str]:
    by_course = defaultdict[str, list[float]](list)
    for each in turns:
        by_course[each.course].append(each.mini_s / each.by_name_s)
    ratios = [ratio for each in by_course.values() for ratio in each]
    early_answers = [each.is_kept for each in turns if each.course == "speculate"]
    return [
        *(first_s, pool),
        *(f"{median(each):.3f}" for each in ([t.by_name_s for t in turns], [t.mini_s for t in turns])),
        *(f"{each:.2f}" for each in (median(ratios), percentile(ratios, 95))),
        ", ".join(f"{len(each)} {course} ({median(each):.2f})" for course, each in by_course.items()),
        f"{sum(early_answers) / len(early_answers):.0%}" if early_answers else "-",
        str(sum(each.lost_tokens for each in turns)),
        f"{sum((each.lost_usd for each in turns), Decimal()):.6f}",
        f"{sum((each.recorded_usd for each in turns), Decimal()):.6f}",
    ]


async def _measure_all_turns(turns: int, url: str | None) -> None:
    """Measure conversations, and print a row for each."""
    rows = table(
        right=(
            *("worker, s", "pool", "by name, s", "podium-mini, s", "ratio", "p95 of ratio"),
            *("course", "kept", "lost tokens", "lost $", "lost $ in records"),
        ),
        title=f"First answer token of the turns after the first, medians of {turns - 1}; {machine()}",
    )
    with TemporaryDirectory() as folder:
        if url is not None:
            async with open_session() as session:
                measured = await ask_turns(BenchClient(session, url), "", turns)
            rows.add_row(*_turns_row("-", url, measured))
        for first_s in () if url else FIRST_TOKENS_S:
            for is_priced in (True, False):
                measured = await measure_turns(Path(folder), first_s, turns, is_priced=is_priced)
                rows.add_row(*_turns_row(f"{first_s:g}", "priced" if is_priced else "free", measured))
    console().print(rows)


async def _measure_all(rounds: int) -> None:
    """Measure each delay of the worker, and print a row with the medians."""
    rows = table(
        right=(
            *("worker, s", "called directly, s", "plan's step, s"),
            *("through, s", "ratio to direct", "added, ms"),
        ),
        title=f"First answer token through podium-mini, medians of {rounds}; {machine()}",
    )
    with TemporaryDirectory() as folder:
        for first_s in FIRST_TOKENS_S:
            turns = await measure(Path(folder), first_s, rounds)
            rows.add_row(*_row(first_s, turns))
    console().print(rows)


main = Program("podium prove first-token")


@main.command(
    help=(__doc__ or "").partition("\n\n")[0], epilog="Example: podium prove first-token --rounds 20"
)
def run(
    rounds: Annotated[int, Option(parser=parse_count, help="questions per row")] = ROUNDS,
    turns: Annotated[int, Option(parser=parse_count, help="turns per conversation, at least 2")] = TURNS,
    url: Annotated[str | None, Option(parser=parse_url, help="running server to measure instead")] = None,
) -> int:
    prepare_process()
    if url is None:
        asyncio.run(_measure_all(rounds))
    if turns > 1:
        asyncio.run(_measure_all_turns(turns, url))
    return 0
