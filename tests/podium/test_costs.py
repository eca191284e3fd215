"""`podium costs` and its lists, against a real API over a real socket."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from conductor.model.operation import PromptCache
from conductor.run.record import Account, Record, RunRecords
from podium.cli import main
from tests.serving.api.keyed import keyed
from tests.serving.api.served import Json, scripted, served, team
from tests.serving.api.test_costs import GPT, by_hand, record, with_unknown_cost

CACHE = PromptCache(conversation="cv_1")
PERIOD = ("--from", "2025-11-28", "--to", "2025-12-05")


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PODIUM_API_KEY", raising=False)


async def podium(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = await asyncio.to_thread(main, arguments)
    return code, *capsys.readouterr()


def in_conversation(record: Record) -> Record:
    options = replace(record.task.sampling.options, prompt_cache=CACHE)
    sampling = replace(record.task.sampling, options=options)
    return replace(record, task=replace(record.task, sampling=sampling))


async def test_costs_are_printed_as_daily_bars_and_a_table(capsys: Any) -> None:
    costs, savings, baselines = zip(*(by_hand(n) for n in range(10)), strict=True)
    settings = team(baseline={"model": "gpt-5", "price": GPT})
    async with served(settings) as api:
        where = ("--url", api.url)
        code, out, _ = await podium(capsys, "costs", *where)
        assert (code, out.startswith("No run has ended from ")) == (0, True)
        for n in range(10):
            await api.service.store.put(RunRecords(record(n)))
        code, out, err = await podium(capsys, "costs", *PERIOD, *where)
        assert (code, err) == (0, "")
        lines = [line.split() for line in out.splitlines() if line.strip()]
        assert [line[0] for line in lines[:4]] == ["day", "2025-11-28", "2025-11-29", "2025-11-30"]
        bars = [line.count("█") for line in out.splitlines()[1:4]]
        assert max(bars) == bars[1] == 40, "the day on which most was spent"
        assert bars[2] < bars[0], "two runs cost less than four"
        assert lines[5][:2] == ["mini", "claude"], "what costs most comes first"
        assert {tuple(line[:2]) for line in lines[5:11]} == {
            (model, worker) for model in ("mini", "ultra") for worker in ("claude", "small", "conductor")
        }
        total = next(line for line in lines if line[0] == "total")
        assert total[-2:] == [dollars(sum(costs)), dollars(sum(savings))]
        assert f"saved by caches: {dollars(sum(savings))}" in out
        assert out.rstrip().endswith(f"with gpt-5 alone, estimated: {dollars(sum(baselines))}")
        await api.service.store.put(RunRecords(with_unknown_cost(record(10))))
        _, unknown, _ = await podium(capsys, "costs", *PERIOD, *where)
        assert "calls of unknown cost, not included: 1" in unknown
        label = "with gpt-5 alone, estimated, without answers of unknown cost"
        assert unknown.rstrip().endswith(f"{label}: {dollars(sum(baselines))}")
        code, out, _ = await podium(capsys, "costs", *PERIOD, "--by", "team, key", "--json", *where)
        report: Json = json.loads(out)
        assert [(group["team_id"], group["key_id"]) for group in report["data"]] == [
            ("t0", "k0"),
            ("t1", "k1"),
        ]
        code, out, err = await podium(capsys, "costs", "--by", "wrker", *where)
        assert (code, out) == (1, "")
        assert "'wrker' is not one of them" in err


async def test_an_administrator_sees_names_of_teams_and_keys(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keyed(tmp_path) as it:
        account = Account(it.ids["mine"], it.ids["search"])
        await it.api.service.store.put(RunRecords(replace(record(0), account=account)))
        for key, expected in (("admin", ["search", "mine"]), ("mine", [account.team_id, account.key_id])):
            monkeypatch.setenv("PODIUM_API_KEY", it.secrets[key])
            code, out, _ = await podium(capsys, "costs", *PERIOD, "--by", "team,key", "--url", it.api.url)
            assert code == 0
            assert [line.split()[:2] for line in out.splitlines()].count(expected) == 1, out


def dollars(pico: int) -> str:
    return f"${Decimal(pico) / 10**12:.4f}"


async def test_the_runs_of_a_conversation_show_their_cache_savings(capsys: Any) -> None:
    async with served(team()) as api:
        where = ("--url", api.url)
        await api.service.store.put(RunRecords(in_conversation(record(0))))
        await api.service.store.put(RunRecords(record(1)))
        _, out, _ = await podium(capsys, "runs", "--conversation", "cv_1", *where)
        (heading, line) = out.splitlines()
        assert heading.split()[-2:] == ["cached", "saved"]
        assert (line.split()[2], line.split()[-2:]) == ("wf_0", ["61%", "$0.017475"])
        _, out, _ = await podium(capsys, "runs", *where)
        assert "saved" not in out
        _, out, _ = await podium(capsys, "show", "wf_0", *where)
        assert "(61% cached, saved $0.017475)" in out
        assert "(70% cached, saved $0.017475)" in out


async def test_models_are_listed_with_context_and_prices(capsys: Any) -> None:
    price = {"input_usd_per_mtok": 3, "output_usd_per_mtok": 15, "cached_input_usd_per_mtok": 0.3}
    workers = [scripted("a", context_tokens=200_000, price=price), scripted("b", price=price | {"cached_input_usd_per_mtok": None})]  # fmt: skip
    async with served(team(workers=workers, workflows={})) as api:
        _, out, _ = await podium(capsys, "models", "--url", api.url)
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert rows["a"].split()[-4:] == ["200,000", "3,", "0.3,", "15"]
    assert rows["b"].split()[-3:] == ["3,", "3,", "15"]
    assert "200,000" in rows["mini"]
