"""Silence of engines and custom workers: time limits and resulting errors."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from msgspec.structs import replace

from conductor.errors import WorkerUnavailable
from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.failure import Attempt
from conductor.model.messages import Message
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.terms import AttemptLimits, Pauses, Priority, Terms
from conductor.model.usage import Price
from serving.dispatch import target
from serving.dispatch.target import KNOWN_CALLS
from serving.health import Health
from serving.pool import Pool, build_pool
from serving.settings.settings import parse
from serving.workers import stall_timer
from serving.workers.stall_timer import BATCH_S, FIRST_TOKEN_S, STALL_S, Patience
from serving.workers.vllm import Chunk, EngineCall
from tests.serving.workers.subjects import Behaviour, ScriptedEngine

CALL = Call((Message.of("user", "hi"),))
SHORT_S = 0.2
INSTEAD: dict[str, Any] = {"name": "b", "kind": "scripted", "replies": ["Instead."]}
SILENT = Behaviour(text="one two", stalls_after_words=0)


def pool(engine: ScriptedEngine | None = None, **worker: Any) -> Pool:
    own = (
        {"name": "a", "retry": {"attempts": 1}} | ({"kind": "vllm", "model": "m"} if engine else {}) | worker
    )
    return build_pool(parse({"workers": [own, INSTEAD]}), {}, {"a": engine} if engine else {}, Health())


async def ask(of: Pool, call: Call = CALL) -> tuple[str, Reply]:
    async with asyncio.timeout(5), of.members["a"].worker.open(call) as reply:
        return "".join([delta.text async for delta in reply]), reply


async def test_an_engine_without_a_first_token_is_closed_and_a_fallback_is_called():
    engine = ScriptedEngine(SILENT)
    own = pool(engine, first_token_timeout_s=SHORT_S, fallbacks=["b"])
    text, reply = await ask(own)
    assert (text, engine.n_requests, engine.open_calls) == ("Instead.", 1, 0)
    assert [(each.worker, each.error) for each in reply.attempts] == [("a", "WorkerUnavailable")]
    assert own.health["a"].failures_in_a_row == 1


async def test_an_only_engine_is_retried():
    engine = ScriptedEngine(SILENT)
    with pytest.raises(
        WorkerUnavailable, match="a could not answer: The engine sent no output within the time limit"
    ) as caught:
        await ask(pool(engine, first_token_timeout_s=SHORT_S, retry={"attempts": 2, "first_wait_s": 0.001}))
    assert (engine.n_requests, engine.open_calls, caught.value.worker) == (2, 0, "a")
    assert "first_token_timeout_s" in caught.value.detail


async def test_an_engine_with_several_replicas_is_retried_at_another():
    class Routed(ScriptedEngine):
        """Chooses replicas as `PrefixRouter` does. Replica `a` is silent."""

        async def generate(
            self, call: EngineCall, waiting: Callable[[str], None] | None = None
        ) -> AsyncGenerator[Chunk]:
            assert call.places
            replica = "b" if "a" in call.places.used_names else "a"
            call.places.take(replica, lambda: replica == "a")
            async for chunk in super().generate(call, waiting):
                if replica == "a":
                    await asyncio.sleep(60)
                yield chunk

    again = {"attempts": 2, "first_wait_s": 0.001}
    own = pool(Routed(Behaviour(text="Yes.")), first_token_timeout_s=SHORT_S, retry=again)
    assert (await ask(own))[0] == "Yes."


async def test_an_engine_that_falls_silent_in_an_answer_has_failed():
    engine = ScriptedEngine(dataclasses.replace(SILENT, stalls_after_words=1))
    own = pool(engine, stall_timeout_s=SHORT_S, first_token_timeout_s=60)
    with pytest.raises(WorkerUnavailable):
        await ask(own)
    assert (engine.open_calls, own.health["a"].failures) == (0, 1)


class PacedEngine(ScriptedEngine):
    """Engine that sends an empty token after each of `pauses_s`, as during a tool call, and then its answer."""

    def __init__(self, *pauses_s: float, starts: int = 0) -> None:
        super().__init__(Behaviour())
        self._pauses_s, self._starts = pauses_s, starts

    async def generate(
        self, call: EngineCall, waiting: Callable[[str], None] | None = None
    ) -> AsyncGenerator[Chunk]:
        assert waiting
        for _ in range(self._starts):
            await asyncio.sleep(SHORT_S / 4)
            waiting("it is being started")
        for n_output, pause_s in enumerate(self._pauses_s, 1):
            await asyncio.sleep(pause_s)
            yield Chunk("", "", None, 1, 0, n_output, 0)
        yield Chunk("Done.", "", "stop", 1, 0, 9, 0)


async def test_tokens_without_visible_text_are_not_silence():
    engine = PacedEngine(*[SHORT_S / 4] * 12)
    assert (await ask(pool(engine, stall_timeout_s=SHORT_S)))[0] == "Done."


class Queued:
    """Observer that stores the reasons for late first tokens."""

    def __init__(self) -> None:
        self.reasons = list[str]()

    def on_queued(self, why: str) -> None:
        self.reasons.append(why)

    def on_failed(self, attempt: Attempt) -> None:
        pass


async def test_the_first_token_limit_does_not_count_the_start_of_a_replica():
    notice = Queued()
    call = replace(CALL, terms=Terms(observer=notice))
    assert (await ask(pool(PacedEngine(starts=12), first_token_timeout_s=SHORT_S), call))[0] == "Done."
    assert notice.reasons == ["it is being started"], "once"
    with pytest.raises(WorkerUnavailable):
        await ask(pool(PacedEngine(60, starts=2), first_token_timeout_s=SHORT_S), call)


async def test_an_answer_is_complete_with_its_finish_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stall_timer, "GOODBYE_S", SHORT_S)

    class Endless(PacedEngine):
        async def generate(
            self, call: EngineCall, waiting: Callable[[str], None] | None = None
        ) -> AsyncGenerator[Chunk]:
            async for chunk in super().generate(call, waiting):
                yield chunk
            await asyncio.sleep(60)

    assert (await ask(pool(Endless())))[0] == "Done."


async def test_an_engines_first_token_limit_is_learned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(target, "LEAST_S", SHORT_S)
    engine = ScriptedEngine(SILENT)
    own = pool(engine, fallbacks=["b"])
    for _ in range(KNOWN_CALLS):
        own.health["a"].speak(0.001)
    assert (await ask(own))[0] == "Instead."
    assert engine.open_calls == 0


GOES_ON = replace(CALL, terms=Terms(outlasts_break=True))


def warm_up(own: Pool, pause_s: float = 0.001) -> Pool:
    """Record many answers of worker `a` with pauses of at most `pause_s`."""
    for _ in range(KNOWN_CALLS):
        own.health["a"].pause(pause_s)
    return own


async def test_an_engines_pause_limit_is_learned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(target, "LEAST_PAUSE_S", SHORT_S)
    engine = ScriptedEngine(dataclasses.replace(SILENT, stalls_after_words=1))
    own = warm_up(pool(engine, fallbacks=["b"]))
    with pytest.raises(WorkerUnavailable) as caught:
        await ask(own, GOES_ON)
    assert caught.value.only_late
    assert (engine.open_calls, own.health["a"].pauses) == (0, KNOWN_CALLS), "what was cut is no whole answer"


@pytest.mark.parametrize(
    ("call", "worker", "pauses_s"),
    [
        (GOES_ON, {"fallbacks": ["b"]}, SHORT_S),
        (GOES_ON, {}, 0.001),
        (CALL, {"fallbacks": ["b"]}, 0.001),
        (GOES_ON, {"fallbacks": ["b"], "stall_timeout_s": 60}, 0.001),
    ],
    ids=["it is usual", "it stands alone", "its answer could not go on", "the settings say"],
)
async def test_a_long_pause_is_awaited_without_a_fallback_or_enough_data(
    call: Call, worker: dict[str, Any], pauses_s: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(target, "LEAST_PAUSE_S", SHORT_S)
    own = warm_up(pool(PacedEngine(0.001, SHORT_S * 2), **worker), pauses_s)
    assert (await ask(own, call))[0] == "Done."


async def test_each_answers_longest_pause_is_recorded_without_the_first_token_time():
    own = pool(PacedEngine(SHORT_S * 2, 0.01, SHORT_S / 2, 0.01))
    await ask(own)
    longest_s = own.health["a"].pause_s(1)
    assert longest_s is not None
    assert longest_s >= SHORT_S / 2
    assert own.health["a"].pauses == 1


def limited(
    first_token_s: float | None = None,
    *,
    pause_s: float | None = None,
    priority: Priority = "interactive",
) -> Call:
    pauses = None if pause_s is None else Pauses(pause_s)
    attempt = AttemptLimits(first_token_s=first_token_s, pauses=pauses)
    return replace(CALL, terms=Terms(priority=priority, limits=attempt))


@pytest.mark.parametrize(
    ("patience", "call", "silence_s", "first_s"),
    [
        (Patience(), CALL, STALL_S, FIRST_TOKEN_S),
        (Patience(), limited(12), STALL_S, 12),
        (Patience(), limited(1e6), STALL_S, FIRST_TOKEN_S),
        (Patience(), limited(12, priority="batch"), BATCH_S, BATCH_S),
        (Patience(20), CALL, 20, 20),
        (Patience(), limited(pause_s=30), 30, FIRST_TOKEN_S),
        (Patience(), limited(pause_s=1e6), STALL_S, FIRST_TOKEN_S),
        (Patience(20), limited(pause_s=10), 20, 20),
        (Patience(), limited(pause_s=30, priority="batch"), BATCH_S, BATCH_S),
        (Patience(20, 900), limited(12, priority="batch"), 20, 900),
    ],
)
def test_the_limits_of_an_engine_depend_on_the_call(
    patience: Patience, call: Call, silence_s: float, first_s: float
):
    timer = patience.with_engine(call)
    assert (timer.limit_s, timer.first_s) == (silence_s, first_s)


@pytest.mark.parametrize(
    ("patience", "call", "has_text", "only_late"),
    [
        (Patience(), limited(0.01), False, True),
        (Patience(0.01), limited(60), False, False),
        (Patience(first_token_timeout_s=0.01), limited(0.001), False, False),
        (Patience(0.02), limited(0.01), True, False),
        (Patience(), limited(pause_s=0.01), True, True),
    ],
    ids=["more than usual", "more than is borne", "more than is set", "in the middle", "a longer pause"],
)
async def test_only_an_unusual_delay_is_marked_as_late(
    patience: Patience, call: Call, has_text: bool, only_late: bool
):
    timer = patience.with_engine(call)
    if has_text:
        timer.hear()
    with pytest.raises(WorkerUnavailable) as caught:
        await timer.wait(asyncio.sleep(5))
    assert caught.value.only_late == only_late


class Slow:
    """Custom worker that pauses before each of two words."""

    n_open = 0

    def __init__(self, name: str, price: Price | None, first_s: float = 0.0, second_s: float = 0.0) -> None:
        self.name, self._price, self._pauses_s = name, price, (first_s, second_s)

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, "slow", self._deltas(), self._price)

    async def _deltas(self) -> AsyncGenerator[Delta]:
        Slow.n_open += 1
        try:
            for pause_s in self._pauses_s:
                await asyncio.sleep(pause_s)
                yield Delta("word ")
            yield Delta(finish=FinishReason.STOP)
        finally:
            Slow.n_open -= 1


def slow(first_s: float, second_s: float, **worker: Any) -> Pool:
    options = {"first_s": first_s, "second_s": second_s}
    return pool(kind="python", factory=f"{__name__}:Slow", options=options, **worker)


async def test_a_custom_worker_has_no_default_time_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(target, "LEAST_S", SHORT_S / 10)
    own = slow(SHORT_S, SHORT_S, fallbacks=["b"])
    for _ in range(KNOWN_CALLS):
        own.health["a"].speak(0.001)
    assert (await ask(own))[0] == "word word "


@pytest.mark.parametrize(
    ("first_s", "second_s", "limits"),
    [
        (60, 0, {"first_token_timeout_s": SHORT_S}),
        (60, 0, {"stall_timeout_s": SHORT_S}),
        (0, 60, {"stall_timeout_s": SHORT_S, "first_token_timeout_s": 60}),
    ],
)
async def test_a_custom_worker_with_a_time_limit_is_closed(
    first_s: float, second_s: float, limits: dict[str, float]
):
    with pytest.raises(WorkerUnavailable, match="a sent no output within the time limit"):
        await ask(slow(first_s, second_s, **limits))
    assert Slow.n_open == 0


async def test_a_first_token_limit_does_not_apply_to_later_tokens():
    assert (await ask(slow(0, SHORT_S * 2, first_token_timeout_s=SHORT_S)))[0] == "word word "
