"""Run the programs of docs/clients.md whose packages the tests have. The page must name every client that is run."""

import asyncio
import re
from pathlib import Path

import pytest

from tests.clients.agents import AGENTS
from tests.clients.programs import ELSEWHERE, HERE, NODE, SUNNY, Program, run
from tests.serving.api.served import served

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()


@pytest.mark.parametrize("program", HERE, ids=lambda each: each.client)
async def test_a_documented_program_prints_no_errors(program: Program, tmp_path: Path) -> None:
    async with served(SUNNY) as api:
        assert await asyncio.to_thread(run, program, api.url, tmp_path) == ""


def test_the_page_names_every_tested_client_with_program_and_version() -> None:
    for program in (*HERE, *NODE, *ELSEWHERE):
        names = [word for word in program.words if "." in word or word == "podium_tiny"]
        assert any(f"(../examples/clients/{name.removesuffix('.yaml')}" in PAGE for name in names), program
        for name, _, version in (package.partition("==") for package in program.packages[:1]):
            assert re.search(rf"\b{re.escape(name.partition('[')[0])}\b.* {re.escape(version)}\b", PAGE), name
    for agent in AGENTS:
        assert re.search(rf"npm install -g \S*{agent.name}\S*@{re.escape(agent.version)}\n", PAGE), agent.name
