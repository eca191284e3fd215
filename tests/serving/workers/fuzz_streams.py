"""Fuzz the workers of providers with damaged answers (`make fuzz-streams`).

Each answer starts valid: text, reasoning, tool calls or an error. Hypothesis then drops, doubles or swaps events, replaces
values by others of any type, cuts or adds bytes, splits them differently, or ends HTTP early. A call must end soon, with a
consistent answer or one of our errors, and leave nothing open.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from typer import Option

from conductor.errors import WorkerError
from conductor.model.call import Call
from conductor.model.failure import Failure
from conductor.model.messages import Message, Native, Tool, Toolset
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from conductor.run.codec import dump, load
from podium.command_line.program import Program
from serving.workers.anthropic import AnthropicWorker
from serving.workers.gemini import GeminiWorker
from serving.workers.openai import OpenAIWorker
from serving.workers.openai_responses import OpenAIResponsesWorker
from serving.workers.provider_account import ProviderAccount
from tests.serving.workers.subjects import ANY_REQUEST, MODEL, PRICE, SECRET
from tests.states import until
from tests.wires.anthropic import AnthropicWire
from tests.wires.gemini import GeminiWire
from tests.wires.openai import OpenAIWire
from tests.wires.responses import ResponsesWire
from tests.wires.server import Answer, Wire, WireServer, serving
from tests.wires.signing import (
    Signing,
    SigningAnthropic,
    SigningChat,
    SigningGemini,
    SigningResponses,
)

Json = Any
Make = Callable[[ProviderAccount], Any]
WITHIN_S = 5.0
STALL_S = 0.2
TOOLS = Toolset((Tool("look", parameters={"type": "object"}), Tool("add", parameters={"type": "object"})))
CALL = Call(messages=(Message.of("user", "What is two and two?"),), tools=TOOLS)
ANSWER = Answer(text="It is four, I think.", reasoning="Hm. Two.", reasoning_tokens=2, cached_tokens=3)
CALLS = (("look", {"where": "here"}), ("add", {"a": "1"}))


@dataclass(frozen=True)
class Dialect:
    """A provider's wire, and the worker that reads it."""

    wire: Wire
    signing: Signing
    worker: Make
    path: str = ""

    def answers(self) -> list[list[bytes]]:
        """Return three answers as events: text and reasoning, tool calls, and one that ends with an error."""
        events = self.wire.events(ANSWER)
        called = self.signing.events(ANY_REQUEST, 0, CALLS)
        return [events, called, [*events[:3], self.wire.error_event(ANSWER)]]


DIALECTS = {
    "openai": Dialect(OpenAIWire(), SigningChat(), OpenAIWorker, "/v1"),
    "responses": Dialect(ResponsesWire(), SigningResponses(), OpenAIResponsesWorker, "/v1"),
    "anthropic": Dialect(AnthropicWire(), SigningAnthropic(), AnthropicWorker),
    "gemini": Dialect(GeminiWire(), SigningGemini(), GeminiWorker),
}
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["", "stop", "tool_use", "response.completed", "error", '{"a":', "\ud800", "\x00", "0", -1, 1e400]
    ),
    st.just([]),
    st.just({}),
)
VALUES = st.recursive(
    LEAVES,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=5,
)
HEADERS = st.dictionaries(
    st.sampled_from(
        ["retry-after", "retry-after-ms", "x-should-retry", "anthropic-ratelimit-requests-reset"]
    ),
    st.sampled_from(["", "-1", "1e9", "nan", "inf", "soon", "Mon, 99 Foo 2026 00:00:00 GMT", "٣", "0x10"]),
    max_size=2,
)


def places(value: Json, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the path of every value in a JSON value, except the root."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    paths: list[tuple[str | int, ...]] = []
    for key, each in inside:
        paths += [(*path, key), *places(each, (*path, key))]
    return paths


@st.composite
def damaged_json(draw: st.DrawFn, value: Json) -> Json:
    """Draw a JSON value with one place removed or replaced."""
    if not (paths := places(value)):
        return draw(VALUES)
    *before, last = draw(st.sampled_from(paths))
    copy = json.loads(json.dumps(value))
    inside = copy
    for key in before:
        inside = inside[key]
    if draw(st.booleans()):
        inside[last] = draw(VALUES)
    else:
        del inside[last]
    return copy


@st.composite
def damaged_event(draw: st.DrawFn, event: bytes) -> bytes:
    """Draw an event with damaged JSON or bytes."""
    head, mark, data = event.partition(b"data: ")
    match draw(st.sampled_from(["json", "json", "json", "cut", "noise", "crlf", "comment", "lines"])):
        case "json" if (value := _json_of(data)) is not None:
            return head + mark + json.dumps(draw(damaged_json(value))).encode() + b"\n\n"
        case "cut":
            return event[: draw(st.integers(0, len(event)))]
        case "crlf":
            return event.replace(b"\n", b"\r\n")
        case "comment":
            return (
                b": ping\n\n"
                + draw(st.sampled_from([b"", b"retry: x\n", b"id: \x00\n", b"event: ping\n"]))
                + event
            )
        case "lines":
            return event.replace(b", ", b",\ndata: ")
        case _:
            at = draw(st.integers(0, len(event)))
            return event[:at] + draw(st.binary(max_size=8)) + event[at:]


def _json_of(data: bytes) -> Json:
    try:
        return json.loads(data)
    except ValueError:
        return None


@st.composite
def streams(draw: st.DrawFn, dialect: Dialect) -> Answer:
    """Draw a damaged answer."""
    events = list(draw(st.sampled_from(dialect.answers())))
    for _ in range(draw(st.integers(1, 4))):
        at, other = draw(st.integers(0, len(events) - 1)), draw(st.integers(0, len(events) - 1))
        match draw(st.sampled_from(["damage", "damage", "damage", "drop", "double", "swap"])):
            case "drop" if len(events) > 1:
                del events[at]
            case "double":
                events.insert(other, events[at])
            case "swap":
                events[at], events[other] = events[other], events[at]
            case _:
                events[at] = draw(damaged_event(events[at]))
    if draw(st.booleans()):
        events = draw(rechunked(b"".join(events)))
    ends = {name: draw(st.none() | st.integers(0, len(events))) for name in draw(ENDS)}
    return Answer(instead=tuple(each for each in events if each), **ends)


ENDS = st.sampled_from([(), (), (), ("cut_after",), ("end_after",), ("garble_after",)])


@st.composite
def rechunked(draw: st.DrawFn, whole: bytes) -> list[bytes]:
    """Split the bytes at random places, even inside characters."""
    at = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    return [whole[i:j] for i, j in zip([0, *at], [*at, len(whole)], strict=True)]


@st.composite
def refusals(draw: st.DrawFn, dialect: Dialect) -> Answer:
    """Draw a damaged error response."""
    status = draw(st.sampled_from([400, 401, 403, 404, 408, 413, 418, 422, 429, 500, 502, 503, 529, 599]))
    answer = Answer(status=status, error=f"Your key {SECRET} is not one of ours.", headers=draw(HEADERS))
    body = dialect.wire.error_body(answer)
    if draw(st.booleans()):
        return replace(answer, body=json.dumps(draw(damaged_json(json.loads(body)))).encode())
    at = draw(st.integers(0, len(body)))
    return replace(answer, body=body[:at] + draw(st.binary(max_size=8)))


async def ask(worker: Worker, server: WireServer, answer: Answer) -> str:
    """Make one call and return its outcome.

    Raises:
        AssertionError: The call ended in a way that is not allowed.
    """
    server.answers.append(answer)
    try:
        async with asyncio.timeout(WITHIN_S), worker.open(CALL) as reply:
            text = "".join([delta.text async for delta in reply])
    except WorkerError as exc:
        check_error(exc)
        return type(exc).__name__
    except TimeoutError:
        raise AssertionError(f"no end within {WITHIN_S} s") from None
    finally:
        server.answers.clear()
    check(reply, text)
    return "answered"


def check_error(error: WorkerError) -> None:
    """Check that an error may be shown to clients.

    Raises:
        AssertionError: It may not.
    """
    assert SECRET not in f"{error}{error.detail}", "the key is in the error"
    failure = Failure.of(error)
    assert failure.cost_usd is None or failure.cost_usd >= 0
    load(Failure, json.loads(json.dumps(dump(failure), allow_nan=False)))


def check(reply: Reply, text: str) -> None:
    """Check that an answer is consistent.

    Raises:
        AssertionError: It is not.
    """
    result = reply.result
    assert result.output == text
    assert result.finish is not None
    assert result.usage is None or result.usage.is_possible
    assert result.cost_usd is None or (result.cost_usd.is_finite() and result.cost_usd >= 0)
    assert result.usage is not None or result.cost_is_bound or result.cost_usd is None
    json.dumps([result.output, result.reasoning, result.model], allow_nan=False).encode()
    (result.output + result.reasoning + result.model).encode()
    for call in result.tool_calls:
        assert call.name
        (call.id + call.name + call.arguments).encode()
    if result.native is not None:
        load(Native, json.loads(json.dumps(dump(result.native), allow_nan=False)))


def fuzz(name: str, examples: int, from_seed: int) -> Counter[str]:
    """Send damaged answers of one dialect, and count the outcomes.

    Raises:
        AssertionError: A call ended in a way that is not allowed. Hypothesis has printed the example.
    """
    dialect, outcomes = DIALECTS[name], Counter[str]()
    with asyncio.Runner() as runner:
        opened = serving(dialect.wire)
        server = runner.run(opened.__aenter__())
        account = ProviderAccount(
            "w", MODEL, SECRET, server.url + dialect.path, PRICE, stall_timeout_s=STALL_S
        )
        worker = runner.run(_make(dialect.worker, account))

        @seed(from_seed)
        @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(st.one_of(streams(dialect), streams(dialect), streams(dialect), refusals(dialect)))
        def try_one(answer: Answer) -> None:
            outcomes[runner.run(ask(worker, server, answer))] += 1

        try:
            try_one()
            runner.run(until(lambda: not server.open_requests))
        finally:
            runner.run(worker.aclose())
            runner.run(opened.__aexit__(None, None, None))
    return outcomes


async def _make(make: Make, account: ProviderAccount) -> Any:
    return make(account)


main = Program("podium prove fuzz-streams")


@main.command(help=__doc__, epilog="Example: podium prove fuzz-streams --max-time 60")
def run(
    max_time: Annotated[float, Option(help="seconds of all of it")] = 600,
    n: Annotated[int, Option("-n", metavar="N", help="answers in one go")] = 500,
) -> int:
    """Fuzz the dialects in turn until the time is over. Return 1 at the first fault."""
    began_s, rounds, outcomes = time.monotonic(), 0, Counter[str]()
    while time.monotonic() - began_s < max_time:
        for name in DIALECTS:
            outcome = fuzz(name, n, rounds)
            outcomes.update({f"{name} {what}": n for what, n in outcome.items()})
        rounds += 1
        sys.stdout.write(
            f"\r{outcomes.total()} damaged answers in {time.monotonic() - began_s:.0f} s, faults 0"
        )
        sys.stdout.flush()
    sys.stdout.write("\n" + "\n".join(f"  {what}: {n}" for what, n in sorted(outcomes.items())) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
