"""`podium prove ledger`: send concurrent requests to several routers, with a budget that suffices for a tenth
of them.

The load includes retries, streams and duplicate requests, and one router is killed. There is one row per run.
It shows the amounts that were overspent, entered twice, lost, or still held after the dead router's lease
expired. It also compares the ledger with the sum of the records. The exit code is 1 if any count is not 0 or
the sums differ.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Annotated

import aiohttp
from typer import Option

from loadtest.prove.audit import Audit, audit, wait_until_settled
from loadtest.prove.proof import Stores, conclude, for_each_store
from loadtest.rig import Json
from loadtest.rig.client import open_session
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
from podium.command_line.program import Program
from serving.accounts.hold import team_subject
from serving.accounts.money import to_pico
from serving.database.address import Address
from serving.database.migrate import open_database

COST_USD = Decimal("0.01")
"""Dollars that one answer costs: 20 words at 500 dollars per million."""
TEXT = " ".join(f"word{n}" for n in range(20))
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


@dataclass(frozen=True)
class LedgerRow:
    """Result of one run. `run_twice` is the number of idempotency keys with answers of more than one run."""

    database: str
    complete_answers: int
    rejected: int
    other_outcomes: int
    run_twice: int
    audit: Audit
    seconds: float

    @property
    def is_right(self) -> bool:
        """True if all counts are 0 and the sums are equal and positive."""
        audit = self.audit
        are_equal = 0 < audit.records_usd == audit.ledger_usd and not audit.records_above_ledger
        return audit.is_right and not self.run_twice and are_equal


class Clients:
    """All clients of one run of the proof.

    Args:
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
        """Run one client. Half of the clients stream. A fifth call the flaky worker. A fifth send the same
        idempotency key to two routers at the same time.
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


async def prove(kind: str, address: Address, requests: int, routers: int) -> LedgerRow:
    """Run the proof once, over the empty database at `address`."""
    cap_usd = requests // 10 * COST_USD
    async with await open_database(address) as database:
        key = await make_key(address, cap_usd)
        async with (
            running_routers(f"ledger-{kind}", address, SETTINGS, routers) as running,
            open_session(key.headers) as session,
        ):
            n_holds = cap_usd // (2 * COST_USD)  # holds that fit; after more answers, some are settled
            clients = Clients(session, running, kill_after=int(n_holds) + max(1, requests // 100))
            began_s = time.monotonic()
            await asyncio.gather(*(clients.ask(number) for number in range(requests)))
            took_s = time.monotonic() - began_s
            await wait_until_settled(database)
        answered_ids = [answer.run_id for answer in clients.whole]
        result = await audit(database, team_subject(key.team_id), to_pico(cap_usd), answered_ids)
    refused = clients.others["budget_exceeded"]
    other = clients.others.total() - refused
    return LedgerRow(kind, len(clients.whole), refused, other, clients.run_twice, result, took_s)


main = Program("podium prove ledger")


@main.command(epilog="Example: podium prove ledger --store sqlite --runs 1")
def run(
    store: Stores = None,
    runs: Annotated[int, Option(parser=parse_count, help="runs per database")] = 10,
    requests: Annotated[int, Option(parser=parse_count, help="number of concurrent requests")] = 1000,
    routers: Annotated[int, Option(parser=parse_count, help="number of router processes")] = 4,
) -> int:
    """Prove that no budget is overspent."""
    prepare_process()
    proof = partial(prove, requests=requests, routers=routers)
    rows = asyncio.run(for_each_store(store, proof, runs))
    title = f"{requests} concurrent requests with a budget for a tenth of them, {routers} routers, one killed"
    return conclude(rows, title)
