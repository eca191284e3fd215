"""Continuation of an answer with a token limit. The repeated words do not count towards the limit."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from conductor.errors import WorkerBusy, WorkerError, WorkerRefused, WorkerUnavailable
from conductor.model.call import Call, Sampling
from conductor.model.failure import Attempt
from conductor.model.messages import Message
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import Usage
from conductor.model.worker import Worker
from conductor.run.partial_answer import PartialAnswer
from serving.dispatch.model_parameters import ModelProfile
from serving.dispatch.resume_point import MARK, Seam
from tests.conductor.team import Piece, Player
from tests.serving.dispatch.routes import dispatcher, route
from tests.wires.server import tokens

LIMIT = 30
LONG = " ".join(f"word{n}" for n in range(200))
TEXT = " ".join(LONG.split()[: LIMIT + 1])
"""One word more than the limit."""


def begin(text: str, words: int) -> str:
    return "".join(tokens(text)[:words])


def call_after(prefix: str, limit: int = LIMIT) -> Call:
    """Return the call that continues an answer after `prefix`."""
    partial_answer = PartialAnswer(prefix, tokens=len(tokens(prefix)), breaks=1, worker="a")
    return partial_answer.continue_call(
        Call((Message.of("user", "Say it."),), Sampling(max_output_tokens=limit))
    )


def saying(text: str) -> Player:
    """Return a model that sends `text` up to its limit. A word is a token."""

    def say(call: Call) -> Sequence[Piece]:
        pieces, most = tokens(text), call.sampling.max_output_tokens
        assert most
        return pieces if len(pieces) <= most else [*pieces[:most], Delta(finish=FinishReason.LENGTH)]

    return Player("a", say)


def continuing(player: Player, *, prefills: bool) -> Worker:
    return dispatcher(route(player, profile=ModelProfile(prefills=lambda _: prefills)))


async def ask(player: Player, call: Call, *, prefills: bool = False) -> tuple[str, FinishReason | None]:
    async with continuing(player, prefills=prefills).open(call) as reply:
        return "".join([delta.text async for delta in reply]), reply.finish


@pytest.mark.parametrize("cut", [1, 10, 20, 25, 30])
async def test_an_answer_that_ends_near_its_limit_is_complete(cut: int):
    prefix = begin(TEXT, cut)
    player = saying(Seam(prefix).beginning + TEXT[len(prefix) :])
    assert await ask(player, call_after(prefix)) == (TEXT[len(prefix) :], FinishReason.STOP)


@pytest.mark.parametrize("cut", [1, 10, 29])
async def test_a_longer_answer_exceeds_its_limit_by_at_most_the_repetition(cut: int):
    prefix = begin(LONG, cut)
    beginning = Seam(prefix).beginning
    text, finish = await ask(saying(beginning + LONG[len(prefix) :]), call_after(prefix))
    assert finish is FinishReason.LENGTH
    assert LONG.startswith(prefix + text)
    assert LIMIT <= len(tokens(prefix + text)) <= LIMIT + len(beginning)


async def test_after_a_break_during_reasoning_only_the_remaining_tokens_are_requested():
    partial_answer = PartialAnswer("", "A thought.", tokens=3, breaks=1, worker="a")
    call = partial_answer.continue_call(
        Call((Message.of("user", "Say it."),), Sampling(max_output_tokens=LIMIT))
    )
    player = saying(LONG)
    await ask(player, call)
    assert [each.sampling.max_output_tokens for each in player.calls] == [LIMIT - 3]


async def test_a_continuation_without_repetition_stops_at_the_limit():
    prefix = begin(LONG, 10)
    text, finish = await ask(saying(LONG[len(prefix) :]), call_after(prefix), prefills=True)
    assert (len(tokens(prefix + text)), finish) == (LIMIT, FinishReason.LENGTH)


async def test_a_continuation_that_repeats_too_much_is_an_error():
    prefix = begin(LONG, 150)
    player = saying(f"{MARK} {LONG[len(begin(LONG, 95)) :]}")
    with pytest.raises(WorkerUnavailable, match="repeated too much"):
        await ask(player, call_after(prefix, limit=180))


@pytest.mark.parametrize("prefills", [False, True])
async def test_an_answer_of_only_whitespace_restarts(prefills: bool):
    text, finish = await ask(saying("\n\n One two."), call_after("\n\n "), prefills=prefills)
    assert (text, finish) == ("One two.", FinishReason.STOP)


@pytest.mark.parametrize("prefills", [False, True])
@pytest.mark.parametrize(
    ("prefix", "rest", "expected"),
    [
        ("One two EN", "D and more.", ""),
        ("One two E", "NDING.", ""),
        ("One two\n", "\nThree.", ""),
        ("One two EN", "OUGH, then ENOUGH.", "OUGH, then ENOUGH."),
        ("One two EN", "", ""),
        ("One two E", "N", "N"),
        ("One two", " END.", " END."),
    ],
)
async def test_a_stop_sequence_across_a_break_ends_the_answer(
    prefix: str, rest: str, expected: str, prefills: bool
):
    call = call_after(prefix, limit=500)
    call = replace(call, sampling=replace(call.sampling, stop=("END", "\n\n")))
    blanks = prefix[len(prefix.rstrip()) :]  # whitespace that a model repeats
    output = ("" if prefills else Seam(prefix).beginning) + blanks + rest
    pieces = [*output[:-5], output[-5:]] if len(output) > 5 else [*output]
    player = Player("a", [*pieces, Usage(7, 5)])
    async with continuing(player, prefills=prefills).open(call) as reply:
        text = "".join([delta.text async for delta in reply])
    assert (text, reply.finish) == (expected, FinishReason.STOP)
    assert reply.stop_sequence == (None if expected or not rest else "END" if "E" in prefix else "\n\n")
    assert reply.result.usage == Usage(7, 5)


async def test_the_error_of_a_failed_continuation_includes_earlier_attempts():
    before = Attempt("a", "WorkerUnavailable", "It broke.")

    class Again(Player):
        """Player whose reply has an earlier failed attempt."""

        @asynccontextmanager
        async def open(self, call: Call) -> AsyncGenerator[Reply]:
            async with super().open(call) as reply:
                reply.attempts = (before,)
                yield reply

    prefix = begin(LONG, 10)
    for script in (["Something else."], [MARK, WorkerBusy("It is busy.", worker="a")]):
        with pytest.raises(WorkerError) as caught:
            await ask(Again("a", script), call_after(prefix))
        assert caught.value.attempts == (before,)
        assert caught.value.billed_at_bound


async def test_the_error_of_a_fallback_prompt_includes_the_rejected_prefill():
    class Refusing(Player):
        """Player that refuses a final assistant turn."""

        @asynccontextmanager
        async def open(self, call: Call) -> AsyncGenerator[Reply]:
            if call.prefix:
                raise WorkerRefused("No turn of mine.", worker="a")
            async with super().open(call) as reply:
                yield reply

    with pytest.raises(WorkerError) as caught:
        await ask(Refusing("a", ["Something else."]), call_after(begin(LONG, 10)), prefills=True)
    assert [attempt.message for attempt in caught.value.attempts] == ["No turn of mine."]
