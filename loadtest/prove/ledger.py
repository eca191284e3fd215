"""`podium prove ledger`: parallel requests on router processes against a budget for a tenth of them, with retries,
streams, requests that are sent twice, and a router that is killed among them.

A row for each run: what was overspent, entered twice, lost, or is still held when the dead router's lease has run
out; and the ledger against the sum of the records. Exit 1 where anything but the sums is not 0, or they differ.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from decimal import Decimal

import aiohttp
from rich.table import Table

from loadtest.prove.audit import Audit, audit, wait_until_settled
from loadtest.rig import Json
from loadtest.rig.client import open_session
from loadtest.rig.databases import KINDS, empty_databases
from loadtest.rig.routers import RouterAnswer, RouterProcess, ask, make_key, prepare_process, running_routers
from program.options import count
from program.process import machine, wide_console
from serving.accounts.leases import LEASE_S, RENEW_S
from serving.accounts.money import to_pico
from serving.accounts.rates import team_subject
from serving.database.address import Address
from serving.database.migrate import open_database

COST_USD = Decimal("0.01")
"""Of one answer: 20 words at 500 dollars a million."""
TEXT = " ".join(f"word{n}" for n in range(20))
PRICE: Json = {"input_usd_per_mtok": 0, "output_usd_per_mtok": 500}
SETTLES_WITHIN_S = 2 * LEASE_S + 4 * RENEW_S + 30
SETTINGS: Json = {
    "workers": [
        {
            "name": "steady",
            "kind": "scripted",
            "replies": [TEXT],
            "delay_s": 0.05,
            "tokens_per_s": 100,
            "price": PRICE,
            "max_output_tokens": 40,  # held; half of it is spent
            "max_concurrency": 1000,
        },
        {
            "name": "flaky",
            "kind": "scripted",
            "replies": [{"error": "unavailable"}, TEXT, {"text": TEXT, "fail_after_tokens": 0}, TEXT],
            "delay_s": 0.02,
            "price": PRICE,
            "max_output_tokens": 40,
            "max_concurrency": 1000,
            "retry": {"attempts": 4, "first_wait_s": 0.1},
        },
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
    """All clients of one run.

    Args:
        session: theirs.
        routers: that they ask in turn, and ask another one where one breaks.
        kill_after: so many whole answers, and of the routers that gave some the one with the fewest is killed: what the others
            did stays to be compared.
    """

    def __init__(
        self, session: aiohttp.ClientSession, routers: Sequence[RouterProcess], kill_after: int
    ) -> None:
        self._session, self._routers, self._kill_after = session, routers, kill_after
        self.whole: list[RouterAnswer] = []
        self.others = Counter[str]()
        self._named = dict[str, set[str]]()
        self._answered = Counter[int]()
        """Whole answers by router."""

    @property
    def run_twice(self) -> int:
        """Names under which more than one run answered."""
        return sum(len(ids) > 1 for ids in self._named.values())

    async def ask(self, number: int) -> None:
        """One client: a plain request or a stream; of one whose worker fails at first, or one that is sent to two
        routers at once under one name.
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
    """One run over the empty database at `address`: its clients, what was found when all had settled, seconds."""
    cap_usd = requests // 10 * COST_USD
    async with await open_database(address) as database:
        key = await make_key(address, cap_usd)
        async with (
            running_routers(name, address, SETTINGS, routers) as running,
            open_session(key.headers) as session,
        ):
            at_once = cap_usd // (
                2 * COST_USD
            )  # so many holds fit: after more answers than that, some are settled
            clients = Clients(session, running, kill_after=int(at_once) + max(1, requests // 100))
            began_s = time.monotonic()
            await asyncio.gather(*(clients.ask(number) for number in range(requests)))
            took_s = time.monotonic() - began_s
            await wait_until_settled(database, SETTLES_WITHIN_S)
        told = [answer.run_id for answer in clients.whole]
        found = await audit(database, team_subject(key.team_id), to_pico(cap_usd), told)
        return clients, found, took_s


def is_right(clients: Clients, found: Audit) -> bool:
    """Whether nothing is wrong, and there was something to compare."""
    wrong = (
        found.overspent_usd,
        found.doubled,
        found.lost,
        found.still_held,
        found.faults,
        clients.run_twice,
    )
    are_equal = 0 < found.records_usd == found.ledger_usd and not found.records_above_ledger
    return not any(wrong) and are_equal


def row(kind: str, number: int, clients: Clients, found: Audit, took_s: float) -> list[str]:
    """One line of the table."""
    refused = clients.others["budget_exceeded"]
    seen: list[object] = [
        *(kind, number, len(clients.whole), refused, clients.others.total() - refused),
        *(found.overspent_usd, found.doubled + clients.run_twice, found.lost, found.still_held, found.faults),
        *(found.records_usd, found.ledger_usd, found.records_above_ledger, found.at_bound, round(took_s, 1)),
    ]
    return [f"{each:g}" if isinstance(each, float) else str(each) for each in seen]


async def prove_all(kinds: Sequence[str], runs: int, requests: int, routers: int, table: Table) -> bool:
    """All runs, a row each; gives whether all are right."""
    right = True
    async with aclosing(empty_databases(kinds, runs)) as databases:
        async for kind, number, address in databases:
            seen = await prove(address, requests, routers, f"ledger-{kind}")
            right = right and is_right(seen[0], seen[1])
            table.add_row(*row(kind, number, *seen))
            sys.stderr.write(f"{kind} {number}: {dict(seen[0].others)} {seen[1]}\n")
    return right


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="podium prove ledger", description="Prove that no budget is overspent."
    )
    parser.add_argument("--store", choices=KINDS, action="append", help="which database; both, unless said")
    parser.add_argument("--runs", type=count, default=10, help="of each (%(default)s)")
    parser.add_argument("--requests", type=count, default=1000, help="at once (%(default)s)")
    parser.add_argument("--routers", type=count, default=4, help="processes (%(default)s)")
    options = parser.parse_args(argv)
    prepare_process()
    table = Table(
        title=f"{options.requests} requests at once, a budget for a tenth, {options.routers} routers, one killed; {machine()}"
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    kinds: Sequence[str] = options.store or KINDS
    right = asyncio.run(prove_all(kinds, options.runs, options.requests, options.routers, table))
    wide_console().print(table)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
