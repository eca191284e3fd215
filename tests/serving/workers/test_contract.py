"""The contract of every worker, on every wire. The workers are in `subjects.py`, with instructions to add one."""

import asyncio
import json
import pickle
import time

import pytest
from msgspec.structs import replace

from conductor.errors import ContextOverflow, WorkerBusy, WorkerError, WorkerRefused, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.messages import Message, Native, Text, Tool, ToolCall, ToolResult, Toolset
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.worker import Worker
from tests.serving.workers.subjects import (
    CALLING,
    MODEL,
    RETRY_AFTER_S,
    SECRET,
    SUBJECTS,
    USAGE,
    Behaviour,
    MakeSubject,
    words,
)
from tests.states import until

CALL = Call(messages=(Message.of("system", "Be short."), Message.of("user", "What is two and two?")))
SOON_S = 5.0
CLOSED_WITHIN_S = 0.25


@pytest.fixture(params=SUBJECTS.values(), ids=SUBJECTS.keys())
def make(request: pytest.FixtureRequest) -> MakeSubject:
    return request.param


async def read(reply: Reply) -> list[Delta]:
    return [delta async for delta in reply]


async def listen(worker: Worker, deltas: list[Delta]) -> None:
    async with worker.open(CALL) as reply:
        async for delta in reply:
            deltas.append(delta)  # noqa: PERF401 - kept where the stream breaks


async def test_the_text_is_streamed_in_order(make: MakeSubject):
    text = "It is four, and\nno more. " * 20
    async with make(Behaviour(text=text)) as subject, subject.worker.open(CALL) as reply:
        deltas = await read(reply)
    assert "".join(delta.text for delta in deltas) == text
    assert len([delta for delta in deltas if delta.text]) > 1


async def test_the_reply_has_worker_model_and_price(make: MakeSubject):
    async with make(Behaviour()) as subject, subject.worker.open(CALL) as reply:
        await read(reply)
    assert (reply.worker, reply.model, reply.attempts) == ("w", MODEL, ())
    assert reply.price == subject.price


async def test_input_tokens_include_cached_and_output_tokens_include_reasoning(make: MakeSubject):
    async with make(Behaviour(reasoning="Two, two.")) as subject, subject.worker.open(CALL) as reply:
        await read(reply)
    assert reply.usage == USAGE


async def test_only_the_last_delta_has_finish_reason_and_usage(make: MakeSubject):
    async with make(Behaviour()) as subject, subject.worker.open(CALL) as reply:
        deltas = await read(reply)
    assert (deltas[-1].finish, deltas[-1].usage) == (FinishReason.STOP, USAGE)
    assert [delta.finish for delta in deltas[:-1]] == [None] * (len(deltas) - 1)


@pytest.mark.parametrize("finish", [each for each in FinishReason if each is not FinishReason.TOOL_CALLS])
async def test_finish_reasons_are_mapped(make: MakeSubject, finish: FinishReason):
    async with make(Behaviour(finish=finish)) as subject, subject.worker.open(CALL) as reply:
        await read(reply)
    assert reply.finish == finish


async def test_reasoning_is_separate_from_the_answer(make: MakeSubject):
    async with (
        make(Behaviour(text="Four.", reasoning="Two and two.")) as subject,
        subject.worker.open(CALL) as reply,
    ):
        deltas = await read(reply)
    assert "".join(delta.reasoning for delta in deltas) == "Two and two."
    assert "".join(delta.text for delta in deltas) == "Four."


async def test_an_empty_answer_has_a_finish_reason(make: MakeSubject):
    async with make(Behaviour(text="")) as subject, subject.worker.open(CALL) as reply:
        deltas = await read(reply)
    assert "".join(delta.text for delta in deltas) == ""
    assert reply.finish == FinishReason.STOP


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        ("unavailable", WorkerUnavailable),
        ("busy", WorkerBusy),
        ("refused", WorkerRefused),
        ("overflow", ContextOverflow),
    ],
)
async def test_a_failure_before_the_first_token_is_raised_by_open(
    make: MakeSubject, fails, error: type[WorkerError]
):
    async with make(Behaviour(fails=fails)) as subject:
        with pytest.raises(error) as caught:
            async with subject.worker.open(CALL):
                pytest.fail("entered")
        await subject.wait_until_closed()
    assert type(caught.value) is error
    assert caught.value.worker == "w"
    assert "w" in caught.value.message
    assert SECRET not in str(caught.value)


async def test_a_worker_does_not_retry_a_call(make: MakeSubject):
    async with make(Behaviour(fails="unavailable")) as subject:
        with pytest.raises(WorkerUnavailable):
            async with subject.worker.open(CALL):
                pytest.fail("entered")
        assert subject.n_requests() == 1


async def test_a_busy_worker_reports_its_retry_after(make: MakeSubject):
    async with make(Behaviour(fails="busy")) as subject:
        with pytest.raises(WorkerBusy) as caught:
            async with subject.worker.open(CALL):
                pytest.fail("entered")
    assert caught.value.retry_after_s == RETRY_AFTER_S


async def test_an_error_can_be_pickled(make: MakeSubject):
    async with make(Behaviour(fails="busy")) as subject:
        with pytest.raises(WorkerBusy) as caught:
            async with subject.worker.open(CALL):
                pytest.fail("entered")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.message, copy.worker) == (WorkerBusy, caught.value.message, "w")
    assert copy.retry_after_s == RETRY_AFTER_S


async def test_a_broken_stream_is_unavailable_after_the_received_text(make: MakeSubject):
    deltas: list[Delta] = []
    async with make(Behaviour(text="one two three four", breaks_after_words=2)) as subject:
        with pytest.raises(WorkerUnavailable) as caught:
            await listen(subject.worker, deltas)
        await subject.wait_until_closed()
    assert "".join(delta.text for delta in deltas) == words("one two three four", 2)
    assert [delta.finish for delta in deltas] == [None] * len(deltas)
    assert caught.value.worker == "w"


async def test_leaving_the_block_early_stops_the_model_immediately(make: MakeSubject):
    async with make(Behaviour(text="one two three", stalls_after_words=1)) as subject:
        async with subject.worker.open(CALL) as reply:
            async for delta in reply:
                assert delta.text == "one"
                break
            assert subject.open_calls() == 1
        left_s = time.monotonic()
        await subject.wait_until_closed()
        assert time.monotonic() - left_s < CLOSED_WITHIN_S


async def test_leaving_the_block_unread_stops_the_model_immediately(make: MakeSubject):
    async with make(Behaviour(text="one two three", stalls_after_words=1)) as subject:
        async with subject.worker.open(CALL):
            pass
        left_s = time.monotonic()
        await subject.wait_until_closed()
        assert time.monotonic() - left_s < CLOSED_WITHIN_S


@pytest.mark.parametrize("words_said", [0, 1])
async def test_cancelling_propagates_and_stops_the_model_immediately(make: MakeSubject, words_said: int):
    async with make(Behaviour(text="one two three", stalls_after_words=words_said)) as subject:
        entered = asyncio.Event()

        async def ask() -> None:
            async with subject.worker.open(CALL) as reply:
                entered.set()
                await read(reply)

        task = asyncio.create_task(ask())
        await until(subject.open_calls)
        if words_said:
            await asyncio.wait_for(entered.wait(), SOON_S)
        cancelled_s = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await subject.wait_until_closed()
        assert time.monotonic() - cancelled_s < CLOSED_WITHIN_S


async def test_an_error_in_the_block_stops_the_model_and_propagates(make: MakeSubject):
    async with make(Behaviour(stalls_after_words=1)) as subject:
        with pytest.raises(KeyError):
            async with subject.worker.open(CALL):
                raise KeyError("mine")
        await subject.wait_until_closed()


async def test_concurrent_calls_get_their_own_answers(make: MakeSubject):
    async def ask(subject) -> str:
        async with subject.worker.open(CALL) as reply:
            return "".join([delta.text async for delta in reply])

    async with make(Behaviour(text="one two three")) as subject:
        answers = await asyncio.gather(*(ask(subject) for _ in range(20)))
        await subject.wait_until_closed()
    assert answers == ["one two three"] * 20


async def test_a_call_leaves_no_tasks(make: MakeSubject):
    async with make(Behaviour(text="one two three", stalls_after_words=1)) as subject:
        before = asyncio.all_tasks()
        async with subject.worker.open(CALL):
            pass
        await subject.wait_until_closed()
        await until(lambda: not [t for t in asyncio.all_tasks() - before if "WireServer" not in repr(t)])


PATHS: tuple[tuple[str, dict[str, str]], ...] = (("read", {"path": "a"}), ("read", {"path": "b"}))
READ = Tool("read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})


@pytest.mark.parametrize("make_caller", CALLING.values(), ids=CALLING.keys())
async def test_tool_calls_are_complete_and_have_unique_ids(make_caller: MakeSubject):
    async with (
        make_caller(Behaviour(text="", calls=PATHS)) as subject,
        subject.worker.open(replace(CALL, tools=Toolset((READ,)))) as reply,
    ):
        deltas = await read(reply)
    calls = reply.result.tool_calls
    assert [(call.name, json.loads(call.arguments)) for call in calls] == list(PATHS)
    assert len({call.id for call in calls if call.id}) == 2
    assert (deltas[-1].finish, reply.finish) == (FinishReason.TOOL_CALLS, FinishReason.TOOL_CALLS)


@pytest.mark.parametrize("make_caller", CALLING.values(), ids=CALLING.keys())
async def test_a_conversation_with_another_workers_tools_is_accepted(make_caller: MakeSubject):
    turns = (
        Message("assistant", (ToolCall("call.1", "read", '{"path": "a"}'),), Native("someone", "", {"x": 1})),
        Message("tool", (ToolResult("call.1", (Text("empty"),), is_error=True),)),
    )
    async with (
        make_caller(Behaviour(text="", calls=PATHS)) as subject,
        subject.worker.open(Call((*CALL.messages, *turns), tools=Toolset((READ,)))) as reply,
    ):
        await read(reply)
    assert len(reply.result.tool_calls) == 2
