"""Behaviour specific to the scripted worker."""

import asyncio
from dataclasses import fields

import pytest
from msgspec import structs
from msgspec.structs import replace

from conductor.errors import ContextOverflow, WorkerBusy, WorkerError, WorkerRefused, WorkerUnavailable
from conductor.model.call import Call, Sampling
from conductor.model.messages import Message
from conductor.model.reply import FinishReason, Reply
from conductor.model.terms import AttemptLimits, Pauses, Places, Terms
from conductor.model.usage import Usage
from serving.workers.scripted import KEPT_BYTES, KEPT_CALLS, ScriptedReply, ScriptedWorker

CALL = Call(messages=(Message.of("system", "Be short."), Message.of("user", "What is two and two?")))


async def ask(worker: ScriptedWorker, call: Call = CALL) -> tuple[str, Reply]:
    async with worker.open(call) as reply:
        return "".join([delta.text async for delta in reply]), reply


async def test_replies_are_used_in_turn():
    worker = ScriptedWorker("w", ["one", "two"])
    assert [(await ask(worker))[0] for _ in range(3)] == ["one", "two", "one"]


def test_a_script_without_replies_is_an_error():
    with pytest.raises(ValueError, match="at least one reply"):
        ScriptedWorker("w", [])


async def test_the_model_is_named_scripted():
    _, reply = await ask(ScriptedWorker("w", ["x"]))
    assert reply.model == "scripted"


async def test_the_question_is_inserted_and_other_braces_stay():
    worker = ScriptedWorker("w", ['{"worker": {0}, "subtask": "{question}"}'])
    call = Call(
        messages=(Message.of("user", "first"), Message.of("assistant", "a"), Message.of("user", "{last}"))
    )
    assert (await ask(worker, call))[0] == '{"worker": {0}, "subtask": "{last}"}'


async def test_words_are_counted_as_tokens_of_prompt_and_answer():
    worker = ScriptedWorker("w", [ScriptedReply("one two\nthree ", reasoning="let me see")])
    async with worker.open(CALL) as reply:
        deltas = [delta async for delta in reply]
    assert [delta.text for delta in deltas if delta.text] == ["one", " two", "\nthree", " "]
    assert reply.usage == Usage(input_tokens=7, output_tokens=7, reasoning_tokens=3)


async def test_an_answer_over_the_maximum_length_is_truncated():
    text, reply = await ask(
        ScriptedWorker("w", ["one two three"]), Call(CALL.messages, Sampling(max_output_tokens=2))
    )
    assert (text, reply.finish) == ("one two", FinishReason.LENGTH)
    assert reply.usage is not None
    assert reply.usage.output_tokens == 2


async def test_an_answer_of_exactly_the_maximum_length_is_complete():
    text, reply = await ask(
        ScriptedWorker("w", ["one two three"]), Call(CALL.messages, Sampling(max_output_tokens=3))
    )
    assert (text, reply.finish) == ("one two three", FinishReason.STOP)


async def test_the_answer_stops_before_the_first_stop_sequence():
    text, reply = await ask(
        ScriptedWorker("w", ["one two three"]), Call(CALL.messages, Sampling(stop=("three", "two")))
    )
    assert (text, reply.finish) == ("one ", FinishReason.STOP)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("unavailable", WorkerUnavailable),
        ("busy", WorkerBusy),
        ("refused", WorkerRefused),
        ("overflow", ContextOverflow),
    ],
)
async def test_configured_errors_are_raised(kind, error: type[WorkerError]):
    worker = ScriptedWorker("w", [ScriptedReply("one two", error=kind, fail_after_tokens=1), "fine"])
    with pytest.raises(error):
        await ask(worker)
    assert (await ask(worker))[0] == "fine"


async def test_only_the_newest_calls_are_kept():
    worker = ScriptedWorker("w", ["x"])
    for seed in range(KEPT_CALLS + 1):
        await ask(worker, Call(CALL.messages, Sampling(seed=seed)))
    assert (len(worker.calls), worker.calls[0].sampling.seed, worker.calls[-1].sampling.seed) == (
        KEPT_CALLS,
        1,
        KEPT_CALLS,
    )


async def test_kept_prompts_are_limited_in_bytes():
    worker, n_bytes = ScriptedWorker("w", ["x"]), KEPT_BYTES // 2
    for seed in range(3):
        await ask(worker, Call((Message.of("user", "a" * n_bytes),), Sampling(seed=seed)))
    assert [call.sampling.seed for call in worker.calls] == [1, 2]
    await ask(worker, Call((Message.of("user", "a" * 2 * KEPT_BYTES),)))
    assert len(worker.calls) == 1, "the newest one, whatever its size"


async def test_kept_calls_do_not_reference_their_runs():
    """Checks every field that may hold an object that is not part of the request."""
    plain = float | None, int | None
    objects = [
        each.name
        for each in structs.fields(Terms)
        if each.default is None and Terms.__annotations__[each.name] not in plain
    ]
    limits = AttemptLimits(pauses=Pauses(), places=Places(), on_queued=print)
    worker = ScriptedWorker("w", ["x"])
    await ask(worker, replace(CALL, terms=Terms(limits=limits, **dict.fromkeys(objects, print))))
    terms = worker.calls[0].terms
    assert objects == ["refusals", "observer", "holds"]
    assert [name for name in objects if getattr(terms, name) is not None] == []
    assert [getattr(terms.limits, each.name) for each in fields(AttemptLimits)] == [None] * 5
    assert worker.calls[0] == CALL


async def test_configured_delays_apply():
    """The first token comes after `delay_s`, and the others at `tokens_per_s`. None is early."""
    worker = ScriptedWorker("w", ["one two three"], delay_s=0.05, tokens_per_s=100)
    loop = asyncio.get_running_loop()
    asked_s = loop.time()
    async with worker.open(CALL) as reply:
        opened_s = loop.time()
        came_s = [loop.time() - asked_s async for _ in reply]
    assert opened_s - asked_s >= 0.05
    assert came_s[2] >= 0.05 + 2 / 100


async def test_a_call_is_open_from_the_first_step_to_the_last():
    worker = ScriptedWorker("w", ["one two"])
    async with worker.open(CALL):
        assert worker.open_calls == 1
    assert worker.open_calls == 0


async def test_usage_and_finish_reason_can_be_configured():
    script = ScriptedReply("x", finish=FinishReason.CONTENT_FILTER, usage=Usage(1, 2, 1, 1))
    _, reply = await ask(ScriptedWorker("w", [script]))
    assert (reply.finish, reply.usage) == (FinishReason.CONTENT_FILTER, Usage(1, 2, 1, 1))
