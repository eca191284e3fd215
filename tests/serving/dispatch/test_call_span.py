"""The span of a call: its names, links and outcome."""

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.trace import SpanKind, StatusCode

from conductor.errors import WorkerBusy, WorkerUnavailable
from conductor.model.call import Call, CallSite, Sampling
from conductor.model.messages import Message
from conductor.model.terms import Permit, Terms
from conductor.model.usage import Price, Usage
from serving.telemetry import spans
from serving.telemetry.spans import SpanFacts
from serving.workers.scripted import ScriptedReply, ScriptedWorker
from tests.serving.dispatch.routes import dispatcher, route
from tests.serving.spans import SPANS
from tests.states import until

CALL = Call(
    (Message.of("system", "Be brief."), Message.of("user", "hi there")), Sampling(max_output_tokens=9)
)
PRICE = Price(Decimal(1), Decimal(2))


@pytest.fixture(autouse=True)
def fresh():
    SPANS.clear()
    yield
    assert SPANS.open == []


async def ask(worker: ScriptedWorker, call: Call = CALL, *, content: bool = False) -> Any:
    facts = SpanFacts("podium.scripted", "model-1", content)
    async with dispatcher(route(worker, span=facts)).open(call) as reply:
        async for _ in reply:
            pass
    assert reply.result.span == spans.span_id(SPANS.ended[-1])
    return SPANS.ended[-1]


async def test_a_span_has_the_worker_the_operation_and_the_usage():
    usage = Usage(10, 4, 3, 2)
    span = await ask(
        ScriptedWorker("w", [ScriptedReply("one two", usage=usage)], price=PRICE, model="model-1-2026")
    )
    assert (span.name, span.kind) == ("chat model-1", SpanKind.CLIENT)
    assert span.attributes == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "podium.scripted", "gen_ai.request.model": "model-1",
        "gen_ai.request.stream": True, "gen_ai.request.max_tokens": 9, "gen_ai.response.model": "model-1-2026",
        "gen_ai.response.finish_reasons": ("stop",), "gen_ai.response.time_to_first_chunk": span.attributes[spans.FIRST_CHUNK_S],
        "gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 4, "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2, "podium.worker": "w", "podium.plan": 0, "podium.attempt": 1,
        "podium.priority": "interactive",
        "podium.cost_usd": pytest.approx(0.000018),
    }  # fmt: skip
    assert span.status.status_code is StatusCode.UNSET


async def test_a_plans_span_is_named_after_the_conductor():
    span = await ask(
        ScriptedWorker("conductor", ["x"]),
        Call(CALL.messages, site=CallSite(operation="plan", plan=2, attempt=3)),
    )
    assert (span.name, span.attributes[spans.VIEWER_KIND]) == ("plan conductor", "LLM")
    assert (
        span.attributes[spans.OPERATION],
        span.attributes[spans.PLAN],
        span.attributes[spans.ATTEMPT],
    ) == (
        "plan",
        2,
        3,
    )
    assert spans.STEP not in span.attributes


async def test_the_time_to_the_first_chunk_is_the_time_to_open_the_call():
    span = await ask(ScriptedWorker("w", ["x"], delay_s=0.03))
    assert span.attributes[spans.FIRST_CHUNK_S] == pytest.approx(0.03)


async def test_a_steps_span_links_to_the_steps_that_it_reads():
    worker = ScriptedWorker("w", ["x"])
    with spans.workflow("mini", "wf_1"):
        for step, access in [(0, ()), (1, ()), (2, (0, 1))]:
            await ask(worker, Call(CALL.messages, site=CallSite(step=step, access=access)))
        await ask(worker, Call(CALL.messages, site=CallSite(plan=1, step=1, access=(0,))))
    first, second, third, other = SPANS.named("chat")
    assert [link.context.span_id for link in third.links] == [s.context.span_id for s in (first, second)]
    assert (third.attributes[spans.STEP], third.attributes[spans.ACCESS]) == (2, (0, 1))
    assert not first.links
    assert not other.links, "another plan's step 0 is not what it read"
    root = SPANS.named("invoke_workflow")[0]
    assert all(span.parent.span_id == root.context.span_id for span in (first, second, third))


async def test_an_inner_run_has_none_of_the_outer_runs_links():
    worker = ScriptedWorker("w", ["x"])

    async def step(run: str, step: int, *access: int) -> Any:
        return await ask(worker, Call(CALL.messages, site=CallSite(run=run, step=step, access=access)))

    with spans.workflow("mini", "wf_1"):
        outer = await step("wf_1", 0)
        inner = await step("wf_1.0.1", 0)
        reader, inner_reader = await step("wf_1", 2, 0), await step("wf_1.0.1", 1, 0)
    assert [link.context.span_id for link in reader.links] == [outer.context.span_id]
    assert [link.context.span_id for link in inner_reader.links] == [inner.context.span_id]


async def test_a_span_names_an_error_before_the_first_token():
    with pytest.raises(WorkerBusy):
        await ask(ScriptedWorker("w", [ScriptedReply(error="busy")]))
    span = SPANS.ended[-1]
    assert (span.attributes[spans.ERROR_TYPE], span.status.status_code) == ("WorkerBusy", StatusCode.ERROR)
    assert span.status.description == "w was scripted to fail (busy). worker: w"
    assert spans.FIRST_CHUNK_S not in span.attributes


@pytest.mark.parametrize(
    ("content", "permit", "words"),
    [
        (False, Permit(), "jane@doe.org was scripted to fail (busy). worker: jane@doe.org"),
        (True, Permit(traces=False), "worker: jane@doe.org"),
        (True, Permit(), "jane@doe.org was scripted to fail (busy)."),
        (True, Permit(hides_personal_data=True), "[e-mail address removed] was scripted to fail (busy)."),
    ],
)
async def test_an_error_message_is_in_a_span_only_if_content_is_recorded(
    content: bool, permit: Permit, words: str
) -> None:
    with pytest.raises(WorkerBusy):
        await ask(
            ScriptedWorker("jane@doe.org", [ScriptedReply(error="busy")]),
            replace(CALL, terms=Terms(permit=permit)),
            content=content,
        )
    assert SPANS.ended[-1].status.description == words


async def test_a_failure_in_mid_stream_is_recorded_with_the_first_chunk_time():
    with pytest.raises(WorkerUnavailable):
        await ask(ScriptedWorker("w", [ScriptedReply("x y z", fail_after_tokens=1)], model="m"))
    span = SPANS.ended[-1]
    assert span.attributes[spans.ERROR_TYPE] == "WorkerUnavailable"
    assert (span.attributes[spans.RESPONSE_MODEL], spans.FIRST_CHUNK_S in span.attributes) == ("m", True)
    assert spans.INPUT_TOKENS not in span.attributes, "nobody said"


async def test_a_span_has_no_content_unless_configured():
    worker = ScriptedWorker("w", ["the answer"])
    without, with_content = await ask(worker), await ask(worker, content=True)
    assert not any(
        "hi there" in str(value) or "Be brief" in str(value) for value in without.attributes.values()
    )
    assert json.loads(with_content.attributes[spans.INPUT_MESSAGES]) == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi there"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "reply", [ScriptedReply("x y", stall_after_tokens=1), ScriptedReply("x", stall_after_tokens=0)]
)
async def test_a_span_ends_when_its_call_is_cancelled(reply: ScriptedReply):
    worker = ScriptedWorker("w", [reply])
    asking = asyncio.create_task(ask(worker))
    await until(lambda: worker.open_calls == 1)
    assert SPANS.open == ["chat model-1"]
    asking.cancel()
    await asyncio.wait([asking])
    assert (SPANS.open, len(SPANS.ended), asking.cancelled()) == ([], 1, True)


async def test_an_unknown_cost_is_not_recorded_as_zero():
    span = await ask(ScriptedWorker("w", ["x"], price=None))
    assert spans.COST_USD not in span.attributes
    assert (await ask(ScriptedWorker("w", ["x"]))).attributes[spans.COST_USD] == 0
