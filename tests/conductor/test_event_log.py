"""Event log with several readers: only the answer's owner may slow the writer."""

import asyncio

import pytest
from msgspec.structs import replace

from conductor.plan.plan import Step
from conductor.run.event_log import ROOM, EventLog, EventsNotKept, Subscription
from conductor.run.events import AnswerDelta, CallQueued, Event, PlanStarted, RunFinished, StepPlanned
from conductor.run.lifecycle import open_run
from conductor.run.record import Record
from conductor.run.task import Task
from tests.conductor.team import Player, a_plan, ask_for, team
from tests.states import until

PLAN = a_plan(("a", ()))


def log() -> EventLog:
    return EventLog(Record("wf_1", Task(()), 0.0))


async def rest_of(subscription: Subscription) -> list[Event]:
    return [event async for event in subscription]


async def test_events_are_numbered_and_journalled_before_any_reader_gets_them() -> None:
    journal: list[tuple[int, str, str]] = []
    one = team(Player("a", ["x", "y"]))

    def keep(record: Record, seq: int, event: Event) -> None:
        journal.append((seq, type(event).__name__, record.status))

    async with open_run(one, ask_for(plan=PLAN), journal=keep) as run:
        events = [event async for event in run.events()]
    assert [name for _, name, _ in journal] == [type(event).__name__ for event in events]
    progress = [event for event in events if not isinstance(event, AnswerDelta)]
    assert [seq for seq, name, _ in journal if name != "AnswerDelta"] == list(range(1, len(progress) + 1))
    assert journal[-1] == (len(progress), "RunFinished", "finished")


async def test_a_late_subscriber_gets_stored_events_but_no_answer_deltas() -> None:
    async with open_run(team(Player("a", ["x", "y"])), ask_for(plan=PLAN)) as run:
        everything = [event async for event in run.events()]
        late = await rest_of(run.subscribe())
        later = await rest_of(run.subscribe(after_seq=2))
    progress = [event for event in everything if not isinstance(event, AnswerDelta)]
    assert late == progress
    assert later == progress[2:]


async def test_a_slow_subscriber_loses_deltas_but_no_events_and_blocks_no_one() -> None:
    worker = Player("a", ["word "] * (3 * ROOM))
    async with open_run(team(worker), ask_for(plan=PLAN)) as run:
        slow = run.subscribe(deltas="all")
        owned = [event async for event in run.events()]
        events = await rest_of(slow)
    assert sum(isinstance(event, AnswerDelta) for event in owned) == 3 * ROOM
    assert sum(isinstance(event, AnswerDelta) for event in events) == ROOM
    others = [event for event in events if not isinstance(event, AnswerDelta)]
    assert others == [event for event in owned if not isinstance(event, AnswerDelta)]
    assert slow.seq == len(others)


async def test_an_owner_that_stops_reading_slows_the_writer_until_it_closes() -> None:
    worker = Player("a", ["word "] * (3 * ROOM))
    async with open_run(team(worker), ask_for(plan=PLAN)) as run:
        await until(lambda: worker.n_pieces > ROOM)
        for _ in range(200):
            await asyncio.sleep(0)
        assert worker.n_pieces <= ROOM + 5
        run.answer.close()
        await until(lambda: run.record.status == "finished")
    assert run.record.answer == "word " * (3 * ROOM)


async def test_a_background_run_has_no_owner_and_does_not_wait_for_readers() -> None:
    alone = log()
    alone.answer.close()
    reader = alone.subscribe(deltas="none")
    alone.append(PlanStarted(0.0, 0, 0, "client"))
    for _ in range(2 * ROOM):
        await alone.append_piece(AnswerDelta(0.1, "x"))
    alone.append(RunFinished(0.2, "x" * 2 * ROOM, finish="stop"))  # type: ignore[arg-type]
    assert [type(event).__name__ for event in await rest_of(reader)] == ["PlanStarted", "RunFinished"]
    assert alone.record.answer_began_s == 0.1


async def test_a_closed_subscriber_gets_no_events() -> None:
    one = log()
    reader = one.subscribe(deltas="all")
    reader.close()
    await one.append_piece(AnswerDelta(0.0, "x"))
    one.append(PlanStarted(0.0, 0, 0, "client"))
    assert not reader._events


async def test_a_subscriber_of_an_ended_run_gets_at_least_the_last_event() -> None:
    one = log()
    one.append(RunFinished(0.2, "x", finish="stop"))  # type: ignore[arg-type]
    assert [type(event).__name__ for event in await rest_of(one.subscribe(after_seq=one.seq))] == [
        "RunFinished"
    ]
    for _ in range(10):
        one.subscribe().close()
    assert len(one._subscriptions) == 2, "the answer's, and the one before"


async def test_a_delta_that_waits_for_buffer_space_has_the_newest_event_number() -> None:
    one = log()
    one.append(PlanStarted(0.0, 0, 0, "client"))

    async def write() -> None:
        for _ in range(ROOM + 2):
            await one.append_piece(AnswerDelta(0.0, "x"))
        one.append(RunFinished(0.0, "x", finish="stop"))  # type: ignore[arg-type]

    writer = asyncio.create_task(write())
    for _ in range(2 * ROOM):
        await asyncio.sleep(0)
    one.append(StepPlanned(0.0, 0, 0, Step("a", "")))
    seqs = [one.answer.seq async for _ in one.answer]
    await writer
    assert seqs == sorted(seqs)


async def test_subscribing_before_a_resumed_runs_first_event_is_an_error() -> None:
    resumed = EventLog(replace(log().record, seq=9))
    resumed.append(PlanStarted(0.0, 0, 0, "client"))
    for not_here in (2, 8, 11):
        with pytest.raises(EventsNotKept, match="10 to 10"):
            resumed.subscribe(after_seq=not_here)
    assert await resumed.subscribe().next() == await resumed.subscribe(after_seq=9).next()
    assert (resumed.subscribe(after_seq=10).seq, resumed.answer.seq) == (10, 9)


async def test_the_wall_time_advances_without_a_record_copy_per_delta() -> None:
    one = log()
    one.append(PlanStarted(0.0, 0, 0, "client"))
    one.append(CallQueued(0.5, 0, None, "a", "cold"))
    assert one.record.wall_s == 0.5
    one.answer.close()
    records: list[Record] = []
    for piece in range(1000):
        await one.append_piece(AnswerDelta(1 + piece / 1000, "x"))
        records.append(one.record)
    assert one.record.wall_s == pytest.approx(2.0, abs=0.11)
    assert len({id(record) for record in records}) <= 11
