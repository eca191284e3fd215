"""Replay the recorded request shapes of each coding agent. `make clients CLIENTS="codex --record"` records new ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.agents import AGENTS, Agent, settings
from tests.clients.recording import answer_of
from tests.serving.api.served import served

RECORDINGS = Path(__file__).parent / "recordings"


@pytest.mark.parametrize("agent", AGENTS, ids=lambda each: each.name)
async def test_an_agents_recorded_requests_get_the_same_answers(agent: Agent) -> None:
    recording: Any = json.loads((RECORDINGS / f"{agent.name}.json").read_text())
    assert recording["version"] == agent.version
    ids: dict[str, str] = {}
    async with served(settings(agent, Path("repository"))) as api:
        for exchange in recording["exchanges"]:
            body = json.dumps(exchange["body"])
            for recorded, current in ids.items():
                body = body.replace(recorded, current)
            answer = await api.http.post(exchange["path"], json=json.loads(body))
            assert answer.status_code == 200, answer.text
            now, then = answer_of(answer.text), exchange["answer"]
            assert [name for _, name in now["calls"]] == [name for _, name in then["calls"]]
            assert now["text"] == then["text"]
            ids |= {old: new for (old, _), (new, _) in zip(then["calls"], now["calls"], strict=True)}
        runs = (await api.http.get("/v1/workflows")).json()["data"]
    whole = [run for run in runs if len(run["steps"]) == 3]
    assert [run["status"] for run in whole] == ["finished"]
    assert len(ids) == 4
