"""Usage reported by upstreams over real sockets, and the resulting bill on the record, in the answer and in the
ledger. No report may lower a bill, enlarge a budget or harm another caller.
"""

import json
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text

from conductor.model.usage import Usage
from serving.accounts.hold import key_subject
from serving.accounts.ledger_check import find_faults
from serving.database.address import Address
from serving.settings.worker_base import PriceSettings
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import ASK, Json, answer_text, parsed, scripted
from tests.serving.api.test_run_charges import CHAT, spent_usd
from tests.serving.api.test_upstreams import only, remote
from tests.serving.workers.test_http import PROVIDERS, Provider
from tests.wires.server import Answer, serving

RATES = {
    "input_usd_per_mtok": 10,
    "output_usd_per_mtok": 100,
    "cached_input_usd_per_mtok": 1,
    "cache_write_usd_per_mtok": 12,
    "cache_write_1h_usd_per_mtok": 20,
    "reasoning_usd_per_mtok": 200,
}
LONG = {name: 3 * usd for name, usd in RATES.items()} | {"above_input_tokens": 10_000}
DEAR: Json = RATES | {"long_prompts": [LONG]}
PRICE = PriceSettings.model_validate(DEAR).to_price()
REQUEST: Json = ASK | {"model": "a", "max_tokens": 200}


SILENT_S = 1.0
SCHEMA: Json = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
    "additionalProperties": False,
}


def priced(provider: Provider, url: str, **settings: Any) -> Json:
    """Return a worker with `DEAR` tokens and a stall timeout that tolerates a busy machine."""
    return remote(provider, url, **({"price": DEAR, "stall_timeout_s": 15} | settings))


@pytest.fixture(params=PROVIDERS.values(), ids=PROVIDERS.keys())
def provider(request: pytest.FixtureRequest) -> Provider:
    return request.param


@dataclass(frozen=True)
class Entry:
    call_no: int
    usd: Decimal
    exact: int
    above_hold: int
    tokens: tuple[int | None, int | None, int | None]
    price: str


async def entries(it: Keyed, who: str = "mine") -> list[Entry]:
    """Return the ledger entries of the key once all are written, and check the ledger."""
    await spent_usd(it, "keys", it.ids[who])
    database = await it.directory.open()
    assert await find_faults(database) == []
    columns = "call_no, amount, exact, above_hold, input_tokens, output_tokens, cached_tokens, price"
    async with database.reading() as connection:
        rows = await connection.execute(
            text(f"SELECT {columns} FROM ledger WHERE key_id = :key ORDER BY id"), {"key": it.ids[who]}
        )
        return [Entry(no, Decimal(pico).scaleb(-12), exact, above, (read, out, cached), price)
                for no, pico, exact, above, read, out, cached, price in rows]  # fmt: skip


async def ask(it: Keyed, *, stream: bool = False, **body: Any) -> Json:
    """Return a successful answer, or the last chunk of a stream with the whole text as `text`."""
    answer = await it.ask("mine", "POST", CHAT, REQUEST | {"stream": stream} | body)
    assert answer.status_code == 200, answer.text
    if not stream:
        whole = answer.json()
        choice = whole["choices"][0]
        return whole | {"text": choice["message"]["content"], "finish": choice["finish_reason"]}
    events = parsed(answer.text)
    assert events[-1] == "[DONE]"
    chunks = [event for event in events if isinstance(event, dict)]
    assert "error" not in chunks[-1], chunks[-1]
    finish = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1]
    return chunks[-1] | {"text": answer_text(events), "finish": finish}


def without_usage(provider: Provider, answer: Answer) -> Answer:
    """Return `answer` without usage. Anthropic's wire always starts with a count of one."""
    events: list[bytes] = []
    for event in provider.wire.events(answer):
        head, separator, data = event.partition(b"data: {")
        if separator:
            fields = json.loads(b"{" + data)
            for name in ("usage", "usageMetadata"):
                fields.pop(name, None)
            event = head + b"data: " + json.dumps(fields).encode() + b"\n\n"
        events.append(event)
    return Answer(instead=tuple(events))


LONG_TEXT = "word " * 120


def lies(provider: Provider) -> dict[str, Answer]:
    return {
        "below zero": Answer(text=LONG_TEXT, output_tokens=-(10**6)),
        "10^30": Answer(text=LONG_TEXT, output_tokens=10**30),
        "too few": Answer(text=LONG_TEXT, output_tokens=1),
        "none": Answer(text=LONG_TEXT, output_tokens=0),
        "no prompt": Answer(text=LONG_TEXT, input_tokens=0, output_tokens=120),
        "left out": without_usage(provider, Answer(text=LONG_TEXT)),
    }


async def test_missing_or_impossible_usage_is_billed_at_its_bound_and_flagged(
    provider: Provider, store_address: Address
):
    answers = lies(provider)
    async with (
        serving(provider.wire) as upstream,
        keyed(store_address, only(priced(provider, upstream.url))) as it,
    ):
        await it.directory.set_budget(key_subject(it.ids["mine"]), {"day": Decimal(5)})
        costs: list[float] = []
        for why, lie in answers.items():
            for stream in (False, True):
                upstream.answers.append(lie)
                answer = await ask(it, stream=stream, podium={"max_cost_usd": 1, "trace": True})
                podium, (step,) = answer["podium"], answer["podium"]["steps"]
                assert (answer["text"].split(), answer["finish"]) == (["word"] * 120, "stop"), why
                assert (podium["cost_is_bound"], podium["unmetered_calls"]) == (True, 1), why
                assert (step["cost_is_bound"], step["usage"], len(step["notes"])) == (True, None, 1), why
                assert 200 * 200 / 10**6 < podium["cost_usd"] < 0.05, "200 thoughts, and the prompt's bytes"
                if not stream:
                    assert (answer["usage"]["cost_is_bound"], answer["usage"]["unmetered_calls"]) == (
                        True,
                        1,
                    )
                costs.append(podium["cost_usd"])
        listed = await it.ask("mine", "GET", "/v1/workflows")
        assert listed.status_code == 200
        assert [run["cost_is_bound"] for run in listed.json()["data"]] == [True] * len(costs)
        lines = await entries(it)
        assert [(each.usd, each.exact) for each in lines] == [(Decimal(str(usd)), 0) for usd in costs]


def metered(provider: Provider) -> tuple[Answer, Usage]:
    """Return an answer with every usage field of the wire, and the expected usage."""
    said_of = {
        "openai": ({"cache_written": 30}, Usage(1000, 120, 100, 40, 30)),
        "anthropic": ({"cache_written": 30, "cache_written_1h": 20}, Usage(1000, 120, 100, 40, 30, 20)),
        "gemini": ({}, Usage(1000, 120, 100, 40)),
    }
    extra, usage = next(said_of[name] for name, each in PROVIDERS.items() if each is provider)
    return Answer(text=LONG_TEXT, input_tokens=1000, cached_tokens=100, output_tokens=120, reasoning_tokens=40, extra=extra), usage  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_cache_writes_long_prompts_and_reasoning_have_their_own_rates(
    provider: Provider, tmp_path: Any, stream: bool
):
    answer, usage = metered(provider)
    async with (
        serving(provider.wire) as upstream,
        keyed(tmp_path, only(priced(provider, upstream.url))) as it,
    ):
        upstream.answers += [answer, Answer(input_tokens=10_001, output_tokens=7)]
        short, long = await ask(it, stream=stream), await ask(it, stream=stream)
        bills = [PRICE.of(usage), PRICE.of(Usage(10_001, 7))]
        assert bills[1] == 3 * Decimal("0.10071")
        assert [each["podium"]["cost_usd"] for each in (short, long)] == [float(usd) for usd in bills]
        assert [each["podium"]["cost_is_bound"] for each in (short, long)] == [False, False]
        lines = await entries(it)
    assert [(each.usd, each.exact) for each in lines] == [(usd, 1) for usd in bills]
    assert [each.tokens for each in lines] == [(1000, 120, 100), (10_001, 7, 0)]
    assert "30/300 cached=3 write=36 write_1h=60 reasoning=600" in lines[1].price


async def test_a_hold_uses_the_highest_tier_that_the_prompt_can_reach(tmp_path: Any):
    provider, prompt = PROVIDERS["openai"], "x" * 10_000
    async with (
        serving(provider.wire, Answer(input_tokens=10_060, output_tokens=7)) as upstream,
        keyed(tmp_path, only(priced(provider, upstream.url))) as it,
    ):
        messages = [{"role": "user", "content": prompt}]
        body = {"model": "a", "max_tokens": 64, "messages": messages}
        refused = await it.ask("mine", "POST", CHAT, body | {"podium": {"max_cost_usd": 0.6}})
        assert (refused.status_code, upstream.requests) == (402, []), (
            "written for an hour, in the long tier, the prompt is above $0.6"
        )
        await ask(it, **body, podium={"max_cost_usd": 0.7})
        (entry,) = await entries(it)
    assert (entry.usd, entry.above_hold) == (PRICE.of(Usage(10_060, 7)), 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_upstream_that_ignores_the_output_limit_is_cut_at_the_hold(
    provider: Provider, tmp_path: Any, stream: bool
):
    async with (
        serving(provider.wire) as upstream,
        keyed(tmp_path, only(priced(provider, upstream.url))) as it,
    ):
        upstream.answers.append(Answer(text="word " * 5000, output_tokens=5000))
        limits = {"max_cost_usd": 0.03}
        answer = await ask(it, stream=stream, max_tokens=2000, podium=limits)
        limit = _limit(upstream.body)
        assert limit < 150, "the answer is shortened to what is left"
        assert len(answer["text"].split()) <= (limit + 1 if stream else 4999), "a packet may hold more"
        assert answer["finish"] == "length"
        assert answer["podium"]["cost_usd"] <= 0.03
        assert answer["podium"]["cost_is_bound"]
        (entry,) = await entries(it)
    assert (entry.usd, entry.exact, entry.above_hold) == (Decimal(str(answer["podium"]["cost_usd"])), 0, 0)


def _limit(body: Json) -> int:
    config = body.get("generationConfig", {})
    return body.get("max_tokens") or body.get("max_completion_tokens") or config["maxOutputTokens"]


async def test_a_single_chunk_answer_over_its_limit_is_marked_as_truncated(provider: Provider, tmp_path: Any):
    events = provider.wire.events(Answer(text="word " * 400, output_tokens=400))
    async with (
        serving(provider.wire, Answer(instead=(b"".join(events),))) as upstream,
        keyed(tmp_path, only(priced(provider, upstream.url))) as it,
    ):
        answer = await ask(it)
        (entry,) = await entries(it)
    assert answer["finish"] == "length"
    assert entry.usd == Decimal(str(answer["podium"]["cost_usd"]))


async def test_every_attempt_has_its_own_hold(provider: Provider, store_address: Address):
    """The first attempt is refused and costs nothing. The second stalls and may cost its bound. Then a fallback
    answers.
    """
    again = {"retry": {"attempts": 2, "first_wait_s": 0.01}, "stall_timeout_s": SILENT_S}
    async with (
        serving(provider.wire, Answer(status=500), Answer(stall_after=0)) as upstream,
        serving(provider.wire, Answer(input_tokens=50, output_tokens=7)) as other,
    ):
        workers = [priced(provider, upstream.url, **again, fallbacks=["b"]), priced(provider, other.url, name="b")]  # fmt: skip
        async with keyed(store_address, only(*workers)) as it:
            answer = await ask(it, podium={"trace": True})
            lines = await entries(it)
    (step,) = answer["podium"]["steps"]
    refused, silent = step["attempts"]
    assert (refused["cost_usd"], silent["cost_is_bound"], step["cost_is_bound"]) == (None, True, False)
    assert answer["podium"]["cost_is_bound"]
    bill = PRICE.of(Usage(50, 7))
    assert [(each.call_no, each.exact) for each in lines] == [(1, 1), (2, 0), (3, 1)]
    assert [each.usd for each in lines] == [0, Decimal(str(silent["cost_usd"])), bill]
    assert Decimal(str(answer["podium"]["cost_usd"])) == sum(each.usd for each in lines)


async def test_a_call_is_not_retried_if_the_budget_has_no_room(tmp_path: Any):
    provider = PROVIDERS["openai"]
    silent = {"stall_timeout_s": SILENT_S, "fallbacks": ["b"]}
    flat = {"price": {"input_usd_per_mtok": 10, "output_usd_per_mtok": 100}}
    async with serving(provider.wire, Answer(stall_after=0)) as upstream, serving(provider.wire) as other:
        workers = [
            priced(provider, upstream.url, **silent, **flat),
            priced(provider, other.url, name="b", **flat),
        ]
        async with keyed(tmp_path, only(*workers)) as it:
            await it.directory.set_budget(key_subject(it.ids["mine"]), {"day": Decimal("0.05")})
            # The hold for a long prompt does not shrink with the answer.
            long: Json = {"messages": [{"role": "user", "content": "x" * 2000}]}
            refused = await it.ask("mine", "POST", CHAT, REQUEST | long)
            (run,) = (await it.ask("mine", "GET", "/v1/workflows")).json()["data"]
            (entry,) = await entries(it)
    assert (refused.status_code, other.requests) == (402, [])
    assert refused.json()["error"]["podium"]["attempts"][0]["error"] == "WorkerUnavailable"
    assert (run["cost_usd"], run["cost_is_bound"]) == (float(entry.usd), True)


@pytest.mark.parametrize(
    "first_answer",
    [Answer(text="", output_tokens=3), Answer(text="", finish="tired", output_tokens=3)],
    ids=["without a word", "for a reason that nobody knows"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_answer_and_the_failed_one_are_billed_once_each(
    provider: Provider, store_address: Address, first_answer: Answer, stream: bool
):
    async with (
        serving(provider.wire, first_answer) as upstream,
        keyed(store_address, only(priced(provider, upstream.url, retry={"first_wait_s": 0.01}))) as it,
    ):
        await it.directory.set_budget(key_subject(it.ids["mine"]), {"day": Decimal(5)})
        answer = await ask(it, stream=stream, podium={"max_cost_usd": 1, "trace": True})
        (step,) = answer["podium"]["steps"]
        assert (answer["text"], len(upstream.requests), len(step["attempts"])) == ("It is four.", 2, 1)
        last, first = PRICE.of(Usage(12, 7)), step["attempts"][0]["cost_usd"]
        least = float(PRICE.of(Usage(12, 3)))
        assert first == least or (answer["podium"]["cost_is_bound"] and first > least)
        assert answer["podium"]["cost_usd"] == pytest.approx(first + float(last))
        paid = await entries(it)
        assert [float(entry.usd) for entry in paid] == [pytest.approx(first), pytest.approx(float(last))]
        record = (await it.ask("mine", "GET", f"/v1/workflows/{answer['podium']['workflow_id']}")).json()
        assert record["cost_usd"] == pytest.approx(first + float(last))


@pytest.mark.parametrize("is_counted", [True, False])
async def test_two_failed_structured_answers_are_billed_once_each(
    provider: Provider, store_address: Address, is_counted: bool
):
    empty, breaks = Answer(text="", output_tokens=3), Answer(text=LONG_TEXT, end_after=20)
    if not is_counted:
        empty, breaks = (
            without_usage(provider, empty),
            replace(without_usage(provider, breaks), end_after=20),
        )
    quick = {"retry": {"attempts": 2, "first_wait_s": 0.01}}
    async with (
        serving(provider.wire, empty, breaks) as upstream,
        keyed(store_address, only(priced(provider, upstream.url, **quick))) as it,
    ):
        form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}
        answer = await it.ask("mine", "POST", CHAT, REQUEST | {"response_format": form})
        assert (answer.status_code >= 400, len(upstream.requests)) == (True, 2), answer.text
        paid = await entries(it)
        (run,) = (await it.ask("mine", "GET", "/v1/workflows")).json()["data"]
    assert len(paid) == 2
    assert all(entry.usd > 0 for entry in paid)
    assert Decimal(str(run["cost_usd"])) == sum(entry.usd for entry in paid)


async def test_a_silent_call_is_billed_at_its_own_price_not_its_fallbacks(
    provider: Provider, store_address: Address
):
    """A budget with room for the fallback still has it after the silent call."""
    quick = {"price": {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}, "stall_timeout_s": SILENT_S}
    async with (
        serving(provider.wire, Answer(stall_after=0)) as upstream,
        keyed(
            store_address,
            only(
                priced(provider, upstream.url, fallbacks=["dear"], **quick),
                scripted("dear", "Here.", price={"input_usd_per_mtok": 100, "output_usd_per_mtok": 200}),
            ),
        ) as it,
    ):
        answer = await ask(it, podium={"max_cost_usd": 0.1, "trace": True})
        (step,) = answer["podium"]["steps"]
        paid = await entries(it)
    assert answer["text"] == "Here."
    lost_attempt = step["attempts"][0]
    assert 0 < lost_attempt["cost_usd"] < 0.002, "200 tokens at two dollars a million, and its prompt's bytes"
    assert float(paid[0].usd) == pytest.approx(lost_attempt["cost_usd"])
    assert (answer["podium"]["cost_is_bound"], answer["podium"]["unmetered_calls"]) == (True, 1)
