from pathlib import Path

import pytest

from conductor.plan import Plan, Step
from evaluation.asking import Caps, EngineAsker
from evaluation.asking_url import UrlAsker
from evaluation.errors import EvaluationError
from evaluation.results import ResultLog
from evaluation.run import Evaluation, Order
from evaluation.strategies import make
from serving.settings import parse
from tests.evaluation.pools import sums
from tests.evaluation.test_run import Silent
from tests.serving.api.served import Json, scripted, served, step, team
from tests.serving.api.served import plan as written

PRICE = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
TEAM: Json = team(
    written(step("a", "Guess."), step("c", "Check.", [0])),
    workers=[
        scripted("a", "<answer>0</answer>", price=PRICE),
        scripted("b", {"error": "refused"}),
        scripted("c", "<answer>2</answer>", price=PRICE),
    ],
)
QUESTION = sums(2)[1]
PLANS = (
    None,
    Plan((Step("a", ""),)),
    Plan((Step("a", ""), Step("c", "Check it.", (0,)))),
)


@pytest.mark.parametrize("plan", PLANS, ids=["the conductor's", "one worker", "two steps"])
async def test_a_server_and_an_engine_give_the_same_figures(plan: Plan | None):
    engine = EngineAsker(parse(TEAM), {})
    async with served(TEAM) as running:
        server = await UrlAsker.connected(running.url)
        try:
            one, other = await engine.run(QUESTION, Caps(), plan), await server.run(QUESTION, Caps(), plan)
        finally:
            await server.aclose()
    for name in ("answer", "calls", "steps", "prompt_tokens", "completion_tokens", "cost_usd", "format_failures",
                 "fallback", "error", "workers", "plan"):  # fmt: skip
        assert getattr(one, name) == getattr(other, name), name
    assert other.cost_usd
    assert other.error is None


async def test_a_failure_at_a_server_is_an_outcome_with_what_it_took():
    async with served(TEAM) as running:
        server = await UrlAsker.connected(f"{running.url}/v1")
        try:
            refused = await server.run(QUESTION, Caps(), Plan((Step("a", ""), Step("b", "", (0,)))))
        finally:
            await server.aclose()
    assert (refused.error, refused.calls) == ("worker_refused", 1)
    assert refused.cost_usd


async def test_strategies_run_against_a_server(tmp_path: Path):
    async with served(TEAM) as running:
        server = await UrlAsker.connected(running.url)
        strategies = make(["single:c", "conductor?model=mini", "vote:a+c+c"], server, lambda path: server)
        with ResultLog(tmp_path / "results.jsonl") as log:
            done = await Evaluation(Order([QUESTION]), server, log, Silent()).run(strategies)
        await server.aclose()
    assert server.workers == ("a", "b", "c")
    assert [next(iter(held.values())).correct for held in done.results.values()] == [True, True, True]


async def test_a_server_that_is_not_there_or_lacks_the_model_is_told():
    async with served(TEAM) as running:
        with pytest.raises(EvaluationError, match="it serves mini"):
            await UrlAsker.connected(running.url, "podium-huge")
    with pytest.raises(EvaluationError, match="make serve"):
        await UrlAsker.connected("http://127.0.0.1:1")
