"""Runs of one plan: concurrency, steps that never start, and the order of the output."""

import asyncio
import re
from decimal import Decimal

import pytest

from conductor.errors import (
    BadTask,
    BudgetExceeded,
    ContextOverflow,
    PodiumError,
    WorkerBusy,
    WorkerRefused,
    WorkerUnavailable,
)
from conductor.model.call import Sampling
from conductor.model.messages import Image, Message, Text
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import Usage
from conductor.run.event_log import ROOM
from conductor.run.events import AnswerDelta, RunFinished, StepAborted
from conductor.run.ledger import Budget
from conductor.run.lifecycle import open_run
from conductor.run.record import Account
from tests.conductor.team import (
    DEAR,
    NEVER,
    Player,
    a_plan,
    ask_for,
    check_everything_closed,
    line,
    member,
    run_and_check,
    team,
    turns,
)
from tests.states import until

Gate = asyncio.Event
PARALLEL = a_plan(("a", ()), ("b", ()), ("c", ()), ("d", (0, 1, 2)))


async def test_independent_steps_run_concurrently() -> None:
    gates = {name: Gate() for name in "abc"}
    players = {name: Player(name, [gates[name], f"{name}!"]) for name in "abc"}
    last = Player("d", ["all ", "of it"])
    engine = team(*players.values(), last)
    async with open_run(engine, ask_for(plan=PARALLEL)) as run:
        await until(lambda: all(player.open_calls for player in players.values()))
        assert last.calls == []
        gates["a"].set(), gates["c"].set()
        await until(lambda: players["a"].open_calls == players["c"].open_calls == 0)
        await turns()
        assert last.calls == [], "it reads b, too"
        gates["b"].set()
        assert [event async for event in run.events()][-1].answer == "all of it"
    prompt = last.calls[0].messages[-1].text
    assert [prompt.index(f"{name}!") for name in "abc"] == sorted(prompt.index(f"{name}!") for name in "abc")


async def test_a_step_starts_when_the_steps_that_it_reads_have_finished() -> None:
    slow = Player("slow", [Gate(), "late"])
    plan = a_plan(("fast", ()), ("slow", ()), ("reader", (0,)), ("end", (1, 2)))
    reader = Player("reader")
    engine = team(Player("fast"), slow, reader, Player("end"))
    async with open_run(engine, ask_for(plan=plan)):
        await until(lambda: reader.calls)
        assert slow.open_calls == 1
    check_everything_closed(engine)


@pytest.mark.parametrize("rest", [[line(1, "join", [0])], ["\n\n", line(0), line(1, "join", [0, 1])]])
async def test_a_step_starts_while_the_plan_is_written(rest: list[str]) -> None:
    gate, worker, last = Gate(), Player("a"), Player("b", ["fin", "al"])
    conductor = Player("boss", [line(0)[:-3], line(0)[-3:-1], gate, *rest])
    engine = team(worker, last, conductor=conductor)
    async with open_run(engine, ask_for()) as run:
        await until(lambda: worker.calls and not worker.open_calls)
        assert conductor.open_calls == 1
        gate.set()
        assert [event async for event in run.events()][-1].answer == "final"


async def test_in_lists_a_step_starts_while_later_access_lists_are_written() -> None:
    gate, worker = Gate(), Player("a")
    text = 'Two parts.\nmodel_id = [0, 1]\nsubtasks = ["one", '
    conductor = Player("boss", [text, gate, '"two"]\naccess_list = [[], [0]]'])
    engine = team(worker, Player("b", "final"), conductor=conductor, format="lists")
    async with open_run(engine, ask_for()) as run:
        await until(lambda: worker.calls)
        gate.set()
        assert [event async for event in run.events()][-1].answer == "final"


async def test_a_worker_call_states_whether_its_output_is_streamed() -> None:
    inner, last = Player("a"), Player("b")
    await run_and_check(team(inner, last), ask_for(plan=a_plan(("a", ()), ("b", (0,)))))
    assert [player.calls[0].coalesce for player in (inner, last)] == [True, False]

    alone, gate = Player("a"), Gate()
    conductor = Player("boss", [line(0), gate, line(1, "join", [0])])
    async with open_run(team(alone, Player("b"), conductor=conductor), ask_for()) as run:
        await until(lambda: alone.calls)
        assert not alone.calls[0].coalesce, "no other step is planned yet: this may be the answer"
        gate.set()
        assert [event async for event in run.events()]


async def test_an_unused_step_of_a_known_plan_never_starts() -> None:
    dead, plan = Player("dead"), a_plan(("dead", ()), ("a", ()), ("dead", (0,)), ("b", (1,)))
    run = await run_and_check(team(dead, Player("a"), Player("b", "final")), ask_for(plan=plan))
    assert run.text == "final"
    assert dead.calls == []
    statuses = [step.status for step in run.record.plans[0].steps]
    assert statuses == ["not_needed", "done", "not_needed", "done"]
    assert [event.step for event in run.of(StepAborted)] == [0, 2]


async def test_an_unused_step_is_cancelled_when_the_plan_ends() -> None:
    dead = Player("dead", ["so far", NEVER])
    conductor = Player("boss", [line(0), Gate(), line(1)])
    engine = team(dead, Player("b", "final"), conductor=conductor)
    gate = conductor._scripts[0][1]
    async with open_run(engine, ask_for()) as run:
        await until(lambda: dead.n_pieces == 1)
        gate.set()  # type: ignore[union-attr]
        events = [event async for event in run.events()]
    assert events[-1].answer == "final"
    assert run.record.plans[0].steps[0].status == "not_needed"
    assert run.record.plans[0].steps[0].result.output == "so far", "what it took is in the record"
    check_everything_closed(engine)


async def test_a_failure_of_an_unused_step_does_not_fail_the_run() -> None:
    dead = Player("dead", [WorkerRefused("no", worker="dead")])
    gate = Gate()
    engine = team(dead, Player("b", "final"), conductor=Player("boss", [line(0), gate, line(1)]))
    async with open_run(engine, ask_for()) as run:
        await until(
            lambda: (
                run.record.plans
                and run.record.plans[0].steps
                and run.record.plans[0].steps[0].status == "failed"
            )
        )
        gate.set()
        assert [event async for event in run.events()][-1].answer == "final"


async def test_the_answer_is_streamed_as_it_arrives() -> None:
    gates = [Gate(), Gate()]
    last = Player("b", ["one ", gates[0], "two ", Delta(reasoning="hm"), gates[1], "three"])
    async with open_run(team(Player("a"), last), ask_for(plan=a_plan(("a", ()), ("b", (0,))))) as run:
        pieces: list[tuple[str, str]] = []
        async for event in run.events():
            if isinstance(event, AnswerDelta):
                pieces.append((event.text, event.reasoning))
                if len(pieces) in (1, 3):
                    assert last.open_calls == 1
                    gates[len(pieces) // 2].set()
        assert pieces == [("one ", ""), ("two ", ""), ("", "hm"), ("three", "")]
        assert run.record.answering.reasoning == "hm"


async def test_the_output_of_inner_steps_is_not_shown() -> None:
    run = await run_and_check(
        team(Player("a", ["inner"]), Player("b", ["outer"])), ask_for(plan=a_plan(("a", ()), ("b", (0,))))
    )
    assert run.text == "outer"


async def test_output_that_precedes_the_plans_end_is_shown_in_order() -> None:
    gate, only = Gate(), Player("a", [*"answer!"])
    engine = team(only, conductor=Player("boss", [line(0), gate, "\n"]))
    async with open_run(engine, ask_for()) as run:
        await until(lambda: only.calls and not only.open_calls)
        events = asyncio.create_task(
            anext(event async for event in run.events() if isinstance(event, AnswerDelta))
        )
        await turns()
        assert not events.done(), "the plan may go on, and then this is no answer"
        gate.set()
        assert (await events).text == "a"
        assert (
            "".join([event.text async for event in run.events() if isinstance(event, AnswerDelta)])
            == "nswer!"
        )


async def test_a_reader_that_stops_reading_stops_the_worker() -> None:
    last = Player("a", ["word "] * 500)
    async with open_run(team(last), ask_for(plan=a_plan(("a", ())))) as run:
        await until(lambda: last.n_pieces > ROOM)
        await turns(200)
        assert last.n_pieces <= ROOM + 2
        assert len(run.answer._events) <= ROOM + 5
        stopped_at = last.n_pieces
        async for event in run.events():
            if isinstance(event, AnswerDelta):
                break
        await turns(200)
        assert last.n_pieces == stopped_at + 1, "one read, one more written"
        assert [event async for event in run.events()][-1].answer == "word " * 500


async def test_a_reader_that_stops_reading_does_not_stop_inner_steps() -> None:
    inner = Player("a", ["word "] * 500)
    last = Player("b")
    async with open_run(team(inner, last), ask_for(plan=a_plan(("a", ()), ("b", (0,))))):
        await until(lambda: last.calls)
        assert inner.n_pieces == 500


async def test_cancelling_a_run_whose_reader_stopped_closes_the_worker() -> None:
    last = Player("a", ["word "] * 500)
    engine = team(last)
    async with open_run(engine, ask_for(plan=a_plan(("a", ())))) as run:
        await until(lambda: last.n_pieces > ROOM)
        await turns()
    check_everything_closed(engine)
    assert run.record.status == "cancelled"
    assert run.record.plans[0].steps[0].status == "cancelled"


@pytest.mark.parametrize(
    "error",
    [
        WorkerRefused("bad key", worker="a"), WorkerBusy("wait", worker="a", retry_after_s=3.0),
        WorkerUnavailable("gone", worker="a"), ContextOverflow("too long", worker="a"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
@pytest.mark.parametrize("before", [[], ["some ", "words"]], ids=["at once", "mid-stream"])
async def test_a_workers_error_ends_the_run_and_names_worker_and_step(
    error: Exception, before: list[str]
) -> None:
    reader, slow = Player("d"), Player("c", ["so far", NEVER])
    broken = Player("a", [*before, error])
    plan = a_plan(("c", ()), ("a", ()), ("d", (0, 1)))
    run = await run_and_check(team(slow, broken, reader), ask_for(plan=plan))
    assert (type(run.error), run.error.message) == (type(error), error.message)
    assert (run.error.worker, run.error.step) == ("a", 1)
    assert run.record.status == "failed"
    assert reader.calls == []
    steps = run.record.plans[0].steps
    assert steps[1].status == "failed"
    assert steps[0].status == "cancelled"
    assert (steps[1].result.output if steps[1].result else "") == "".join(before)


async def test_a_stream_without_a_finish_reason_is_an_error() -> None:
    run = await run_and_check(team(Player("a", ["half an ", None])), ask_for(plan=a_plan(("a", ()))))
    assert isinstance(run.error, WorkerUnavailable)
    assert (run.error.worker, run.error.step) == ("a", 0)
    assert run.record.cost_usd == 0
    silent = await run_and_check(team(Player("a", [None])), ask_for(plan=a_plan(("a", ()))))
    assert isinstance(silent.error, WorkerUnavailable)


@pytest.mark.parametrize(
    "broken", [RuntimeError("oops"), TimeoutError("socket"), KeyError("x"), StopAsyncIteration()], ids=repr
)
async def test_an_unexpected_exception_is_a_terminal_event(broken: Exception) -> None:
    for task in (
        ask_for(plan=a_plan(("a", ()), ("b", (0,)))),
        ask_for(plan=a_plan(("a", ())), deadline_s=60.0),
    ):
        run = await run_and_check(team(Player("a", ["x", broken]), Player("b")), task)
        assert type(run.error) is PodiumError
        assert run.record.status == "failed"
        assert [step.status for step in run.record.plans[0].steps if step.index == 0] == ["failed"]


async def test_stop_sequences_apply_only_to_the_answer() -> None:
    players = [Player(name) for name in "abcd"]
    await run_and_check(team(*players), ask_for(plan=PARALLEL, sampling=Sampling(stop=("END",))))
    assert [player.calls[0].sampling.stop for player in players] == [(), (), (), ("END",)]
    boss = Player("boss", [line(0), line(1, access=[0])])
    workers = [Player("a"), Player("b")]
    await run_and_check(team(*workers, conductor=boss), ask_for(sampling=Sampling(stop=("END",))))
    assert [player.calls[0].sampling.stop for player in workers] == [(), ("END",)]
    assert boss.calls[0].sampling.stop == ()


async def test_with_stop_sequences_no_step_starts_before_the_last_step_is_known() -> None:
    gate, only = Gate(), Player("a")
    engine = team(only, conductor=Player("boss", [line(0), gate]))
    async with open_run(engine, ask_for(sampling=Sampling(stop=("END",)))) as run:
        await until(lambda: run.record.plans and run.record.plans[0].steps)
        await turns()
        assert only.calls == []
        gate.set()
        assert isinstance([event async for event in run.events()][-1], RunFinished)
    assert only.calls[0].sampling.stop == ("END",)


async def test_the_requests_parameters_reach_the_worker() -> None:
    sampling = Sampling(max_output_tokens=77, temperature=0.3, top_p=0.9, seed=5, effort="low")
    player, boss = Player("a"), Player("boss", line(0))
    await run_and_check(team(player, conductor=boss), ask_for(sampling=sampling))
    call = player.calls[0]
    assert (
        call.sampling.max_output_tokens,
        call.sampling.temperature,
        call.sampling.top_p,
        call.sampling.seed,
        call.sampling.effort,
    ) == (
        77,
        0.3,
        0.9,
        5,
        "low",
    )
    assert (call.site.operation, call.site.plan, call.site.step, call.site.access, call.grammar) == (
        "chat",
        0,
        0,
        (),
        None,
    )
    planning = boss.calls[0]
    assert (planning.site.operation, planning.sampling.temperature, planning.site.step) == ("plan", 0.0, None)
    assert planning.grammar is not None


async def test_every_call_names_the_key_and_team_that_pay() -> None:
    player, boss = Player("a"), Player("boss", line(0))
    engine = team(player, conductor=boss)
    async with open_run(engine, ask_for(), account=Account("key_1", "team_1")) as run:
        [_ async for _ in run.events()]
    assert {(call.terms.payer, call.terms.team) for call in (*player.calls, *boss.calls)} == {
        ("key_1", "team_1")
    }


async def test_a_workers_default_parameters_apply_if_the_request_sets_none() -> None:
    player = Player("a")
    engine = team(player)
    own = member(player, defaults=Sampling(temperature=0.7, top_p=0.5, effort="high"), max_output_tokens=99)
    engine = type(engine)(None, {"a": own})
    await run_and_check(engine, ask_for(plan=a_plan(("a", ())), sampling=Sampling(temperature=0.0)))
    call = player.calls[0]
    assert (
        call.sampling.temperature,
        call.sampling.top_p,
        call.sampling.effort,
        call.sampling.max_output_tokens,
    ) == (0.0, 0.5, "high", 99)


async def test_a_budget_reached_in_the_middle_of_a_run_ends_it() -> None:
    first = Player("a", ["x", Usage(50, 200)], price=DEAR)
    second = Player("b", price=DEAR)
    task = ask_for(
        plan=a_plan(("a", ()), ("b", (0,))),
        budget=Budget(max_cost_usd=Decimal("0.024")),
        sampling=Sampling(max_output_tokens=200),
    )
    run = await run_and_check(team(first, second), task)
    assert isinstance(run.error, BudgetExceeded)
    assert second.calls == []
    assert run.record.cost_usd == Decimal("0.0205") == run.ledger.spent_usd
    assert [step.status for step in run.record.plans[0].steps] == ["done", "failed"]
    assert "podium.max_cost_usd" in run.error.message


async def test_a_call_that_reached_no_model_releases_its_hold() -> None:
    refused = Player("a", [WorkerRefused("no", worker="a")], price=DEAR)
    run = await run_and_check(
        team(refused), ask_for(plan=a_plan(("a", ())), budget=Budget(max_cost_usd=Decimal(1)))
    )
    assert run.ledger.spent_usd == 0
    cut = await run_and_check(
        team(Player("a", ["x", None], price=DEAR)),
        ask_for(plan=a_plan(("a", ())), budget=Budget(max_cost_usd=Decimal(1))),
    )
    assert cut.record.cost_usd == cut.ledger.spent_usd > 0, "nobody knows what it took, so its bound counts"
    assert cut.record.cost_is_bound


async def test_a_truncated_answer_has_the_finish_reason_length() -> None:
    run = await run_and_check(
        team(Player("a", ["x", Delta(finish=FinishReason.LENGTH)])), ask_for(plan=a_plan(("a", ())))
    )
    assert run.terminal.finish is FinishReason.LENGTH
    assert run.record.finish is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("facts", "param", "named"),
    [
        ({"workers": ("a", "zoe")}, "podium.workers", "zoe"),
        ({"exclude_workers": ("zoe",)}, "podium.exclude_workers", "zoe"),
        ({"exclude_workers": ("a", "b")}, "podium.exclude_workers", "worker"),
        ({"workers": ("a",), "exclude_workers": ("a",)}, "podium.exclude_workers", "worker"),
        ({"workers": ()}, "podium.workers", "worker"),
        ({"plan": a_plan(("a", ()), ("zoe", (0,)))}, "podium.plan", "zoe"),
        ({"plan": a_plan(("a", ()), ("b", (0,))), "exclude_workers": ("a",)}, "podium.plan", "a"),
    ],
)
async def test_a_pool_that_cannot_serve_names_the_field(
    facts: dict[str, object], param: str, named: str
) -> None:
    players = Player("a"), Player("b")
    with pytest.raises(BadTask) as refused:
        async with open_run(team(*players), ask_for(**facts)):
            pass
    assert refused.value.param == param
    assert named in refused.value.message
    assert [player.calls for player in players] == [[], []]


async def test_the_allowed_workers_are_numbered_in_the_requests_order() -> None:
    players = [Player(name) for name in "abc"]
    boss = Player("boss", line(0))
    await run_and_check(
        team(*players, conductor=boss), ask_for(workers=("c", "a", "c"), exclude_workers=("b",))
    )
    assert [len(player.calls) for player in players] == [0, 0, 1]
    assert re.findall(r"^\d: the .$", boss.calls[0].messages[0].text, re.MULTILINE) == [
        "0: the c",
        "1: the a",
    ]
    assert ": the b" not in boss.calls[0].messages[0].text


async def test_only_workers_with_image_support_get_images_in_a_run() -> None:
    players = Player("a"), Player("b")
    engine = team(*players)
    engine = type(engine)(None, {"a": member(players[0]), "b": member(players[1], sees_images=True)})
    talk = (Message("user", (Text("What?"), Image("https://example.org/cat.png"))),)
    task = ask_for(plan=a_plan(("a", ()), ("b", (0,))))
    await run_and_check(engine, type(task)(talk, plan=task.plan))
    assert [player.calls[0].messages[-1].has_image for player in players] == [False, True]
