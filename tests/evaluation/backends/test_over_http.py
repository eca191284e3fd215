import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from conductor.plan.plan import Plan, Step
from conductor.run.record import Record
from evaluation import EvaluationError
from evaluation.backends import Caps, over_http
from evaluation.backends.in_process import InProcessBackend
from evaluation.backends.over_http import HttpBackend
from evaluation.cli import EvalOptions
from evaluation.evaluate import evaluate
from evaluation.results import ResultLog
from evaluation.run import EvalConfig, Evaluation
from evaluation.strategies import make
from evaluation.strategies.base import solo_workers
from serving.settings.settings import parse
from serving.store.memory_store import MemoryStore
from tests.evaluation.pools import sums, worker
from tests.evaluation.test_run import Silent
from tests.serving.api.served import Json, scripted, served, step, team
from tests.serving.api.served import plan as plan_reply

PRICE = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
TEAM: Json = team(
    plan_reply(step("a", "Guess."), step("c", "Check.", [0])),
    workers=[
        scripted("a", "<answer>0</answer>", price=PRICE),
        scripted("b", {"error": "refused"}),
        scripted("c", "<answer>2</answer>", price=PRICE, delay_s=0.1),
    ],
)
QUESTION = sums(2)[1]
FIGURES = (
    "answer",
    "calls",
    "steps",
    "prompt_tokens",
    "completion_tokens",
    "cost_usd",
    "format_failures",
    "fallback",
    "error",
    "workers",
    "plan",
)
PLANS = (None, Plan((Step("a", ""),)), Plan((Step("a", ""), Step("c", "Check it.", (0,)))))


@pytest.mark.parametrize("plan", PLANS, ids=["the conductor's", "one worker", "two steps"])
async def test_a_server_and_an_engine_report_the_same_figures(plan: Plan | None):
    engine = InProcessBackend(parse(TEAM), {})
    async with served(TEAM) as running:
        server = await HttpBackend.connect(running.url)
        try:
            one, other = await engine.run(QUESTION, Caps(), plan), await server.run(QUESTION, Caps(), plan)
        finally:
            await server.aclose()
    for name in FIGURES:
        assert getattr(one, name) == getattr(other, name), name
    assert other.cost_usd
    assert other.error is None


async def test_a_failure_at_a_server_is_an_outcome_with_its_cost():
    async with served(TEAM) as running:
        server = await HttpBackend.connect(f"{running.url}/v1")
        try:
            refused = await server.run(QUESTION, Caps(), Plan((Step("a", ""), Step("b", "", (0,)))))
        finally:
            await server.aclose()
    assert (refused.error, refused.calls) == ("worker_refused", 1)
    assert refused.cost_usd


async def test_strategies_run_against_a_server(tmp_path: Path):
    async with served(TEAM) as running:
        server = await HttpBackend.connect(running.url)
        strategies = make(["single:c", "conductor?model=mini", "vote:a+c+c"], server, lambda *_: server)
        with ResultLog(tmp_path / "results.jsonl") as log:
            outcome = await Evaluation(EvalConfig([QUESTION]), server, log, Silent()).run(strategies)
        await server.aclose()
    assert server.workers == ("a", "b", "c")
    assert [next(iter(results.values())).correct for results in outcome.results.values()] == [
        True,
        True,
        True,
    ]


async def test_an_unreachable_server_or_a_missing_model_is_an_error():
    async with served(TEAM) as running:
        with pytest.raises(EvaluationError, match="Available models: mini"):
            await HttpBackend.connect(running.url, "podium-huge")
    with pytest.raises(EvaluationError, match="make serve"):
        await HttpBackend.connect("http://127.0.0.1:1")


class DelayedStore(MemoryStore):
    """Store whose first `misses` reads find nothing, as if another replica had the records."""

    def __init__(self, misses: int) -> None:
        super().__init__(lambda: parse(TEAM).limits)
        self.misses = misses
        self.reads = 0

    async def get(self, id: str) -> Record | None:
        self.reads += 1
        return await super().get(id) if self.reads > self.misses else None


async def test_without_a_record_only_the_answers_tokens_and_cost_are_known():
    engine, store = InProcessBackend(parse(TEAM), {}), DelayedStore(99)
    async with served(TEAM, open_store=lambda _: store) as running:
        server = await HttpBackend.connect(running.url)
        expected, outcome = await engine.run(QUESTION, Caps()), await server.run(QUESTION, Caps())
        await server.aclose()
    for name in ("answer", "prompt_tokens", "completion_tokens", "cost_usd", "fallback", "error"):
        assert getattr(outcome, name) == getattr(expected, name), name
    assert (outcome.calls, outcome.steps, outcome.format_failures) == (None, None, None)
    assert outcome.wall_s >= outcome.critical_path_s > 0
    assert store.reads == over_http.READS


async def test_a_record_of_another_replica_is_polled_until_it_is_available():
    store = DelayedStore(8)
    async with served(TEAM, open_store=lambda _: store) as running:
        server = await HttpBackend.connect(running.url)
        outcome = await server.run(QUESTION, Caps())
        await server.aclose()
    assert (outcome.error, outcome.calls, store.reads) == (None, 3, 9)


async def test_a_failed_runs_usage_is_unknown_without_its_record():
    async with served(TEAM, open_store=lambda _: DelayedStore(99)) as running:
        server = await HttpBackend.connect(running.url)
        refused = await server.run(QUESTION, Caps(), Plan((Step("a", ""), Step("b", "", (0,)))))
        await server.aclose()
    assert (refused.error, refused.cost_usd, refused.tokens) == ("worker_refused", None, None)


@asynccontextmanager
async def without_records(url: str) -> AsyncGenerator[str]:
    """Forward to the server at `url`, but cut connections that request a record."""
    host, port = urlsplit(url).hostname, urlsplit(url).port

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(65536):
            if piece.startswith(b"GET /v1/workflows/"):
                break
            sink.write(piece)
        sink.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, asks = await asyncio.open_connection(host, port)
        await asyncio.gather(carry(reader, asks), carry(answers, writer))

    front = await asyncio.start_server(connect, "127.0.0.1", 0)
    async with front:
        yield f"http://127.0.0.1:{front.sockets[0].getsockname()[1]}"


async def test_a_connection_lost_after_the_answer_does_not_lose_it():
    async with served(TEAM) as running, without_records(running.url) as url:
        server = await HttpBackend.connect(url)
        outcome = await server.run(QUESTION, Caps())
        await server.aclose()
    assert (outcome.error, outcome.answer, outcome.calls) == (None, "<answer>2</answer>", None)
    assert outcome.cost_usd


POOL: Json = {
    "conductor": {"worker": "planner"},
    "models": {"mini": {}},
    "workers": [
        scripted("planner", in_pool=False),
        worker("model"),
        {"name": "adder", "kind": "python", "factory": "evaluation.synthetic.skills:Skill"},
        {"name": "vote", "kind": "python", "factory": "evaluation.workers.majority:Majority"},
    ],
}


async def test_a_server_and_an_engine_report_the_same_synthetic_workers():
    engine = InProcessBackend(parse(POOL), {})
    async with served(POOL) as running:
        server = await HttpBackend.connect(running.url)
        await server.aclose()
    assert server.provenance == engine.provenance
    assert server.provenance == {"planner": "scripted", "adder": "synthetic", "vote": "program"}
    assert solo_workers(server) == solo_workers(engine) == ("model", "adder"), (
        "a voter does not answer by itself"
    )


async def test_a_report_over_a_url_names_the_synthetic_workers(tmp_path: Path):
    async with served(POOL) as running:
        options = EvalOptions(
            url=running.url, questions=["skills"], count=2, strategies=["single"], out=tmp_path
        )
        await asyncio.to_thread(evaluate, options, "podium eval")
    report = json.loads((tmp_path / "report.json").read_text())
    assert any(warning.startswith("Synthetic: adder") for warning in report["warnings"])
    assert [row["strategy"] for row in report["rows"]] == ["single:model", "single:adder"]
    assert "Synthetic: adder" in (tmp_path / "report.html").read_text()
