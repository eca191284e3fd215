"""Fallbacks: in order, only before the first token, and recorded."""

import pytest
from msgspec.structs import replace

from conductor.errors import ContextOverflow, WorkerRefused, WorkerUnavailable
from conductor.model.call import Call, CallSite
from conductor.model.messages import Image, Message, Native, Text, Tool, Toolset
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from serving.dispatch.build import build_routes
from serving.dispatch.fitting import ModelProfile
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


async def test_the_first_that_works_answers_and_the_rest_are_not_asked():
    first, second, third = down("a"), ScriptedWorker("b", ["B."]), ScriptedWorker("c", ["C."])
    text, reply = await ask(first, second, third)
    assert (text, reply.worker) == ("B.", "b")
    assert [len(w.calls) for w in (first, second, third)] == [1, 1, 0]
    assert [(a.worker, a.error, a.waited_s) for a in reply.attempts] == [("a", "WorkerUnavailable", 0.0)]


@pytest.mark.parametrize("kind", ["unavailable", "busy", "refused", "overflow"])
async def test_every_failure_of_a_worker_moves_on(kind: str):
    assert (await ask(down("a", kind), ScriptedWorker("b", ["B."])))[0] == "B."


async def test_the_error_of_the_last_is_told_with_what_was_tried_before():
    with pytest.raises(ContextOverflow) as caught:
        await ask(down("a"), down("b", "refused"), down("c", "overflow"))
    assert caught.value.worker == "c"
    assert [(a.worker, a.error) for a in caught.value.attempts] == [
        ("a", "WorkerUnavailable"),
        ("b", "WorkerRefused"),
    ]


async def test_retries_of_each_are_told_in_order():
    first_two = [route(each, 2) for each in (down("a"), down("b", "refused"))]
    last = route(ScriptedWorker("c", [ScriptedReply(error="busy"), "C."]), 2)
    text, reply = await ask(*first_two, last)
    assert text == "C."
    assert [(a.worker, a.error) for a in reply.attempts] == [
        ("a", "WorkerUnavailable"), ("a", "WorkerUnavailable"), ("b", "WorkerRefused"), ("c", "WorkerBusy"),
    ]  # fmt: skip


async def test_retries_of_the_last_are_told_with_its_error():
    with pytest.raises(WorkerUnavailable) as caught:
        await ask(*(route(down(name), 2) for name in ("a", "b")))
    assert [a.worker for a in caught.value.attempts] == ["a", "a", "b"]


async def test_after_the_first_token_nobody_else_is_asked():
    second = ScriptedWorker("b", ["B."])
    with pytest.raises(WorkerUnavailable):
        await ask(ScriptedWorker("a", [ScriptedReply("x y", fail_after_tokens=1)]), second)
    assert not second.calls


async def test_the_readers_own_error_is_no_reason_to_move_on():
    first, second = ScriptedWorker("a", ["A."]), ScriptedWorker("b", ["B."])
    with pytest.raises(WorkerRefused):
        async with dispatcher(first, second).open(CALL):
            raise WorkerRefused("of the one who reads", worker="a")
    assert (second.calls.maxlen, len(second.calls), first.open_calls) == (1000, 0, 0)


async def test_a_picture_skips_fallbacks_that_see_none():
    unseeing, seeing = ScriptedWorker("b", ["B."]), ScriptedWorker("c", ["C."])
    workers = [down("a"), blind(unseeing), seeing]
    assert [(await ask(*workers, call=call))[0] for call in (SHOWN, CALL)] == ["C.", "B."]
    assert [len(w.calls) for w in (unseeing, seeing)] == [1, 1]


async def test_where_no_fallback_sees_the_error_is_the_first_ones():
    unseeing = ScriptedWorker("b", ["B."])
    with pytest.raises(WorkerRefused) as caught:
        await ask(down("a", "refused"), blind(unseeing), call=SHOWN)
    assert (caught.value.worker, caught.value.attempts, len(unseeing.calls)) == ("a", (), 0)


async def test_where_the_first_sees_none_everybody_may_be_asked():
    workers = blind(down("a")), blind(ScriptedWorker("b", ["B."]))
    assert (await ask(*workers, call=SHOWN))[0] == "B."


def limited(worker: Worker, context_tokens: int) -> Route:
    return route(worker, profile=ModelProfile(context_tokens=context_tokens))


async def test_a_prompt_that_was_too_long_goes_only_to_workers_with_a_longer_context():
    first, equal, longer = down("a", "overflow"), ScriptedWorker("b", ["B."]), ScriptedWorker("c", ["C."])
    assert (await ask(limited(first, 1000), limited(equal, 1000), limited(longer, 2000)))[0] == "C."
    with pytest.raises(ContextOverflow) as caught:
        await ask(limited(first, 1000), limited(equal, 1000))
    assert (caught.value.worker, len(equal.calls)) == ("a", 0)


async def test_a_prompt_that_is_too_long_for_a_fallback_is_not_sent_to_it():
    short, longer = ScriptedWorker("b", ["B."]), ScriptedWorker("c", ["C."])
    call = Call((Message.of("user", "word " * 2000),))
    assert (await ask(down("a"), limited(short, 1000), limited(longer, 10_000), call=call))[0] == "C."
    assert not short.calls


def test_the_context_of_a_route_is_the_one_that_is_set_or_known():
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


def test_it_goes_by_the_first_ones_name():
    assert dispatcher(down("a"), down("b")).name == "a"


async def test_every_call_of_a_step_has_a_number_of_its_own_whoever_is_asked():
    first, second, third = down("a"), down("b", "refused"), ScriptedWorker("c", ["C."])
    routes = [route(each, 2) for each in (first, second, third)]
    await ask(*routes, call=Call(CALL.messages, site=CallSite("wf_1", 0, 0, attempt=3)))
    attempts = [
        (worker.name, call.site.attempt) for worker in (first, second, third) for call in worker.calls
    ]
    assert attempts == [("a", 3), ("a", 4), ("b", 5), ("c", 6)]


async def test_tools_are_offered_to_those_that_call_some():
    mute, calling = ScriptedWorker("b", ["B."]), ScriptedWorker("c", ["C."])
    toolless = route(mute, profile=ModelProfile(calls_tools=False))
    await ask(down("a"), toolless, calling, call=replace(CALL, tools=Toolset((Tool("read"),))))
    assert [len(w.calls) for w in (mute, calling)] == [0, 1]


async def test_who_wrote_the_newest_turn_goes_on_with_it():
    names = ("a", "b", "c")
    workers = [ScriptedWorker(name, [f"{name.upper()}."]) for name in names]
    turns = [Message("assistant", (Text("I look."),), Native(name, "", {})) for name in ("c", "b", "team")]
    texts = [(await ask(*workers, call=Call((*CALL.messages, *turns[:n]))))[0] for n in range(4)]
    assert texts == ["A.", "C.", "B.", "A."]
