"""Structured answers: buffered, validated, repaired once and billed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from conductor.errors import AnswerInvalid, BudgetExceeded, WorkerUnavailable
from conductor.model.call import AnswerFormat, Call, Sampling
from conductor.model.deltas import open_reply
from conductor.model.messages import Message, Native, Text, Tool, ToolCall, ToolResult, Toolset
from conductor.model.reply import CallResult, Delta, FinishReason
from conductor.model.usage import Price, Usage
from conductor.model.worker import PoolMember
from conductor.run.call_holds import open_call
from conductor.run.ledger import Budget, BudgetLedger
from serving.dispatch.structured_output import FENCE_NOTE, STOP_NOTE
from serving.schemas import vllm
from serving.workers.scripted import ScriptedReply, ScriptedWorker
from tests.serving.dispatch.routes import deployed, dispatcher, route, target

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ANSWER_FORMAT = AnswerFormat(SCHEMA)
RIGHT = '{"n": 1}'
PRICE = Price(Decimal(1), Decimal(2))


@asynccontextmanager
async def ask_worker(
    *replies: Any,
    answer_format: AnswerFormat = ANSWER_FORMAT,
    ledger: BudgetLedger | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008
    **settings: Any,
) -> AsyncIterator[tuple[ScriptedWorker, Any]]:
    script = ScriptedWorker("w", replies, price=PRICE, **settings)
    worker = dispatcher(route(script, price=PRICE))
    member = PoolMember("w", worker, price=PRICE, worst_price=PRICE, max_output_tokens=100)
    call = Call((Message.of("user", "How many?"),), answer_format=answer_format, sampling=sampling)
    async with open_call(member, call, ledger or BudgetLedger()) as reply:
        yield script, reply
    assert script.open_calls == 0


async def ask(*replies: Any, **settings: Any) -> tuple[ScriptedWorker, CallResult, list[str]]:
    async with ask_worker(*replies, **settings) as (script, reply):
        pieces = [delta.text async for delta in reply if delta.text]
    return script, reply.result, pieces


async def test_a_valid_answer_is_sent_as_one_delta():
    script, result, pieces = await ask(ScriptedReply('{"n":\n 1}', reasoning="Let me see."))
    assert (result.output, pieces, result.reasoning) == ('{"n":\n 1}', ['{"n":\n 1}'], "Let me see.")
    assert (result.finish, result.attempts, result.notes) == (FinishReason.STOP, (), ())
    assert result.usage == Usage(script_tokens(script, 0), 5, reasoning_tokens=3)


def script_tokens(script: ScriptedWorker, call: int) -> int:
    return sum(len(message.text.split()) for message in script.calls[call].messages)


async def test_the_schema_is_appended_to_the_workers_system_prompt():
    script, _, _ = await ask(RIGHT)
    first = script.calls[0].messages[0]
    assert first.role == "system"
    assert '"required": ["n"]' in first.text
    assert script.calls[0].answer_format is None, "it has no field for one"


async def test_an_invalid_answer_is_repaired_once_and_both_calls_are_billed():
    ledger = BudgetLedger()
    script, result, _ = await ask("About one.", RIGHT, ledger=ledger)
    texts = [message.text for message in script.calls[1].messages[-2:]]
    assert texts[0] == "About one."
    assert texts[1].startswith("The answer must be JSON")
    assert result.output == RIGHT
    assert [(each.worker, each.error) for each in result.attempts] == [("w", "AnswerInvalid")]
    assert script.calls[1].site.attempt == 2
    both = sum(PRICE.most(Usage(script_tokens(script, n), 2)) for n in (0, 1))
    assert ledger.spent_usd == both
    assert not ledger.holds


async def test_the_record_names_the_deployment_that_gave_a_wrong_answer():
    worker = dispatcher(deployed(target(ScriptedWorker("w", ["About one.", RIGHT]), "east")))
    async with worker.open(Call((Message.of("user", "How many?"),), answer_format=ANSWER_FORMAT)) as reply:
        async for _ in reply:
            pass
    assert [(each.deployment, each.error) for each in reply.attempts] == [("east", "AnswerInvalid")]


async def test_stop_sequences_do_not_apply_to_structured_answers():
    script, result, _ = await ask(ScriptedReply(RIGHT), sampling=Sampling(stop=('"', "}")))
    assert (result.output, result.notes, script.calls[0].sampling.stop) == (RIGHT, (STOP_NOTE,), ())


async def test_two_invalid_answers_are_a_final_error():
    ledger = BudgetLedger()
    with pytest.raises(AnswerInvalid) as caught:
        await ask("One.", '{"n": "1"}', ledger=ledger)
    error = caught.value
    assert not error.retryable
    assert "At n:" in error.message
    assert [each.error for each in error.attempts] == ["AnswerInvalid"]
    assert ledger.spent_usd > error.cost_usd > 0
    assert not ledger.holds


async def test_an_invalid_answer_is_not_repaired_without_budget():
    ledger = BudgetLedger(Budget(Decimal("0.005")))
    with pytest.raises(BudgetExceeded):
        await ask(ScriptedReply("One.", usage=Usage(3000, 100)), RIGHT, ledger=ledger)
    assert ledger.spent_usd == PRICE.most(Usage(3000, 100))


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
async def test_a_truncated_or_refused_answer_is_not_repaired(finish: FinishReason):
    script, result, _ = await ask(ScriptedReply('{"n":', finish=finish))
    assert (result.output, result.finish, len(script.calls)) == ('{"n":', finish, 1)


async def test_a_code_fence_around_the_answer_is_removed_and_noted():
    script, result, _ = await ask(f"```json\n{RIGHT}\n```")
    assert (result.output, result.notes, len(script.calls)) == (RIGHT, (FENCE_NOTE,), 1)


async def test_an_answer_that_breaks_before_it_is_valid_shows_nothing():
    with pytest.raises(WorkerUnavailable) as caught:
        await ask(ScriptedReply("one two three", fail_after_tokens=2))
    assert caught.value.billed_at_bound


async def test_a_non_strict_answer_is_streamed_and_noted():
    lax = AnswerFormat(SCHEMA, strict=False)
    script, result, pieces = await ask("About one.", answer_format=lax)
    assert (pieces, len(script.calls)) == (["About", " one."], 1)
    assert "which is not strict" in result.notes[0]
    assert (await ask(RIGHT, answer_format=lax))[1].notes == ()


def test_decoding_is_unconstrained_if_tools_may_be_called():
    assert vllm.translate(ANSWER_FORMAT, Toolset()).native is not None
    assert vllm.translate(ANSWER_FORMAT, Toolset((Tool("clock"),))).native is None


class Caller:
    name = "w"

    def open(self, call: Call) -> Any:
        async def deltas() -> AsyncIterator[Delta]:
            if any(message.tool_results for message in call.messages):
                yield Delta("12:00")
                yield Delta(finish=FinishReason.STOP, usage=Usage(1, 1))
            else:
                yield Delta("I look.", tool_calls=(ToolCall("c1", "clock", "{}"),))
                yield Delta(
                    finish=FinishReason.TOOL_CALLS, usage=Usage(1, 1), native=Native("w", "", {"x": 1})
                )

        return open_reply("w", "m", deltas())


async def test_only_the_last_turn_is_validated_and_tool_calls_pass_unchanged():
    worker = dispatcher(Caller())
    call = Call((Message.of("user", "When?"),), tools=Toolset((Tool("clock"),)), answer_format=ANSWER_FORMAT)
    async with worker.open(call) as reply:
        async for _ in reply:
            pass
    result = reply.result
    assert (result.output, result.finish) == ("I look.", FinishReason.TOOL_CALLS)
    assert [each.name for each in result.tool_calls] == ["clock"]
    assert result.native is not None
    turn = Message("tool", (ToolResult("c1", (Text("12:00"),)),))
    with pytest.raises(AnswerInvalid):
        async with worker.open(replace(call, messages=(*call.messages, turn))):
            pass
