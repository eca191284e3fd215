"""The sixteen faults of the public suite failoverbench, played by a primary with a fallback under default settings.
Each model always sends its whole answer again, as in the suite.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import pytest

from tests.serving.api.play_faults import api_of
from tests.serving.api.served import ASK, PRICE, Json, answer_text, parsed
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, Request, WireServer, serving

TEXT = (
    "Sunlight holds every colour, and air scatters the short waves far more than the long ones. "
    "Blue light therefore reaches your eyes from all parts of the sky, while red light comes straight on. "
    "At dusk the path is longer: most of the blue is gone before it arrives, and what is left of the light "
    "paints the evening clouds."
)
INPUT_TOKENS, OUTPUT_TOKENS = 12, 70
WELL = Answer(text=TEXT, output_tokens=OUTPUT_TOKENS)
WIRE = OpenAIWire()


def words(n: int) -> int:
    """Return the number of events up to the `n`th word, including the role."""
    return n + 1


def broken_answer(n: int, **breaks: int | float) -> Answer:
    """Return an answer that breaks after `n` words, which the client has read by then."""
    return replace(WELL, pause_after=words(n), **breaks)  # type: ignore[arg-type]


CUT = broken_answer(40, cut_after=words(40))


@dataclass(frozen=True)
class Scenario:
    """One fault and its expected outcome.

    Args:
        answers: answers of the primary, in turn. The last repeats.
        served_by: worker whose whole answer the client gets.
        error: error that the client gets instead, with status 400.
        calls: minimum and maximum calls of the primary.
        fallback_calls: maximum calls of the fallback.
        first_gap_s: minimum time between the first two calls of the primary.
        within_s: maximum time to the end of the response.
        refuses_prefill: whether the fallback refuses a final assistant turn.
    """

    answers: tuple[Answer, ...]
    served_by: str = "fallback"
    error: str = ""
    calls: tuple[int, int] = (1, 1)
    fallback_calls: int = 1
    first_gap_s: float = 0.0
    within_s: float = 20.0
    refuses_prefill: bool = False


SCENARIOS = {
    "429 with Retry-After, once": Scenario(
        (Answer(status=429, headers={"retry-after": "2"}), WELL),
        served_by="primary", calls=(2, 2), fallback_calls=0, first_gap_s=1.8,
    ),
    "429 without Retry-After": Scenario((Answer(status=429),), calls=(1, 4)),
    "500 once": Scenario((Answer(status=500), WELL), served_by="primary", calls=(2, 2), fallback_calls=0),
    "503": Scenario((Answer(status=503),), calls=(1, 4)),
    "a reset before the headers, once": Scenario(
        (Answer(resets=True), WELL), served_by="primary", calls=(2, 2), fallback_calls=0
    ),
    "no response": Scenario((replace(WELL, late_s=120),), within_s=45),
    "the first token after 20 s": Scenario((replace(WELL, pause_after=0, late_s=20),), within_s=15),
    "a cut in the middle": Scenario((CUT,)),
    "a stall of 30 s in the middle": Scenario((broken_answer(20, late_s=30, cut_after=words(20)),), within_s=45),
    "a malformed event in the middle": Scenario((broken_answer(9, garble_after=words(9)),)),
    "no [DONE]": Scenario(
        (Answer(instead=tuple(WIRE.events(WELL)[:-1])),), served_by="primary", fallback_calls=0, within_s=8
    ),
    "the context is too long": Scenario((Answer(status=400, error_code="context_length_exceeded"),)),
    "a content filter": Scenario(
        (Answer(status=400, error_code="content_policy_violation"),), error="content_filter", fallback_calls=0
    ),
    "a cut, and a fallback that refuses prefill": Scenario((CUT,), refuses_prefill=True),
}  # fmt: skip
"""The remaining two of the sixteen have their own tests below."""


@dataclass
class Look:
    status: int
    text: str = ""
    error: str = ""
    model: str = ""
    usage: Json = field(default_factory=dict[str, Any])


@dataclass
class Stand:
    http: httpx2.AsyncClient
    primary: WireServer
    fallback: WireServer
    called_at_s: list[float]

    async def ask(self, *, stream: bool, model: str = "primary") -> Look:
        body = ASK | {"model": model, "stream": stream}
        body |= {"stream_options": {"include_usage": True}} if stream else {}
        response = await self.http.post("/v1/chat/completions", json=body)
        if response.status_code != 200:
            return Look(response.status_code, error=response.json()["error"]["code"])
        if not stream:
            whole = response.json()
            text = whole["choices"][0]["message"]["content"]
            return Look(200, text, "", whole["model"], whole["usage"])
        events = [each for each in parsed(response.text) if isinstance(each, dict)]
        errors = [each["error"]["code"] for each in events if "error" in each]
        last = events[-1]
        return Look(
            200, answer_text(events), "".join(errors[:1]), last.get("model", ""), last.get("usage") or {}
        )


@asynccontextmanager
async def stand_of(respond: Callable[[], Answer], *, refuses_prefill: bool = False) -> AsyncGenerator[Stand]:
    """Serve a primary and a fallback with default settings, except address, price and fallback."""
    called_at_s = list[float]()

    def primary_says(_: Request) -> Answer:
        called_at_s.append(time.monotonic())
        return respond()

    def fallback_says(request: Request) -> Answer:
        if refuses_prefill and request.body["messages"][-1]["role"] == "assistant":
            return Answer(status=400, error="This model does not support assistant message prefill.")
        return replace(WELL, pause_after=words(30), late_s=1.0)

    async with serving(WIRE) as primary, serving(WIRE) as fallback:
        primary.respond, fallback.respond = primary_says, fallback_says
        fields: Json = {"kind": "openai", "model": "m", "price": PRICE}
        workers: list[Json] = [
            {"name": "primary", "base_url": f"{primary.url}/v1", "fallbacks": ["fallback"]} | fields,
            {"name": "fallback", "base_url": f"{fallback.url}/v1"} | fields,
        ]
        async with api_of({"workers": workers}) as (http, _):
            yield Stand(http, primary, fallback, called_at_s)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_primarys_fault_with_a_fallback_has_the_expected_result(name: str, stream: bool):
    scenario = SCENARIOS[name]
    answers = iter(scenario.answers)
    async with stand_of(
        lambda: next(answers, scenario.answers[-1]), refuses_prefill=scenario.refuses_prefill
    ) as stand:
        began_s = time.monotonic()
        look = await stand.ask(stream=stream)
        took_s = time.monotonic() - began_s
        calls, fallback_calls = len(stand.primary.requests), len(stand.fallback.requests)
        after = await stand.ask(stream=False, model="fallback")
    if scenario.error:
        assert (look.status, look.error) == (400, scenario.error)
    else:
        assert (look.status, look.error, look.text, look.model) == (200, "", TEXT, scenario.served_by)
        assert look.usage["completion_tokens"] == OUTPUT_TOKENS
    assert scenario.calls[0] <= calls <= scenario.calls[1]
    assert fallback_calls <= scenario.fallback_calls
    if scenario.first_gap_s:
        assert stand.called_at_s[1] - stand.called_at_s[0] >= scenario.first_gap_s
    assert took_s <= scenario.within_s
    assert (after.status, after.text) == (200, TEXT), "the server is well afterwards"


async def test_a_primary_is_used_again_soon_after_an_outage_of_a_minute():
    """Sends twenty requests, one every 4 s. The fallback answers during the outage, and few calls probe the primary."""
    ends_s = time.monotonic() + 60
    async with stand_of(lambda: WELL if time.monotonic() >= ends_s else Answer(status=503)) as stand:
        served_by = list[str]()
        for n in range(20):
            await asyncio.sleep(max(0.0, ends_s - 60 + 4 * n - time.monotonic()))
            look = await stand.ask(stream=True)
            assert (look.status, look.error, look.text) == (200, "", TEXT)
            served_by.append(look.model)
    calls_s = [each - ends_s for each in stand.called_at_s]
    assert served_by[:15] == ["fallback"] * 15
    assert min(each for each in calls_s if each >= 0) < 10
    assert served_by[-1] == "primary"
    assert sum(each < 0 for each in calls_s) <= 15, "no more than one for each request"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_failover_is_billed_and_recorded_for_the_answering_worker(stream: bool):
    async with stand_of(lambda: Answer(status=503)) as stand:
        look = await stand.ask(stream=stream)
        runs = (await stand.http.get("/v1/workflows")).json()["data"]
        record = (await stand.http.get(f"/v1/workflows/{runs[0]['id']}")).json()
    assert (look.status, look.text, look.model) == (200, TEXT, "fallback")
    assert (look.usage["prompt_tokens"], look.usage["completion_tokens"]) == (INPUT_TOKENS, OUTPUT_TOKENS)
    assert (record["steps"][0]["served_by"], record["cost_usd"]) == (
        "fallback",
        (INPUT_TOKENS + 2 * OUTPUT_TOKENS) / 1e6,
    )
