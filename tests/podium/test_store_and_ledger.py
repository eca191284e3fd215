import asyncio
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from podium.cli import main
from serving.database.address import Address
from serving.database.migrate import newest_version
from tests.serving.accounts.ledgers import Ledgers, bill, open_ledgers


def use(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODIUM_STORE_URL", address.dsn or f"sqlite:///{address.path}")


def test_a_store_is_created_and_then_checked(
    empty_address: Address, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(empty_address, monkeypatch)
    for verb in ("store", "ledger"):
        assert main([verb, "check"]) == 1
        assert "with `podium store migrate`" in capsys.readouterr().err
    for command in ("migrate", "migrate", "check"):
        assert main(["store", command]) == 0
        assert (
            capsys.readouterr().out
            == f"The store {empty_address.name} has schema {newest_version()}, which is that of this version of Podium.\n"
        )
    assert main(["ledger", "check"]) == 0
    assert capsys.readouterr().out == "Checked 0 entries ($0) and 0 open holds ($0): all sums match\n"


def test_a_ledger_with_wrong_sums_is_reported_with_the_places(
    empty_address: Address, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(empty_address, monkeypatch)
    key_id = asyncio.run(_spend_and_tamper(empty_address))
    assert main(["ledger", "check"]) == 1
    output = capsys.readouterr()
    assert output.out == "Checked 1 entries ($0.04) and 1 open holds ($0.05): 2 faults\n"
    windows, hold = output.err.splitlines()
    assert windows.startswith(f"The totals of key:{key_id} for day ")
    assert windows.endswith(
        "held $0.05, sum of open holds $0.05; spent $0.040000000001, sum of entries $0.04."
    )
    assert hold.endswith(
        "is voided, which does not fit its ledger entries: 1 `call`, 0 `lost`, 0 `correction`."
    )


async def _spend_and_tamper(address: Address) -> str:
    async with open_ledgers(address) as ledgers:
        spent, open_hold = ledgers.request(6), ledgers.request(5)
        await asyncio.gather(*map(ledgers.store.hold, (spent, open_hold)))
        await ledgers.store.settle(bill(spent, 4))
        await _tamper(
            ledgers,
            f"UPDATE spend_window SET spent = spent + 1 WHERE subject = 'key:{ledgers.key_id}' AND period = 'day'",
        )
        await _tamper(ledgers, "UPDATE hold SET state = 'voided' WHERE state = 'posted'")
        return ledgers.key_id


def test_the_ledger_is_reconciled_with_an_invoice_and_an_entry_adjusted(
    empty_address: Address,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    use(empty_address, monkeypatch)
    day = asyncio.run(_spend_at_two_places(empty_address))
    assert main(["ledger", "reconcile"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "day,worker,account,calls,input_tokens,cached_tokens,output_tokens,usd,uncertain_usd"
    assert lines == [f"{day},big,eu,1,10,5,20,0.04,0.04", f"{day},tiny,,1,10,5,20,0.01,0"]
    invoice = tmp_path / "invoice.csv"
    invoice.write_text(f"day,worker,account,usd\n{day},big,eu,0.0002\n{day},tiny,,0.01\n", "utf-8")
    assert main(["ledger", "reconcile", str(invoice)]) == 1
    assert capsys.readouterr().err == (
        f"{day} big@eu: the ledger has $0.04, but the invoice has $0.0002. $0.04 of the ledger's sum are upper bounds or estimates.\n"
    )
    adjust = ["ledger", "adjust", "1", "--reason", "November's invoice", "--to"]
    assert main([*adjust, "0.0002"]) == 0
    assert capsys.readouterr().out == "Corrected entry 1 to $0.0002 (-$0.0398).\n"
    assert main(["ledger", "reconcile", str(invoice)]) == 0
    assert main([*adjust, "0.0003"]) == 0, "once more"
    assert "(+$0.0001)" in capsys.readouterr().out
    assert main(["ledger", "check"]) == 0
    assert "4 entries ($0.0103)" in capsys.readouterr().out
    for wrong, message in (
        ([*adjust, "0.0003"], "already has this amount"),
        ([*adjust, "-1"], "--to must be between 0 and"),
        (["ledger", "adjust", "99", "--to", "1", "--reason", "x"], "No ledger entry of a call has the id 99"),
        (["ledger", "adjust", "3", "--to", "1", "--reason", "x"], "No ledger entry of a call has the id 3"),
        (["ledger", "adjust", "1", "--to", "1", "--reason", " "], "reason of an adjustment must have"),
        (["ledger", "reconcile", str(tmp_path)], "is not a CSV file"),
    ):
        assert main(wrong) == 1
        assert message in capsys.readouterr().err


async def _spend_at_two_places(address: Address) -> str:
    async with open_ledgers(address) as ledgers:
        big, tiny = ledgers.request(6), ledgers.request(5)
        await asyncio.gather(*map(ledgers.store.hold, (big, tiny)))
        await ledgers.store.settle(replace(bill(big, 4), worker="big", account="eu", is_bound=True))
        await ledgers.store.settle(replace(bill(tiny, 1), worker="tiny"))
        return str(date(1970, 1, 1) + timedelta(big.day))


async def _tamper(ledgers: Ledgers, statement: str) -> None:
    async with ledgers.database.writing() as connection:
        await connection.execute(text(statement))


def test_a_password_in_an_address_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PODIUM_STORE_URL", "postgresql://podium:hunter2@127.0.0.1:1/x")
    for arguments in (["store", "check"], ["store", "migrate"], ["ledger", "check"]):
        assert main(arguments) == 1
        output = capsys.readouterr()
        assert "127.0.0.1:1/x" in output.err
        assert "hunter2" not in output.out + output.err
