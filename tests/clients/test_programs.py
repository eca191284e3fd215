"""The programs of docs/clients whose packages the tests have run as a user would run them; every page is one of a client
that is run somewhere.
"""

import asyncio
import re
from pathlib import Path

import pytest

from tests.clients.agents import AGENTS
from tests.clients.programs import ELSEWHERE, HERE, NODE, PROGRAMS, SUNNY, Program, run
from tests.serving.api.served import served

PAGES = Path(__file__).parents[2] / "docs" / "clients"


@pytest.mark.parametrize("program", HERE, ids=lambda each: each.client)
async def test_a_program_shows_what_its_page_says(program: Program, tmp_path: Path) -> None:
    async with served(SUNNY) as api:
        assert await asyncio.to_thread(run, program, api.url, tmp_path) == ""


def test_every_client_that_is_run_has_a_page_that_names_its_program() -> None:
    programs = {each.client: each for each in (*HERE, *NODE, *ELSEWHERE)}
    names = {*programs, *(agent.name for agent in AGENTS)}
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == names
    index = (PAGES / "README.md").read_text()
    assert {*re.findall(r"\]\(([\w-]+)\.md\)", index)} == names
    for name in programs:
        page = (PAGES / f"{name}.md").read_text()
        (linked,) = re.findall(r"\(\.\./\.\./examples/clients/([\w.]+)\)", page)
        assert (PROGRAMS / linked).read_text().rstrip() in page, f"{linked} is not what its page shows"
