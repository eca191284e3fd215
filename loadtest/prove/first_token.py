"""`podium prove first-token`: compare the time to the first answer token through `podium-mini` with that of
the worker's own server.

Both are measured over HTTP, with a key and a store. A scripted conductor writes a plan in the time that 20
tokens take at 50 per second. The plan has one step that passes the user's words to a worker, which is a local
server with a set delay before its first token. The lower bound is the plan's time plus the worker's time.
`added` is the rest.
"""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

from typer import Option

from loadtest.rig import Json
from loadtest.rig.client import BenchClient, chat, open_session
from loadtest.rig.fake_openai import SHORT, FakeOpenAI, Script
from loadtest.rig.routers import make_key, prepare_process, running_router, scripted
from podium.command_line.options import parse_count
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


@dataclass(frozen=True)
class Turn:
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


def _settings(url: str) -> Json:
    plan = PLAN.format("direct")
    tokens_per_s = len(TOKEN.findall(plan)) / PLAN_S
    conductor = scripted("conductor", plan, tokens_per_s=tokens_per_s, in_pool=False)
    worker = {"name": "direct", "kind": "openai", "model": "slow-tail", "base_url": url}
    return {
        "conductor": {"worker": "conductor", "format": "steps"},
        "workers": [conductor, worker],
        "models": {"podium-mini": {"max_steps": 4, "rounds": 1}},
    }


async def _ask_both(direct: BenchClient, podium: BenchClient) -> Turn:
    alone, _ = await direct.stream(chat("direct"))
    through, _ = await podium.stream(chat("podium-mini"))
    record = await podium.record(through.totals["workflow_id"])
    assert alone.first_token_ms is not None
    assert through.first_token_ms is not None
    return Turn(alone.first_token_ms / 1000, through.first_token_ms / 1000, record["steps"][0]["planned_s"])


async def measure(folder: Path, first_s: float, rounds: int = ROUNDS) -> list[Turn]:
    """Measure `rounds` questions after a warm-up, with a worker whose first token takes `first_s`."""
    address = sqlite_address(folder / f"{first_s}.db")
    key = await make_key(address)
    async with (
        FakeOpenAI(lambda _: Script(SHORT, first_s)).running() as url,
        running_router("first-token", address, _settings(url)) as router,
        open_session(key.headers) as session,
    ):
        direct, podium = BenchClient(session, url.removesuffix("/v1")), BenchClient(session, router.url)
        turns = [await _ask_both(direct, podium) for _ in range(WARM_UP + rounds)]
    return turns[WARM_UP:]


def _row(first_s: float, turns: list[Turn]) -> list[str]:
    columns = [(t.direct_s, t.planned_s, t.through_s) for t in turns]
    times = (median(each) for each in zip(*columns, strict=True))
    return [
        f"{first_s:g}",
        *(f"{each:.3f}" for each in times),
        f"{median(t.over_direct for t in turns):.2f}",
        f"{1000 * median(t.overhead_s for t in turns):.1f}",
    ]


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
) -> int:
    prepare_process()
    asyncio.run(_measure_all(rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
