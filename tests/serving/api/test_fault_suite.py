"""Every fault of a provider in every position of a run: the client sees the expected result, and nothing hangs."""

import asyncio
import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.serving.api import play_defaults, play_faults
from tests.serving.api.fault_servers import answering, open_places
from tests.serving.api.play_defaults import FAULTS
from tests.serving.api.play_faults import (
    FaultOutcome,
    Look,
    api_of,
    in_words,
    see_conductors,
    see_everything,
    wait_until_no_call_is_open,
)
from tests.serving.api.provider_faults import CASES, POSITIONS
from tests.serving.api.served import ASK, left_tasks, scripted
from tests.serving.spans import SPANS
from tests.states import until


@pytest.mark.timeout(400)
async def test_every_provider_fault_in_every_position_has_the_expected_result():
    assert len(CASES) >= 60
    outcomes = await asyncio.wait_for(see_everything(half=True), 300)
    assert [each for each in outcomes if not each.is_expected] == []
    await until(lambda: not left_tasks(), "no task is left")
    await until(lambda: not SPANS.open, "no span is left")


async def test_a_conductor_with_a_temporary_fault_is_retried_and_its_plan_runs():
    mended = {name: case for name, case in CASES.items() if case.is_mended}
    assert len(mended) >= 8
    async with open_places() as at:
        outcomes = await see_conductors(mended, at, half=False, lanes=1)
    assert [
        (each.name, each.stream, each.outcome) for each in outcomes if each.outcome != each.expected
    ] == []


async def test_an_unused_port_refuses_connections_and_is_not_reassigned():
    async with open_places() as at, AsyncExitStack() as servers:
        closed = at.addresses["closed"].removeprefix("http://")
        for _ in range(100):
            assert await servers.enter_async_context(answering(b"")) != closed
        host, _, port = closed.partition(":")
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))


async def test_a_call_that_stays_open_fails_the_test():
    slow = {"workers": [scripted("slow", "Late.", delay_s=60)]}
    async with api_of(slow) as (http, service):
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=ASK | {"model": "slow"}))
        await until(lambda: service.pool.limiters["slow"].open_calls)
        with pytest.raises(AssertionError, match="slow"):
            await wait_until_no_call_is_open(service.pool, within_s=0.05)
        asking.cancel()


def test_the_page_is_written_only_if_all_results_are_as_expected(tmp_path: Path):
    page = tmp_path / "faults.md"
    outcomes = [
        FaultOutcome(
            name, position, stream, (outcome := case.outcome(position, stream=stream)), outcome, None
        )
        for name, case in CASES.items()
        for position in POSITIONS
        for stream in (False, True)
    ]
    assert play_faults.finish([*outcomes[:-1], replace(outcomes[-1], outcome="HANG")], page, 4) == 1
    late = replace(outcomes[-1], outcome="late", or_else="late")
    assert play_faults.finish([*outcomes[:-1], late], page, 4) == 1, (
        "what a busy machine shows is for no page"
    )
    assert not page.exists()
    assert play_faults.finish(outcomes, page, 4) == 0
    assert f"All {len(outcomes)} results were as expected" in page.read_text("utf-8")


def test_the_pages_second_half_is_written_only_if_all_results_are_as_expected(tmp_path: Path):
    page, looks = tmp_path / "faults.md", {name: Look(named.now, 1.0, 0.5) for name, named in FAULTS.items()}
    wrong = looks | {"a malformed stream": Look("200 It… then worker_unavailable", 1.0, 0.5)}
    assert play_defaults.finish(wrong, 3, 64, page) == 1
    assert play_defaults.finish(looks, 11, 64, page) == 1
    assert not page.exists()
    assert play_defaults.finish(looks, 3, 64, page) == 0
    assert "| a malformed stream |" in page.read_text("utf-8")


def test_the_page_of_faults_states_what_clients_see():
    page, _, by_default = (ROOT / "docs/faults.md").read_text("utf-8").partition("\n## Default settings")
    rows = _rows(page.partition("| fault ")[2])
    assert sorted(name for names, *_ in rows for name in names.split("; ")) == sorted(CASES), (
        "run `make faults`"
    )
    for names, *cells, _ in rows:
        for name in names.split("; "):
            for position, cell in zip(POSITIONS, cells, strict=True):
                expected = [
                    in_words(CASES[name].outcome(position, stream=stream)) for stream in (False, True)
                ]
                assert cell == " / ".join(dict.fromkeys(expected)), "run `make faults`"
    rows = _rows(by_default.partition("| fault ")[2])
    assert [(name, now) for name, now, *_ in rows] == [
        (name, in_words(each.now)) for name, each in FAULTS.items()
    ]
    assert {len(row) for row in rows} == {4}, "run `make faults`"


def _rows(table: str) -> list[list[str]]:
    """Return the cells of a Markdown table. `table` starts within its header line."""
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]
