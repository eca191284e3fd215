"""The likeliest worker is asked while the plan is being written: what is kept, what is closed and paid, and what changes."""

import asyncio
from dataclasses import dataclass, field, replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import WorkerRefused, WorkerUnavailable
from conductor.model.answer_format import AnswerFormat
from conductor.model.call import Call, Sampling
from conductor.model.failure import Attempt
from conductor.model.messages import Image, Message, Text
from conductor.model.tools import Tool, Toolset
from conductor.model.usage import FREE, Price, Usage
from conductor.run.codec import dump, load
from conductor.run.events import (
    AnswerDelta,
    CallQueued,
    Event,
    RunFailed,
    RunFinished,
    StepPlanned,
    StepStarted,
)
from conductor.run.guess_events import GuessEnded, GuessOutcome, GuessStarted
from conductor.run.ledger import Budget, BudgetLedger
from conductor.run.lifecycle import open_run, resume_run
from conductor.run.record import Account, Record, RunRecords
from conductor.run.team import Team
from tests.conductor.team import (
    DEAR,
    NEVER,
    Pause,
    Piece,
    Player,
    a_plan,
    ask_for,
    line,
    nothing_is_left,
    seen,
    team,
    turns,
)
from tests.states import until

Gate = asyncio.Event


@dataclass
class Oracle:
    """Always knows the same worker."""

    worker: str = "a"
    admits: bool = True
    asked: list[tuple[str, Decimal]] = field(default_factory=list[tuple[str, Decimal]])
    ended: list[tuple[str, GuessOutcome]] = field(default_factory=list[tuple[str, GuessOutcome]])

    def likeliest(self, record: Record) -> str | None:
        return self.worker

    def admit(self, worker: str, worst_usd: Decimal) -> bool:
        self.asked.append((worker, worst_usd))
        return self.admits

    def end(self, worker: str, outcome: GuessOutcome) -> None:
        self.ended.append((worker, outcome))


def guessing(engine: Team, oracle: Oracle | None = None) -> Team:
    return replace(engine, speculation=oracle or Oracle())


def boss(*pieces: Piece) -> Player:
    return Player("boss", pieces)


async def test_a_right_guess_is_the_step_s_call_and_none_of_its_words_is_shown_before_the_plan_is_there() -> (
    None
):
    gate, a, oracle = Gate(), Player("a", ["blue ", "light"]), Oracle()
    engine = guessing(team(a, Player("b"), conductor=boss(gate, line(0, ""))), oracle)
    async with open_run(engine, ask_for()) as run:
        await until(lambda: a.said == 2)
        await turns()
        assert run.record.plans[0].steps == ()
        assert run.record.answer_began_s is None
        gate.set()
        events = [event async for event in run.events()]
    names = [type(event) for event in events]
    assert names.index(GuessStarted) < names.index(StepPlanned) < names.index(StepStarted)
    assert names.index(StepStarted) < names.index(GuessEnded) < names.index(AnswerDelta)
    assert (events[-1].answer, len(a.calls), oracle.ended) == ("blue light", 1, [("a", "kept")])
    site = a.calls[0].site
    assert (site.guess, site.run, site.plan, site.step) == (True, run.record.id, 0, 0)
    guess, step = run.record.guess, run.record.plans[0].steps[0]
    assert guess is not None
    assert (guess.worker, guess.outcome, guess.attempt, guess.prompt) == ("a", "kept", None, step.prompt)
    assert run.record.usage == (run.record.plans[0].result.usage or Usage()) + step.result.usage
    assert load(RunRecords, dump(run.records)) == run.records
    nothing_is_left(engine)


@pytest.mark.parametrize("plan", [line(1, ""), line(0, "just the colour"), line(1, "x") + line(0, "", [0])])
@pytest.mark.parametrize("price", [FREE, DEAR])
async def test_a_wrong_guess_is_closed_and_costs_its_bound_on_record_and_in_the_ledger(
    plan: str, price: Price
) -> None:
    a = Player("a", lambda call: ["so far", NEVER] if call.site.guess else "the answer", price=price)
    oracle, ledger = Oracle(), BudgetLedger()
    engine = guessing(team(a, Player("b", "the answer"), conductor=boss(Pause(), plan)), oracle)
    async with open_run(engine, ask_for(), ledger=ledger) as run:
        events = [event async for event in run.events()]
    guess = run.record.guess
    assert guess is not None
    assert guess.attempt is not None
    assert (events[-1].answer, guess.outcome, oracle.ended) == ("the answer", "lost", [("a", "lost")])
    assert oracle.asked[0][1] == guess.attempt.cost_usd
    assert (guess.attempt.outcome, guess.attempt.usage) == ("lost_guess", None)
    assert guess.attempt.cost_is_bound == run.record.cost_is_bound == (price == DEAR)
    assert (guess.attempt.cost_usd == 0) == (price == FREE)
    assert run.record.cost_usd == ledger.spent_usd
    assert (run.record.n_unmetered_calls, ledger.holds) == (1, [])
    assert run.record.answering is not None
    assert run.record.answering.attempts == ()
    assert load(RunRecords, dump(run.records)) == run.records
    nothing_is_left(engine)


async def test_what_a_wrong_guess_has_taken_counts_where_its_server_said_it() -> None:
    a = Player("a", ["all of it", Usage(30, 3)], price=DEAR)
    run = await seen(guessing(team(a, Player("b"), conductor=boss(Pause(), line(1, "")))), ask_for())
    assert run.record.guess is not None
    attempt = run.record.guess.attempt
    assert attempt is not None
    assert (attempt.usage, attempt.cost_usd, attempt.cost_is_bound) == (
        Usage(30, 3), DEAR.of(Usage(30, 3)), False,
    )  # fmt: skip
    assert run.record.n_unmetered_calls == 0
    assert run.record.cost_usd == run.ledger.spent_usd == DEAR.of(Usage(30, 3))
    assert run.record.usage == Usage(30, 3) + Usage(10, 1) + Usage(10, 1)


async def test_a_guess_that_is_slow_to_close_holds_no_word_of_the_answer_up() -> None:
    closing = Gate()
    a = Player("a", ["so far", NEVER], closing=closing)
    engine = guessing(team(a, Player("b", "the answer"), conductor=boss(Pause(), line(1, ""))))
    async with open_run(engine, ask_for()) as run:
        async for event in run.events():
            if isinstance(event, AnswerDelta):
                assert (event.text, a.open_calls) == ("the answer", 1)
                closing.set()
    assert run.record.guess is not None
    assert (run.record.status, run.record.guess.outcome) == ("finished", "lost")
    nothing_is_left(engine)


async def test_a_plan_of_two_steps_may_begin_with_the_guess() -> None:
    gate, a = Gate(), Player("a", "a reason")
    rest = line(0, "") + line(1, "sum up", [0])
    engine = guessing(team(a, Player("b", "the answer"), conductor=boss(gate, rest)))
    async with open_run(engine, ask_for()) as run:
        await until(lambda: a.said)
        gate.set()
        events = [event async for event in run.events()]
    assert events[-1].answer == "the answer"
    assert (len(a.calls), run.record.guess and run.record.guess.outcome) == (1, "kept")
    assert [event.text for event in events if isinstance(event, AnswerDelta)] == ["the answer"]


async def test_the_later_of_plan_and_worker_is_what_is_waited_for() -> None:
    for slow_plan in (True, False):
        plan, word = Gate(), Gate()
        a = Player("a", [word, "the answer"])
        engine = guessing(team(a, conductor=boss(plan, line(0, ""))))
        async with open_run(engine, ask_for()) as run:
            await until(lambda a=a: a.open_calls)
            (word if slow_plan else plan).set()
            await turns()
            assert run.record.answer_began_s is None
            (plan if slow_plan else word).set()
            assert [event async for event in run.events()][-1].answer == "the answer"
        assert len(a.calls) == 1
        nothing_is_left(engine)


async def test_a_guess_that_failed_before_the_plan_was_there_is_asked_again_and_its_charge_is_on_record() -> (
    None
):
    broken = WorkerUnavailable("It broke.", worker="a", usage=Usage(7, 0), cost_usd=Decimal("0.5"))
    a = Player("a", [broken], "the answer", price=DEAR)
    run = await seen(guessing(team(a, conductor=boss(Pause(), line(0, "")))), ask_for())
    assert run.shown == "the answer"
    guess = run.record.guess
    assert guess is not None
    assert guess.attempt is not None
    assert (guess.outcome, guess.attempt.error, guess.attempt.usage) == (
        "failed", "WorkerUnavailable", Usage(7, 0),
    )  # fmt: skip
    assert run.record.cost_usd == run.ledger.spent_usd == Decimal("0.5") + DEAR.of(Usage(10, 1))


async def test_a_guess_that_is_refused_does_not_keep_the_plan_from_asking_its_worker_something_else() -> None:
    a = Player("a", [WorkerRefused("no", worker="a")], "the answer")
    run = await seen(guessing(team(a, conductor=boss(Pause(), line(0, "something else")))), ask_for())
    assert run.shown == "the answer"
    assert a.calls[0].refusals is not a.calls[1].refusals


async def test_a_guess_that_fails_or_waits_once_it_is_the_step_s_call_does_so_as_the_step_s() -> None:
    gate = Gate()

    def script(call: Call) -> list[Piece]:
        assert call.on_queued is not None
        call.on_queued("a cold start")
        return [gate, WorkerRefused("no", worker="a")]

    a = Player("a", script)
    engine = guessing(team(a, conductor=boss(Pause(), line(0, ""))))
    async with open_run(engine, ask_for()) as run:
        await until(lambda: run.record.guess and run.record.guess.outcome == "kept")
        gate.set()
        events = [event async for event in run.events()]
    assert [(event.step, event.why) for event in events if isinstance(event, CallQueued)] == [
        (0, "a cold start")
    ]
    assert events[-1].failure.code == "WorkerRefused"
    assert run.record.plans[0].steps[0].status == "failed"
    assert len(a.calls) == 1
    nothing_is_left(engine)


async def test_an_answer_that_breaks_off_after_it_was_taken_over_begins_again_as_any_step_does() -> None:
    a = Player("a", ["half", WorkerUnavailable("It broke.", worker="a")], "the answer")
    engine = guessing(team(a, conductor=boss(Pause(), line(0, ""))))
    run = await seen(engine, ask_for(stream=False))
    assert run.record.answer == "the answer"
    assert [lost.outcome for lost in run.record.plans[0].steps[0].cut] == ["cut"]
    assert [call.site.attempt for call in a.calls] == [1, 2]


@pytest.mark.parametrize("text", ["I like trains.", line(7, "")])
async def test_without_a_plan_the_guess_is_lost(text: str) -> None:
    a = Player("a", lambda call: ["so far", NEVER] if call.site.guess else "the answer")
    engine = guessing(team(a, conductor=Player("boss", [Pause(), text], line(0, ""))))
    run = await seen(engine, ask_for())
    assert run.shown == "the answer"
    assert [plan.source for plan in run.record.plans] == ["conductor", "repair"]
    assert [event.outcome for event in run.of(GuessEnded)] == ["lost"]

    engine = guessing(team(a, conductor=boss(Pause(), WorkerUnavailable("gone", worker="boss"))))
    run = await seen(engine, ask_for())
    assert (run.shown, run.record.fallback is not None) == ("the answer", True)
    assert [event.outcome for event in run.of(GuessEnded)] == ["cut"], "nobody knows whether it was right"


async def test_a_guess_whose_plan_is_not_there_in_time_is_closed_and_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("conductor.run.guess.PATIENCE_S", 0.01)
    gate, oracle = Gate(), Oracle()
    a = Player("a", lambda call: ["all of it" if call.site.guess else "the answer"])
    engine = guessing(team(a, conductor=boss(gate, line(0, ""))), oracle)
    async with open_run(engine, ask_for()) as run:
        await until(lambda: oracle.ended)
        guess = run.record.guess
        assert guess is not None
        assert (guess.outcome, oracle.ended, a.open_calls) == ("lost", [("a", "lost")], 0)
        assert run.record.plans[0].steps == ()
        gate.set()
        events = [event async for event in run.events()]
    assert (events[-1].answer, len(a.calls)) == ("the answer", 2)
    nothing_is_left(engine)


async def test_a_guess_that_was_kept_may_take_longer_than_a_plan_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("conductor.run.guess.PATIENCE_S", 0.2)
    gate, oracle = Gate(), Oracle()
    a = Player("a", ["the ", gate, "answer"])
    async with open_run(guessing(team(a, conductor=boss(line(0, ""))), oracle), ask_for()) as run:
        await until(lambda: oracle.ended)
        await asyncio.sleep(0.25)
        gate.set()
        events = [event async for event in run.events()]
    assert (events[-1].answer, len(a.calls), oracle.ended) == ("the answer", 1, [("a", "kept")])


async def test_a_guess_of_a_run_that_ends_before_its_plan_is_cut() -> None:
    oracle = Oracle()
    engine = guessing(team(Player("a", ["so far", NEVER]), conductor=boss(NEVER)), oracle)
    async with open_run(engine, ask_for()) as run:
        await until(lambda: run.record.guess)
        await turns()
    assert run.record.status == "cancelled"
    assert oracle.ended == [("a", "cut")]
    nothing_is_left(engine)


BUSY = Attempt("a", "WorkerBusy", "It is busy.", usage=Usage(7, 0), cost_usd=Decimal("0.5"))


async def test_who_was_asked_and_what_failed_before_is_on_record_and_counted_once() -> None:
    gone = WorkerUnavailable("It is gone.", worker="b", attempts=(BUSY,))
    a = Player("a", [gone], "the answer", price=DEAR)
    run = await seen(guessing(team(a, conductor=boss(Pause(), line(0, "")))), ask_for())
    guess = run.record.guess
    assert guess is not None
    assert guess.attempt is not None
    assert (guess.outcome, guess.attempt.worker, guess.attempt.error) == ("failed", "b", "WorkerUnavailable")
    assert (guess.failed, guess.workers) == ((BUSY,), {"a", "b"})
    assert run.record.cost_usd == run.ledger.spent_usd == Decimal("0.5") + DEAR.of(Usage(10, 1))
    assert load(RunRecords, dump(RunRecords(run.record))).record == run.record


async def test_an_answer_that_broke_off_before_there_was_a_plan_for_something_else_is_on_record() -> None:
    a = Player("a", ["so far", WorkerUnavailable("It broke.", worker="a")])
    run = await seen(guessing(team(a, Player("b"), conductor=boss(Pause(), line(1, "")))), ask_for())
    assert run.record.guess is not None
    assert (run.record.guess.outcome, [each.error for each in run.record.guess.errors]) == (
        "lost", ["WorkerUnavailable"],
    )  # fmt: skip


async def test_a_guess_that_cannot_be_begun_leaves_nothing() -> None:
    def journal(_: Record, __: int, event: Event) -> None:
        if isinstance(event, GuessStarted):
            raise ValueError("no room")

    oracle, a = Oracle(), Player("a")
    engine = guessing(team(a, conductor=boss(Pause(), line(0, ""))), oracle)
    async with open_run(engine, ask_for(), journal=journal) as run:
        [_ async for _ in run.events()]
    assert (run.record.plans[0].is_interrupted, oracle.ended) == (True, [("a", "cut")])
    nothing_is_left(engine)


TOOLS = Toolset((Tool("look", "", {}),))
PICTURE = (Message("user", (Text("what is this?"), Image("data:image/png;base64,AA=="))),)


@pytest.mark.parametrize(
    "facts",
    [
        {"plan": a_plan(("a", ()))},
        {"plan_only": True},
        {"strict": True},
        {"sampling": Sampling(stop=("\n",))},
        {"tools": TOOLS},
        {"answer_format": AnswerFormat(schema={"type": "object"})},
        {"priority": "batch"},
        {"budget": Budget(max_tokens=100_000)},
        {"workers": ("b",)},
    ],
    ids=lambda facts: next(iter(facts)),
)
async def test_nobody_is_asked_where_the_call_depends_on_the_plan_or_tokens_are_limited(facts: dict) -> None:
    oracle = Oracle()
    engine = guessing(team(Player("a"), Player("b"), conductor=boss(Pause(), line(0, ""))), oracle)
    run = await seen(engine, ask_for(**facts))
    assert (oracle.asked, run.record.guess) == ([], None)


async def test_nobody_is_asked_about_a_picture_or_where_the_port_says_no() -> None:
    oracle = Oracle()
    engine = guessing(team(Player("a"), conductor=boss(Pause(), line(0, ""))), oracle)
    await seen(engine, replace(ask_for(), conversation=PICTURE))
    assert oracle.asked == []
    oracle.admits = False
    run = await seen(engine, ask_for())
    assert (len(oracle.asked), run.record.guess) == (1, None)


async def test_only_a_first_plan_is_guessed_at() -> None:
    plans = [line(0, "one"), line(0, "two")]
    a = Player("a")
    engine = guessing(team(a, conductor=Player("boss", *plans)))
    run = await seen(engine, ask_for(rounds=2))
    assert [plan.guess is not None for plan in run.record.plans] == [True, False]


async def test_what_costs_something_is_not_asked_where_money_is_limited() -> None:
    limited = ask_for(budget=Budget(max_cost_usd=Decimal(1000)))
    oracle = Oracle()
    engine = guessing(team(Player("a", price=DEAR), conductor=boss(Pause(), line(0, ""))), oracle)
    run = await seen(engine, limited)
    assert (run.record.guess, oracle.asked) == (None, [])
    async with open_run(engine, ask_for(), account=Account("key")) as run:
        [_ async for _ in run.events()]
    assert (run.record.guess, oracle.asked) == (None, []), "its key may have a budget"
    unpriced = guessing(team(Player("a", price=None), conductor=boss(Pause(), line(0, ""))), oracle)
    run = await seen(unpriced, ask_for())
    assert (run.record.guess, oracle.asked) == (None, [])


async def test_a_free_guess_makes_no_dear_call_wait_and_shortens_no_answer() -> None:
    """With so little money left each dear call is shortened to it, and would wait for whoever holds some."""

    def engine(oracle: Oracle | None) -> tuple[Team, Player, Player]:
        a = Player("a", ["so far", NEVER])
        leader = Player("boss", [Pause(), line(1, "")], price=DEAR)
        b = Player("b", "the answer", price=DEAR)
        return replace(team(a, b, conductor=leader), speculation=oracle), leader, b

    limits: list[list[int | None]] = []
    for oracle in (None, Oracle()):
        workers, leader, b = engine(oracle)
        async with asyncio.timeout(5):
            run = await seen(workers, ask_for(budget=Budget(max_cost_usd=Decimal("0.05"))))
        assert run.shown == "the answer"
        limits.append([player.calls[0].sampling.max_output_tokens for player in (leader, b)])
    assert limits[0] == limits[1]
    assert (limits[0][1] or 0) < 4096, "it was shortened"


WRONG, RIGHT = line(1, "") + "\n", line(0, "") + "\n"


def _team(plan: str, price: Price = DEAR) -> Team:
    a = Player("a", [Pause(5), "so ", "it ", "is"], price=price)
    b = Player("b", [Pause(5), "so ", "be ", "it"], price=price)
    return guessing(team(a, b, conductor=Player("boss", [Pause(9), plan, Pause(9)], price=price)))


@pytest.mark.parametrize("plan", [RIGHT, WRONG, RIGHT + line(1, "sum up", [0]), "no plan"])
async def test_a_run_that_is_cancelled_after_any_event_leaves_nothing_open_held_or_unpaid(plan: str) -> None:
    n_events, is_over = 0, False
    while not is_over:
        n_events += 1
        engine, ledger = _team(plan), BudgetLedger()
        async with open_run(engine, ask_for(), ledger=ledger) as run:
            for _ in range(n_events):
                is_over = isinstance(await run.answer.next(), RunFinished | RunFailed)
                if is_over:
                    break
        assert ledger.holds == []
        nothing_is_left(engine)
        guess = run.record.guess
        assert guess is None or guess.outcome is not None
        assert run.record.cost_usd is not None
        assert run.record.cost_usd <= ledger.spent_usd, "a call that had not spoken is in the ledger alone"
        oracle = engine.speculation
        assert isinstance(oracle, Oracle)
        assert len(oracle.ended) == len(oracle.asked)
        assert load(RunRecords, dump(run.records)) == run.records


@pytest.mark.parametrize("plan", [RIGHT, WRONG, RIGHT + line(1, "sum up", [0])])
@pytest.mark.parametrize("is_kind", [True, False])
async def test_another_router_goes_on_after_any_event_and_does_not_trip_over_a_guess(
    plan: str, is_kind: bool
) -> None:
    told: list[tuple[Record, Event]] = []
    whole = _team(plan)
    async with open_run(
        whole, ask_for(), journal=lambda record, _, event: told.append((record, event))
    ) as run:
        events = [event async for event in run.events()]
    answer = run.record.answer
    n_events = len([event for event in events if not isinstance(event, AnswerDelta)])
    for n in range(1, n_events - 1):
        if is_kind:
            async with open_run(_team(plan), ask_for()) as first:
                kept = first.subscribe()
                for _ in range(n):
                    await kept.next()
                first.detach()
            left = first.records
            if left.record.status == "finished":
                continue
        else:  # as a process that was killed has left it
            left = RunRecords([record for record, event in told if not isinstance(event, AnswerDelta)][n - 1])
        left = load(RunRecords, dump(left))
        async with resume_run(_team(plan), left, owner="next") as second:
            last = [event async for event in second.events()][-1]
        assert isinstance(last, RunFinished)
        assert last.answer == answer
        guesses = [each.guess for each in second.record.plans if each.guess]
        assert len(guesses) == (1 if left.record.guess else 0), "a continued run guesses no more"
        assert all(guess.outcome is not None for guess in guesses)
        if guesses and guesses[0].outcome == "cut" and not is_kind:
            assert second.record.n_unmetered_calls >= 1


@dataclass(frozen=True)
class Case:
    plan: str
    guess: str | None
    first_word: int
    plan_at: int
    fails: str
    stream: bool


LINES = st.sampled_from([line(0, ""), line(1, ""), line(0, "part"), line("c", "")])
CASES = st.builds(
    Case,
    plan=st.one_of(
        LINES,
        LINES.map(lambda first: first + line(1, "sum up", [0])),
        st.just("no plan"),
    ),
    guess=st.sampled_from(["a", "b"]),
    first_word=st.integers(0, 40),
    plan_at=st.integers(0, 40),
    fails=st.sampled_from(["", "", "a", "b"]),
    stream=st.booleans(),
)


async def _outcome(case: Case, oracle: Oracle | None) -> tuple[object, ...]:
    def worker(name: str) -> Player:
        def script(call: Call) -> list[Piece]:
            if case.fails == name:
                return [Pause(case.first_word), WorkerRefused("no", worker=name)]
            asked = call.messages[-1].text
            return [Pause(case.first_word), f"{name} of ", str(len(asked)), Usage(len(asked), 3)]

        return Player(name, script, price=DEAR)

    leader = Player("boss", [Pause(case.plan_at), case.plan, Pause(3)], price=DEAR)
    engine = replace(team(worker("a"), worker("b"), conductor=leader), speculation=oracle)
    run = await seen(engine, ask_for(stream=case.stream))
    record = run.record
    assert record.cost_usd == run.ledger.spent_usd
    wasted = record.guess.attempt.cost_usd if record.guess and record.guess.attempt else None
    shapes = [(plan.source, [step.step for step in plan.steps]) for plan in record.plans]
    return record.answer, record.status, record.cost_usd - (wasted or 0), run.shown, shapes


@given(case=CASES)
def test_with_and_without_a_guess_the_outcome_and_its_cost_are_the_same(case: Case) -> None:
    with_it = asyncio.run(_outcome(case, Oracle(case.guess or "a")))
    assert with_it == asyncio.run(_outcome(case, None))


def test_the_events_of_a_guess_are_in_the_union_that_the_codec_reads() -> None:
    ended = GuessEnded(1.0, 0, "kept")
    assert load(Event, dump(ended)) == ended
