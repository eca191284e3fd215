"""Whole runs: plans that are written, repaired, abandoned or revised, depth, deadlines, and the record."""

import asyncio
import dataclasses
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import (
    BudgetExceeded,
    DeadlineExceeded,
    Interrupted,
    NoPlan,
    Reason,
    WorkerBusy,
    WorkerRefused,
    WorkerUnavailable,
)
from conductor.model.call import Call
from conductor.model.failure import Failure
from conductor.model.messages import Image, Message, Text
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import Usage
from conductor.plan.plan import Format, Plan
from conductor.run.event_log import ROOM
from conductor.run.events import AnswerDelta, Event, RunFailed, RunFinished
from conductor.run.fold import fold
from conductor.run.ledger import Budget, BudgetLedger
from conductor.run.lifecycle import open_run
from conductor.run.record import Record
from conductor.run.rounds import SAME_AGAIN
from conductor.run.task import Task
from conductor.run.team import TEAM as ITSELF
from conductor.run.team import ConductorModel, Team
from tests.conductor.plans import NAMES, plans
from tests.conductor.team import (
    DEAR,
    NEVER,
    Player,
    RunResult,
    Script,
    a_plan,
    ask_for,
    check_everything_closed,
    line,
    member,
    render_plan,
    run_and_check,
    team,
    turns,
)  # fmt: skip
from tests.states import until

Gate = asyncio.Event
ACCEPT = '{"accept": true}'
FORWARD = line(0, "read ahead", [3])


def sources(run: RunResult) -> list[str]:
    return [plan.source for plan in run.record.plans]


# Plans that cannot run


async def test_a_plan_that_cannot_run_is_repaired_once() -> None:
    boss = Player("boss", [line(0), FORWARD], line(0))
    run = await run_and_check(team(Player("a", "fine"), conductor=boss), ask_for())
    assert (run.text, run.record.status) == ("fine", "finished")
    assert sources(run) == ["conductor", "repair"]
    refused = run.record.plans[0]
    assert (refused.reject_reason, run.record.fallback) == (Reason.READS_FORWARD, None)
    complaint = boss.calls[1].messages
    assert complaint[:2] == boss.calls[0].messages
    assert complaint[2].text == line(0) + FORWARD
    assert refused.why in complaint[3].text


async def test_an_invalid_plan_falls_back_to_one_worker_and_records_the_reason() -> None:
    boss, worker = Player("boss", "I would rather talk."), Player("a", ["the ", "answer"])
    run = await run_and_check(team(worker, Player("b"), conductor=boss), ask_for("Why?"))
    assert (run.text, run.record.answer) == ("the answer", "the answer")
    assert sources(run) == ["conductor", "repair", "fallback"]
    assert len(boss.calls) == 2, "one repair, no more"
    assert str(Reason.NO_PLAN) in run.record.fallback
    assert worker.calls[0].messages == (Message.of("user", "Why?"),), (
        "the user's own question and nothing else"
    )


@pytest.mark.parametrize(
    ("fallback", "facts", "who"),
    [("b", {}, "b"), (None, {}, "a"), ("b", {"exclude_workers": ("b",)}, "a"), ("b", {"workers": ("c", "a")}, "c"), (None, {"depth": 1}, "a")],
)  # fmt: skip
async def test_the_fallback_is_a_worker_of_the_requests_pool(
    fallback: str | None, facts: dict[str, object], who: str
) -> None:
    engine = dataclasses.replace(
        team(*(Player(name, name) for name in "abc"), conductor=Player("boss", "no")), fallback=fallback
    )
    assert (await run_and_check(engine, ask_for(**facts))).text == who


@pytest.mark.parametrize(
    "error", [WorkerBusy("wait"), WorkerRefused("bad key"), WorkerUnavailable("gone")], ids=repr
)
@pytest.mark.parametrize("before", [[], [line(0)]], ids=["at once", "after a step"])
async def test_a_run_continues_without_a_failed_conductor(error: Exception, before: list[str]) -> None:
    boss, worker = Player("boss", [*before, error]), Player("a", "alone")
    run = await run_and_check(team(worker, conductor=boss), ask_for())
    assert run.text == "alone"
    is_tried_again = bool(before) and error.retryable  # the text broke off
    assert sources(run) == ["conductor", *(["conductor"] if is_tried_again else []), "fallback"]
    assert type(error).__name__ in run.record.fallback
    assert run.record.plans[0].failure == Failure.of(error)
    assert bool(run.record.plans[0].result) == bool(before), "what it took is in the record"
    assert run.record.answering is run.record.plans[-1].steps[0].result


async def test_without_a_conductor_only_plans_in_the_request_run() -> None:
    engine = team(Player("a", "fine"))
    assert isinstance((await run_and_check(engine, ask_for())).error, NoPlan)
    assert (await run_and_check(engine, ask_for(plan=a_plan(("a", ()))))).text == "fine"


async def test_a_step_over_the_limit_cancels_the_steps_in_progress() -> None:
    gate, slow = Gate(), Player("a", ["so far", NEVER], "second")
    boss = Player("boss", [line(0), gate, line(0)], line(0, "again"))
    engine = team(slow, conductor=boss)
    async with open_run(engine, ask_for(max_steps=1)) as run:
        await until(lambda: slow.n_pieces == 1)
        gate.set()
        events = [event async for event in run.events()]
    assert events[-1].answer == "second"
    assert run.record.plans[0].reject_reason is Reason.TOO_MANY_STEPS
    assert run.record.plans[0].steps[0].status == "cancelled"
    assert run.record.plans[0].steps[0].result.output == "so far"
    assert [event.text for event in events if isinstance(event, AnswerDelta)] == ["second"], (
        "nothing of the refused plan"
    )
    check_everything_closed(engine)


async def test_a_plan_cut_off_by_its_token_limit_is_rejected_as_truncated() -> None:
    boss = Player("boss", [line(0), Delta(finish=FinishReason.LENGTH)], line(0))
    run = await run_and_check(team(Player("a"), conductor=boss), ask_for())
    assert run.record.plans[0].reject_reason is Reason.TRUNCATED


async def test_accepting_a_missing_answer_is_not_a_plan() -> None:
    run = await run_and_check(team(Player("a", "fine"), conductor=Player("boss", ACCEPT)), ask_for())
    assert [plan.reject_reason for plan in run.record.plans] == [Reason.NO_PLAN, Reason.NO_PLAN, None]
    assert run.text == "fine"


async def test_a_step_in_a_schema_object_starts_while_the_plan_is_written() -> None:
    gate, worker = Gate(), Player("a", "x")
    boss = Player(
        "boss", ['{"thinking": "Two parts.", "steps": [', line(0).strip(), gate, f", {line(0, 'y', [0])}]}}"]
    )
    engine = team(worker, conductor=boss, constrained="json_schema", thought=True)
    async with open_run(engine, ask_for()) as run:
        await until(lambda: worker.calls)
        assert run.record.plans[0].ended_s is None
        gate.set()
        await until(lambda: run.record.status == "finished")
    schema = boss.calls[0].grammar.json_schema
    assert list(schema["properties"]) == ["thinking", "steps"]
    assert '{"thinking": ' in boss.calls[0].messages[0].text


async def test_a_copied_example_plan_runs() -> None:
    for max_steps, lengths in ((1, [1, 1]), (2, [1, 1, 2, 2]), (3, [1, 1, 2, 3, 2])):
        for nth, n_steps in enumerate(lengths):

            def copies(call: Call, nth: int = nth) -> str:
                return [row for row in call.messages[0].text.splitlines() if row.startswith("{")][nth]

            boss = Player("boss", copies)
            engine = team(Player("a", "fine"), conductor=boss, constrained="json_schema")
            run = await run_and_check(engine, ask_for(max_steps=max_steps))
            assert (run.text, sources(run)) == ("fine", ["conductor"])
            assert len(run.record.plans[0].steps) == n_steps


async def test_a_step_with_an_empty_subtask_gets_the_users_question() -> None:
    boss, worker = Player("boss", line(0, "") + line(0, "Shorten it.", [0])), Player("a", "fine")
    run = await run_and_check(team(worker, conductor=boss), ask_for("Why is the sky blue?"))
    assert worker.calls[0].messages[-1].text == "Why is the sky blue?"
    assert [step.subtask for step in run.record.plans[0].steps] == ["", "Shorten it."]


# Rounds


async def test_an_answer_is_streamed_only_after_it_is_accepted() -> None:
    gate, worker = Gate(), Player("a", ["first ", "answer"])
    boss = Player("boss", line(0), [gate, ACCEPT])
    async with open_run(team(worker, conductor=boss), ask_for(rounds=3)) as run:
        seen_so_far: list[Event] = []
        reader = asyncio.create_task(collect(run, seen_so_far))
        await until(lambda: boss.open_calls and len(boss.calls) == 2)
        await turns()
        assert not [event for event in seen_so_far if isinstance(event, AnswerDelta)]
        gate.set()
        await reader
    assert "".join(event.text for event in seen_so_far if isinstance(event, AnswerDelta)) == "first answer"
    assert seen_so_far[-1].answer == "first answer"
    assert [plan.accepted for plan in run.record.plans] == [False, True]
    assert len(boss.calls) == 2, "an accepted answer needs no third round"
    assert "first answer" in boss.calls[1].messages[-1].text
    assert run.record.answering.output == "first answer"
    assert run.record.rounds == 2


async def collect(run: object, into: list[Event]) -> None:
    async for event in run.events():  # type: ignore[attr-defined]
        into.append(event)  # noqa: PERF401


async def test_a_revised_plans_answer_replaces_the_first() -> None:
    worker, boss = Player("a", "first", "better"), Player("boss", line(0), line(0, "mend it"), ACCEPT)
    for rounds, calls in ((2, 2), (3, 3)):
        worker.calls.clear(), boss.calls.clear()
        run = await run_and_check(team(worker, conductor=boss), ask_for(rounds=rounds))
        assert (run.text, run.record.answer, run.record.answering.output) == ("better", "better", "better")
        assert len(boss.calls) == calls
        assert [plan.round for plan in run.record.plans] == list(range(rounds))


async def test_the_last_rounds_answer_is_streamed_immediately() -> None:
    gate = Gate()
    worker = Player("a", "first", ["bet", gate, "ter"])
    boss = Player("boss", line(0), line(0, "mend it"))
    async with open_run(team(worker, conductor=boss), ask_for(rounds=2)) as run:
        async for event in run.events():
            if isinstance(event, AnswerDelta) and event.text == "bet":
                assert worker.open_calls == 1
                gate.set()
        assert run.record.answer == "better"


@pytest.mark.parametrize("spelling", ["the same", "other words for it"])
@pytest.mark.parametrize("format", ["steps", "lists"])
async def test_repeating_the_same_plan_accepts_the_answer(format: Format, spelling: str) -> None:
    plan = a_plan(("a", ()), ("b", (0,)), ("c", (0, 1)))
    text = render_plan(plan, "abc", format)
    again = text if spelling == "the same" else text.replace("[0, 1]", '"all"').replace("[0]", " [ 0 ]")
    workers = [Player(name, f"{name} answers") for name in "abc"]
    engine = team(*workers, conductor=Player("boss", text, list(again)), format=format)
    run = await run_and_check(engine, ask_for(rounds=2))
    assert (run.text, run.record.status) == ("c answers", "finished")
    assert [len(worker.calls) for worker in workers] == [1, 1, 1]
    second = run.record.plans[1]
    assert (second.accepted, second.steps, second.why) == (True, (), SAME_AGAIN)
    assert second.result.output == again, "what the conductor wrote is in the record"
    assert run.record.answering_plan is run.record.plans[0]


@given(plans(), plans(), st.integers(0, 5))
def test_a_revised_plan_runs_completely_if_it_differs(first: Plan, other: Plan, shared: int) -> None:
    steps = (*first.steps[:shared], *other.steps)[:5]
    second = (
        Plan.of(steps, NAMES, 5) if all(max(s.access, default=-1) < n for n, s in enumerate(steps)) else other
    )
    players = [Player(name, lambda call: f"step {call.site.step} of plan {call.site.plan}") for name in NAMES]
    texts = [render_plan(plan, NAMES, "steps") for plan in (first, second)]
    run = asyncio.run(run_and_check(team(*players, conductor=Player("boss", *texts)), ask_for(rounds=2)))
    is_same = second.steps == first.steps
    assert run.record.plans[1].accepted == is_same
    new_steps = [(s.worker, s.subtask, s.access) for s in run.record.plans[1].steps]
    assert new_steps == ([] if is_same else [(s.worker, s.subtask, s.access) for s in second.steps])
    assert run.text == f"step {len((first if is_same else second).steps) - 1} of plan {int(not is_same)}"


async def test_a_revised_plan_starts_at_its_first_different_step() -> None:
    gate, worker = Gate(), Player("a", "ok")
    texts = line(0, "x") + line(0, "y", [0]), [line(0, "x"), gate, line(0, "z"), NEVER]
    async with open_run(team(worker, conductor=Player("boss", *texts)), ask_for(rounds=2)) as run:
        await until(lambda: len(run.record.plans) == 2)
        await turns()
        assert len(worker.calls) == 2, "what may yet be the same plan is not run again"
        gate.set()
        await until(lambda: len(worker.calls) == 4)
        assert run.record.plans[1].ended_s is None, "and the rest of it is not waited for"


@pytest.mark.parametrize(
    "verdicts",
    [["rubbish"], [FORWARD], [[line(0), FORWARD]], [[WorkerUnavailable("gone")]], [[line(0), WorkerUnavailable("gone")]], [FORWARD, [None]]],
    ids=["nonsense", "cannot run", "late", "fails", "fails after a step", "repair fails"],
)  # fmt: skip
async def test_an_unusable_revision_keeps_the_first_answer(verdicts: list[Script]) -> None:
    worker = Player("a", "first", "from a plan that was refused")
    boss = Player("boss", line(0), *verdicts)
    run = await run_and_check(team(worker, conductor=boss), ask_for(rounds=2))
    assert (run.text, run.record.answer) == ("first", "first")
    assert run.record.answering.output == "first"
    assert run.record.answering_plan is run.record.plans[0]


async def test_the_repair_of_an_invalid_revision_may_accept_the_answer() -> None:
    boss = Player("boss", line(0), FORWARD, ACCEPT)
    run = await run_and_check(team(Player("a", "first"), conductor=boss), ask_for(rounds=2))
    assert sources(run) == ["conductor", "revision", "repair"]
    assert (run.text, run.record.plans[2].accepted) == ("first", True)


async def test_a_plan_in_the_request_has_one_round() -> None:
    boss = Player("boss")
    run = await run_and_check(
        team(Player("a", "x"), conductor=boss),
        ask_for(plan=a_plan(("a", ())), rounds=3, plan_source="workflow"),
    )
    assert (boss.calls, sources(run)) == ([], ["workflow"])


# Planning only, shuffling, what a plan may cost


async def test_a_plan_only_request_calls_no_worker() -> None:
    worker, boss = Player("a"), Player("boss", [FORWARD], [line(0), line(0, "b", [0])])
    run = await run_and_check(team(worker, conductor=boss), ask_for(plan_only=True, rounds=3))
    assert (worker.calls, run.text) == ([], "")
    assert [step.subtask for step in run.record.plans[1].steps] == ["do it", "b"]
    assert run.record.status == "finished"


async def test_a_shuffled_pool_is_numbered_as_in_the_prompt() -> None:
    def third(call: Call) -> str:
        number = next(row[0] for row in call.messages[0].text.splitlines() if row.endswith(": the c"))
        return line(int(number))

    orders: set[str] = set()
    for _ in range(30):
        boss = Player("boss", third)
        run = await run_and_check(
            team(*(Player(name, name) for name in "abc"), conductor=boss, shuffle=True), ask_for()
        )
        assert run.text == "c"
        orders.add(boss.calls[0].messages[0].text)
    assert len(orders) > 1


# Depth


def deep(boss: Player, *players: Player) -> Team:
    return team(*players, conductor=boss)


async def test_a_step_may_be_an_inner_run_that_is_billed_once() -> None:
    worker = Player("a", ["inner ", "answer", Usage(100, 10)], price=DEAR)
    boss = Player(
        "boss",
        [line(ITSELF, "the hard part"), line(0, "sum up", [0]), Usage(10, 1)],
        [line(0), Usage(20, 2)],
        price=DEAR,
    )
    run = await run_and_check(
        deep(boss, worker), ask_for("Why?", depth=1, budget=Budget(max_cost_usd=Decimal(10)))
    )
    assert run.record.status == "finished"
    assert len(boss.calls) == len(worker.calls) == 2
    inner = run.record.plans[0].steps[0].result
    assert inner.output == "inner answer"
    assert inner.usage == Usage(120, 12)
    assert inner.worker == ITSELF
    assert run.inner[inner.inner_run].plans[0].steps[0].result.output == "inner answer"
    assert "the hard part" in boss.calls[1].messages[-1].text
    assert "this whole team" in boss.calls[0].messages[0].text
    assert "this whole team" not in boss.calls[1].messages[0].text, "one deep is one deep"
    total = Usage(10, 1) + Usage(20, 2) + Usage(100, 10) + Usage(100, 10)
    assert run.record.orchestration + run.record.answering.usage == total
    assert run.record.cost_usd == DEAR.of(total) == run.ledger.spent_usd
    assert run.ledger.spent_tokens == total.total_tokens


async def test_runs_may_nest_two_levels_deep() -> None:
    boss = Player("boss", line(ITSELF, "one"), line(ITSELF, "two"), line(0))
    worker = Player("a", "bottom")
    run = await run_and_check(deep(boss, worker), ask_for(depth=2))
    assert (run.text, len(boss.calls), len(worker.calls)) == ("bottom", 3, 1)
    flat = await run_and_check(deep(Player("boss", line(ITSELF)), Player("a", "top")), ask_for(depth=0))
    assert flat.record.plans[0].reject_reason is Reason.UNKNOWN_WORKER


async def test_an_unknown_cost_of_an_inner_run_makes_the_runs_cost_unknown() -> None:
    unpriced = Player("a", "x", price=None)
    run = await run_and_check(deep(Player("boss", line(ITSELF), line(0)), unpriced), ask_for(depth=1))
    assert run.text == "x"
    assert run.record.cost_usd is None


async def test_a_failed_inner_run_is_the_worker_error_of_its_step() -> None:
    broken = Player("a", [WorkerRefused("no", worker="a")])
    run = await run_and_check(deep(Player("boss", line(ITSELF), line(0)), broken), ask_for(depth=1))
    assert isinstance(run.error, WorkerRefused)
    assert (run.error.worker, run.error.step) == (ITSELF, 0)
    assert next(iter(run.inner.values())).failure.facts["worker"] == "a"


async def test_a_failed_inner_runs_usage_is_recorded_and_billed() -> None:
    broken = Player("a", ["half", WorkerUnavailable("gone", worker="a")], price=DEAR)
    boss = Player("boss", [line(ITSELF), Usage(10, 1)], [line(0), Usage(20, 2)], price=DEAR)
    task = ask_for(depth=1, budget=Budget(max_cost_usd=Decimal(10)))
    run = await run_and_check(deep(boss, broken), task)
    inner = run.record.plans[0].steps[0].result
    assert inner.usage == Usage(20, 2), "what is known of it"
    assert run.inner[inner.inner_run].plans[0].steps[0].status == "failed"
    assert run.record.cost_usd == run.ledger.spent_usd > Decimal("0.0006"), (
        "the broken call counts beside the conductor's"
    )
    assert run.record.cost_is_bound
    assert run.record.n_unmetered_calls == 0, (
        "the outer run's calls are all told; the inner one's is in its own record"
    )
    assert run.inner[inner.inner_run].n_unmetered_calls == 1


async def test_calls_without_reported_usage_are_counted() -> None:
    cut, mute = Player("a", ["half", None]), Player("b", [NEVER])
    run = await run_and_check(team(cut, mute), ask_for(plan=a_plan(("b", ()), ("a", ()), ("a", (0, 1)))))
    assert [step.status for step in run.record.plans[0].steps] == ["cancelled", "failed", "failed"]
    assert run.record.n_unmetered_calls == 3, "the one that broke off began again, and broke off again"
    whole = await run_and_check(team(Player("a", "all of it")), ask_for(plan=a_plan(("a", ()))))
    assert whole.record.n_unmetered_calls == 0


async def test_the_budget_applies_to_inner_runs() -> None:
    dear = Player("a", "x", price=DEAR)
    task = ask_for(depth=1, budget=Budget(max_cost_usd=Decimal("0.001")))
    run = await run_and_check(deep(Player("boss", line(ITSELF), line(0)), dear), task)
    assert isinstance(run.error, BudgetExceeded)
    assert dear.calls == []


async def test_images_reach_an_inner_run() -> None:
    sees = Player("a", "a cat")
    boss = Player("boss", line(ITSELF), line(0))
    engine = Team(ConductorModel(member(boss)), {"a": member(sees, sees_images=True)})
    talk = (Message("user", (Text("What?"), Image("https://example.org/cat.png"))),)
    await run_and_check(engine, Task(talk, depth=1))
    assert sees.calls[0].messages[-1].has_image


async def test_an_inner_answer_is_streamed() -> None:
    gate, worker = Gate(), None
    worker = Player("a", ["in", gate, "ner"])
    async with open_run(deep(Player("boss", line(ITSELF), line(0)), worker), ask_for(depth=1)) as run:
        async for event in run.events():
            if isinstance(event, AnswerDelta) and event.text == "in":
                gate.set()
        assert run.record.answer == "inner"


# Deadlines

STAGES = {
    "before the plan": ([NEVER], ["x"]),
    "inside the plan": ([line(0), NEVER], ["x"]),
    "before the first word": ([line(0)], [NEVER]),
    "inside the answer": ([line(0)], ["so ", "far", NEVER]),
    "while a step waits for another": ([line(0), line(1, access=[0])], [NEVER]),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_deadline_ends_a_run_at_every_stage(stage: str, stream: bool) -> None:
    plan, script = STAGES[stage]
    engine = team(Player("a", script), Player("b"), conductor=Player("boss", plan))
    run = await run_and_check(engine, ask_for(deadline_s=0.03, stream=stream))
    assert isinstance(run.error, DeadlineExceeded)
    assert run.error.deadline_s == 0.03
    assert run.error.param == "podium.deadline_s"
    assert run.record.status == "failed"
    for plan_record in run.record.plans:
        assert plan_record.ended_s is not None
        assert all(step.status in ("done", "cancelled") for step in plan_record.steps)
    if stage == "inside the plan":
        assert run.record.plans[0].result.output == line(0), "what it took is in the record"
    is_seen = stream and stage == "inside the answer"
    start = "The answer is incomplete: the rest did not arrive" if is_seen else "The answer did not arrive"
    assert str(run.error).startswith(start)


async def test_a_deadline_ends_a_run_whose_reader_has_stopped() -> None:
    last = Player("a", ["word "] * 500)
    engine = team(last)
    async with open_run(engine, ask_for(plan=a_plan(("a", ())), deadline_s=0.05)) as run:
        await until(lambda: run.record.status == "failed")
        assert last.open_calls == 0
        events = [event async for event in run.events()]
    assert events[-1].failure.is_a(DeadlineExceeded)
    assert sum(isinstance(event, AnswerDelta) for event in events) == ROOM


async def test_a_deadline_in_a_second_round_keeps_the_first_answer() -> None:
    engine = team(Player("a", "first"), conductor=Player("boss", line(0), [NEVER]))
    run = await run_and_check(engine, ask_for(rounds=2, deadline_s=0.05))
    assert (run.text, run.record.answer, run.record.status) == ("first", "first", "finished")
    assert run.record.answering_plan is run.record.plans[0]


async def test_a_failed_step_in_a_second_round_keeps_the_first_answer() -> None:
    worker = Player("a", "first", [WorkerUnavailable("gone")])
    run = await run_and_check(
        team(worker, conductor=Player("boss", line(0), line(0, "mend it"))), ask_for(rounds=2)
    )
    assert (run.text, run.record.status, run.record.answering.output) == ("first", "finished", "first")
    assert run.record.plans[1].steps[0].status == "failed"


async def test_a_deadline_after_the_second_answer_has_started_fails_the_run() -> None:
    worker = Player("a", "first", ["bet", NEVER])
    run = await run_and_check(
        team(worker, conductor=Player("boss", line(0), line(0, "mend it"))),
        ask_for(rounds=2, deadline_s=0.05),
    )
    assert isinstance(run.error, DeadlineExceeded)
    assert run.text == "bet"


async def test_an_inner_run_has_the_outer_deadline() -> None:
    run = await run_and_check(
        deep(Player("boss", line(ITSELF), line(0)), Player("a", ["x", NEVER])),
        ask_for(depth=1, deadline_s=0.05),
    )
    assert isinstance(run.error, DeadlineExceeded)


# The record


async def test_the_usage_is_the_sum_of_orchestration_and_answering() -> None:
    boss = Player(
        "boss",
        [line(0), FORWARD, Usage(7, 3)],
        [line(0), line(1, access=[0]), Usage(11, 5)],
        [ACCEPT, Usage(13, 1)],
    )
    run = await run_and_check(
        team(Player("a", ["x", Usage(17, 2)]), Player("b", ["y", Usage(19, 4)]), conductor=boss),
        ask_for(rounds=2),
    )
    record = run.record
    assert record.answering.usage == Usage(19, 4)
    everything = sum((call.usage for call in record.calls if call.usage), Usage())
    assert record.orchestration + record.answering.usage == everything
    assert fold(Record(record.id, record.task, record.created, record.workers), run.events) == record


def spinning(turns: dict[int, int]) -> Player:
    """Return a worker that pauses for `turns[step]` and answers with the step's number and what it read."""

    def script(call: Call) -> list[object]:
        pauses = [Delta(model="m")] * turns.get(call.site.step or 0, 0)
        return [f"<{call.site.step}>", *pauses, f" after {list(call.site.access)}"]

    return script  # type: ignore[return-value]


@given(
    plans(),
    st.dictionaries(st.integers(0, 4), st.integers(0, 6)),
    st.sampled_from(["given", "steps", "lists"]),
    st.booleans(),
)
def test_every_needed_step_runs_once_after_the_steps_that_it_reads(
    plan: Plan, speed: dict[int, int], how: str, two_rounds: bool
) -> None:
    script = spinning(speed)
    players = [Player(name, script) for name in NAMES]  # type: ignore[arg-type]
    names = [player.name for player in players]
    if how == "given":
        engine, task = team(*players), ask_for(plan=plan)
    else:
        boss = Player("boss", list(render_plan(plan, names, how)), ACCEPT)  # type: ignore[arg-type]
        engine, task = team(*players, conductor=boss, format=how), ask_for(rounds=1 + two_rounds)  # type: ignore[arg-type]
        if how == "lists":
            boss._scripts = (boss._scripts[0], "model_id = []\nsubtasks = []\naccess_list = []")
    run = asyncio.run(run_and_check(engine, task))
    record, last = run.record, len(plan.steps) - 1
    assert record.status == "finished"
    assert record.answer == run.text == f"<{last}> after {list(plan.steps[last].access)}"
    steps = record.plans[0].steps
    assert [(s.worker, s.subtask, s.access) for s in steps] == [
        (s.worker, s.subtask, s.access) for s in plan.steps
    ]
    calls = [call.site.step for player in players for call in player.calls]
    for index, step in enumerate(steps):
        if index in plan.reachable:
            assert (step.status, calls.count(index)) == ("done", 1)
            assert all(steps[read].ended_s <= step.started_s for read in step.access)
            assert all(f"<{read}> after" in step.prompt[-1].text for read in step.access)
        else:
            assert step.status in ("not_needed", "done")
            assert calls.count(index) <= (how != "given")
    assert 0 <= record.critical_path_s <= record.wall_s + 1e-6
    assert fold(Record(record.id, record.task, record.created, record.workers), run.events) == record
    assert record.cost_usd == 0


# Leaving


def four_steps(price_of_all: object = DEAR) -> tuple[Team, list[Player]]:
    players = [Player(name, ["one ", "two ", "three"], price=DEAR) for name in "abcd"]
    text = line(0) + line(1) + line(2) + line(3, "join", [0, 1, 2])
    scripts = [text, text.replace("join", "join again")]
    boss = Player(
        "boss", *([each[at : at + 16] for at in range(0, len(each), 16)] for each in scripts), price=DEAR
    )
    return team(*players, conductor=boss), [*players, boss]


async def count_events(facts: dict[str, object]) -> int:
    engine, _ = four_steps()
    return len((await run_and_check(engine, ask_for(**facts))).events)


@pytest.mark.parametrize("facts", [{}, {"depth": 1}, {"rounds": 2}], ids=str)
async def test_a_run_may_be_cancelled_after_every_event(facts: dict[str, object]) -> None:
    count = await count_events(facts)
    assert count > 20
    for leave_after in range(count + 1):
        engine, players = four_steps()
        ledger = BudgetLedger(Budget(max_cost_usd=Decimal(100)))
        async with open_run(engine, ask_for(**facts), ledger=ledger) as run:
            for _ in range(leave_after):
                event = await run.answer.next()
        check_everything_closed(engine)
        assert (ledger.holds, ledger.on_hold_usd) == ([], 0)
        assert run.record.status == ("finished" if leave_after == count else run.record.status)
        assert run.record.status in ("cancelled", "finished")
        for plan in run.record.plans:
            assert plan.ended_s is not None
            assert all(step.status not in ("planned", "running") for step in plan.steps)
        n_calls = sum(len(player.calls) for player in players)
        assert n_calls >= len(run.record.calls)
    assert isinstance(event, RunFinished)


async def test_a_reader_can_be_cancelled_after_every_event() -> None:
    count = await count_events({})
    for cancel_after in range(count):
        engine, _ = four_steps()
        ledger, got = BudgetLedger(), list[Event]()

        async def read(
            engine: Team = engine,
            ledger: BudgetLedger = ledger,
            got: list[Event] = got,
            after: int = cancel_after,
        ) -> None:
            async with open_run(engine, ask_for(), ledger=ledger) as run:
                for _ in range(after):
                    got.append(await run.answer.next())  # noqa: PERF401  (as they come)
                await asyncio.Event().wait()

        reader = asyncio.create_task(read())
        await until(lambda got=got, after=cancel_after: len(got) == after)
        reader.cancel()
        await asyncio.wait([reader])
        assert reader.cancelled()
        check_everything_closed(engine)
        assert ledger.holds == []


async def test_cancelling_waits_until_every_worker_is_closed() -> None:
    closing = Gate()
    worker = Player("a", ["x", NEVER], closing=closing)
    engine = team(worker)

    async def leave() -> None:
        async with open_run(engine, ask_for(plan=a_plan(("a", ())))):
            await until(lambda: worker.n_pieces == 1)

    leaving = asyncio.create_task(leave())
    await until(lambda: worker.n_pieces == 1)
    await turns()
    assert not leaving.done()
    closing.set()
    await leaving
    check_everything_closed(engine)


async def test_cancelling_waits_until_a_deadline_has_closed_the_workers() -> None:
    closing = Gate()
    worker = Player("a", ["x", NEVER], closing=closing)
    engine, may_leave = team(worker), Gate()

    async def leave() -> None:
        async with open_run(engine, ask_for(plan=a_plan(("a", ())), deadline_s=0.02)):
            await may_leave.wait()

    leaving = asyncio.create_task(leave())
    await until(lambda: worker.n_pieces == 1)
    await asyncio.sleep(0.03)
    await turns()
    may_leave.set()
    await turns()
    assert not leaving.done()
    closing.set()
    await leaving
    check_everything_closed(engine)


async def test_cancelling_immediately_calls_no_worker() -> None:
    engine, players = four_steps()
    async with open_run(engine, ask_for()) as run:
        pass
    check_everything_closed(engine)
    assert [player.calls for player in players] == [[]] * 5
    assert run.record.status == "cancelled"


async def test_a_call_that_cancels_itself_does_not_block_the_reader() -> None:
    for plan in (a_plan(("a", ())), a_plan(("a", ()), ("b", (0,)))):
        engine = team(Player("a", ["x", asyncio.CancelledError()]), Player("b"))
        run = await run_and_check(engine, ask_for(plan=plan))
        assert isinstance(run.error, WorkerUnavailable)
    boss = Player("boss", [line(0), asyncio.CancelledError()])
    run = await run_and_check(team(Player("a"), conductor=boss), ask_for())
    assert run.text == "ok", "a conductor that fails is done without"


async def test_concurrent_runs_do_not_share_state() -> None:
    engine, _ = four_steps()
    runs = await asyncio.gather(*(one(engine, number) for number in range(20)))
    assert len({record.id for record in runs}) == 20
    assert {record.status for record in runs} == {"finished"}
    check_everything_closed(engine)


async def one(engine: Team, number: int) -> Record:
    async with open_run(engine, ask_for(f"question {number}"), id=f"wf_{number}") as run:
        async for event in run.events():
            assert not isinstance(event, RunFailed)
    for plan in run.record.plans:
        assert all(f"question {number}" in step.prompt[-1].text for step in plan.steps)
    return run.record


async def test_a_fallback_that_fails_before_its_first_token_is_replaced_by_another_worker() -> None:
    workers = Player("a", [WorkerUnavailable("gone")]), Player("b", "mine")
    run = await run_and_check(team(*workers, conductor=Player("boss", "rubbish")), ask_for())
    assert (run.text, run.record.status, run.record.answering.worker) == ("mine", "finished", "b")
    assert "a failed: WorkerUnavailable" in run.record.plans[-1].why


async def test_a_conductor_that_reports_an_interruption_has_failed() -> None:
    boss = Player("boss", [Interrupted("It can be done again.")])
    run = await run_and_check(team(Player("a", "alone"), conductor=boss), ask_for())
    assert (run.text, len(boss.calls)) == ("alone", 1)
    assert run.record.plans[0].failure.is_a(WorkerUnavailable)
