"""Fallbacks: in order, only before the first token, and recorded."""

import pytest
from msgspec.structs import replace

from conductor.errors import ContextOverflow, WorkerRefused, WorkerUnavailable
from conductor.model.call import Call, CallSite
from conductor.model.messages import Image, Message, Native, Text, Tool, Toolset
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from serving.dispatch.build import build_routes
from serving.dispatch.model_parameters import ModelProfile
from serving.dispatch.route import Route
from serving.health import Health
from serving.settings.settings import parse
from serving.workers.scripted import ScriptedReply, ScriptedWorker
from tests.serving.dispatch.routes import dispatcher, route

CALL = Call((Message.of("user", "hi"),))
SHOWN = Call((Message("user", (Text("hi"), Image("data:image/png;base64,AAAA"))),))


def down(name: str, kind: str = "unavailable") -> ScriptedWorker:
    return ScriptedWorker(name, [ScriptedReply(error=kind)])  # type: ignore[arg-type]


def blind(worker: Worker) -> Route:
    return route(worker, profile=ModelProfile(sees_images=False))


async def ask(*workers: Worker | Route, call: Call = CALL) -> tuple[str, Reply]:
    async with dispatcher(*workers).open(call) as reply:
        return "".join([delta.text async for delta in reply]), reply


async def test_the_first_working_worker_answers_and_the_rest_are_not_called():
    first, second, third = down("a"), ScriptedWorker("b", ["B."]), ScriptedWorker("c", ["C."])
    text, reply = await ask(first, second, third)
    assert (text, reply.worker) == ("B.", "b")
    assert [len(w.calls) for w in (first, second, third)] == [1, 1, 0]
    assert [(a.worker, a.error, a.waited_s) for a in reply.attempts] == [("a", "WorkerUnavailable", 0.0)]


@pytest.mark.parametrize("kind", ["unavailable", "busy", "refused", "overflow"])
async def test_every_worker_error_uses_the_fallback(kind: str):
    assert (await ask(down("a", kind), ScriptedWorker("b", ["B."])))[0] == "B."


async def test_the_last_error_is_raised_with_the_earlier_attempts():
    with pytest.raises(ContextOverflow) as caught:
        await ask(down("a"), down("b", "refused"), down("c", "overflow"))
    assert caught.value.worker == "c"
    assert [(a.worker, a.error) for a in caught.value.attempts] == [
        ("a", "WorkerUnavailable"),
        ("b", "WorkerRefused"),
    ]


async def test_retries_of_each_worker_are_listed_in_order():
    first_two = [route(each, 2) for each in (down("a"), down("b", "refused"))]
    last = route(ScriptedWorker("c", [ScriptedReply(error="busy"), "C."]), 2)
    text, reply = await ask(*first_two, last)
    assert text == "C."
    assert [(a.worker, a.error) for a in reply.attempts] == [
        ("a", "WorkerUnavailable"), ("a", "WorkerUnavailable"), ("b", "WorkerRefused"), ("c", "WorkerBusy"),
    ]  # fmt: skip


async def test_retries_of_the_last_worker_are_in_its_error():
    with pytest.raises(WorkerUnavailable) as caught:
        await ask(*(route(down(name), 2) for name in ("a", "b")))
    assert [a.worker for a in caught.value.attempts] == ["a", "a", "b"]


async def test_after_the_first_token_no_fallback_is_called():
    second = ScriptedWorker("b", ["B."])
    with pytest.raises(WorkerUnavailable):
        await ask(ScriptedWorker("a", [ScriptedReply("x y", fail_after_tokens=1)]), second)
    assert not second.calls


async def test_the_readers_own_error_does_not_use_a_fallback():
    first, second = ScriptedWorker("a", ["A."]), ScriptedWorker("b", ["B."])
    with pytest.raises(WorkerRefused):
        async with dispatcher(first, second).open(CALL):
            raise WorkerRefused("of the one who reads", worker="a")
    assert (second.calls.maxlen, len(second.calls), first.open_calls) == (1000, 0, 0)


async def test_an_image_skips_fallbacks_without_image_support():
    unseeing, seeing = ScriptedWorker("b", ["B."]), ScriptedWorker("c", ["C."])
    workers = [down("a"), blind(unseeing), seeing]
    assert [(await ask(*workers, call=call))[0] for call in (SHOWN, CALL)] == ["C.", "B."]
    assert [len(w.calls) for w in (unseeing, seeing)] == [1, 1]


async def test_without_a_fallback_for_images_the_first_error_is_raised():
    unseeing = ScriptedWorker("b", ["B."])
    with pytest.raises(WorkerRefused) as caught:
        await ask(down("a", "refused"), blind(unseeing), call=SHOWN)
    assert (caught.value.worker, caught.value.attempts, len(unseeing.calls)) == ("a", (), 0)


async def test_if_the_first_worker_sees_no_images_any_fallback_may_answer():
    workers = blind(down("a")), blind(ScriptedWorker("b", ["B."]))
    assert (await ask(*workers, call=SHOWN))[0] == "B."


def limited(worker: Worker, context_tokens: int) -> Route:
    return route(worker, profile=ModelProfile(context_tokens=context_tokens))


async def test_a_prompt_that_was_too_long_goes_only_to_longer_contexts():
    first, equal, longer = down("a", "overflow"), ScriptedWorker("b", ["B."]), ScriptedWorker("c", ["C."])
    assert (await ask(limited(first, 1000), limited(equal, 1000), limited(longer, 2000)))[0] == "C."
    with pytest.raises(ContextOverflow) as caught:
        await ask(limited(first, 1000), limited(equal, 1000))
    assert (caught.value.worker, len(equal.calls)) == ("a", 0)


async def test_a_prompt_too_long_for_a_fallback_is_not_sent_to_it():
    short, longer = ScriptedWorker("b", ["B."]), ScriptedWorker("c", ["C."])
    call = Call((Message.of("user", "word " * 2000),))
    assert (await ask(down("a"), limited(short, 1000), limited(longer, 10_000), call=call))[0] == "C."
    assert not short.calls


def test_a_workers_context_is_the_configured_or_the_known_one():
    workers = [
        {"name": "set", "kind": "openai", "model": "gpt-5", "context_tokens": 5000},
        {"name": "known", "kind": "openai", "model": "gpt-5"},
        {"name": "unknown", "kind": "scripted", "replies": ["x"]},
    ]
    settings = parse({"workers": workers})
    clients = {each["name"]: ScriptedWorker(str(each["name"]), ["x"]) for each in workers}
    built = build_routes(clients, settings, Health())  # type: ignore[arg-type]
    contexts = {name: each.profile.context_tokens for name, each in built.items()}
    assert contexts == {"set": 5000, "known": 400_000, "unknown": None}


def test_a_dispatcher_has_its_first_workers_name():
    assert dispatcher(down("a"), down("b")).name == "a"


async def test_every_call_of_a_step_has_its_own_attempt_number():
    first, second, third = down("a"), down("b", "refused"), ScriptedWorker("c", ["C."])
    routes = [route(each, 2) for each in (first, second, third)]
    await ask(*routes, call=Call(CALL.messages, site=CallSite("wf_1", 0, 0, attempt=3)))
    attempts = [
        (worker.name, call.site.attempt) for worker in (first, second, third) for call in worker.calls
    ]
    assert attempts == [("a", 3), ("a", 4), ("b", 5), ("c", 6)]


async def test_tools_are_sent_only_to_workers_that_call_tools():
    mute, calling = ScriptedWorker("b", ["B."]), ScriptedWorker("c", ["C."])
    toolless = route(mute, profile=ModelProfile(calls_tools=False))
    await ask(down("a"), toolless, calling, call=replace(CALL, tools=Toolset((Tool("read"),))))
    assert [len(w.calls) for w in (mute, calling)] == [0, 1]


async def test_the_worker_of_the_newest_turn_continues_the_conversation():
    names = ("a", "b", "c")
    workers = [ScriptedWorker(name, [f"{name.upper()}."]) for name in names]
    turns = [Message("assistant", (Text("I look."),), Native(name, "", {})) for name in ("c", "b", "team")]
    texts = [(await ask(*workers, call=Call((*CALL.messages, *turns[:n]))))[0] for n in range(4)]
    assert texts == ["A.", "C.", "B.", "A."]
