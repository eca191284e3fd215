"""Runs of follow-up turns: which workers are called, when, with which prompt and at which cost."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from conductor.errors import BudgetExceeded, ContentFiltered, WorkerUnavailable
from conductor.model.call import AnswerFormat, Call, Sampling
from conductor.model.deltas import open_reply
from conductor.model.messages import (
    Message,
    Native,
    PendingCall,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
    Toolset,
)
from conductor.model.reply import CallResult, FinishReason, Reply, filter_error
from conductor.model.terms import Callee
from conductor.model.usage import Price, Usage, estimate, unseen_bytes
from conductor.run.call_bound import call_bound, sent_bytes
from conductor.run.codec import dump, load
from conductor.run.events import AnswerDelta, Event, RunFailed, RunFinished, RunSuspended
from conductor.run.follow_up import Agreement, FollowUp
from conductor.run.ledger import Budget, BudgetLedger, Hold
from conductor.run.lifecycle import open_run, resume_run
from conductor.run.record import Record, RunRecords
from conductor.run.run import Run
from conductor.run.steps import as_sent
from conductor.run.team import Team
from conductor.run.turns import StepTurn
from serving.workers.output_limit import OutputMeter
from tests.conductor.team import (
    DEAR,
    NEVER,
    Pause,
    Player,
    RunResult,
    a_plan,
    ask_for,
    check_everything_closed,
    line,
    member,
    run_and_check,
    team,
    turns,
)
from tests.conductor.test_suspending import TOOLS, calling, reply_with
from tests.conductor.test_suspending import run as run_segment
from tests.states import until

Gate = asyncio.Event
KEEP, OTHER = line(0, ""), line(1, "do it")
CHEAP_CACHE = Price(Decimal(3), Decimal(15), Decimal("0.3"), Decimal("3.75"))
"""Price at which no other worker may replace one that has 20,000 cached tokens."""


def follow(**facts: object) -> FollowUp:
    """Return a turn whose worker `a` has nothing in its cache."""
    usual = FollowUp(
        worker="a",
        prompt_tokens=20_500,
        cached_tokens={},
        answer_tokens=100,
        turns=0,
        is_tool_loop=False,
        stickiness=1.0,
        usd_per_s=Decimal("0.01"),
        why_ask="",
        agreement=Agreement(),
    )
    return dataclasses.replace(usual, **facts)  # type: ignore[arg-type]


def in_turn(engine: Team, **facts: object) -> Team:
    return dataclasses.replace(engine, follow_up=follow(**facts))


def without_turn(engine: Team) -> Team:
    """Return the team as a router has it that knows nothing about the turn."""
    return dataclasses.replace(engine, follow_up=None)


NO_EARLY_CALL = {"usd_per_s": None}
"""Facts that prevent an early call."""
CACHED = {"cached_tokens": {"a": 20_000}, **NO_EARLY_CALL}


def priced(a: Player, b: Player, boss: Player) -> Team:
    """Return a team in which a switch from `a` to `b` costs more than it gains, and one to `c` does not."""
    a.price = b.price = CHEAP_CACHE
    return team(a, b, Player("c"), conductor=boss)


def sources(record: Record) -> list[str]:
    return [plan.source for plan in record.plans]


async def read(run: Run, into: list[Event]) -> None:
    async for event in run.events():
        into.append(event)  # noqa: PERF401  (as they come)


async def run_to_decision(
    engine: Team, gate: asyncio.Event, state: Callable[[], object], time_s: float = 0.0, **facts: object
) -> RunResult:
    """Run to the end. The gate of the conductor opens `time_s` after `state` is reached."""
    ledger = BudgetLedger()
    async with open_run(engine, ask_for(**facts), ledger=ledger) as run:
        await until(state)
        await turns()
        await asyncio.sleep(time_s)
        gate.set()
        events = [event async for event in run.events()]
    check_everything_closed(engine)
    return RunResult(events, run.record, ledger)


def shown(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, AnswerDelta))


# An early answer


async def test_an_early_answer_is_shown_after_the_conductor_confirms_it() -> None:
    gate, agreement, events = Gate(), Agreement(), list[Event]()
    a, boss = Player("a", ["one ", "two"]), Player("boss", [gate, KEEP])
    engine = in_turn(team(a, Player("b"), conductor=boss), agreement=agreement)
    async with open_run(engine, ask_for()) as run:
        reader = asyncio.create_task(read(run, events))
        await until(lambda: a.n_pieces == 2 and not a.open_calls)
        await turns()
        assert not shown(events), "nothing before the conductor has decided"
        assert a.calls[0].messages[-1].text == "why is the sky blue?"
        gate.set()
        await reader
    check_everything_closed(engine)
    record = run.record
    assert (shown(events), record.answer, len(a.calls)) == ("one two", "one two", 1)
    assert sources(record) == ["conductor", "conversation"]
    assert [(plan.accepted, plan.stopped) for plan in record.plans] == [(True, False), (False, False)]
    assert "worker of the last answer" in record.plans[0].why
    assert record.answering_plan is record.plans[1]
    assert record.fallback is None
    assert (agreement.agreed, agreement.differed) == pytest.approx((9 * 0.98 + 1, 0.98))


async def test_an_unfinished_early_answer_streams_after_the_decision() -> None:
    gate, more, events = Gate(), Gate(), list[Event]()
    a, boss = Player("a", ["one ", more, "two"]), Player("boss", [gate, KEEP])
    async with open_run(in_turn(team(a, Player("b"), conductor=boss)), ask_for()) as run:
        reader = asyncio.create_task(read(run, events))
        await until(lambda: a.n_pieces == 1)
        gate.set()
        await until(lambda: shown(events) == "one ")
        more.set()
        await reader
    assert run.record.answer == "one two"


@pytest.mark.parametrize("early", ["silent", "writing", "done", "failed", "calls a tool"])
async def test_another_plan_replaces_an_early_answer(early: str) -> None:
    gate, agreement = Gate(), Agreement()
    scripts = {
        "silent": [NEVER],
        "writing": ["mine", NEVER],
        "done": ["mine"],
        "failed": [WorkerUnavailable("gone")],
        "calls a tool": calling("x"),
    }
    a, b, boss = Player("a", scripts[early]), Player("b", "better"), Player("boss", [gate, OTHER])
    engine = in_turn(team(a, b, conductor=boss), agreement=agreement)

    run = await run_to_decision(engine, gate, lambda: a.calls, tools=TOOLS)
    first, lost, last = run.record.plans
    assert sources(run.record) == ["conductor", "conversation", "conductor"]
    assert (run.text, run.record.answer) == ("better", "better")
    assert (first.accepted, first.steps, first.result is None) == (False, (), False)
    assert (lost.stopped, lost.is_answered) == (True, False)
    outcome = {"done": "done", "failed": "failed"}.get(early, "cancelled")
    assert [step.status for step in lost.steps] == [outcome]
    assert [(step.worker, step.subtask) for step in last.steps] == [("b", "do it")]
    assert run.record.answering_plan is last
    assert agreement.differed > 1


async def test_a_plan_with_the_same_first_step_reuses_the_early_answer() -> None:
    gate = Gate()
    a, b, boss = Player("a", "mine"), Player("b", "short"), Player("boss", [gate, KEEP, line(1, "Shorten it.", [0])])  # fmt: skip

    engine = in_turn(team(a, b, conductor=boss))
    run = await run_to_decision(engine, gate, lambda: a.n_pieces and not a.open_calls)
    assert (run.text, len(a.calls)) == ("short", 1)
    assert [step.reused_from for step in run.record.plans[-1].steps] == [1, None]


@pytest.mark.parametrize(
    "script",
    ["rubbish", [WorkerUnavailable("gone")], [line(0), WorkerUnavailable("gone")], [line(0), NEVER]],
    ids=["rubbish", "fails", "breaks off", "late"],
)
@pytest.mark.parametrize("facts", [{}, NO_EARLY_CALL, CACHED], ids=["early", "no early call", "cached"])
async def test_a_conductor_that_writes_no_plan_keeps_the_worker(
    script: object, facts: dict[str, object]
) -> None:
    a, b, boss = Player("a", "mine"), Player("b"), Player("boss", script)  # type: ignore[arg-type]
    engine = in_turn(team(a, b, conductor=boss, timeout_s=5.0), **facts)
    run = await run_and_check(engine, ask_for())
    is_begun = len(script) == 2 and facts is NO_EARLY_CALL  # type: ignore[arg-type]
    assert len(boss.calls) == 1, "it is not asked again"
    assert sources(run.record) == ["conductor", "conversation"]
    assert (run.text, len(a.calls)) == ("mine", 1 + is_begun)
    assert not run.record.plans[0].accepted
    assert run.record.plans[0].rejection or run.record.plans[0].failure


@pytest.mark.parametrize("boss", [KEEP, "rubbish"])
async def test_a_failed_sticky_worker_is_replaced_by_another(boss: str) -> None:
    a, b = Player("a", [WorkerUnavailable("gone")]), Player("b", "instead")
    run = await run_and_check(in_turn(team(a, b, conductor=Player("boss", boss))), ask_for())
    assert (run.text, len(a.calls)) == ("instead", 1)
    assert sources(run.record) == ["conductor", "conversation", "fallback"]
    assert run.record.fallback is not None
    assert run.record.fallback.endswith("then a failed: WorkerUnavailable")


async def test_tools_that_a_worker_calls_early_wait_for_the_decision() -> None:
    gate, events = Gate(), list[Event]()
    native = Native("a", "", {"signed": "thought"})
    a = Player("a", calling("x", words="Let me look.", native=native), ["It is 7."])
    engine = in_turn(team(a, Player("b"), conductor=Player("boss", [gate, KEEP])))
    async with open_run(engine, ask_for(tools=TOOLS)) as run:
        reader = asyncio.create_task(read(run, events))
        await until(lambda: a.calls and not a.open_calls)
        await turns()
        assert run.record.status == "running"
        gate.set()
        await reader
        suspended = run.record
    assert isinstance(events[-1], RunSuspended)
    assert ([call.number for call in events[-1].calls], events[-1].text) == ([0], "Let me look.")
    assert sources(suspended) == ["conductor", "conversation"]


FORCED = Toolset(TOOLS.tools, ToolChoice("required"))
WHOLE: dict[str, dict[str, object]] = {
    "stop": {"sampling": Sampling(stop=("END",))},
    "a format": {"answer_format": AnswerFormat()},
    "a forced tool": {"tools": FORCED},
}


@pytest.mark.parametrize("facts", WHOLE.values(), ids=list(WHOLE))
async def test_an_early_call_starts_before_the_plan_with_all_parameters(
    facts: dict[str, object],
) -> None:
    a, boss = Player("a", [NEVER]), Player("boss", [NEVER])
    async with open_run(in_turn(team(a, conductor=boss)), ask_for(**facts)):
        await until(lambda: a.calls)
    (call,) = a.calls
    task = ask_for(**facts)
    assert (call.sampling.stop, call.answer_format) == (task.sampling.stop, task.answer_format)
    assert call.tools.choice == task.tools.choice


async def test_a_plan_that_cannot_call_a_forced_tool_keeps_the_worker() -> None:
    a, b = Player("a", "mine"), Player("b")
    engine = team(a, b, conductor=Player("boss", OTHER))
    engine = dataclasses.replace(engine, pool=engine.pool | {"b": member(b, calls_tools=False)})
    run = await run_and_check(in_turn(engine), ask_for(tools=FORCED))
    assert (run.text, run.record.plans[0].rejection is None) == ("mine", False)


async def test_a_second_round_follows_a_sticky_worker() -> None:
    a, boss = Player("a", "first", "better"), Player("boss", KEEP, line(0, "mend it"))
    run = await run_and_check(in_turn(team(a, Player("b"), conductor=boss)), ask_for(rounds=2))
    assert sources(run.record) == ["conductor", "conversation", "revision"]
    assert run.text == "better"


async def test_the_answer_to_tool_results_gets_no_second_round() -> None:
    talk = (HELLO, call_of("x"), result_of("x"))
    a, boss = Player("a", "mine"), Player("boss", OTHER)
    engine = in_turn(team(a, Player("b"), conductor=boss), is_tool_loop=True)
    run = await run_and_check(engine, replace(ask_for(rounds=2), conversation=talk))
    assert (run.text, boss.calls, sources(run.record)) == ("mine", [], ["conversation"])


async def test_no_second_round_follows_tools_that_the_conversations_worker_called() -> None:
    a, boss = Player("a", calling("x"), ["mine"]), Player("boss", KEEP, OTHER)
    engine = in_turn(team(a, Player("b"), conductor=boss), **CACHED)
    records, _ = await run_segment(engine, ask_for(tools=TOOLS, rounds=2))
    engine = without_turn(engine)
    records, _ = await run_segment(engine, records=records, client_reply=reply_with((0, "one")))
    assert (records.record.answer, sources(records.record)) == ("mine", ["conductor", "conversation"])


@pytest.mark.parametrize(("revision", "answer"), [(line(1), "mine"), (line(2), "other"), (line(0), "better")])
async def test_a_second_round_may_switch_only_under_the_rule_of_the_first(revision: str, answer: str) -> None:
    a, b = Player("a", "mine", "better"), Player("b")
    engine = priced(a, b, Player("boss", KEEP, revision))
    engine = dataclasses.replace(engine, pool=engine.pool | {"c": member(Player("c", "other"))})
    run = await run_and_check(in_turn(engine, **CACHED), ask_for(rounds=2))
    last = run.record.plans[-1]
    assert (run.text, b.calls, last.source) == (answer, [], "revision")
    assert last.accepted is (answer == "mine")
    assert last.why.startswith("The plan names b, but reading" if last.accepted else "")


async def test_an_inner_run_is_not_a_follow_up() -> None:
    itself = '{"worker": "team", "subtask": "x", "access": []}'
    a, boss = Player("a", "mine", "inner"), Player("boss", itself, line(0))
    run = await run_and_check(in_turn(team(a, conductor=boss), **NO_EARLY_CALL), ask_for(depth=1))
    (inner,) = run.inner.values()
    assert (run.text, sources(inner)) == ("mine", ["conductor"])


# Asked first, or not at all


async def test_without_a_cache_steps_start_while_the_plan_is_written() -> None:
    gate, b = Gate(), Player("b", "better")
    boss = Player("boss", [OTHER, gate])
    async with open_run(in_turn(team(Player("a"), b, conductor=boss), **NO_EARLY_CALL), ask_for()) as run:
        await until(lambda: b.calls)
        assert run.record.plans[0].ended_s is None
        gate.set()
        await until(lambda: run.record.status == "finished")
    assert sources(run.record) == ["conductor"]
    assert "cache" not in boss.calls[0].messages[-1].text


async def test_a_plan_that_would_lose_more_than_it_gains_is_not_run() -> None:
    a, b, boss = Player("a", "mine"), Player("b"), Player("boss", OTHER)
    run = await run_and_check(in_turn(priced(a, b, boss), **CACHED), ask_for())
    assert (run.text, b.calls, sources(run.record)) == ("mine", [], ["conductor", "conversation"])
    first, second = run.record.plans
    assert first.accepted
    assert first.why == second.why
    assert first.why == "The plan names b, but reading this conversation again would cost $0.0690, and the expected gain is $0.0094."  # fmt: skip
    question = boss.calls[0].messages[-1].text
    assert question.endswith("Worker 0 gave the last answer. Worker 0 has 20,000 tokens of this conversation in its cache, worth $0.0540. Another worker would have to read them again.")  # fmt: skip


async def test_the_conductors_calls_do_not_follow_the_workers_to_their_deployment() -> None:
    a, boss = Player("a", "mine"), Player("boss", KEEP)
    await run_and_check(in_turn(team(a, conductor=boss), deployment="east", **CACHED), ask_for())
    homes = [call.terms.home for call in (*boss.calls, *a.calls)]
    assert homes == [("", ""), ("a", "east")]


@pytest.mark.parametrize("script", [line(2), line(0, "do it"), line(0, "x") + line(2, "y", [0])])
async def test_a_permitted_plan_runs_completely_with_an_ordinary_record(script: str) -> None:
    a, b, boss = Player("a", "mine"), Player("b"), Player("boss", script)
    run = await run_and_check(in_turn(priced(a, b, boss), **CACHED), ask_for())
    assert sources(run.record) == ["conductor"]
    (plan,) = run.record.plans
    assert plan.result is not None
    assert len(plan.steps) == script.count("\n")
    assert run.text == ("mine" if script == line(0, "do it") else "ok")


async def test_no_plan_is_written_in_a_tool_loop_or_without_a_better_worker() -> None:
    for facts in ({"is_tool_loop": True}, CACHED):
        a, boss = Player("a", "mine"), Player("boss")
        engine = priced(a, Player("b"), boss)
        engine = dataclasses.replace(engine, pool={name: engine.pool[name] for name in "ab"})
        run = await run_and_check(in_turn(engine, **facts), ask_for())
        assert (run.text, boss.calls, sources(run.record)) == ("mine", [], ["conversation"])
        assert run.record.plans[0].why.endswith(".")


@pytest.mark.parametrize(("limit", "is_asked"), [(1_500, False), (3_000, True), (None, True)])
async def test_a_conversation_too_long_for_the_conductor_stays_on_its_worker(
    limit: int | None, is_asked: bool
) -> None:
    boss = Player("boss", KEEP)
    engine = team(Player("a"), Player("b"), conductor=boss)
    assert engine.conductor is not None
    leader = dataclasses.replace(engine.conductor, member=member(boss, context_tokens=limit))
    engine = in_turn(dataclasses.replace(engine, conductor=leader))
    run = await run_and_check(engine, ask_for("word " * 600))
    assert (run.record.status, bool(boss.calls)) == ("finished", is_asked)


async def test_the_conductor_plans_the_turn_if_the_sticky_worker_fails() -> None:
    a, b, boss = Player("a", [WorkerUnavailable("gone")]), Player("b", "instead"), Player("boss", OTHER)
    run = await run_and_check(in_turn(team(a, b, conductor=boss), is_tool_loop=True), ask_for())
    assert (run.text, sources(run.record)) == ("instead", ["conversation", "conductor"])
    boss = Player("boss", "rubbish")
    run = await run_and_check(in_turn(team(a, b, conductor=boss), is_tool_loop=True), ask_for())
    assert (run.text, sources(run.record)) == ("instead", ["conversation", "conductor", "repair", "fallback"])
    assert len(a.calls) == 2


async def test_requests_with_limits_make_one_call_at_a_time() -> None:
    gate, a = Gate(), Player("a", "mine")
    boss = Player("boss", [gate, KEEP])
    task = ask_for(budget=Budget(max_cost_usd=Decimal(1)))
    async with open_run(in_turn(team(a, Player("b"), conductor=boss)), task) as run:
        await until(lambda: boss.calls)
        await turns()
        assert not a.calls
        gate.set()
        await until(lambda: run.record.status == "finished")


@pytest.mark.parametrize(
    "facts", [{"plan_only": True}, {"strict": True}, {"plan": a_plan(("b", ()))}], ids=str
)
async def test_requests_with_a_plan_or_for_a_plan_are_not_follow_ups(facts: dict[str, object]) -> None:
    engine = in_turn(team(Player("a"), Player("b"), conductor=Player("boss", OTHER)), is_tool_loop=True)
    run = await run_and_check(engine, ask_for(**facts))
    assert "conversation" not in sources(run.record)


async def test_a_worker_that_the_request_excludes_gets_no_follow_up() -> None:
    engine = in_turn(team(Player("a"), Player("b"), conductor=Player("boss", line(0))), **CACHED)
    run = await run_and_check(engine, ask_for(exclude_workers=("a",)))
    assert sources(run.record) == ["conductor"]


# Money


class RecordsCallee(Player):
    """Worker that records which callee it is sent to: itself or a fallback."""

    fallback = ""

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        assert call.terms.holds is not None
        call.terms.holds.hold().record_callee(Callee(self.fallback or self.name, price=self.price))
        return super().open(call)


async def test_a_closed_call_without_tokens_is_billed_at_an_estimate() -> None:
    gate = Gate()
    a, b = RecordsCallee("a", [NEVER], price=DEAR), Player("b", "better")
    engine = in_turn(team(a, b, conductor=Player("boss", [gate, OTHER])), usd_per_s=Decimal(99))

    run = await run_to_decision(engine, gate, lambda: a.calls, time_s=2.0)
    (call,) = a.calls
    bound = call_bound(engine.pool["a"], call)
    likely = DEAR.of(estimate(bound, unseen_bytes(2.0), sent_bytes=sent_bytes(call)))
    (step,) = run.record.plans[1].steps
    (attempt,) = step.failed
    assert run.text == "better"
    assert (attempt.worker, attempt.outcome, attempt.cost_is_bound) == ("a", "cut", True)
    assert attempt.cost_usd == pytest.approx(likely, rel=Decimal("0.05"))
    assert DEAR.most(bound) > 3 * likely
    assert run.record.cost_usd == run.ledger.spent_usd == attempt.cost_usd
    assert run.record.cost_is_bound
    assert run.record.n_unmetered_calls == 1
    assert load(Record, dump(run.record)) == run.record


async def test_a_closed_call_of_a_free_worker_is_recorded_with_zero_cost() -> None:
    gate = Gate()
    a, boss = RecordsCallee("a", [NEVER]), Player("boss", [gate, OTHER])
    run = await run_to_decision(in_turn(team(a, Player("b"), conductor=boss)), gate, lambda: a.calls)
    (attempt,) = run.record.plans[1].steps[0].failed
    assert (attempt.outcome, attempt.cost_usd, attempt.cost_is_bound) == ("cut", 0, False)


@pytest.mark.parametrize("fallback", ["", "elsewhere"])
async def test_the_estimate_of_a_closed_call_includes_cached_tokens(fallback: str) -> None:
    gate = Gate()
    a, b, boss = RecordsCallee("a", [NEVER]), Player("b"), Player("boss", [gate, line(2)])
    a.fallback = fallback
    engine = in_turn(priced(a, b, boss), cached_tokens={"a": 20_000}, usd_per_s=Decimal(99))

    run = await run_to_decision(engine, gate, lambda: a.calls, time_s=0.5)
    cached = 0 if fallback else 20_000
    prompt = Usage(20_500, cached_input_tokens=cached, cache_write_tokens=500 if cached else 0)
    bound = call_bound(engine.pool["a"], a.calls[0])
    likely = CHEAP_CACHE.of(estimate(bound, unseen_bytes(0.5), prompt))
    (attempt,) = run.record.plans[1].steps[0].failed
    assert attempt.cost_usd == pytest.approx(min(likely, CHEAP_CACHE.most(bound)), rel=Decimal("0.1"))
    assert run.record.cost_usd == run.ledger.spent_usd == attempt.cost_usd


async def test_a_closed_call_costs_the_tokens_that_it_has_written() -> None:
    gate = Gate()
    a, b = RecordsCallee("a", ["mine ", NEVER], price=DEAR), Player("b", "better")
    engine = in_turn(team(a, b, conductor=Player("boss", [gate, OTHER])), usd_per_s=Decimal(99))

    run = await run_to_decision(engine, gate, lambda: a.n_pieces == 1)
    assert run.record.plans[1].steps[0].result is not None
    assert run.record.cost_usd == run.ledger.spent_usd
    assert run.ledger.spent_usd > 0


class Metered(Player):
    """Worker with a meter of what its server has reported of the prompt."""

    def __init__(self, *args: Any, reported: Usage | None = None, **facts: Any) -> None:
        super().__init__(*args, **facts)
        self.meter = OutputMeter()
        self.meter.reported_usage = reported

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, "a-1", self._deltas(call), self.price, self.meter)


LONG = "word " * 20_000
REPORTED = Usage(25_000, cached_input_tokens=22_000)
PROMPT = Usage(20_500, cached_input_tokens=20_000, cache_write_tokens=500)


@pytest.mark.parametrize("reported", [None, REPORTED])
@pytest.mark.parametrize("ends", ["another plan", "client leaves"])
async def test_a_call_that_ends_after_its_first_token_is_billed_with_its_cached_prompt(
    ends: str, reported: Usage | None
) -> None:
    gate, ledger = Gate(), BudgetLedger()
    a = Metered("a", ["mine ", NEVER], price=CHEAP_CACHE, reported=reported)
    boss = Player("boss", [gate, line(2) if ends == "another plan" else KEEP])
    engine = in_turn(priced(a, Player("b"), boss), cached_tokens={"a": 20_000}, usd_per_s=Decimal(99))
    async with open_run(engine, ask_for(LONG), ledger=ledger) as run:
        await until(lambda: a.n_pieces == 1)
        gate.set()
        if ends != "client leaves":
            [event async for event in run.events()]
    check_everything_closed(engine)
    step = run.record.plans[1].steps[0]
    assert step.result is not None
    expected = CHEAP_CACHE.of(replace(reported or PROMPT, output_tokens=5 // 2 + 16))
    assert step.result.cost_usd == ledger.spent_usd == run.record.cost_usd == expected
    assert step.result.cost_is_bound
    is_told = any("has probably cached 20,000." in note for note in step.result.notes)
    assert is_told == (reported is None)


async def test_a_failed_call_is_billed_with_its_cached_prompt() -> None:
    error = WorkerUnavailable("gone", billed_at_bound=True)
    error.streamed_bytes, error.sent_bytes = 0, 100_000
    a = RecordsCallee("a", [error], price=CHEAP_CACHE)
    engine = in_turn(priced(a, Player("b"), Player("boss")), cached_tokens={"a": 20_000}, is_tool_loop=True)
    run = await run_and_check(engine, ask_for(LONG))
    failure = run.record.plans[0].steps[0].failure
    assert failure is not None
    assert failure.cost_usd == CHEAP_CACHE.of(replace(PROMPT, output_tokens=16))


@pytest.mark.parametrize(("facts", "is_estimate"), [({"is_tool_loop": True}, True), (NO_EARLY_CALL, False)])
async def test_only_calls_of_the_conversation_s_plan_are_billed_at_an_estimate(
    facts: dict[str, object], is_estimate: bool
) -> None:
    a, ledger = RecordsCallee("a", [NEVER], price=DEAR), BudgetLedger()
    engine = in_turn(team(a, conductor=Player("boss", line(0))), **facts)
    async with open_run(engine, ask_for(), ledger=ledger) as run:
        await until(lambda: a.calls)
        await turns()
    most = DEAR.most(call_bound(engine.pool["a"], a.calls[0]))
    assert (ledger.spent_usd < most, ledger.spent_usd == most) == (is_estimate, not is_estimate)
    assert run.record.cost_usd == (ledger.spent_usd if is_estimate else 0)


class OneCall(BudgetLedger):
    """Ledger with money for one call at a time."""

    @asynccontextmanager
    async def hold(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> AsyncGenerator[Hold]:
        if self.holds:
            raise BudgetExceeded("There is not enough for two calls.")
        async with super().hold(price, input_tokens, max_output_tokens, what) as hold:
            yield hold


async def test_a_budget_for_one_call_pays_the_conductor_first_then_the_worker() -> None:
    a, boss = Player("a", "mine", price=DEAR), Player("boss", [Pause(), KEEP], price=DEAR)
    engine = in_turn(team(a, Player("b"), conductor=boss), usd_per_s=Decimal(99))
    async with open_run(engine, ask_for(), ledger=OneCall()) as run:
        events = [event async for event in run.events()]
    check_everything_closed(engine)
    assert isinstance(events[-1], RunFinished)
    assert (run.record.answer, len(a.calls)) == ("mine", 1)
    assert sources(run.record) == ["conductor", "conversation", "conversation"]
    assert [plan.stopped for plan in run.record.plans] == [False, True, False]


class NoMoney(BudgetLedger):
    """Ledger that rejects each call at once."""

    @asynccontextmanager
    async def hold(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> AsyncGenerator[Hold]:
        raise BudgetExceeded("There is no money left.")
        yield


async def test_a_budget_that_rejects_the_conductor_at_once_is_the_error_of_the_run() -> None:
    a, boss = Player("a", price=DEAR), Player("boss", KEEP, price=DEAR)
    engine = in_turn(team(a, conductor=boss), usd_per_s=Decimal(99))
    async with open_run(engine, ask_for(), ledger=NoMoney()) as run:
        events = [event async for event in run.events()]
    check_everything_closed(engine)
    assert isinstance(events[-1], RunFailed)
    assert events[-1].failure.is_a(BudgetExceeded)
    assert all(plan.ended_s is not None for plan in run.record.plans)


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_filter_error_of_the_conductor_reaches_the_client_if_the_settings_say_so(
    is_told: bool,
) -> None:
    gate = Gate()
    a, boss = Player("a", "mine"), Player("boss", [gate, filter_error("boss")])
    engine = in_turn(team(a, Player("b"), conductor=boss))
    assert engine.conductor is not None
    leader = dataclasses.replace(
        engine.conductor.member, reports_filter=frozenset({"boss"} if is_told else ())
    )
    engine = dataclasses.replace(engine, conductor=dataclasses.replace(engine.conductor, member=leader))
    run = await run_to_decision(engine, gate, lambda: a.calls)
    last = run.events[-1]
    assert len(a.calls) == 1
    if is_told:
        assert isinstance(last, RunFailed)
        assert last.failure.is_a(ContentFiltered)
        assert not shown(run.events)
    else:
        assert isinstance(last, RunFinished)
        assert shown(run.events) == "mine"


# Leaving and going on


def scene(decision: str, **facts: object) -> tuple[Team, Player]:
    a = Player("a", ["one ", "two ", "three"], price=DEAR)
    b = Player("b", ["other ", "words"], price=DEAR)
    boss = Player("boss", [decision[at : at + 16] for at in range(0, len(decision), 16)], price=DEAR)
    return in_turn(team(a, b, conductor=boss), **{"usd_per_s": Decimal(99), **facts}), a


SCENES = {"kept": KEEP, "replaced": OTHER + line(0, "join", [0]), "refused": "rubbish"}


@pytest.mark.parametrize("decision", SCENES.values(), ids=list(SCENES))
async def test_a_follow_up_may_be_cancelled_after_every_event(decision: str) -> None:
    count = len((await run_and_check(scene(decision)[0], ask_for())).events)
    assert count > 8
    for leave_after in range(count):
        engine, _ = scene(decision)
        ledger = BudgetLedger(Budget(max_cost_usd=Decimal(100)))
        async with open_run(engine, ask_for(), ledger=ledger) as run:
            for _ in range(leave_after):
                await run.answer.next()
        check_everything_closed(engine)
        assert (ledger.holds, ledger.on_hold_usd) == ([], 0)
        assert run.record.status == "cancelled"
        for plan in run.record.plans:
            assert plan.ended_s is not None
            assert all(step.status not in ("planned", "running", "waiting") for step in plan.steps)


@pytest.mark.parametrize("is_planned_stop", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize("facts", [{}, CACHED, {"is_tool_loop": True}], ids=["early", "cached", "stay"])
@pytest.mark.parametrize("decision", SCENES.values(), ids=list(SCENES))
async def test_a_follow_up_interrupted_after_any_event_ends_in_another_process(
    decision: str, facts: dict[str, object], is_planned_stop: bool
) -> None:
    snapshots: list[object] = []
    engine, _ = scene(decision, **facts)
    async with open_run(
        engine, ask_for(), "wf_1", journal=lambda record, *_: snapshots.append(dump(RunRecords(record)))
    ) as run:
        count = len([event async for event in run.events()])
    assert run.record.status == "finished"
    if is_planned_stop:
        snapshots.clear()
        for n_events in range(count):
            engine, _ = scene(decision, **facts)
            async with open_run(engine, ask_for(), "wf_1") as run:
                for _ in range(n_events):
                    await run.answer.next()
                run.detach()
            snapshots.append(dump(run.records))
    for snapshot in snapshots[:-1]:
        records = load(RunRecords, snapshot)
        engine, a = scene(decision, **facts)
        done = [step.worker for step in records.record.steps if step.status == "done"]
        async with resume_run(without_turn(engine), records) as going:
            [_ async for _ in going.events()]
        check_everything_closed(engine)
        record = going.record
        assert record.status == "finished", records.record
        assert record.answer in ("one two three", "other words")
        assert all(plan.ended_s is not None for plan in record.plans)
        assert all(step.status not in ("planned", "running") for step in record.steps)
        if decision is KEEP and facts.get("is_tool_loop"):
            assert len(a.calls) + done.count("a") == 1, "a finished step is not made again"


# Tool turns of earlier runs


def turn_of(*names: str, first: int = 0, native: Native | None = None) -> StepTurn:
    calls = tuple(
        PendingCall(first + n, ToolCall(f"native-{name}", "read", f'{{"path":"{name}"}}'))
        for n, name in enumerate(names)
    )
    result = CallResult("Let me look.", "a", "a-1", Usage(10, 2), Decimal(0), FinishReason.TOOL_CALLS, native=native)  # fmt: skip
    return StepTurn(result, calls)


def call_of(*names: str) -> Message:
    """Return the turn as a client resends it, with its own ids and reformatted arguments."""
    return Message(
        "assistant",
        (
            Text("Let me look."),
            *(ToolCall(f"call_{name}", "read", f'{{ "path": "{name}" }}') for name in names),
        ),
    )


def result_of(*names: str) -> Message:
    return Message("tool", tuple(ToolResult(f"call_{name}", (Text(f"in {name}"),)) for name in names))


NATIVE = Native("a", "", {"signed": "thought"})
XY, Z = turn_of("x", "y", native=NATIVE), turn_of("z", first=2)
EARLIER = {"call_x": XY, "call_y": XY, "call_z": Z}
HELLO, THANKS = Message.of("user", "what is in x and y?"), Message.of("user", "Thanks. And z?")


def test_earlier_turns_are_sent_unchanged_with_the_clients_results() -> None:
    # Chat Completions has one message per result, in any order.
    talk = (HELLO, call_of("x", "y"), result_of("y"), result_of("x"), THANKS, call_of("z"), result_of("z"))
    first, called, answered, thanks, again, last = as_sent(talk, EARLIER)
    assert (first, thanks) == (HELLO, THANKS)
    assert called == XY.messages[0]
    assert [(each.id, each.text) for each in answered.tool_results] == [("native-x", "in x"), ("native-y", "in y")]  # fmt: skip
    assert again == Z.messages[0]
    assert [(each.id, each.text) for each in last.tool_results] == [("native-z", "in z")]


def test_results_stay_in_call_order_if_the_provider_sets_no_ids() -> None:
    calls = tuple(replace(each, call=replace(each.call, id="")) for each in XY.calls)
    turn = replace(XY, calls=calls)
    sent = as_sent((call_of("x", "y"), result_of("y", "x")), {"call_x": turn, "call_y": turn})
    assert [each.text for each in sent[1].tool_results] == ["in x", "in y"]


@pytest.mark.parametrize(
    "talk",
    [
        (HELLO, Message.of("assistant", "Hello."), THANKS),
        (HELLO, call_of("x"), result_of("x")),
        (HELLO, call_of("x", "y", "z"), result_of("x", "y", "z")),
        (HELLO, call_of("x", "unknown"), result_of("x", "unknown")),
        (HELLO, call_of("unknown"), result_of("unknown")),
    ],
    ids=["no call", "a part of a turn", "two turns", "an unknown call", "another provider's"],
)
def test_messages_that_do_not_form_a_complete_turn_are_not_changed(talk: tuple[Message, ...]) -> None:
    assert list(as_sent(talk, EARLIER)) == list(talk)
    assert as_sent(talk, {}) is talk


def test_missing_and_unknown_results_are_not_changed() -> None:
    assert as_sent((call_of("z"),), EARLIER) == [Z.messages[0]]
    sent = as_sent((call_of("z"), result_of("other")), EARLIER)
    assert sent == [Z.messages[0], result_of("other")]


def test_a_clients_cache_mark_stays_at_the_end_of_its_turn() -> None:
    talk = call_of("z")
    marked = replace(talk, parts=(*talk.parts[:-1], replace(talk.parts[-1], cache="5m")))
    (sent,) = as_sent((marked,), EARLIER)
    assert [part.cache for part in sent.parts] == ["", "5m"]
    assert sent == Z.messages[0], "marks do not count"


async def test_a_worker_receives_its_earlier_turns_unchanged() -> None:
    talk = (HELLO, call_of("x", "y"), result_of("x", "y"), THANKS)
    a = Player("a", "fine")
    engine = dataclasses.replace(team(a, conductor=Player("boss", line(0, ""))), earlier_turns=EARLIER)
    for facts in ({"plan": a_plan(("a", ())), "plan_source": "worker"}, {}):
        task = replace(ask_for(tools=TOOLS, **facts), conversation=talk)
        run = await run_and_check(engine, task)
        messages = a.calls[-1].messages
        assert messages[1].native == NATIVE
        assert [result.id for result in messages[2].tool_results] == ["native-x", "native-y"]
        assert run.record.task.conversation == talk, "the record has the client's"
    await run_and_check(engine, replace(task, tools=Toolset()))
    texts = [message.text for message in a.calls[-1].messages]
    assert not any(message.tool_calls for message in a.calls[-1].messages), "a model without tools reads text"
    assert any('{"path":"x"}' in text for text in texts)
