"""Retries: only before the first token, only for errors that may pass, and never before `retry-after`."""

import asyncio
import time
from contextlib import suppress

import pytest
from msgspec.structs import replace

from conductor.errors import ContextOverflow, WorkerBusy, WorkerError, WorkerRefused, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.messages import Message
from conductor.model.reply import Reply
from conductor.model.terms import Terms
from conductor.model.worker import Worker
from serving.dispatch.limiter import Limiter
from serving.dispatch.route import Route
from serving.workers.scripted import ScriptedReply, ScriptedWorker
from tests.serving.dispatch.routes import dispatcher, route
from tests.states import until

CALL = Call((Message.of("user", "hi"),))
DOWN, REFUSED, OVERFLOW = (ScriptedReply(error=kind) for kind in ("unavailable", "refused", "overflow"))


def busy(retry_after_s: float | None) -> ScriptedReply:
    return ScriptedReply(error="busy", retry_after_s=retry_after_s)


def quick(
    worker: Worker, attempts: int = 3, max_wait_s: float = 0.002, limiter: Limiter | None = None
) -> Route:
    return route(worker, attempts, 0.001, max_wait_s, limiter=limiter)


async def ask(worker: Worker | Route) -> tuple[str, Reply]:
    async with dispatcher(worker).open(CALL) as reply:
        return "".join([delta.text async for delta in reply]), reply


async def test_a_call_may_succeed_after_retries():
    inner = ScriptedWorker("w", [DOWN, busy(None), "Here."])
    text, reply = await ask(quick(inner))
    assert text == "Here."
    assert [call.site.attempt for call in inner.calls] == [1, 2, 3]
    assert [(a.worker, a.error) for a in reply.attempts] == [("w", "WorkerUnavailable"), ("w", "WorkerBusy")]


async def test_an_immediate_success_has_no_recorded_attempts():
    inner = ScriptedWorker("w", ["Here."])
    assert (await ask(quick(inner)))[1].attempts == ()
    assert len(inner.calls) == 1


async def test_after_its_attempts_the_last_error_lists_the_earlier_ones():
    inner = ScriptedWorker("w", [DOWN, DOWN, busy(0)])
    with pytest.raises(WorkerBusy) as caught:
        await ask(quick(inner))
    assert len(inner.calls) == 3
    assert [a.error for a in caught.value.attempts] == ["WorkerUnavailable"] * 2


async def test_one_attempt_means_no_retry():
    inner = ScriptedWorker("w", [DOWN, "Here."])
    with pytest.raises(WorkerUnavailable) as caught:
        await ask(quick(inner, attempts=1))
    assert (len(inner.calls), caught.value.attempts) == (1, ())


@pytest.mark.parametrize(("reply", "error"), [(REFUSED, WorkerRefused), (OVERFLOW, ContextOverflow)])
async def test_a_permanent_error_is_not_retried(reply: ScriptedReply, error: type[WorkerError]):
    inner = ScriptedWorker("w", [reply, "Here."])
    with pytest.raises(error):
        await ask(quick(inner))
    assert len(inner.calls) == 1


async def test_nothing_is_retried_after_the_first_token():
    inner = ScriptedWorker("w", [ScriptedReply("one two three", fail_after_tokens=1), "Here."])
    with pytest.raises(WorkerUnavailable):
        await ask(quick(inner))
    assert len(inner.calls) == 1


async def test_the_callers_own_errors_are_not_retried():
    inner = ScriptedWorker("w", ["Here."])
    with pytest.raises(WorkerUnavailable):
        async with dispatcher(quick(inner)).open(CALL):
            raise WorkerUnavailable("of the one who reads", worker="w")
    assert (len(inner.calls), inner.open_calls) == (1, 0)


async def test_a_retry_waits_at_least_for_retry_after():
    inner = ScriptedWorker("w", [busy(0.05), "Here."])
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    _, reply = await ask(quick(inner, max_wait_s=0.1))
    assert loop.time() - began_s >= 0.05
    assert reply.attempts[0].waited_s >= 0.05


async def test_a_retry_after_over_the_limit_is_not_awaited():
    inner = ScriptedWorker("w", [busy(60), "Here."])
    with pytest.raises(WorkerBusy) as caught:
        await ask(quick(inner))
    assert len(inner.calls) == 1
    assert caught.value.retry_after_s == 60, "so the caller can be told"


async def test_waits_are_jittered_growing_and_limited():
    firsts: list[float] = []
    seconds: list[float] = []
    for _ in range(40):
        _, reply = await ask(route(ScriptedWorker("w", [DOWN, DOWN, "Here."]), 3, 0.0005, 0.0008))
        first, second = (a.waited_s for a in reply.attempts)
        firsts.append(first)
        seconds.append(second)
    assert len(set(firsts)) > 30, "no two clients come back together"
    assert max(firsts) <= 0.0005 < max(seconds) <= 0.0008


async def test_no_slot_is_held_during_a_wait():
    inner = ScriptedWorker("w", [busy(30), "Here."])
    limiter = Limiter("w", 1)
    waiting = asyncio.create_task(ask(quick(inner, max_wait_s=60, limiter=limiter)))
    await until(lambda: len(inner.calls) == 1 and inner.open_calls == 0)
    async with asyncio.timeout(5):
        assert (await ask(route(inner, limiter=limiter)))[0] == "Here."
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (waiting.cancelled(), len(inner.calls)) == (True, 2)


async def test_a_call_cancelled_while_it_opens_is_not_retried():
    inner = ScriptedWorker("w", ["Here."], delay_s=30)
    opening = asyncio.create_task(ask(quick(inner)))
    await until(lambda: inner.open_calls == 1)
    opening.cancel()
    await asyncio.wait([opening])
    assert (opening.cancelled(), len(inner.calls), inner.open_calls) == (True, 1, 0)


async def test_a_retry_after_leaves_half_of_the_time_to_a_fallback():
    inner, other = ScriptedWorker("w", [busy(2), "Here."]), ScriptedWorker("b", ["Instead."])
    call = replace(CALL, terms=Terms(time.monotonic() + 2.2))
    first = route(inner, 3, max_wait_s=60, fallback_wait_s=60)
    async with asyncio.timeout(1), dispatcher(first, other).open(call) as reply:
        assert "".join([delta.text async for delta in reply]) == "Instead."
    assert len(inner.calls) == 1


async def test_a_backoff_leaves_half_of_the_remaining_time():
    waits_s: list[float] = []
    for _ in range(20):  # waits are random
        inner = ScriptedWorker("w", [DOWN, "Here."])
        call = replace(CALL, terms=Terms(time.monotonic() + 0.1))
        with suppress(WorkerUnavailable):
            async with dispatcher(route(inner, 2, 0.1, 0.1)).open(call) as reply:
                waits_s.append(reply.attempts[0].waited_s)
    assert 0 < max(waits_s) <= 0.05


@pytest.mark.parametrize("retry_after_s", [30.0, None])
async def test_a_wait_beyond_the_deadline_is_not_started(retry_after_s: float | None):
    inner = ScriptedWorker("w", [busy(retry_after_s), "Here."])
    call = replace(CALL, terms=Terms(time.monotonic() + (10 if retry_after_s else -1)))
    with pytest.raises(WorkerBusy) as caught:
        async with dispatcher(quick(inner, max_wait_s=60)).open(call):
            pytest.fail("entered")
    assert (len(inner.calls), caught.value.retry_after_s) == (1, retry_after_s)
