"""Answers that end normally without a word: one retry, then a free fallback. Each call is billed."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from decimal import Decimal

import pytest
from msgspec.structs import replace

from conductor.model.call import Call, CallSite, Sampling
from conductor.model.deltas import open_reply
from conductor.model.messages import Message, ToolCall, ToolResult
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.terms import Terms
from conductor.model.usage import Price, Usage
from serving.dispatch.model_parameters import ModelProfile
from serving.dispatch.route import Route
from tests.serving.dispatch.routes import dispatcher, route

CALL = Call((Message.of("user", "hi"),))
EMPTY = Delta(finish=FinishReason.STOP, usage=Usage(10, 1))
PRICE = Price(Decimal(1_000_000), Decimal(2_000_000))


class AnswersInTurn:
    """Worker that gives these answers in turn, and repeats the last."""

    def __init__(self, name: str, *answers: tuple[Delta, ...], late_s: float = 0.0) -> None:
        self.name, self._answers, self._late_s, self.calls = name, answers, late_s, list[Call]()

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        answer = self._answers[min(len(self.calls), len(self._answers) - 1)]
        self.calls.append(call)

        async def deltas() -> AsyncGenerator[Delta]:
            await asyncio.sleep(self._late_s)
            for delta in answer:
                yield delta

        return open_reply(self.name, "m", deltas(), PRICE)


def words(text: str) -> tuple[Delta, ...]:
    return Delta(text), Delta(finish=FinishReason.STOP, usage=Usage(10, 5))


def with_retries(worker: AnswersInTurn, attempts: int = 3) -> Route:
    """Return a route with one slot, so that a retry fails if the first call still holds it."""
    profile = ModelProfile(prefills=lambda _: True)
    return route(worker, attempts, 0.001, 0.002, slots=1, longest_queue_s=1.0, profile=profile)


async def ask(*routes: Route, call: Call = CALL) -> tuple[str, Reply]:
    async with dispatcher(*routes).open(call) as reply:
        return "".join([delta.text async for delta in reply]), reply


async def test_an_empty_answer_is_retried_once_and_both_calls_are_billed():
    inner = AnswersInTurn("w", (EMPTY,), words("Here."))
    text, reply = await ask(with_retries(inner))
    assert (text, len(inner.calls)) == ("Here.", 2)
    (attempt,) = reply.attempts
    assert (attempt.worker, attempt.error, attempt.usage, attempt.cost_usd) == (
        "w",
        "WorkerUnavailable",
        Usage(10, 1),
        Decimal(12),
    )
    assert "returned an empty answer" in attempt.message


async def test_a_second_empty_answer_is_returned_without_a_fallback():
    inner = AnswersInTurn("w", (EMPTY,))
    text, reply = await ask(with_retries(inner))
    assert (text, reply.finish, len(inner.calls), len(reply.attempts)) == ("", FinishReason.STOP, 2, 1)


async def test_with_one_attempt_an_empty_answer_is_returned_immediately():
    inner = AnswersInTurn("w", (EMPTY,), words("Here."))
    text, reply = await ask(with_retries(inner, attempts=1))
    assert (text, len(inner.calls), reply.attempts) == ("", 1, ())


async def test_a_fallback_is_called_after_two_empty_answers():
    first, second, mute = (
        AnswersInTurn("a", (EMPTY,)),
        AnswersInTurn("b", words("Here.")),
        AnswersInTurn("c", (EMPTY,)),
    )
    text, reply = await ask(with_retries(first), with_retries(second))
    assert (text, reply.worker, [each.worker for each in reply.attempts]) == ("Here.", "b", ["a", "a"])
    assert sum(each.cost_usd or 0 for each in reply.attempts) == 24
    text, reply = await ask(with_retries(first), with_retries(mute))
    assert (text, reply.worker, [each.worker for each in reply.attempts]) == ("", "c", ["a", "a", "c"])


async def test_a_slow_empty_answer_is_not_retried_if_another_worker_is_free():
    slow, second = AnswersInTurn("a", (EMPTY,), late_s=1.05), AnswersInTurn("b", words("Here."))
    text, reply = await ask(with_retries(slow), with_retries(second))
    assert (text, len(slow.calls), [each.worker for each in reply.attempts]) == ("Here.", 1, ["a"])


async def test_an_empty_answer_close_to_the_deadline_is_not_retried():
    slow = AnswersInTurn("a", (EMPTY,), words("Here."), late_s=0.3)
    text, _ = await ask(with_retries(slow), call=replace(CALL, terms=Terms(time.monotonic() + 0.5)))
    assert (text, len(slow.calls)) == ("", 1)


@pytest.mark.parametrize(
    "call",
    [
        replace(CALL, sampling=Sampling(stop=("END",))),
        replace(CALL, prefix="It is"),
        replace(CALL, site=CallSite(operation="text_completion")),
        replace(
            CALL,
            messages=(
                *CALL.messages,
                Message("assistant", (ToolCall("1", "look", "{}"),)),
                Message("tool", (ToolResult("1", "look", "It is here."),)),
            ),
        ),
    ],
    ids=["stop sequences", "a begun answer", "a text to complete", "results of tools"],
)
async def test_an_empty_answer_that_may_be_complete_is_not_retried(call: Call):
    inner = AnswersInTurn("w", (EMPTY,), words("Here."))
    assert (await ask(with_retries(inner), call=call))[0] == ""
    assert len(inner.calls) == 1


@pytest.mark.parametrize(
    "answer",
    [(Delta(finish=FinishReason.LENGTH),), (Delta(reasoning="Hm."), EMPTY)],
    ids=["length", "thoughts"],
)
async def test_an_empty_answer_with_reasoning_or_a_length_limit_is_not_retried(answer: tuple[Delta, ...]):
    inner = AnswersInTurn("w", answer, words("Here."))
    assert (await ask(with_retries(inner)))[0] == ""
    assert len(inner.calls) == 1
