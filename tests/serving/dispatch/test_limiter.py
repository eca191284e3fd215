"""Slots of workers: held for the whole call, granted in order, and always released."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from math import inf

import pytest
from msgspec.structs import replace

from conductor.errors import LineTooLong, WorkerUnavailable
from conductor.model.call import Call, CallSite
from conductor.model.messages import Message
from conductor.model.reply import Reply
from conductor.model.terms import Terms
from conductor.model.worker import Worker
from serving.dispatch.limiter import Limiter
from serving.dispatch.route import Route
from serving.health import FAILURES_BEFORE_OPEN
from serving.workers.scripted import ScriptedReply, ScriptedWorker
from tests.serving.dispatch.routes import deployed, dispatcher, route, target
from tests.states import until

CALL = Call((Message.of("user", "hi"),))


BEGUN = replace(CALL, terms=Terms(is_first_paid_call=True))


def full(name: str, *replies: ScriptedReply | str, slots: int = 1, longest_queue_s: float = inf) -> Route:
    """Return a route with few slots, for tests that fill them."""
    return route(ScriptedWorker(name, replies or ["x"]), slots=slots, longest_queue_s=longest_queue_s)


def of_key(payer: str, run: str = "", *, begins: bool = False) -> Call:
    return replace(CALL, site=CallSite(run), terms=Terms(payer=payer, is_first_paid_call=begins))


async def hold(worker: Worker | Route, call: Call) -> None:
    async with dispatcher(worker).open(call):
        await asyncio.Event().wait()


async def hold_slot(limiter: Limiter) -> None:
    async with limiter.slot(CALL):
        await asyncio.Event().wait()


async def flood(worker: Route, n: int) -> list["asyncio.Task[None]"]:
    """Start `n` calls of one key that do not end."""
    tasks = [asyncio.create_task(hold(worker, of_key("flood"))) for _ in range(n)]
    await until(lambda: worker.limiter.open_calls + worker.limiter.queued == n)
    return tasks


async def text_of(worker: Worker, call: Call) -> tuple[Reply, str]:
    async with worker.open(call) as reply:
        return reply, "".join([delta.text async for delta in reply])


async def leave(tasks: list["asyncio.Task[None]"]) -> None:
    for each in tasks:
        each.cancel()
    await asyncio.wait(tasks)


async def test_a_slot_is_held_until_the_stream_ends():
    inner = ScriptedWorker("w", ["one two"])
    worker = dispatcher(route(inner, slots=1))
    async with worker.open(CALL) as reply:
        second = asyncio.create_task(worker.open(CALL).__aenter__())
        assert [delta.text async for delta in reply if delta.text] == ["one", " two"]
        assert (len(inner.calls), second.done()) == (1, False), "read to its end, and still open"
    await second
    assert len(inner.calls) == 2


async def test_at_most_as_many_calls_are_open_as_there_are_slots():
    inner = ScriptedWorker("w", ["x"], delay_s=0.002)
    worker, most = dispatcher(route(inner, slots=3)), 0

    async def ask() -> None:
        nonlocal most
        async with worker.open(CALL):
            most = max(most, inner.open_calls)

    await asyncio.gather(*(ask() for _ in range(20)))
    assert most == 3


async def test_the_longest_waiting_call_is_next():
    worker, order = dispatcher(full("w")), list[int]()

    async def ask(number: int) -> None:
        async with worker.open(CALL):
            order.append(number)

    await asyncio.gather(*(ask(number) for number in range(8)))
    assert order == list(range(8))


async def test_a_cancelled_call_releases_its_slot_and_a_cancelled_wait_takes_none():
    inner = ScriptedWorker("w", [ScriptedReply("x y", stall_after_tokens=1)])
    worker = dispatcher(route(inner, slots=1))

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


async def test_a_failed_call_releases_its_slot():
    worker = dispatcher(full("w", ScriptedReply(error="unavailable"), "fine"))
    with pytest.raises(WorkerUnavailable):
        await worker.open(CALL).__aenter__()
    async with asyncio.timeout(5), worker.open(CALL) as reply:
        assert reply.worker == worker.name == "w"


async def test_a_runs_first_call_is_rejected_after_its_maximum_queue_time():
    one = full("w", ScriptedReply("x y", stall_after_tokens=1), "fine", longest_queue_s=0.05)
    worker = dispatcher(one)
    async with worker.open(CALL):
        with pytest.raises(LineTooLong) as caught:
            await worker.open(BEGUN).__aenter__()
        assert 1 <= caught.value.retry_after_s <= 300
        assert one.limiter.queued == 0
        patient = [asyncio.create_task(worker.open(CALL).__aenter__())]
        batch = replace(CALL, terms=Terms(is_first_paid_call=True, priority="batch"))
        patient.append(asyncio.create_task(worker.open(batch).__aenter__()))
        await asyncio.sleep(0.2)
        assert one.limiter.queued == 2, "a run that others have worked for waits on, and so does who can wait"
        patient[1].cancel()
    assert (await patient[0]).worker == "w"


async def test_a_full_queue_uses_a_fallback_and_is_not_retried():
    inner = ScriptedWorker("w", [ScriptedReply("x y", stall_after_tokens=1)])
    first = route(inner, 5, 0.001, 60.0, slots=1, longest_queue_s=0.05)
    worker = dispatcher(first, ScriptedWorker("other", ["Here."]))
    async with dispatcher(first).open(CALL), worker.open(BEGUN) as reply:
        assert reply.worker == "other"
        assert [attempt.error for attempt in reply.attempts] == ["LineTooLong"]
    assert len(inner.calls) == 1


async def test_after_a_billed_call_only_the_last_workers_queue_is_awaited():
    class Paid(ScriptedWorker):
        @asynccontextmanager
        async def open(self, call: Call) -> AsyncGenerator[Reply]:
            raise WorkerUnavailable("It broke.", worker="a", billed_at_bound=True)
            yield

    second = full("b", ScriptedReply("x y", stall_after_tokens=1), longest_queue_s=0.05)
    async with dispatcher(second).open(CALL):
        async with dispatcher(Paid("a", [""]), second, ScriptedWorker("c", ["Here."])).open(BEGUN) as reply:
            assert reply.worker == "c"
            assert [attempt.error for attempt in reply.attempts] == ["WorkerUnavailable", "LineTooLong"]
        last = asyncio.create_task(dispatcher(Paid("a", [""]), second).open(BEGUN).__aenter__())
        await asyncio.sleep(0.2)
        assert not last.done()
    assert (await last).worker == "b"


@pytest.mark.parametrize("begins", [True, False])
async def test_a_key_with_long_calls_does_not_block_another(begins: bool):
    one = full("w", slots=8)
    worker, limiter = dispatcher(one), one.limiter
    async with worker.open(of_key("modest")):
        pass
    tasks = await flood(one, 16)
    assert (limiter.open_calls, limiter.wait_s("modest")) == (7, 0)
    assert limiter.wait_s("flood") > 0
    async with asyncio.timeout(5), worker.open(of_key("modest", begins=begins)):
        assert (limiter.open_calls, limiter.queued) == (8, 9)
    await leave(tasks)


@pytest.mark.parametrize("begins", [True, False])
async def test_if_one_key_has_all_slots_anothers_call_uses_a_free_worker(
    begins: bool,
):
    first, second = full("a", slots=4, longest_queue_s=0.2), full("b", "Here.", slots=4)
    tasks = await flood(first, 4)
    assert first.limiter.is_full, "it was alone"
    async with asyncio.timeout(5), dispatcher(first, second).open(of_key("modest", begins=begins)) as reply:
        (attempt,) = reply.attempts
        assert reply.worker == "b"
        assert attempt.error == ("LineTooLong" if begins else "WorkerUnavailable"), attempt.message
        assert (first.limiter.queued, first.limiter.open_calls, second.limiter._coming) == (0, 4, {})
    await leave(tasks)


async def test_a_call_returns_to_a_queue_if_the_other_worker_fails():
    first = full("a", "Here.", longest_queue_s=1.0)
    failing = ScriptedWorker("b", [ScriptedReply(error="overflow")])
    tasks = await flood(first, 1)
    task = asyncio.create_task(text_of(dispatcher(first, route(failing, slots=1)), of_key("modest")))
    await until(lambda: failing.calls and not failing.open_calls, "it was asked")
    await leave(tasks)
    reply, text = await task
    assert (reply.worker, text) == ("a", "Here.")
    assert [(each.worker, each.error) for each in reply.attempts] == [
        ("a", "WorkerUnavailable"),
        ("b", "ContextOverflow"),
    ]
    assert reply.attempts[0].message == "a was skipped because b can answer immediately."


async def test_a_queued_call_moves_to_a_free_worker_not_to_the_next_queue():
    first, second, third = full("a", longest_queue_s=1.0), full("b"), full("c", "Here.")
    tasks = await flood(first, 1) + await flood(second, 1)
    async with asyncio.timeout(5), dispatcher(first, second, third).open(of_key("modest")) as reply:
        assert (reply.worker, [attempt.worker for attempt in reply.attempts]) == ("c", ["a"])
    await leave(tasks)


async def test_a_skipped_worker_that_becomes_free_is_called_first():
    down = ScriptedWorker("a", ["x", ScriptedReply(error="unavailable")])
    first, second, third = route(down, slots=1), full("b", longest_queue_s=1.0), full("c", "Here.")
    tasks = {each.name: await flood(each, 1) for each in (first, second, third)}
    task = asyncio.create_task(text_of(dispatcher(first, second, third), of_key("modest")))
    await until(lambda: first.limiter.queued == 1)
    for _ in range(FAILURES_BEFORE_OPEN):
        first.health.fail()
    await leave(tasks["a"])
    await until(lambda: second.limiter.queued == 1, "the first one's circuit is open")
    first.health.skip_until_s = 0.0
    await until(lambda: len(down.calls) == 2, "it left for the first")
    await leave(tasks["c"])
    reply, text = await task
    assert (reply.worker, text, len(down.calls)) == ("c", "Here.", 2)
    await leave(tasks["b"])


async def test_several_queues_together_are_awaited_no_longer_than_one():
    workers = [full(name, longest_queue_s=0.4) for name in "abc"]
    tasks = [each for one in workers for each in await flood(one, 1)]
    began_s = time.monotonic()
    with pytest.raises(LineTooLong) as caught:
        await dispatcher(*workers).open(of_key("modest", begins=True)).__aenter__()
    assert time.monotonic() - began_s == pytest.approx(0.4, abs=0.01)
    assert [attempt.error for attempt in caught.value.attempts] == ["LineTooLong"] * 2
    await leave(tasks)


async def test_several_deployments_queues_together_are_awaited_no_longer_than_one():
    places = [target(ScriptedWorker("w", ["x"]), name, limiter=Limiter("w", 1, 0.4)) for name in "abc"]
    tasks = [asyncio.create_task(hold_slot(each.limiter)) for each in places]
    await until(lambda: all(each.limiter.is_full for each in places))
    began_s = time.monotonic()
    with pytest.raises(LineTooLong) as caught:
        await dispatcher(deployed(*places, limiter=Limiter("w", 8))).open(BEGUN).__aenter__()
    assert time.monotonic() - began_s == pytest.approx(0.4, abs=0.01)
    assert [attempt.error for attempt in caught.value.attempts] == ["LineTooLong"] * 2
    await leave(tasks)


async def test_a_queue_with_long_calls_is_left_if_another_worker_is_free():
    first, second = full("a", slots=4, longest_queue_s=60), full("b", "Here.", slots=4)
    first.limiter._held_s = 30.0
    tasks = await flood(first, 4)
    assert not first.limiter.is_overfull("interactive", "modest"), "alone its pace says how long"
    assert first.limiter.is_overfull("interactive", "modest", is_other_free=True), (
        "all four have begun just now"
    )
    async with dispatcher(first, second).open(of_key("modest")) as reply:
        assert (reply.worker, [attempt.outcome for attempt in reply.attempts]) == ("b", ["left_alone"])
    others = await flood(second, 4)
    task = asyncio.create_task(hold(dispatcher(first, second), of_key("flood")))
    await until(
        lambda: first.limiter.queued == 1, "it waits for the first: the place that is free is not for it"
    )
    await leave([*tasks, *others, task])


async def test_queued_calls_move_only_as_far_as_the_other_worker_has_slots():
    first, second = full("a", longest_queue_s=0.2), full("b", slots=2)
    tasks = await flood(first, 1)
    line = dispatcher(first, second)
    waiting = [asyncio.create_task(hold(line, of_key("modest", f"wf_{n}"))) for n in range(5)]
    await until(lambda: second.limiter.open_calls == 2)
    await asyncio.sleep(0.5)
    assert (first.limiter.queued, second.limiter.queued) == (3, 0)
    await leave([*tasks, *waiting])
