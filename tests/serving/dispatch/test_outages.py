"""Workers that are down or silent: first-token limits, circuits and retry budgets keep the cost low."""

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from email.utils import formatdate
from typing import Any

import pytest
from msgspec.structs import replace

from conductor.errors import ContentFiltered, ContextOverflow, WorkerError, WorkerRefused, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.messages import Message
from conductor.model.reply import Reply
from conductor.model.terms import Terms
from conductor.model.worker import Worker
from serving.dispatch import target as targets
from serving.dispatch.build import retry_reserve
from serving.dispatch.call_budgets import RESERVE, RetryBudget
from serving.dispatch.limiter import Limiter
from serving.dispatch.resume_point import MARK
from serving.dispatch.target import FAILING_S, KNOWN_CALLS, LEAST_S, START_S, usual_limit_s
from serving.health import FAILURES_BEFORE_OPEN, PROBE_S, WINDOW, Health, WorkerHealth
from serving.pool import Pool, build_pool
from serving.settings.settings import Settings, parse
from serving.witnesses import OFTEN
from serving.workers.plugin import PluginWorker
from serving.workers.scripted import ScriptedReply, ScriptedWorker
from serving.workers.stall_timer import Patience
from tests.serving.dispatch.routes import deployed, dispatcher, route, target
from tests.states import until
from tests.wires.faults import COMMENTS, SILENT, Fault, faulty
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, Request, serving

CALL = Call((Message.of("user", "hi"),))
DOWN: dict[str, Any] = {"name": "a", "kind": "scripted", "replies": [{"error": "unavailable"}]}
QUICK = {"first_wait_s": 0.001, "max_wait_s": 0.002}
ONCE = {"attempts": 1}


def pool(*workers: dict[str, Any]) -> Pool:
    return build_pool(
        parse({"workers": [{"kind": "scripted"} | worker for worker in workers]}), {}, {}, Health()
    )


def script(of: Pool, name: str) -> ScriptedWorker:
    wire = next(client for client in of.clients if client.name == name)
    assert isinstance(wire, ScriptedWorker)
    return wire


async def ask(of: Pool, name: str = "a", call: Call = CALL) -> tuple[str, Reply]:
    async with of.members[name].worker.open(call) as reply:
        return "".join([delta.text async for delta in reply]), reply


async def fail(of: Pool) -> None:
    with pytest.raises(WorkerError):
        await ask(of)


def api(url: str, **settings: Any) -> dict[str, Any]:
    return {"name": "a", "kind": "openai", "model": "m", "base_url": f"{url}/v1", **settings}


INSTEAD = {"name": "b", "replies": ["Instead."]}


def is_idle(of: Pool) -> bool:
    return not any(each.open_calls or each.queued for each in of.limiters.values())


@pytest.mark.parametrize("fault", [SILENT["headers that drip"], Fault(drips=COMMENTS["comments"])])
async def test_a_silent_worker_is_called_once_if_another_is_free(fault: Fault):
    async with faulty(fault) as upstream:
        own = pool(api(upstream.url, first_token_timeout_s=1.2, fallbacks=["b"]), INSTEAD)
        text, reply = await ask(own)
        await own.aclose()
    assert (text, upstream.requests) == ("Instead.", 1), (
        "neither comments nor headers are words, nor is it retried"
    )
    assert [attempt.error for attempt in reply.attempts] == ["WorkerUnavailable"]


def due(within_s: float, text: str = "hi") -> Call:
    return Call((Message.of("user", text),), terms=Terms(time.monotonic() + within_s))


async def ask_until(of: Pool, within_s: float) -> str:
    """Return the answer, within a deadline that ends like that of a run."""
    async with asyncio.timeout(within_s):
        return (await ask(of, call=due(within_s)))[0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"first_token_timeout_s": 60},
        {"deployments": [{"name": "one"}, {"name": "two"}]},
        {"effort": "high"},
    ],
    ids=["learned", "set", "deployments", "thinks"],
)
async def test_a_silent_worker_leaves_time_for_a_free_one(
    settings: dict[str, Any],
):
    async with faulty(Fault()) as upstream:
        own = pool(api(upstream.url, **settings, fallbacks=["b"]), INSTEAD)
        assert await ask_until(own, 2.0) == "Instead."
        await own.aclose()


class Silent:
    name = "a"

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        del call
        await asyncio.Event().wait()
        raise AssertionError
        yield


async def test_a_silent_custom_worker_leaves_time_for_a_free_one():
    a = route(PluginWorker(Silent(), Patience()), learns_first_token=False)
    line = dispatcher(a, ScriptedWorker("b", ["Instead."]))
    async with asyncio.timeout(1.0), line.open(due(1.0)) as reply:
        assert "".join([delta.text async for delta in reply]) == "Instead."


@pytest.mark.parametrize("ends", ["at their deadline", "with their client"])
async def test_calls_that_end_in_long_silence_open_the_circuit(ends: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(targets, "LEAST_S", 0.1)
    async with faulty(Fault()) as upstream:
        own = pool(api(upstream.url, retry=ONCE, fallbacks=["b"]), INSTEAD)
        for _ in range(FAILURES_BEFORE_OPEN):
            if ends == "at their deadline":
                assert await ask_until(own, 0.6) == "Instead."
            else:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(ask(own), 0.3)
        assert own.health["a"].circuit == "open"
        assert (await ask(own))[0] == "Instead."
        own.health["a"].skip_until_s = 0.0
        if ends == "at their deadline":
            assert await ask_until(own, 0.6) == "Instead."
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ask(own), 0.3)
        assert own.health["a"].circuit == "open", "so does a probe"
        await own.aclose()


@pytest.mark.parametrize("why", ["it was early", "others were answered", "an engine was being started"])
async def test_clients_that_leave_do_not_open_a_healthy_workers_circuit(
    why: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(targets, "LEAST_S", 10.0 if why == "it was early" else 0.02)
    health, start = WorkerHealth(), asyncio.Event()

    class Starting(Silent):
        @asynccontextmanager
        async def open(self, call: Call) -> AsyncGenerator[Reply]:
            on_queued = call.terms.limits.on_queued
            if why == "an engine was being started" and on_queued:
                on_queued("the first replica is being started")
            start.set()
            async with super().open(call) as reply:
                yield reply

    worker = dispatcher(route(Starting(), health=health))
    for _ in range(FAILURES_BEFORE_OPEN):
        start.clear()
        asking = asyncio.create_task(anext(aiter_of(worker)))
        await start.wait()
        await asyncio.sleep(0.05)
        if why == "others were answered":
            health.speak(0.01)
        asking.cancel()
        await asyncio.wait([asking])
    assert (health.circuit, health.failures) == ("closed", 0)


async def aiter_of(worker: Worker) -> AsyncGenerator[Reply]:
    async with worker.open(CALL) as reply:
        yield reply


async def test_the_first_token_limit_applies_only_to_the_first_token():
    async with serving(OpenAIWire(), Answer(text="a b", stall_after=2)) as upstream:
        own = pool(api(upstream.url, first_token_timeout_s=60, stall_timeout_s=0.3))
        with pytest.raises(WorkerUnavailable):
            await asyncio.wait_for(ask(own), 20)
        await own.aclose()


def test_the_first_token_limit_is_learned():
    health = WorkerHealth()
    assert usual_limit_s(health) == START_S
    for _ in range(KNOWN_CALLS):
        health.speak(0.2)
    assert usual_limit_s(health) == LEAST_S
    for _ in range(WINDOW):
        health.speak(20.0)
    assert usual_limit_s(health) == 80.0
    for _ in range(3):
        health.fail()
    assert usual_limit_s(health) == FAILING_S, "one that has become slower for good comes back"


async def test_a_thousand_requests_call_a_dead_worker_three_times():
    own = pool(DOWN | {"fallbacks": ["b"], "retry": QUICK}, INSTEAD)
    answers = [await ask(own)]
    own.health["a"].skip_until_s += 600  # long enough for the other calls on a busy machine
    answers += [await ask(own) for _ in range(999)]
    assert {text for text, _ in answers} == {"Instead."}
    assert len(script(own, "a").calls) == 3
    (attempt,) = answers[-1][1].attempts
    assert (attempt.worker, attempt.outcome) == ("a", "left_alone")
    assert own.health["a"].circuit == "open"


AT_ONCE, SLOTS = 200, 64


async def test_calls_queued_for_a_dead_worker_are_not_sent_to_it():
    own = pool(DOWN | {"delay_s": 0.1, "max_concurrency": SLOTS, "fallbacks": ["b"], "retry": QUICK}, INSTEAD)
    answers = await asyncio.gather(*(ask(own) for _ in range(AT_ONCE)))
    assert {text for text, _ in answers} == {"Instead."}
    assert len(script(own, "a").calls) <= SLOTS + FAILURES_BEFORE_OPEN
    only_waited = [attempts for _, reply in answers if len(attempts := reply.attempts) == 1]
    skipped_attempts = [attempt for (attempt,) in only_waited if attempt.outcome == "left_alone"]
    assert len(skipped_attempts) >= AT_ONCE - SLOTS - FAILURES_BEFORE_OPEN
    assert {(each.worker, each.error) for each in skipped_attempts} == {("a", "WorkerUnavailable")}
    pattern = re.compile(
        r"a was skipped because its latest calls failed\. It will be tried again in [0-9.]+ s\. First failure: WorkerUnavailable: a was scripted to fail \(unavailable\)\."
    )
    assert all(pattern.fullmatch(each.message) for each in skipped_attempts)
    assert any(each.took_s for each in skipped_attempts), "the wait is on record"
    n_first = sum(call.site.attempt == 1 for call in script(own, "b").calls)
    assert n_first == len(skipped_attempts), "calls that were not made are not counted"
    assert is_idle(own)


async def test_calls_queued_for_an_only_worker_are_made_even_if_it_fails():
    own = pool(DOWN | {"delay_s": 0.01, "max_concurrency": 4, "retry": ONCE})
    await asyncio.gather(*(fail(own) for _ in range(20)))
    assert len(script(own, "a").calls) == 20
    assert is_idle(own)


async def test_if_no_worker_is_healthy_queued_calls_try_each_once():
    down = DOWN | {"delay_s": 0.01, "max_concurrency": 4, "retry": ONCE}
    own = pool(down | {"fallbacks": ["b"]}, down | {"name": "b"})
    await asyncio.gather(*(fail(own) for _ in range(20)))
    assert [len(script(own, name).calls) for name in "ab"] == [20, 20]
    assert is_idle(own)


async def test_when_the_circuit_may_close_one_queued_call_probes_the_worker():
    stalls = {"text": "one two", "stall_after_tokens": 1}
    a = {"name": "a", "replies": [stalls, stalls, "Well."], "delay_s": 0.02, "max_concurrency": 2}
    own = pool(a | {"fallbacks": ["b"]}, INSTEAD)
    holders = [asyncio.create_task(ask(own)) for _ in range(2)]
    await until(lambda: script(own, "a").open_calls == 2)
    waiters = [asyncio.create_task(ask(own)) for _ in range(6)]
    await until(lambda: own.limiters["a"].queued == 6)
    for _ in range(FAILURES_BEFORE_OPEN):
        own.health["a"].fail()
    own.health["a"].skip_until_s = 0.0
    for holder in holders:
        holder.cancel()
    texts = [text for text, _ in await asyncio.gather(*waiters)]
    assert sorted(texts) == ["Instead."] * 5 + ["Well."]
    assert own.health["a"].circuit == "closed"


async def test_calls_queued_inside_a_dead_workers_deployment_are_not_sent():
    inner, health = ScriptedWorker("a", [ScriptedReply(error="unavailable")], delay_s=0.01), WorkerHealth()
    place = target(inner, "there", slots=1)
    a = deployed(place, limiter=Limiter("a", SLOTS), health=health)
    line = dispatcher(a, ScriptedWorker("b", ["Instead."]))

    async def answer() -> str:
        async with line.open(CALL) as reply:
            return "".join([delta.text async for delta in reply])

    assert set(await asyncio.gather(*(answer() for _ in range(20)))) == {"Instead."}
    assert (len(inner.calls), health.failures) == (FAILURES_BEFORE_OPEN, FAILURES_BEFORE_OPEN)


async def test_one_call_probes_whether_the_worker_has_recovered():
    replies = [{"error": "unavailable"}] * 3 + ["Well."]
    own = pool(DOWN | {"replies": replies, "delay_s": 0.05, "fallbacks": ["b"], "retry": QUICK}, INSTEAD)
    await ask(own)
    health = own.health["a"]
    health.skip_until_s = 0.0
    assert health.circuit == "half_open"
    texts = [text for text, _ in await asyncio.gather(*(ask(own) for _ in range(20)))]
    assert sorted(texts) == ["Instead."] * 19 + ["Well."]
    assert (health.circuit, health.skip_s) == ("closed", 0.0)


async def test_a_failed_probe_is_not_retried():
    own = pool(DOWN | {"fallbacks": ["b"], "retry": QUICK}, INSTEAD)
    await ask(own)
    own.health["a"].skip_until_s = 0.0
    await ask(own)
    assert len(script(own, "a").calls) == 4
    assert 5 < own.health["a"].skip_s <= 10, "it is left alone for twice as long as before"


async def test_if_no_worker_is_healthy_all_are_still_tried():
    own = pool(
        DOWN | {"fallbacks": ["b"], "retry": {"attempts": 1}}, DOWN | {"name": "b", "retry": {"attempts": 1}}
    )
    for _ in range(5):
        await fail(own)
    assert [len(script(own, name).calls) for name in "ab"] == [5, 5]


async def test_an_only_worker_is_always_called_without_a_probe():
    own = pool(DOWN | {"retry": {"attempts": 1}})
    for _ in range(5):
        await fail(own)
    assert own.health["a"].circuit == "open"
    own.health["a"].skip_until_s = 0.0
    await asyncio.gather(*(fail(own) for _ in range(5)))
    assert len(script(own, "a").calls) == 10


async def test_a_workers_retry_after_is_respected():
    busy = {"error": "busy", "retry_after_s": 5}
    own = pool(DOWN | {"replies": [busy], "fallbacks": ["b"]}, INSTEAD)
    assert [(await ask(own))[0] for _ in range(20)] == ["Instead."] * 20
    assert len(script(own, "a").calls) == 1


def busy(wait: str, status: int = 429, name: str = "retry-after") -> Answer:
    return Answer(status=status, headers={name: wait})


IN_TWO_S = "in two seconds, as a date"
SHORT_WAITS: dict[str, tuple[list[Answer], str, tuple[float, float]]] = {
    "seconds": ([busy("2")], "Well.", (2, 2.5)),
    "a date": ([busy(IN_TWO_S)], "Well.", (1, 2.5)),
    "milliseconds": ([busy("1500", name="retry-after-ms")], "Well.", (1.5, 2)),
    "503": ([busy("2", 503)], "Well.", (2, 2.5)),
    "twice": ([busy("1"), busy("1")], "Well.", (2, 2.5)),
    "too often": ([busy("2")] * 3, "Instead.", (2, 2.5)),
    "too long": ([busy("4")], "Instead.", (0, 0.5)),
    "no time is named": ([Answer(status=429)] * 3, "Instead.", (0, 1)),
}


@pytest.mark.parametrize("named", SHORT_WAITS)
async def test_a_short_retry_after_is_awaited_before_a_fallback_is_called(named: str):
    answers, text, (least_s, most_s) = SHORT_WAITS[named]
    answers = [
        busy(formatdate(time.time() + 2, usegmt=True)) if IN_TWO_S in each.headers.values() else each
        for each in answers
    ]
    async with serving(OpenAIWire(), *answers) as upstream:
        upstream.respond = lambda _: Answer(text="Well.")
        own = pool(api(upstream.url, fallbacks=["b"]), INSTEAD)
        began_s = time.monotonic()
        assert (await ask(own))[0] == text
        assert least_s <= time.monotonic() - began_s <= most_s
        await own.aclose()


async def test_a_retry_after_beyond_deadline_or_setting_is_not_awaited():
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = lambda _: busy("2")
        own = pool(api(upstream.url, fallbacks=["b"]), INSTEAD)
        assert await ask_until(own, 1.5) == "Instead."
        await own.aclose()
        never = pool(api(upstream.url, fallbacks=["b"], retry={"fallback_wait_s": 0}), INSTEAD)
        assert await ask_until(never, 100) == "Instead."
        await never.aclose()
        assert len(upstream.requests) == 2


async def test_a_first_token_after_twenty_seconds_is_not_awaited_if_a_fallback_exists():
    late = Answer(pause_after=1, late_s=20)
    began_s = time.monotonic()
    async with serving(OpenAIWire(), late, late, late) as upstream:
        own = pool(api(upstream.url, fallbacks=["b"]), INSTEAD)
        assert (await ask(own))[0] == "Instead."
        assert START_S <= time.monotonic() - began_s < START_S + 1
        alone = pool(api(upstream.url))
        assert (await ask(alone))[0] == "It is four."
        thinks = pool(api(upstream.url, fallbacks=["b"], model="o3"), INSTEAD)
        assert (await ask(thinks))[0] == "It is four."
        for each in (own, alone, thinks):
            await each.aclose()


OUTAGES = {
    "it fails": (Answer(status=503), 8 + 3),
    "it refuses every call": (Answer(status=401, error="Wrong key."), 8 + 1),
    "it breaks off": (Answer(cut_after=0), 8 + 3),
    "it is silent": (Answer(stall_after=0), 8 + 20),
}


@pytest.mark.parametrize("outage", OUTAGES)
async def test_a_worker_is_used_again_within_ten_seconds_of_its_recovery(outage: str):
    """Sends one request per second. An outage costs few calls, but silent calls that began before it was detected
    count too.
    """
    answer, most_calls = OUTAGES[outage]
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = lambda _: Answer(text="Well.") if time.monotonic() > recovers_s else answer
        recovers_s = time.monotonic() + 60
        own = pool(api(upstream.url, fallbacks=["b"]), INSTEAD)
        used_after_s = list[float]()

        async def one() -> None:
            text, _ = await ask(own)
            if text == "Well.":
                used_after_s.append(time.monotonic() - recovers_s)

        async with asyncio.TaskGroup() as tasks:
            calls = 0
            for _ in range(75):
                tasks.create_task(one())
                await asyncio.sleep(1)
                calls = calls if time.monotonic() > recovers_s else len(upstream.requests)
        await own.aclose()
    assert min(used_after_s) < 10
    assert calls <= most_calls


async def test_an_unfinished_probe_does_not_close_the_circuit():
    own = pool(
        DOWN | {"replies": [{"error": "unavailable"}] * 3 + ["one two"], "fallbacks": ["b"], "retry": QUICK},
        INSTEAD,
    )
    await ask(own)
    own.health["a"].skip_until_s = 0.0
    async with own.members["a"].worker.open(CALL):
        assert 0 < own.health["a"].skip_s <= PROBE_S
    assert own.health["a"].circuit == "half_open"


FIRST_REPLY: dict[str, list[Any]] = {
    "prompt is refused": [{"error": "refused"}],
    "client leaves": [{"text": "one two", "stall_after_tokens": 0}],
    "client leaves the line": [],
}


@pytest.mark.parametrize("ends", FIRST_REPLY)
async def test_an_inconclusive_probe_permits_another_one_immediately(ends: str):
    replies = [*FIRST_REPLY[ends], "Well."]
    a = {"name": "a", "replies": replies, "max_concurrency": 1, "fallbacks": ["b"], "retry": ONCE}
    own = pool(a, INSTEAD)
    health = own.health["a"]
    async with AsyncExitStack() as stack:
        if ends == "client leaves the line":
            await stack.enter_async_context(own.limiters["a"].slot(CALL))
        for _ in range(FAILURES_BEFORE_OPEN):
            health.fail()
        health.skip_until_s = 0.0
        probe = asyncio.create_task(ask(own))
        await until(lambda: probe.done() or health.skip_s)
        if ends != "prompt is refused":
            assert (await ask(own))[0] == "Instead.", "one at a time"
            probe.cancel()
        await asyncio.wait([probe])
        assert health.circuit == "half_open"
    assert (await ask(own))[0] == "Well."
    assert (health.circuit, is_idle(own)) == ("closed", True)


async def test_a_rejected_probe_is_over_while_its_fallback_answers():
    a = {"name": "a", "replies": [{"error": "refused"}, "Well."], "fallbacks": ["b"], "retry": ONCE}
    own = pool(a, INSTEAD)
    for _ in range(FAILURES_BEFORE_OPEN):
        own.health["a"].fail()
    own.health["a"].skip_until_s = 0.0
    async with own.members["a"].worker.open(CALL) as reply:
        assert reply.worker == "b"
        assert (await ask(own))[0] == "Well."


@pytest.mark.parametrize("ends", ["prompt is refused", "client leaves the line"])
async def test_an_inconclusive_probe_of_a_deployment_permits_another_one_immediately(ends: str):
    healths = WorkerHealth(), WorkerHealth()
    refusal = [ScriptedReply(error="refused")] if ends == "prompt is refused" else []
    inner = ScriptedWorker("a", [*refusal, "Well."])
    here = target(inner, "here", slots=1, health=healths[0])
    there = target(ScriptedWorker("a", ["There."]), "there", slots=8, health=healths[1])
    line = dispatcher(deployed(here, there))
    healths[1].skip_until_s = math.inf
    for _ in range(FAILURES_BEFORE_OPEN):
        healths[0].fail()

    async def answer() -> str:
        async with line.open(CALL) as reply:
            return "".join([delta.text async for delta in reply])

    async with AsyncExitStack() as stack:
        if ends == "client leaves the line":
            await stack.enter_async_context(here.limiter.slot(CALL))
        healths[0].skip_until_s = 0.0
        probe = asyncio.create_task(answer())
        await until(lambda: probe.done() or here.limiter.queued)
        probe.cancel()
        await asyncio.wait([probe])
        assert healths[0].circuit == "half_open"
    assert await answer() == "Well."


async def test_retries_are_a_share_of_the_calls():
    own = pool(DOWN | {"retry": QUICK | {"share": 0.1}})
    for _ in range(100):
        await fail(own)
    assert 100 < len(script(own, "a").calls) <= 100 + RESERVE + 10


def test_a_retry_budget_grows_with_calls_up_to_a_limit():
    budget = RetryBudget(0.5)
    assert sum(budget.spend() for _ in range(20)) == RESERVE
    for _ in range(4):
        budget.earn()
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    for _ in range(1000):
        budget.earn()
    assert sum(budget.spend() for _ in range(20)) == RESERVE


def test_one_key_may_use_at_most_half_of_the_retry_budget():
    budget = RetryBudget(0.2)
    budget.earn("other")
    for _ in range(100):
        budget.earn("heavy")
    assert sum(budget.spend("heavy") for _ in range(20)) == RESERVE / 2
    assert sum(budget.spend("other") for _ in range(20)) == RESERVE / 2
    alone = RetryBudget(0.2)
    alone.earn("heavy")
    assert sum(alone.spend("heavy") for _ in range(20)) == RESERVE


@pytest.mark.parametrize(("replicas", "reserve"), [(1, RESERVE), (2, 64)])
def test_all_calls_of_a_lost_replica_may_be_retried(replicas: int, reserve: int):
    scale = {"min_replicas": 1, "max_replicas": replicas, "max_ongoing_requests": 64}
    engine = {"name": "e", "kind": "vllm", "model": "m", "scale": scale}
    shares = {"name": "same", "kind": "vllm", "deployment": "e"}
    settings = Settings.model_validate({"workers": [engine, shares]})
    for worker in settings.workers:
        budget = RetryBudget(0.2, reserve=retry_reserve(worker, settings))
        assert sum(budget.spend() for _ in range(100)) == reserve


FILTERED = Answer(status=400, error="The prompt was stopped.", error_code="content_filter")


@pytest.mark.parametrize("rule", ["fall_back", "tell"])
async def test_a_content_filter_uses_a_fallback_or_is_reported(rule: str):
    async with serving(OpenAIWire(), FILTERED) as upstream:
        own = pool(api(upstream.url, on_content_filter=rule, fallbacks=["b"]), INSTEAD)
        if rule == "fall_back":
            assert (await ask(own))[0] == "Instead."
        else:
            with pytest.raises(ContentFiltered):
                await ask(own)
            assert not script(own, "b").calls
        await until(lambda: own.health["a"].circuit == "closed", "a filter is no outage")
        await own.aclose()


ONE_CALLS_FAULT = {
    "an argument called api_key": (WorkerRefused, Answer(
        status=400, error="Invalid schema for function 'login': In context=('properties', 'api_key'), 'strin' is not valid.")),
    "an argument whose value begins so": (WorkerRefused, Answer(
        status=400, error="Invalid value: 'API key not valid'. Supported values are: 'auto' and 'none'.")),
    "OpenRouter's moderation": (ContentFiltered, Answer(
        status=403, error="Your chosen model requires moderation and your input was flagged")),
    "OpenRouter's guardrail": (ContentFiltered, Answer(
        status=403, error="Request blocked: prompt injection patterns detected")),
    "xAI's safety check": (ContentFiltered, Answer(
        status=403, error="Content violates usage guidelines. Team: t, API key ID: k, Failed check: SAFETY_CHECK_TYPE_BIO")),
    "more than the credit": (WorkerRefused, Answer(
        status=402, error="This request requires more credits, or fewer max_tokens. You requested up to 65536 tokens.")),
    "tools that nobody has": (WorkerRefused, Answer(status=404, error="No endpoints found that support tool use.")),
    "more than may be sent in a minute": (ContextOverflow, Answer(
        status=429, error_code="rate_limit_exceeded", headers={"retry-after": "60"}, extra={"type": "tokens"},
        error="Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 50000.")),
}  # fmt: skip
"""Provider errors for a fault in one client's call."""


@pytest.mark.parametrize(("error", "answer"), ONE_CALLS_FAULT.values(), ids=ONE_CALLS_FAULT.keys())
async def test_errors_caused_by_one_clients_request_do_not_open_the_circuit(
    error: type[WorkerError], answer: Answer
):
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = lambda _: answer
        own = pool(api(upstream.url, adaptive_concurrency=True, max_concurrency=64))
        for n in range(1, 6):
            with pytest.raises(WorkerError) as caught:
                await ask(own)
            assert (type(caught.value), len(upstream.requests)) == (error, n), "it is not tried again"
        assert (own.health["a"].circuit, own.health["a"].skip_s) == ("closed", 0)
        assert own.limiters["a"].n_slots == 64
        await own.aclose()


TO_ONE_PROMPT = {
    "a firewall's 403": Answer(status=403, error="<html><h1>403 Forbidden</h1></html>"),
    "a scanner's, which names a key": Answer(
        status=403, error="Request blocked: an API key was detected in the prompt."
    ),
    "a firewall's redirect": Answer(status=302, headers={"location": "/blocked"}),
    "a firewall's 404, which quotes the prompt": Answer(
        status=404, body=b"<html>Blocked: 'The model x does not exist' model_not_found NOT_FOUND</html>"
    ),
    "a 404 without words": Answer(status=404, body=b""),
    "a 402 that nobody explains": Answer(status=402, error="Your request exceeds"),
    "a long Retry-After": Answer(status=429, headers={"retry-after": "250"}),
    "a 500": Answer(status=500),
}
"""Answers to one bad prompt. Other prompts succeed."""


def of_key(key: str, text: str = "hi") -> Call:
    return Call((Message.of("user", text),), terms=Terms(payer=key))


@pytest.mark.parametrize("answer", TO_ONE_PROMPT.values(), ids=TO_ONE_PROMPT.keys())
async def test_failures_of_one_keys_prompts_do_not_affect_other_keys(answer: Answer):
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = lambda request: answer if "poison" in str(request.body) else Answer(text="Well.")
        settings = api(
            upstream.url, retry=QUICK, fallbacks=["b"], adaptive_concurrency=True, max_concurrency=64
        )
        own = pool(settings, INSTEAD)
        assert (await ask(own, call=of_key("other")))[0] == "Well."
        for n in range(10):
            assert (await ask(own, call=of_key("poisoner", f"poison {n}")))[0] == "Instead."
        assert (own.health["a"].circuit, own.health["a"].skip_s) == ("closed", 0.0)
        assert own.limiters["a"].n_slots == 64
        assert (await ask(own, call=of_key("other")))[0] == "Well."
        upstream.respond = lambda _: answer
        for n in range(FAILURES_BEFORE_OPEN):
            assert (await ask(own, call=of_key("poisoner", f"poison {n}")))[0] == "Instead."
            assert (await ask(own, call=of_key("other")))[0] == "Instead."
        assert own.health["a"].skip_s, "another key was told the same"
        await own.aclose()


@pytest.mark.parametrize("answer", TO_ONE_PROMPT.values(), ids=TO_ONE_PROMPT.keys())
async def test_if_only_one_key_calls_two_failing_prompts_are_enough(answer: Answer):
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = lambda _: answer
        own = pool(api(upstream.url, retry=ONCE, fallbacks=["b"]), INSTEAD)
        for _ in range(FAILURES_BEFORE_OPEN):
            await ask(own, call=of_key("only"))
        assert not own.health["a"].skip_s, "one prompt may be to blame"
        await ask(own, call=of_key("only", "something else"))
        assert own.health["a"].skip_s
        await own.aclose()


async def test_if_only_one_key_calls_one_often_failing_prompt_is_enough():
    own = pool(DOWN | {"fallbacks": ["b"], "retry": ONCE}, INSTEAD)
    for _ in range(100):
        await ask(own, call=of_key("only"))
    assert len(script(own, "a").calls) == OFTEN


async def test_a_key_with_failing_prompts_does_not_keep_the_circuit_open_for_others():
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = lambda request: TO_ONE_PROMPT["a 500"] if "poison" in str(request.body) else Answer(text="Well.")  # fmt: skip
        own = pool(api(upstream.url, retry=ONCE, fallbacks=["b"]), INSTEAD)
        for n in range(FAILURES_BEFORE_OPEN + 1):
            await ask(own, call=of_key("poisoner", f"poison {n}"))
        health = own.health["a"]
        assert health.circuit == "open", "nobody else called"
        assert (await ask(own, call=of_key("other")))[0] == "Instead."
        health.skip_until_s = 0.0
        await ask(own, call=of_key("poisoner", "poison again"))
        assert not health.skip_s, "its probe says nothing of other keys' prompts"
        assert (await ask(own, call=of_key("other")))[0] == "Well."
        assert health.circuit == "closed"
        await own.aclose()


TO_EVERY_CALL = {
    "a bad key": Answer(status=401, error="Incorrect API key provided."),
    "no model, OpenAI": Answer(status=404, error_code="model_not_found"),
    "no model, vLLM": Answer(
        status=404, body=b'{"error": {"message": "No.", "type": "NotFoundError", "code": 404}}'
    ),
    "no model, Ollama": Answer(status=404, body=b'{"error": "model \'m\' not found, try pulling it first"}'),
    "no model, OpenRouter": Answer(status=404, error="No endpoints found for maker/model."),
    "no deployment, Azure": Answer(status=404, error_code="DeploymentNotFound"),
    "no credit, OpenRouter": Answer(status=402, error="Insufficient credits. Add more."),
    "no credit, DeepSeek": Answer(status=402, error="Insufficient Balance"),
    "no credit, by a code": Answer(status=402, error_code="insufficient_quota"),
}
"""Provider errors that affect every call."""


@pytest.mark.parametrize("answer", TO_EVERY_CALL.values(), ids=TO_EVERY_CALL.keys())
async def test_a_failure_that_concerns_every_call_opens_the_circuit_immediately(answer: Answer):
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = lambda request: answer if "bad" in str(request.body) else Answer()
        own = pool(api(upstream.url, fallbacks=["b"]), INSTEAD)
        await ask(own, call=of_key("other"))
        await ask(own, call=of_key("one", "bad"))
        assert own.health["a"].skip_s
        await own.aclose()


HARD = Call((Message.of("user", "a hard one"),))
SHORT_S = 0.6


def _stall_on_hard_ones(request: Request) -> Answer:
    is_hard = request.body["messages"][-1]["content"] == HARD.messages[0].text
    return Answer(stall_after=0) if is_hard else Answer(text="Yes.")


@pytest.mark.parametrize("places", [(), ("one", "two")], ids=["one address", "deployments"])
async def test_slow_calls_are_not_failures_while_others_are_answered(
    places: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(targets, "LEAST_S", SHORT_S)
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = _stall_on_hard_ones
        settings = api(upstream.url, retry=ONCE, fallbacks=["b"], deployments=[{"name": p} for p in places])
        health = Health()
        own = build_pool(parse({"workers": [settings, {"kind": "scripted"} | INSTEAD]}), {}, {}, health)
        # Enough for every deployment to have a known pace.
        for _ in range(KNOWN_CALLS * (4 if places else 1)):
            await ask(own)
        workers = [each for who, each in health.workers().items() if who.kind == "openai"]
        assert len(workers) == 1 + len(places)
        assert all(each.first_tokens >= KNOWN_CALLS for each in workers)
        asking = [asyncio.create_task(ask(own, call=HARD)) for _ in range(3)]
        while not all(each.done() for each in asking):
            assert (await ask(own))[0] == "Yes."
            await asyncio.sleep(SHORT_S / 20)
        assert {(await each)[0] for each in asking} == {"Instead."}
        assert [(each.circuit, each.failures) for each in workers] == [("closed", 0)] * len(workers)
        await asyncio.sleep(SHORT_S)
        await asyncio.gather(*(ask(own, call=HARD) for _ in range(3)))
        assert own.health["a"].circuit == "open", "nobody was answered: it is down"
        await own.aclose()


REST = replace(CALL, prefix="The first half of an answer")


@pytest.mark.parametrize("kind", ["openai", "scripted"])
async def test_a_model_that_cannot_continue_an_answer_is_not_down(kind: str):
    async with serving(
        OpenAIWire(), *[Answer(text="Something else, from the start. " * 20)] * 10
    ) as upstream:
        own = pool(api(upstream.url, retry=ONCE) if kind == "openai" else {"name": "a", "retry": ONCE})
        health = own.health["a"]
        for _ in range(3):
            with pytest.raises(WorkerUnavailable):
                await ask(own, call=REST)
        assert (health.circuit, health.failures, health.successes) == ("closed", 0, 0)
        for _ in range(3):
            health.fail()
        with pytest.raises(WorkerUnavailable):
            await ask(own, call=REST)
        assert (health.circuit, health.failures) == ("open", 3), "nor does it say that it is well again"
        await own.aclose()


async def test_a_worker_that_breaks_off_its_continuations_is_down():
    async with serving(OpenAIWire(), *[Answer(text=f"{MARK} The", end_after=2)] * 3) as upstream:
        own = pool(api(upstream.url, retry=ONCE))
        for _ in range(3):
            with pytest.raises(WorkerUnavailable):
                await ask(own, call=REST)
        assert own.health["a"].circuit == "open"
        await own.aclose()
