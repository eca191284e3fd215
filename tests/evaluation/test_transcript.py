"""Table of a few questions, made over a socket by the official client."""

import asyncio
from pathlib import Path

import pytest

from evaluation.transcript import QUESTIONS, main
from tests.serving.api.served import scripted, served, team

PLAN = """\
{"needs": "sums", "worker": 0, "subtask": "Add.", "access": []}
{"worker": 1, "subtask": "", "access": [0]}
"""


async def test_the_table_has_the_plan_its_answer_and_the_workers_own_answer(tmp_path: Path):
    workers = [scripted("a", "5"), scripted("b", "many | words <b> " * 30)]
    out = tmp_path / "page.md"
    async with served(team(PLAN, workers=workers)) as api:
        options = ["--url", api.url, "--model", "mini", "--question", "What is 2 + 3?", "--out", str(out)]
        assert await asyncio.to_thread(main, options) == 0
    *_, row = out.read_text().splitlines()
    question, plan, answer, first_s, alone, _ = (
        cell.strip() for cell in row.replace("\\|", "/")[1:-1].split(" | ")
    )
    assert question == "What is 2 + 3?"
    assert plan == "1. a: Add. (needs: sums); 2. b, reads 1: the question as it is"
    assert answer == alone
    assert answer.startswith("many / words &lt;b> many")
    assert answer.endswith(" ...")
    assert 0 < float(first_s) < 20
    assert "`mini`" in out.read_text()


def test_without_a_server_the_command_names_how_to_start_one(capsys: pytest.CaptureFixture[str]):
    assert main(["--url", "http://127.0.0.1:1", "--question", QUESTIONS[0]]) == 1
    assert "`make serve`" in capsys.readouterr().err
