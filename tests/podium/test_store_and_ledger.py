"""`podium store` and `podium ledger`, as an operator uses them."""

import asyncio

import pytest
from sqlalchemy import text

from podium.cli import main
from serving.database.address import Address
from serving.database.migrate import newest_version
from tests.serving.accounts.ledgers import Ledgers, bill, open_ledgers


def use(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODIUM_STORE_URL", address.dsn or f"sqlite:///{address.path}")


def test_a_store_is_made_and_then_checked(
    empty_address: Address, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(empty_address, monkeypatch)
    for verb in ("store", "ledger"):
        assert main([verb, "check"]) == 1
        assert "`podium store migrate` makes it" in capsys.readouterr().err
    for command in ("migrate", "migrate", "check"):
        assert main(["store", command]) == 0
        assert (
            capsys.readouterr().out
            == f"The store {empty_address.name} has schema {newest_version()}, which this Podium uses.\n"
        )
    assert main(["ledger", "check"]) == 0
    assert capsys.readouterr().out == "0 entries of $0, 0 open holds of $0: every sum is right\n"


def test_a_ledger_that_does_not_add_up_says_where(
    empty_address: Address, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(empty_address, monkeypatch)
    key_id = asyncio.run(_spend_and_tamper(empty_address))
    assert main(["ledger", "check"]) == 1
    said = capsys.readouterr()
    assert said.out == "1 entries of $0.04, 1 open holds of $0.05: 2 faults\n"
    windows, hold = said.err.splitlines()
    assert windows.startswith(f"key:{key_id} in day ")
    assert windows.endswith("held $0.05, its open holds $0.05; spent $0.040000000001, its entries $0.04")
    assert hold.endswith("is voided and has 1 calls, 0 losses, 0 corrections")


async def _spend_and_tamper(address: Address) -> str:
    async with open_ledgers(address) as ledgers:
        spent, held = ledgers.request(6), ledgers.request(5)
        await asyncio.gather(*map(ledgers.store.hold, (spent, held)))
        await ledgers.store.settle(bill(spent, 4))
        await _tamper(
            ledgers,
            f"UPDATE spend_window SET spent = spent + 1 WHERE subject = 'key:{ledgers.key_id}' AND period = 'day'",
        )
        await _tamper(ledgers, "UPDATE hold SET state = 'voided' WHERE state = 'posted'")
        return ledgers.key_id


async def _tamper(ledgers: Ledgers, statement: str) -> None:
    async with ledgers.database.writing() as connection:
        await connection.execute(text(statement))


def test_an_address_with_a_password_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PODIUM_STORE_URL", "postgresql://podium:hunter2@127.0.0.1:1/x")
    for arguments in (["store", "check"], ["store", "migrate"], ["ledger", "check"]):
        assert main(arguments) == 1
        said = capsys.readouterr()
        assert "127.0.0.1:1/x" in said.err
        assert "hunter2" not in said.out + said.err
