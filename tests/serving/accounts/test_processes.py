"""Several router processes on one budget, one of which is killed. The budget is neither exceeded, charged twice nor
held for ever.
"""

import json
import signal
import subprocess
import sys

from sqlalchemy import text

from serving.accounts.money import to_pico
from serving.database.address import Address
from tests.conftest import ROOT
from tests.serving.accounts.ledgers import CENT, Ledgers, open_ledgers

OTHERS, CALLS, CAP = 3, 100, 100
HELD_BY_THE_KILLED, SETTLED_BY_THE_KILLED = 40, 5


def start(ledgers: Ledgers, calls: int, dies_after: int | None = None) -> subprocess.Popen[str]:
    address = ledgers.database.address
    orders = {
        "address": address.dsn or f"sqlite:///{address.path}", "key_id": ledgers.key_id, "team_id": ledgers.team_id,
        "calls": calls, "amount": to_pico(CENT), "dies_after": dies_after,
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.serving.accounts.budget_process"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    process.stdin.write(json.dumps(orders) + "\n")
    process.stdin.flush()
    return process


async def test_concurrent_routers_spend_exactly_the_budget_although_one_is_killed(
    store_address: Address,
) -> None:
    async with open_ledgers(store_address) as ledgers:
        await ledgers.set_caps(CAP)
        killed = start(ledgers, HELD_BY_THE_KILLED, SETTLED_BY_THE_KILLED)
        assert killed.stdout
        first = killed.stdout.readline().strip()
        others = [start(ledgers, CALLS) for _ in range(OTHERS)]
        acknowledged = {
            first,
            *(id for each in (killed, *others) for id in each.communicate(timeout=60)[0].split()),
        }
        assert [each.returncode for each in (killed, *others)] == [-signal.SIGKILL, *[0] * OTHERS]
        spent, holds = await ledgers.cents()
        assert spent + holds == CAP, "refused while there was room, or let in above it"
        await _end_leases_of_the_dead(ledgers)
        await ledgers.store.beat()  # a slow machine may have done this in the background already
        assert await ledgers.cents() == (CAP, 0)
        await ledgers.see_no_fault()
        entered = await _entered(ledgers)
        assert len(entered) == len(set(entered)) == CAP
        assert acknowledged <= set(entered), "what was acknowledged is there"


async def _end_leases_of_the_dead(ledgers: Ledgers) -> None:
    """Expire the leases of dead replicas. The others have released theirs."""
    async with ledgers.database.writing() as connection:
        await connection.execute(
            text("UPDATE replica SET lease_until_us = 1 WHERE id <> :own"), {"own": ledgers.store.owner}
        )


async def _entered(ledgers: Ledgers) -> list[str]:
    async with ledgers.database.reading() as connection:
        rows = await connection.execute(
            text("SELECT hold_id FROM ledger WHERE key_id = :key"), {"key": ledgers.key_id}
        )
        return list(rows.scalars())
