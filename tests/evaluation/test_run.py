import asyncio
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.plan.plan import Plan
from evaluation import EvaluationError
from evaluation.backends import Caps, EvaluationBackend
from evaluation.backends.in_process import InProcessBackend
from evaluation.outcome import RunOutcome, combine
from evaluation.questions import Grade, Question
from evaluation.results import Result, ResultLog
from evaluation.run import EvalConfig, EvalResults, Evaluation, for_each
from evaluation.strategies import LEARNED, OF_A_CONDUCTOR, USUAL, expand, make
from evaluation.strategies.fixed_plans import mixture_of_agents
from tests.evaluation import pools
from tests.evaluation.pools import Adder, backend, sums, worker


class Silent:
    def begin(self, name: str, total: int) -> Callable[[bool | None], None]:
        return lambda _: None

    def say(self, text: str) -> None:
        pass


async def run(
    names: Sequence[str], order: EvalConfig, folder: Path, whom: EvaluationBackend | None = None
) -> EvalResults:
    whom = whom or backend()
    strategies = make(names, whom, lambda *arguments: pytest.fail(f"{arguments} was opened"))
    with ResultLog(folder / "results.jsonl") as log:
        return await Evaluation(order, whom, log, Silent()).run(strategies)


def right(evaluated: EvalResults, label: str) -> float:
    results = evaluated.results[label].values()
    return sum(result.correct for result in results) / len(results)


CONDUCTED: dict[str, Any] = {
    "conductor": {"worker": "planner"},
    "workers": [
        worker("bad", off=1),
        worker("good"),
        {
            "name": "planner",
            "kind": "scripted",
            "in_pool": False,
            "retry": {"attempts": 1},
            "replies": [
                '{"worker": "bad", "subtask": "Add.", "access": []}\n{"worker": "good", "subtask": "Check.", "access": [0]}'
            ],
        },
    ],
}


async def test_strategies_are_compared_over_one_pool(tmp_path: Path):
    whom = backend(*CONDUCTED["workers"], conductor=CONDUCTED["conductor"])
    names = [
        "single",
        "random",
        "cheapest",
        "self_consistency:good?n=3",
        "vote",
        "self_reflection?rounds=2",
        "moa:good",
        "conductor",
        "best_of_n:good",
        "best_of_n_oracle",
        "oracle",
    ]
    outcome = await run(names, EvalConfig(sums(6), training=sums(9, "others")), tmp_path, whom)
    assert (
        right(outcome, "single:good")
        == right(outcome, "oracle")
        == right(outcome, "conductor")
        == right(outcome, "moa:good")
        == 1
    )
    assert right(outcome, "single:bad") == 0
    outcomes = {label: next(iter(results.values())).outcome for label, results in outcome.results.items()}
    assert (outcomes["self_consistency:good?n=3"].calls, outcomes["moa:good"].calls) == (3, 3)
    assert (outcomes["self_reflection?rounds=2"].calls, outcomes["self_reflection?rounds=2"].steps) == (3, 3)
    assert outcomes["conductor"].calls == outcomes["best_of_n:good"].calls == 3, "the plan, and its two steps"
    assert outcome.learned["self_reflection?rounds=2"] == {"worker": "good"}, (
        "the best on the training questions"
    )
    assert outcomes["oracle"] == outcomes["single:good"]
    assert {result.notes["chosen"] for result in outcome.results["oracle"].values()} == {"single:good"}


async def test_equal_compute_may_be_counted_in_tokens(tmp_path: Path):
    whom = backend(*CONDUCTED["workers"], conductor=CONDUCTED["conductor"])
    outcome = await run(["conductor", "best_of_n:good?by=tokens"], EvalConfig(sums(3)), tmp_path, whom)
    for question, drawn in outcome.results["best_of_n:good?by=tokens"].items():
        spent, used = drawn.outcome.tokens, outcome.results["conductor"][question].outcome.tokens
        assert spent is not None
        assert used is not None
        assert drawn.notes["n"] > 3, "a sample takes 6 tokens, the conductor many more"
        assert spent <= used < spent + 2 * spent / drawn.notes["n"] or drawn.notes["n"] == 64


async def test_a_resumed_evaluation_does_not_repeat_questions(tmp_path: Path):
    Adder.n_calls = 0
    first = await run(["single", "oracle"], EvalConfig(sums(5)), tmp_path)
    n_first, again = Adder.n_calls, await run(["single", "oracle"], EvalConfig(sums(5)), tmp_path)
    assert (n_first, Adder.n_calls) == (10, 10)
    assert again.results == first.results
    await run(["single"], EvalConfig(sums(5), caps=Caps(temperature=0.5)), tmp_path)
    assert Adder.n_calls == 20, "other caps are another evaluation"


async def test_an_incomplete_last_line_is_removed_and_its_question_is_repeated(tmp_path: Path):
    await run(["single:good"], EvalConfig(sums(4)), tmp_path)
    path = tmp_path / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    Adder.n_calls = 0
    await run(["single:good"], EvalConfig(sums(4)), tmp_path)
    assert Adder.n_calls == 1
    assert set(path.read_bytes().splitlines()) >= set(whole.splitlines()[:3])
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_an_invalid_line_is_an_error_with_its_number(tmp_path: Path):
    (tmp_path / "r.jsonl").write_text("{}\n")
    with pytest.raises(EvaluationError, match=r"line 1 is not a result.*--out"):
        ResultLog(tmp_path / "r.jsonl")


async def test_a_stopped_evaluation_keeps_its_answers_and_leaves_no_task(tmp_path: Path):
    slow = {"name": "slow", "kind": "scripted", "replies": ["<answer>1</answer>"], "delay_s": 30}
    whom = backend(worker("good"), slow)
    running = asyncio.create_task(run(["single"], EvalConfig(sums(3)), tmp_path, whom))
    path = tmp_path / "results.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < 3:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert path.read_bytes().count(b"\n") == 3
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_outage_is_retried_but_a_refusal_is_not(tmp_path: Path):
    order = EvalConfig(sums(2))
    down = await run(["single:w"], order, tmp_path, RelabelledBackend(backend(worker("w", down=True))))
    assert [r.outcome.error for r in down.results["single:w"].values()] == ["WorkerUnavailable"] * 2
    up = await run(["single:w"], order, tmp_path, RelabelledBackend(backend(worker("w"))))
    assert right(up, "single:w") == 1


class RelabelledBackend:
    """Backend with the identity of another one: its worker recovered, and the settings are the same."""

    def __init__(self, own: InProcessBackend) -> None:
        self._own = own
        self.workers, self.provenance, self.has_conductor = own.workers, own.provenance, own.has_conductor
        self.identity = {"the": "same"}

    def price(self, worker: str) -> Any:
        return self._own.price(worker)

    async def run(
        self,
        question: Question,
        caps: Caps,
        plan: Plan | None = None,
        **options: Any,
    ) -> RunOutcome:
        return await self._own.run(question, caps, plan, **options)

    async def aclose(self) -> None:
        await self._own.aclose()


async def test_a_strategy_stops_at_its_budget_with_a_reason(tmp_path: Path):
    price = Decimal("0.000033")  # reads 3 words at 1 USD and writes 3 at 10 USD per million tokens
    outcome = await run(["single"], EvalConfig(sums(9), concurrency=1, strategy_usd=3 * price), tmp_path)
    assert [len(results) for results in outcome.results.values()] == [3, 3]
    assert "is used up" in outcome.stopped["single:good"]
    more = await run(["single"], EvalConfig(sums(9), concurrency=1, strategy_usd=5 * price), tmp_path)
    assert [len(results) for results in more.results.values()] == [5, 5], "what was paid before counts"


async def test_an_unknown_cost_under_a_budget_stops_the_strategy(tmp_path: Path):
    unpriced = worker("w") | {"price": None}
    outcome = await run(
        ["single"], EvalConfig(sums(9), concurrency=1, strategy_usd=Decimal(1)), tmp_path, backend(unpriced)
    )
    assert len(outcome.results["single:w"]) == 1
    assert "unknown" in outcome.stopped["single:w"]


async def test_learned_routers_send_each_family_to_a_suitable_worker(tmp_path: Path):
    whom = backend(worker("good"), worker("bad", off=1))
    names = ["routellm?share=1", "router", "masrouter?max_agents=1&epochs=2&modes=io&cost_weight=0"]
    outcome = await run(names, EvalConfig(sums(4), training=sums(20, "others")), tmp_path, whom)
    assert [right(outcome, name) for name in names] == [1, 1, 1]
    assert outcome.learned["routellm?share=1"]["strong"] == "good"
    assert outcome.learned[names[2]]["episodes"] == 40


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["nothing"], "Choose from: single"),
        (["single", "single"], "is listed twice"),
        (["single:nobody"], "Choose from: good, bad"),
        (["oracle"], "Add the strategy `single`"),
        (["best_of_n"], "Add that strategy, or"),
        (["moa?layer=2"], "Its options are layers, proposers, temperature"),
        (["self_consistency?n=0"], "must be at least 1"),
        (["trained"], "trained?settings=FILE"),
        (["conductor"], "the pool has no conductor"),
        (["routellm?share=0.5&usd=best"], "Remove one"),
        (["masrouter?modes=dance"], "Choose from: io, cot"),
    ],
)
def test_an_invalid_strategy_is_an_error_with_the_remedy(names: list[str], message: str):
    with pytest.raises(EvaluationError) as caught:
        make(names, backend(), lambda *_: backend())
    assert message in caught.value.message


def test_the_usual_strategies_are_those_that_the_pool_supports():
    conducted = backend(*CONDUCTED["workers"], conductor=CONDUCTED["conductor"])
    unpriced = backend(worker("w") | {"price": None})
    assert expand(["usual,learned", "vote"], conducted, learns=False) == [*USUAL, *LEARNED, "vote"]
    assert {*USUAL} - {*expand(["usual"], unpriced, learns=False)} == {*OF_A_CONDUCTOR, "cheapest"}


async def test_learning_without_training_questions_names_the_missing_option(tmp_path: Path):
    with pytest.raises(EvaluationError, match="--train"):
        await run(["router"], EvalConfig(sums(1)), tmp_path)


@given(st.integers(1, 5), st.integers(1, 4))
def test_a_mixture_of_agents_is_a_valid_plan_that_needs_every_step(proposers: int, layers: int):
    names = [f"w{n}" for n in range(proposers)]
    plan = mixture_of_agents(names, "w0", layers)
    assert Plan.of(plan.steps, names, 100) == plan
    assert len(plan.steps) == proposers * layers + 1
    assert plan.reachable == frozenset(range(len(plan.steps)))


def test_an_unknown_cost_or_count_stays_unknown_in_a_sum():
    priced, unknown = (
        RunOutcome(cost_usd=Decimal(1), wall_s=2, calls=1),
        RunOutcome(cost_usd=None, prompt_tokens=None, wall_s=3, calls=1),
    )
    total = combine([priced, unknown], "x", concurrent=True)
    assert (total.cost_usd, total.tokens, total.wall_s, total.calls) == (None, None, 3, 2)
    assert combine([priced, priced], "x", concurrent=False).wall_s == 4


def test_a_result_round_trips(tmp_path: Path):
    outcome = RunOutcome("ä", 1, 1, None, 2, Decimal("0.1"), workers=("a",), plan=("a[]: x",))
    result = Result.of("s", sums(1)[0], "d", outcome, Grade(True, "ä"), {"n": 1})
    with ResultLog(tmp_path / "r.jsonl") as log:
        log.add(result)
    with ResultLog(tmp_path / "r.jsonl") as log:
        assert log.get(*result.key) == result


async def test_at_most_the_configured_number_of_questions_run_concurrently():
    open_now, most = 0, 0

    async def one(_: int) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0)
        open_now -= 1

    await for_each(range(50), one, 7)
    assert most == 7


def test_these_pools_contain_no_synthetic_workers():
    assert pools.backend().provenance == {}, (
        "workers of one's own are taken for models unless they say otherwise"
    )
