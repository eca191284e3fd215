"""Proof of conversations on one small conversation: rows, targets and bill, computed by hand."""

from pathlib import Path

import pytest

from loadtest.prove.conversations import ACCOUNTS, ROUTES, prove, settings
from loadtest.rig.conversations import SCENARIOS, ClientScenario
from serving.settings.settings import parse


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_its_settings_are_valid(scenario: ClientScenario) -> None:
    checked = parse(settings(scenario, "http://127.0.0.1:1", 2))
    assert [each.name for each in checked.workers[1].deployments] == [*ACCOUNTS.values()]


@pytest.mark.live
@pytest.mark.real_time
async def test_the_ledger_agrees_with_the_provider(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in ACCOUNTS.items():
        monkeypatch.setenv(name, value)
    chat = next(each for each in SCENARIOS if each.name == "chat")
    rows = [row for row, _ in await prove([chat], [ROUTES[0], ROUTES[3]], turns=4)]
    direct, mini = rows
    assert (direct.ratio, direct.moved_turns, direct.ledger_minus_bill_usd) == (1.0, 0, "-")
    assert mini.input_usd > 0
    assert float(mini.ledger_minus_bill_usd) == 0
