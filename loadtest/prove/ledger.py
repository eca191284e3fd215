"""`podium prove ledger`: send concurrent requests to several routers, with a budget that suffices for a tenth
of them.

The load includes retries, streams and duplicate requests, and one router is killed. There is one row per run.
It shows the amounts that were overspent, entered twice, lost, or still held after the dead router's lease
expired. It also compares the ledger with the sum of the records. The exit code is 1 if any count is not 0 or
the sums differ.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from decimal import Decimal
from typing import Annotated

import aiohttp
from rich.table import Table
from typer import Option

from loadtest.prove.audit import Audit, audit, wait_until_settled
from loadtest.rig import Json
from loadtest.rig.client import open_session
from loadtest.rig.databases import KINDS, DatabaseKind, empty_databases
from loadtest.rig.routers import (
    PRICE,
    RouterAnswer,
    RouterProcess,
    ask,
    make_key,
    prepare_process,
    running_routers,
    scripted,
)
from podium.command_line.options import parse_count
from podium.command_line.process import machine
from podium.command_line.program import Program
from podium.command_line.terminal import console, table
from serving.accounts.money import to_pico
from serving.accounts.operations import LEASE_S, RENEW_S
from serving.accounts.rates import team_subject
from serving.database.address import Address
from serving.database.migrate import open_database

COST_USD = Decimal("0.01")
"""Dollars that one answer costs: 20 words at 500 dollars per million."""
TEXT = " ".join(f"word{n}" for n in range(20))
SETTLES_WITHIN_S = 2 * LEASE_S + 4 * RENEW_S + 30
PAID = {"price": PRICE, "max_output_tokens": 40}
"""Price, and a limit of twice the tokens of an answer. Half of each hold is therefore spent."""
SETTINGS: Json = {
    "workers": [
        scripted("steady", TEXT, delay_s=0.05, tokens_per_s=100, **PAID),
        scripted(
            "flaky",
            *({"error": "unavailable"}, TEXT, {"text": TEXT, "fail_after_tokens": 0}, TEXT),
            delay_s=0.02,
            retry={"attempts": 4, "first_wait_s": 0.1},
            **PAID,
        ),
    ],
    "limits": {"first_byte_s": 0},
}
HEADINGS = (
    *(
        "database",
        "run",
        "whole",
        "refused",
        "other",
        "overspent $",
        "doubled",
        "lost",
        "still held",
        "faults",
    ),
    *("records $", "ledger $", "records > ledger", "at bound", "seconds"),
)


class Clients:
    """All clients of one run of the proof.

    Args:
        session: the HTTP session for all requests.
        routers: the routers to call in turn. If one breaks, a client calls the next.
        kill_after: the number of complete answers after which a router is killed. The killed router is the
            one with the fewest answers of those that have answered, so that most of the work can still be
            compared.
    """

    def __init__(
        self, session: aiohttp.ClientSession, routers: Sequence[RouterProcess], kill_after: int
    ) -> None:
        self._session, self._routers, self._kill_after = session, routers, kill_after
        self.whole: list[RouterAnswer] = []
        self.others = Counter[str]()
        self._named = dict[str, set[str]]()
        self._answered = Counter[int]()
        """Number of complete answers by router index."""

    @property
    def run_twice(self) -> int:
        """Number of idempotency keys that got answers from more than one run."""
        return sum(len(ids) > 1 for ids in self._named.values())

    async def ask(self, number: int) -> None:
        """Run the client with this number.

        Half of the clients stream. One client in five calls the flaky worker. Another one in five sends
        requests with the same idempotency key to two routers at the same time.
        """
        stream, model = number % 2 == 1, "flaky" if number % 5 == 0 else "steady"
        if number % 5 != 3:
            await self._ask(number, model, stream)
        else:
            name = f"request-{number}"
            await asyncio.gather(*(self._ask(number + turn, model, stream, name) for turn in (0, 1)))

    async def _ask(self, number: int, model: str, stream: bool, name: str | None = None) -> None:
        headers = {"idempotency-key": name} if name else {}
        answer, router = RouterAnswer(), self._routers[0]
        for attempt in range(len(self._routers)):
            router = self._routers[(number + attempt) % len(self._routers)]
            answer = await ask(self._session, router.url, model, stream=stream, headers=headers)
            if not answer.is_broken:
                break
        if not answer.is_whole:
            self.others[answer.code or "broken"] += 1
            return
        self.whole.append(answer)
        self._answered[self._routers.index(router)] += 1
        if name:
            self._named.setdefault(name, set()).add(answer.run_id)
        if self._kill_after and len(self.whole) >= self._kill_after:
            self._kill_after = 0
            self._routers[min(self._answered, key=self._answered.__getitem__)].kill()


async def prove(address: Address, requests: int, routers: int, name: str) -> tuple[Clients, Audit, float]:
    """Run the proof once, over the empty database at `address`.

    Returns:
        The clients, the audit after everything has settled, and the seconds that the requests took.
    """
    cap_usd = requests // 10 * COST_USD
    async with await open_database(address) as database:
        key = await make_key(address, cap_usd)
        async with (
            running_routers(name, address, SETTINGS, routers) as running,
            open_session(key.headers) as session,
        ):
            n_holds = cap_usd // (2 * COST_USD)  # holds that fit; after more answers, some are settled
            clients = Clients(session, running, kill_after=int(n_holds) + max(1, requests // 100))
            began_s = time.monotonic()
            await asyncio.gather(*(clients.ask(number) for number in range(requests)))
            took_s = time.monotonic() - began_s
            await wait_until_settled(database, SETTLES_WITHIN_S)
        answered_ids = [answer.run_id for answer in clients.whole]
        result = await audit(database, team_subject(key.team_id), to_pico(cap_usd), answered_ids)
        return clients, result, took_s


def is_right(clients: Clients, result: Audit) -> bool:
    """Return whether all counts are 0 and the sums are equal and positive."""
    wrong = (
        result.overspent_usd,
        result.doubled,
        result.not_entered,
        result.still_held,
        result.faults,
        clients.run_twice,
    )
    are_equal = 0 < result.records_usd == result.ledger_usd and not result.records_above_ledger
    return not any(wrong) and are_equal


def row(kind: str, number: int, clients: Clients, result: Audit, took_s: float) -> list[str]:
    """Return one row of the table."""
    refused = clients.others["budget_exceeded"]
    cells: list[object] = [
        *(kind, number, len(clients.whole), refused, clients.others.total() - refused),
        *(
            result.overspent_usd,
            result.doubled + clients.run_twice,
            result.not_entered,
            result.still_held,
            result.faults,
        ),
        *(
            result.records_usd,
            result.ledger_usd,
            result.records_above_ledger,
            result.at_bound,
            round(took_s, 1),
        ),
    ]
    return [f"{each:g}" if isinstance(each, float) else str(each) for each in cells]


async def prove_all(kinds: Sequence[str], runs: int, requests: int, routers: int, table: Table) -> bool:
    """Run the proof for every database, one row per run. Return whether all runs passed."""
    right = True
    async with aclosing(empty_databases(kinds, runs)) as databases:
        async for kind, number, address in databases:
            clients, result, took_s = await prove(address, requests, routers, f"ledger-{kind}")
            right = right and is_right(clients, result)
            table.add_row(*row(kind, number, clients, result, took_s))
            sys.stderr.write(f"{kind} {number}: {dict(clients.others)} {result}\n")
    return right


main = Program("podium prove ledger")


@main.command(epilog="Example: podium prove ledger --store sqlite --runs 1")
def run(
    store: Annotated[
        list[DatabaseKind] | None, Option(help="database to test; repeatable", show_default="both")
    ] = None,
    runs: Annotated[int, Option(parser=parse_count, help="runs per database")] = 10,
    requests: Annotated[int, Option(parser=parse_count, help="concurrent requests")] = 1000,
    routers: Annotated[int, Option(parser=parse_count, help="router processes")] = 4,
) -> int:
    """Prove that no budget is overspent."""
    prepare_process()
    title = (
        f"{requests} concurrent requests, a budget for a tenth, {routers} routers, one killed; {machine()}"
    )
    rows = table(right=HEADINGS, title=title)
    right = asyncio.run(prove_all(store or KINDS, runs, requests, routers, rows))
    console().print(rows)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
