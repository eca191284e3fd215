"""Slots: held as long as the call, taken in order, always given back."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from conductor.errors import LineTooLong, WorkerUnavailable
from conductor.model.call import Call, CallSite
from conductor.model.messages import Message
from conductor.model.reply import Reply
from serving.health import WorkerHealth
from serving.layers.failing_over import FailingOver
from serving.layers.limited import Limited
from serving.layers.retrying import Retrying
from serving.layers.watched import Watched
from serving.workers.scripted import ScriptedReply, ScriptedWorker
from tests.serving.states import until

CALL = Call((Message.of("user", "hi"),))


async def test_a_slot_is_held_for_the_life_of_the_stream():
    inner = ScriptedWorker("w", ["one two"])
    worker = Limited(inner, 1)
    async with worker.open(CALL) as reply:
        second = asyncio.create_task(worker.open(CALL).__aenter__())
        assert [delta.text async for delta in reply if delta.text] == ["one", " two"]
        assert (len(inner.calls), second.done()) == (1, False), "read to its end, and still open"
    await second
    assert len(inner.calls) == 2


async def test_no_more_are_open_at_once_than_there_are_slots():
    inner = ScriptedWorker("w", ["x"], delay_s=0.002)
    worker, most = Limited(inner, 3), 0

    async def ask() -> None:
        nonlocal most
        async with worker.open(CALL):
            most = max(most, inner.open_calls)

    await asyncio.gather(*(ask() for _ in range(20)))
    assert most == 3


async def test_who_waits_longest_is_next():
    worker, order = Limited(ScriptedWorker("w", ["x"]), 1), []

    async def ask(number: int) -> None:
        async with worker.open(CALL):
            order.append(number)

    await asyncio.gather(*(ask(number) for number in range(8)))
    assert order == list(range(8))


async def test_a_cancelled_call_gives_its_slot_back_and_a_cancelled_wait_takes_none():
    inner = ScriptedWorker("w", [ScriptedReply("x y", stall_after_tokens=1)])
    worker = Limited(inner, 1)

    async def hold() -> None:
        async with worker.open(CALL) as reply:
            async for _ in reply:
                pass

    holder, waiter, last = (asyncio.create_task(hold()) for _ in range(3))
    await until(lambda: inner.open_calls == 1)
    waiter.cancel()
    await asyncio.wait([waiter])
    assert len(inner.calls) == 1
    holder.cancel()
    await until(lambda: len(inner.calls) == 2, "the last one's turn")
    last.cancel()
    await asyncio.wait([holder, last])
    assert inner.open_calls == 0
    async with asyncio.timeout(5), worker.open(CALL):
        pass


async def test_a_call_that_fails_gives_its_slot_back():
    worker = Limited(ScriptedWorker("w", [ScriptedReply(error="unavailable"), "fine"]), 1)
    with pytest.raises(WorkerUnavailable):
        await worker.open(CALL).__aenter__()
    async with asyncio.timeout(5), worker.open(CALL) as reply:
        assert reply.worker == worker.name == "w"


async def test_the_time_that_a_call_waits_for_its_plan_says_nothing_of_how_long_a_slot_is_held():
    worker = Limited(ScriptedWorker("w", ["x"]), 1)
    async with worker.open(replace(CALL, site=CallSite(guess=True))):
        await asyncio.sleep(0.01)
    assert not worker._held_s
    async with worker.open(CALL):
        await asyncio.sleep(0.01)
    assert worker._held_s


async def test_a_call_that_begins_a_run_is_sent_away_when_its_turn_has_not_come_in_time():
    inner = ScriptedWorker("w", [ScriptedReply("x y", stall_after_tokens=1), "fine"])
    worker = Limited(Watched(inner, WorkerHealth()), 1, max_wait_s=0.05)
    async with worker.open(CALL):
        with pytest.raises(LineTooLong) as caught:
            await worker.open(replace(CALL, begins=True)).__aenter__()
        assert 1 <= caught.value.retry_after_s <= 300
        assert worker.queued == 0
        patient = [asyncio.create_task(worker.open(CALL).__aenter__())]
        batch = replace(CALL, begins=True, priority="batch")
        patient.append(asyncio.create_task(worker.open(batch).__aenter__()))
        await asyncio.sleep(0.2)
        assert worker.queued == 2, "a run that others have worked for waits on, and so does who can wait"
        patient[1].cancel()
    assert (await patient[0]).worker == "w"


async def test_a_line_that_is_too_long_goes_to_a_fallback_and_is_not_waited_for_again():
    inner = ScriptedWorker("w", [ScriptedReply("x y", stall_after_tokens=1)])
    limited = Limited(inner, 1, max_wait_s=0.05)
    worker = FailingOver([Retrying(limited, 5, 0.001, 60.0), ScriptedWorker("other", ["Here."])])
    async with limited.open(CALL), worker.open(replace(CALL, begins=True)) as reply:
        assert reply.worker == "other"
        assert [attempt.error for attempt in reply.attempts] == ["LineTooLong"]
    assert len(inner.calls) == 1


async def test_after_a_call_that_was_paid_only_the_last_ones_line_is_waited_in_to_its_end():
    class Paid(ScriptedWorker):
        """It takes its money and fails."""

        @asynccontextmanager
        async def open(self, call: Call) -> AsyncGenerator[Reply]:
            raise WorkerUnavailable("It broke.", worker="a", billed_at_bound=True)
            yield

    full = ScriptedWorker("b", [ScriptedReply("x y", stall_after_tokens=1)])
    limited = Limited(full, 1, max_wait_s=0.05)
    begun = replace(CALL, begins=True)
    async with limited.open(CALL):
        async with FailingOver([Paid("a", [""]), limited, ScriptedWorker("c", ["Here."])]).open(
            begun
        ) as reply:
            assert reply.worker == "c"
            assert [attempt.error for attempt in reply.attempts] == ["WorkerUnavailable", "LineTooLong"]
        last = asyncio.create_task(FailingOver([Paid("a", [""]), limited]).open(begun).__aenter__())
        await asyncio.sleep(0.2)
        assert not last.done()
    assert (await last).worker == "b"
