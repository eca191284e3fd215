"""Run a router process that draws on a shared budget.

`python -m tests.serving.accounts.budget_process` reads one line of JSON from standard input and prints a line for each
hold.
"""

import asyncio
import json
import os
import signal
import sys
from typing import Any

from serving.accounts.hold import Bill, HoldRequest, days_and_months
from serving.accounts.ledger_store import LedgerStore
from serving.database.address import parse_address
from tests.serving.accounts.ledgers import now_us


async def draw(
    address: str, key_id: str, team_id: str, calls: int, amount: int, dies_after: int | None
) -> None:
    """Make `calls` concurrent calls. With `dies_after`, kill the process after that many have ended."""
    settled = 0
    async with LedgerStore(parse_address(address)) as store:

        async def call(number: int) -> None:
            nonlocal settled
            made_us = now_us()
            request = HoldRequest(
                f"{store.owner}-{number}",
                "wf",
                number,
                key_id,
                team_id,
                *days_and_months(made_us),
                "dear",
                amount,
                store.owner,
                made_us,
            )
            if await store.hold(request) is not None:
                return
            print(request.id, flush=True)
            if dies_after is not None and number >= dies_after:
                await asyncio.Event().wait()
            await store.settle(Bill(request.id, amount, now_us()))
            settled += 1
            if settled == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)

        await asyncio.gather(*(call(number) for number in range(calls)))


if __name__ == "__main__":
    orders: dict[str, Any] = json.loads(sys.stdin.readline())
    asyncio.run(draw(**orders))
