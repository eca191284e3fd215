"""Impossible counts of tokens and money on all three wires, and answers above their limit."""

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from conductor.model.call import Call, Sampling
from conductor.model.messages import Message
from conductor.model.reply import FinishReason, Reply
from conductor.model.usage import FREE, Price, Usage
from conductor.model.worker import PoolMember
from conductor.run.call_bound import input_bound
from conductor.run.call_holds import open_call
from conductor.run.ledger import Budget, BudgetLedger
from serving.workers.chat_chunks import decode
from serving.workers.provider_account import ProviderAccount
from tests.serving.workers.test_http import PROVIDERS, Provider
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, serving, sse

CALL = Call((Message.of("user", "What is two and two?"),), Sampling(max_output_tokens=100))
PRICE = Price(Decimal(1), Decimal(10))
BOUND_USD = PRICE.of(Usage(input_bound(CALL), 100))
HUGE = 10**30


@pytest.fixture(params=PROVIDERS.values(), ids=PROVIDERS.keys())
def provider(request: pytest.FixtureRequest) -> Provider:
    return request.param


@dataclass(frozen=True)
class Paid:
    """A finished call: its text, its reply, and its cost on the record and in the ledger."""

    text: str
    reply: Reply
    cost_usd: Decimal | None
    ledger: BudgetLedger


def telling(provider: Provider, tokens: Any, *, of_input: bool) -> Answer:
    """Return an answer whose usage is `tokens`, in the terms of the wire."""
    error_text = Answer(
        text="It is four.", input_tokens=111_111 if of_input else 12, output_tokens=7 if of_input else 111_111
    )
    events = [
        event.replace(b"111111", json.dumps(tokens).encode()) for event in provider.wire.events(error_text)
    ]
    return Answer(instead=tuple(events))


async def call_and_bill(
    provider: Provider, answer: Answer, price: Price | None = PRICE, call: Call = CALL
) -> Paid:
    ledger = BudgetLedger(Budget() if price is None else Budget(max_cost_usd=Decimal(1)))
    async with serving(provider.wire, answer) as server:
        worker = provider.worker(ProviderAccount("w", "m", "sk-test", server.url + provider.path, price))
        member = PoolMember("w", worker, price=price, worst_price=price)
        async with open_call(member, call, ledger) as reply:
            texts = [delta.text async for delta in reply]
        await worker.aclose()
    assert ledger.holds == []
    return Paid("".join(texts), reply, reply.result.cost_usd, ledger)


@pytest.mark.parametrize("tokens", [HUGE, -1_000_000, 1e300, 7.5, "many", [7], {"n": 7}, 5_000_000])
@pytest.mark.parametrize("of_input", [True, False])
async def test_impossible_usage_is_dropped_with_a_note_and_billed_at_the_bound(
    provider: Provider, of_input: bool, tokens: Any
):
    got = await call_and_bill(provider, telling(provider, tokens, of_input=of_input))
    assert (got.text, got.reply.finish, got.reply.usage) == ("It is four.", FinishReason.STOP, None)
    assert got.cost_usd == got.ledger.spent_usd == BOUND_USD
    assert got.ledger.spent_tokens == input_bound(CALL) + 100
    assert len(got.reply.notes) == 1
    assert "implausible" in got.reply.notes[0]
    assert len(got.reply.notes[0]) < 250


@pytest.mark.parametrize("tokens", ["9", 9.0, 9])
async def test_a_token_count_may_have_different_number_formats(provider: Provider, tokens: Any):
    got = await call_and_bill(provider, telling(provider, tokens, of_input=False))
    assert (got.reply.usage, got.reply.notes) == (Usage(12, 9), ())


async def test_input_tokens_that_a_provider_adds_are_accepted(provider: Provider):
    got = await call_and_bill(provider, Answer(input_tokens=10_000, output_tokens=7))
    assert (got.reply.usage, got.reply.notes) == (Usage(10_000, 7), ())
    assert got.cost_usd == got.ledger.spent_usd == PRICE.of(Usage(10_000, 7)), "what was spent was spent"


def beside(events: list[bytes]) -> tuple[bytes, ...]:
    """Return a stream with text and usage in one packet."""
    return (b"".join(events),)


@pytest.mark.parametrize("together", [False, True])
async def test_usage_far_over_the_limit_is_rejected(provider: Provider, together: bool):
    events = provider.wire.events(Answer(text="It is four.", input_tokens=12, output_tokens=16_000))
    got = await call_and_bill(provider, Answer(instead=beside(events) if together else tuple(events)))
    assert (got.text, got.reply.finish, got.reply.usage) == ("It is four.", FinishReason.LENGTH, None)
    assert got.cost_usd == got.ledger.spent_usd == BOUND_USD
    assert ["16000 output tokens" in note for note in got.reply.notes] == [True]


@pytest.mark.parametrize("together", [False, True])
async def test_usage_slightly_over_the_limit_is_billed_and_noted(provider: Provider, together: bool):
    events = provider.wire.events(Answer(text="It is four.", input_tokens=12, output_tokens=240))
    got = await call_and_bill(provider, Answer(instead=beside(events) if together else tuple(events)))
    assert (got.text, got.reply.finish, got.reply.usage) == (
        "It is four.",
        FinishReason.LENGTH,
        Usage(12, 240),
    )
    assert got.cost_usd == got.ledger.spent_usd == PRICE.of(Usage(12, 240))
    assert ["more output tokens than max_output_tokens" in note for note in got.reply.notes] == [True]


@pytest.mark.parametrize("part", ["cached_tokens", "reasoning_tokens"])
async def test_a_part_larger_than_its_total_is_dropped(part: str):
    """Only OpenAI's wire reports parts within a total. The others report separate counts."""
    got = await call_and_bill(PROVIDERS["openai"], Answer(input_tokens=12, output_tokens=7, **{part: 50}))
    assert got.reply.usage == Usage(12, 7)
    assert len(got.reply.notes) == 1


async def test_an_unknown_price_stays_unknown(provider: Provider):
    got = await call_and_bill(provider, Answer(output_tokens=-5), price=None)
    assert (got.cost_usd, got.reply.usage) == (None, None)


@pytest.mark.parametrize(
    "cost", [-999.99, 10**12, HUGE, "1e400", "NaN", "Infinity", '"free"', '{"total": 3}', "true"]
)
@pytest.mark.parametrize("where", ["usage", "podium"])
async def test_an_impossible_cost_is_dropped_and_the_price_list_applies(cost: object, where: str):
    usage = '"prompt_tokens": 12, "completion_tokens": 7'
    cost_text = f', "cost": {cost}}}' if where == "usage" else f'}}, "podium": {{"cost_usd": {cost}}}'
    last = f'{{"choices": [{{"delta": {{}}, "finish_reason": "stop"}}], "usage": {{{usage}{cost_text}}}'
    *events, _, _, done = OpenAIWire().events(Answer(text="It is four."))
    got = await call_and_bill(PROVIDERS["openai"], Answer(instead=(*events, sse(last.encode()), done)))
    assert (got.text, got.reply.usage) == ("It is four.", Usage(12, 7))
    assert got.cost_usd == got.ledger.spent_usd == PRICE.of(Usage(12, 7))
    assert ["implausible cost" in note for note in got.reply.notes] == [True]


ODD_ACCOUNTS = (
    '"usage": "none"',
    '"usage": [1]',
    '"usage": {"prompt_tokens_details": "no"}',
    '"usage": {"completion_tokens": NaN}',
    f'"usage": {{"prompt_tokens": {"9" * 5000}}}',
    '"model": 7',
    '"podium": 3',
)


@pytest.mark.parametrize("odd", ODD_ACCOUNTS)
async def test_odd_usage_with_the_last_text_does_not_break_the_answer(odd: str):
    last = (
        f'{{"choices": [{{"index": 0, "delta": {{"content": " four."}}, "finish_reason": "stop"}}], {odd}}}'
    )
    *events, _, _, done = OpenAIWire().events(Answer(text="It is"))
    got = await call_and_bill(PROVIDERS["openai"], Answer(instead=(*events, sse(last.encode()), done)))
    assert (got.text, got.reply.finish) == ("It is four.", FinishReason.STOP)


def test_huge_numbers_do_not_hide_other_faults_of_a_chunk():
    with pytest.raises(ValueError, match="choices"):
        decode(b'{"choices": 5, "usage": NaN}')


SECOND: dict[str, list[bytes]] = {
    "openai": [
        sse({"choices": [{"index": 1, "delta": {"content": "NO"}, "finish_reason": None}]}),
        sse({"choices": [{"index": 1, "delta": {"content": "NO"}}, {"index": 0, "delta": {"content": "one"}}]}),
        sse({"choices": [{"index": 1, "delta": {}, "finish_reason": "content_filter"}]}),
        sse({"choices": [{"delta": {"content": " two"}, "finish_reason": "stop"}]}),
        sse({"choices": [{"index": 1, "delta": {"content": "NO"}, "finish_reason": "length"}]}),
    ],
    "gemini": [
        sse({"candidates": [{"index": 1, "content": {"parts": [{"text": "NO"}]}}]}),
        sse({"candidates": [{"index": 1, "content": {"parts": [{"text": "NO"}]}}, {"content": {"parts": [{"text": "one"}]}}]}),
        sse({"candidates": [{"index": 1, "finishReason": "SAFETY"}]}),
        sse({"candidates": [{"index": 0, "content": {"parts": [{"text": " two"}]}, "finishReason": "STOP"}]}),
        sse({"candidates": [{"index": 1, "content": {"parts": [{"text": "NO"}]}, "finishReason": "MAX_TOKENS"}]}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SECOND)
async def test_a_second_choice_is_ignored(name: str):
    got = await call_and_bill(PROVIDERS[name], Answer(instead=tuple(SECOND[name])))
    assert (got.text, got.reply.finish) == ("one two", FinishReason.STOP)


async def test_an_answer_over_its_limit_is_cut_and_billed_at_its_bound(provider: Provider):
    got = await call_and_bill(provider, Answer(text="word " * 2000, output_tokens=2000))
    assert got.reply.finish == FinishReason.LENGTH
    assert 100 <= len(got.text.split()) <= 160, "a quarter and some beyond the limit, no more"
    assert got.cost_usd == got.ledger.spent_usd == BOUND_USD
    assert ["max_output_tokens" in note for note in got.reply.notes] == [True]


async def test_reasoning_counts_towards_the_limit(provider: Provider):
    got = await call_and_bill(provider, Answer(text="Four.", reasoning="hm " * 2000))
    assert (got.text, got.reply.finish) == ("", FinishReason.LENGTH)


async def test_the_limit_applies_to_deltas_of_many_tokens():
    pieces = [{"choices": [{"index": 0, "delta": {"content": "word " * 200}}]}] * 20
    got = await call_and_bill(PROVIDERS["openai"], Answer(instead=tuple(sse(piece) for piece in pieces)))
    assert got.reply.finish == FinishReason.LENGTH
    assert len(got.text.split()) <= 400


@pytest.mark.parametrize("text", ["四" * 120, "a" * 120, "Donaudampfschifffahrt " * 25, "-" * 400])
async def test_an_answer_within_its_limit_is_never_truncated(provider: Provider, text: str):
    """100 tokens in several languages, and tokens longer than usual."""
    got = await call_and_bill(provider, Answer(text=text, output_tokens=100))
    assert (got.text, got.reply.finish, got.reply.notes) == (text, FinishReason.STOP, ())


async def test_a_call_without_reported_usage_is_billed_at_its_bound_and_noted():
    *events, _, done = OpenAIWire().events(Answer(text="It is four."))
    got = await call_and_bill(PROVIDERS["openai"], Answer(instead=(*events, done)))
    assert (got.text, got.reply.finish, got.reply.usage) == ("It is four.", FinishReason.STOP, None)
    assert got.cost_usd == got.ledger.spent_usd == BOUND_USD
    assert got.reply.result.cost_is_bound
    assert ["did not report" in note for note in got.reply.notes] == [True]


async def test_a_free_call_needs_no_bound():
    *events, _, done = OpenAIWire().events(Answer(text="It is four."))
    got = await call_and_bill(PROVIDERS["openai"], Answer(instead=(*events, done)), price=FREE)
    assert (got.cost_usd, got.reply.result.cost_is_bound, got.reply.notes) == (0, False, ())


async def test_usage_too_small_for_the_text_is_rejected(provider: Provider):
    got = await call_and_bill(provider, Answer(text="word " * 90, output_tokens=20))
    assert (len(got.text.split()), got.reply.usage) == (90, None)
    assert got.cost_usd == got.ledger.spent_usd == BOUND_USD
    assert ["too few output tokens for the text" in note for note in got.reply.notes] == [True]


async def test_accepted_usage_is_billed_if_the_bound_is_lower():
    """The provider lengthened the prompt before the answer's count turned out to be false."""
    worded = OpenAIWire().events(Answer(text="It is four."))
    believed = sse({"choices": [], "usage": {"prompt_tokens": 10_000, "completion_tokens": 1}})
    lie = sse({"choices": [], "usage": {"prompt_tokens": 10_000, "completion_tokens": -5}})
    got = await call_and_bill(
        PROVIDERS["openai"], Answer(instead=(worded[0], believed, *worded[1:-2], lie, worded[-1]))
    )
    assert got.reply.result.cost_is_bound
    assert got.cost_usd == got.ledger.spent_usd == PRICE.of(Usage(10_000, 1)) > BOUND_USD


async def test_cache_writes_are_read_if_the_api_reports_them():
    usage = {"cache_written": 30, "cache_written_1h": 20}
    answer = Answer(input_tokens=100, output_tokens=7, cached_tokens=50, extra=usage)
    assert (await call_and_bill(PROVIDERS["openai"], answer)).reply.usage == Usage(100, 7, 50, 0, 30)
    assert (await call_and_bill(PROVIDERS["anthropic"], answer)).reply.usage == Usage(100, 7, 50, 0, 30, 20)


@pytest.mark.parametrize(
    ("cost", "saved"), [("0.00001", "0.000050"), ("0.0001", "0.000020"), ("0.00017", "-0.000050")]
)
async def test_savings_of_a_cache_are_the_uncached_price_minus_the_billed_cost(cost: str, saved: str):
    price = Price(Decimal(1), Decimal(2), cached_input_usd_per_mtok=Decimal(0))
    details = '"prompt_tokens_details": {"cached_tokens": 50}'
    usage = f'{{"prompt_tokens": 100, "completion_tokens": 10, "cost": {cost}, {details}}}'
    result = (await call_and_bill(PROVIDERS["openai"], ending(usage), price)).reply.result
    assert (result.usage, result.saved_usd) == (Usage(100, 10, 50), Decimal(saved))


async def test_more_cache_writes_than_input_tokens_are_rejected():
    answer = Answer(input_tokens=12, output_tokens=7, extra={"cache_written": 13})
    got = await call_and_bill(PROVIDERS["openai"], answer)
    assert (got.reply.usage, got.cost_usd) == (None, BOUND_USD)


def ending(usage: str, podium: str = "null") -> Answer:
    """Return OpenAI's answer with this usage."""
    *events, _, _, done = OpenAIWire().events(Answer(text="It is four."))
    last = (
        f'{{"choices": [{{"delta": {{}}, "finish_reason": "stop"}}], "usage": {usage}, "podium": {podium}}}'
    )
    return Answer(instead=(*events, sse(last.encode()), done))


async def test_reasoning_tokens_counted_separately_are_billed():
    """xAI counts reasoning separately, as `total_tokens` shows."""
    thought = '"completion_tokens_details": {"reasoning_tokens": 50}'
    beside = await call_and_bill(
        PROVIDERS["openai"],
        ending(f'{{"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 69, {thought}}}'),
    )
    inside = await call_and_bill(
        PROVIDERS["openai"],
        ending(f'{{"prompt_tokens": 12, "completion_tokens": 57, "total_tokens": 69, {thought}}}'),
    )
    assert beside.reply.usage == inside.reply.usage == Usage(12, 57, 0, 50)


async def test_a_brokers_fee_alone_does_not_lower_the_bill():
    usage = '{"prompt_tokens": 12, "completion_tokens": 7, "cost": 0.000001, "is_byok": true}'
    got = await call_and_bill(PROVIDERS["openai"], ending(usage))
    assert got.cost_usd == PRICE.of(Usage(12, 7))


async def test_a_cost_with_rejected_usage_is_rejected():
    got = await call_and_bill(
        PROVIDERS["openai"], ending('{"prompt_tokens": 12, "completion_tokens": -7, "cost": 0}')
    )
    assert (got.cost_usd, got.reply.result.cost_is_bound) == (BOUND_USD, True)


async def test_a_bound_reported_by_another_podium_stays_a_bound():
    usage = '{"prompt_tokens": 12, "completion_tokens": 7}'
    got = await call_and_bill(PROVIDERS["openai"], ending(usage, '{"cost_usd": 0.5, "cost_is_bound": true}'))
    assert (got.cost_usd, got.reply.result.cost_is_bound) == (Decimal("0.5"), True)
