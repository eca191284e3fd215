"""A worker that refused is skipped for the rest of the run."""

import pytest

from conductor.errors import WorkerRefused, WorkerUnavailable
from conductor.model.call import Call, CallSite
from conductor.model.messages import Message
from conductor.model.terms import Refusals, Terms
from conductor.model.worker import Worker
from serving.workers.scripted import ScriptedReply, ScriptedWorker
from tests.serving.dispatch.routes import dispatcher

ASK = (Message.of("user", "What is two and two?"),)


async def answer(worker: Worker, refusals: Refusals | None, operation: str = "chat") -> str:
    call = Call(ASK, site=CallSite(operation=operation), terms=Terms(refusals=refusals))  # type: ignore[arg-type]
    async with worker.open(call) as reply:
        return "".join([delta.text async for delta in reply])


def refusing(*replies: ScriptedReply | str) -> tuple[Worker, ScriptedWorker]:
    wire = ScriptedWorker("w", [ScriptedReply(error="refused"), *replies])
    return dispatcher(wire), wire


async def test_a_worker_is_not_called_again_in_a_run_that_it_refused() -> None:
    worker, wire = refusing("Four.")
    run = Refusals()
    notes: list[str] = []
    for _ in range(3):
        with pytest.raises(WorkerRefused) as caught:
            await answer(worker, run)
        notes.append(caught.value.message)
    assert len(wire.calls) == 1
    assert len(set(notes)) == 1, "the same words each time"
    assert await answer(worker, Refusals()) == "Four."


async def test_a_refused_plan_does_not_block_the_workers_steps() -> None:
    worker, wire = refusing("Four.")
    run = Refusals()
    with pytest.raises(WorkerRefused):
        await answer(worker, run, "plan")
    assert await answer(worker, run) == "Four."
    run.add("w", "plan", WorkerRefused("A bad key.", every_call=True))
    with pytest.raises(WorkerRefused, match="A bad key"):
        await answer(worker, run)
    assert len(wire.calls) == 2


async def test_a_refusal_in_mid_stream_counts() -> None:
    wire = ScriptedWorker(
        "w", [ScriptedReply("one two three", error="refused", fail_after_tokens=1), "Four."]
    )
    worker, run = dispatcher(wire), Refusals()
    for _ in range(2):
        with pytest.raises(WorkerRefused):
            await answer(worker, run)
    assert len(wire.calls) == 1


async def test_an_outage_does_not_count_as_a_refusal() -> None:
    wire = ScriptedWorker("w", [ScriptedReply(error="unavailable"), "Four."])
    worker, run = dispatcher(wire), Refusals()
    with pytest.raises(WorkerUnavailable):
        await answer(worker, run)
    assert await answer(worker, run) == "Four."


async def test_a_call_outside_a_run_is_always_made() -> None:
    worker, wire = refusing("Four.")
    with pytest.raises(WorkerRefused):
        await answer(worker, None)
    assert await answer(worker, None) == "Four."
    assert len(wire.calls) == 2
