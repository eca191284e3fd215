"""The audit at the end of each proof detects faults."""

from dataclasses import asdict

import pytest
from sqlalchemy import text

from loadtest.prove.audit import audit, count_lost_records, wait_until_settled
from serving.accounts.hold import team_subject
from serving.database.address import Address
from tests.serving.accounts.ledgers import Ledgers, bill, open_ledgers

CAP = 10**12
WRONG = {
    "overspent_usd": "UPDATE spend_window SET spent = spent + 2000000000000",
    "entered_twice": "INSERT INTO hold (id, run_id, call_no, key_id, team_id, day, month, worker, amount, state, owner, made_us) "
    "SELECT 'again', run_id, call_no, key_id, team_id, day, month, worker, amount, 'posted', owner, made_us FROM hold",
    "still_reserved": "UPDATE hold SET state = 'open'",
    "ledger_faults": "UPDATE spend_window SET spent = spent + 1",
    "records_above_ledger": "UPDATE run SET cost = cost + 1",
}
RUN = """INSERT INTO run (id, model, status, owner, made_us, ended_us, cost, input_tokens, output_tokens, kept, numbers)
VALUES ('wf_1', 'm', 'finished', 'one', 1, 2, 40000000000, 1, 1, 0, :body)"""


async def change(ledgers: Ledgers, sql: str, **values: object) -> None:
    async with ledgers.database.writing() as connection:
        await connection.execute(text(sql), values)


async def audit_fields(ledgers: Ledgers, *answered: str) -> dict[str, float]:
    return asdict(await audit(ledgers.database, team_subject(ledgers.team_id), CAP, answered))


async def spend(ledgers: Ledgers) -> None:
    request = ledgers.request(6)
    assert await ledgers.store.hold(request) is None
    await ledgers.store.settle(bill(request, 4))
    await change(ledgers, RUN, body=b"")


async def test_a_correct_ledger_has_no_audit_faults(store_address: Address) -> None:
    async with open_ledgers(store_address) as ledgers:
        await spend(ledgers)
        assert await wait_until_settled(ledgers.database, within_s=5)
        right = await audit_fields(ledgers, "wf_1")
        assert (right.pop("records_usd"), right.pop("ledger_usd")) == (0.04, 0.04)
        assert not any(right.values())
        assert await count_lost_records(ledgers.database, ["wf_1"]) == 0


@pytest.mark.parametrize("what", WRONG)
async def test_every_kind_of_fault_is_detected(store_address: Address, what: str) -> None:
    async with open_ledgers(store_address) as ledgers:
        await spend(ledgers)
        await change(ledgers, WRONG[what])
        assert (await audit_fields(ledgers, "wf_1"))[what] > 0


async def test_a_run_that_a_client_saw_but_the_store_lacks_is_lost(store_address: Address) -> None:
    async with open_ledgers(store_address) as ledgers:
        await spend(ledgers)
        assert (await audit_fields(ledgers, "wf_1", "wf_2"))["not_entered"] == 1
        assert await count_lost_records(ledgers.database, ["wf_1", "wf_2"]) == 1


async def test_the_wait_for_open_holds_has_a_limit(store_address: Address) -> None:
    async with open_ledgers(store_address) as ledgers:
        assert await ledgers.store.hold(ledgers.request(1)) is None
        assert not await wait_until_settled(ledgers.database, within_s=0.03)
