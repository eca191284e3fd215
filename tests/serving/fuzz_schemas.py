"""Fuzz structured output: random schemas over every kind of worker, with models that obey and models that do not. No
client may get an invalid answer as a success. Answers are checked by a second validator and a strict JSON reader.
"""

import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import Usage
from serving.workers.vllm import Chunk, EngineCall
from tests.serving.api.served import Json, Served, answer_text, parsed, scripted, served, step
from tests.serving.random_schemas import ROOTS, SchemaAndValue, is_right, is_right_text, whole
from tests.wires import strict
from tests.wires.anthropic import AnthropicWire
from tests.wires.gemini import GeminiWire
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, Request, Wire, serving

PAID = ("answer_invalid", "worker_unavailable")
"""Errors of a run that has cost money. Chat Completions answers them with 400."""


@dataclass(frozen=True)
class Case:
    schema: Json
    value: Any

    @property
    def right(self) -> str:
        return json.dumps(self.value)

    @property
    def wrong(self) -> str:
        """Return valid JSON that violates the schema."""
        near = [
            self.value | {name: odd} for name in [*self.value, "more"] for odd in ({"odd": 1}, "odd", -0.5)
        ]
        return json.dumps(next((each for each in near if not is_right(self.schema, each)), None))


def inside(text: str, more: str) -> str:
    """Insert the text of one more member into the JSON text of an object."""
    return text[:-1] + (", " if len(text) > 2 else "") + more + "}"


MARK = "ĦĦ"
"""Placeholder for invalid UTF-8, in texts and in JSON on a wire."""
BEHAVIOURS: dict[str, Callable[[Case, int], Answer]] = {
    "obeys": lambda case, n: Answer(text=case.right),
    "fences": lambda case, n: Answer(text=f"```json\n{case.right}\n```"),
    "repairs prose": lambda case, n: Answer(text="I think so." if n == 1 else case.right),
    "repairs a value": lambda case, n: Answer(text=case.wrong if n == 1 else case.right),
    "thinks": lambda case, n: Answer(text=case.right, reasoning="Let me see."),
    "thinks aloud": lambda case, n: Answer(text=f"<think>Let me see.</think>{case.right}"),
    "ignores the schema": lambda case, n: Answer(text=case.wrong),
    "adds prose": lambda case, n: Answer(text=f"Here it is: {case.right}"),
    "says more": lambda case, n: Answer(text=f"{case.right}\nAnything else?"),
    "says nothing": lambda case, n: Answer(text=" "),
    "NaN": lambda case, n: Answer(text=inside(case.right, '"n": NaN')),
    "a name twice": lambda case, n: Answer(text=inside(inside(case.right, '"n": 1'), '"n": 2')),
    "a huge number": lambda case, n: Answer(text=inside(case.right, '"n": 1e999')),
    "half a pair": lambda case, n: Answer(text=inside(case.right, '"n": "\\ud800"')),
    "bytes that are no text": lambda case, n: Answer(text=inside(case.right, f'"n": "{MARK}"')),
    "a mark at the start": lambda case, n: Answer(text="\ufeff" + case.right),
    "brackets": lambda case, n: Answer(text='{"n":' * 5000 + "1" + "}" * 5000),
    "is cut": lambda case, n: Answer(text=case.right[:-1], finish="length"),
    "refuses": lambda case, n: Answer(text="I will not.", finish="content_filter"),
    "breaks": lambda case, n: Answer(text=f"{case.right} {case.right}", cut_after=3),
}
ENDS = {
    "openai": {"length": "length", "content_filter": "content_filter"},
    "anthropic": {"length": "max_tokens", "content_filter": "refusal"},
    "gemini": {"length": "MAX_TOKENS", "content_filter": "SAFETY"},
}
SUCCEED = ("obeys", "fences", "repairs prose", "repairs a value", "thinks")
CASES: list[Case] = []
CASE_IN_PROMPT = re.compile(r"case (\d+): ([\w ]+)!")


def answer_to(prompt: str) -> Answer:
    """Return the answer to a prompt that names its case and behaviour."""
    match = CASE_IN_PROMPT.search(prompt)
    assert match, prompt
    number = 2 if "Write the whole answer again" in prompt else 1
    return BEHAVIOURS[match[2]](CASES[int(match[1])], number)


class Engine:
    async def ready(self, adapters: Sequence[str] = ()) -> bool:
        return True

    async def load(self, adapter: str) -> None:
        raise AssertionError(adapter)

    async def generate(self, call: EngineCall, waiting: Any = None) -> AsyncGenerator[Chunk]:
        answer = answer_to(str(call.messages))
        yield Chunk("", answer.reasoning, None, 9, 0, 1, 0)
        yield Chunk(answer.text, "", None, 9, 0, 2, 0)
        if answer.cut_after is None:
            yield Chunk("", "", answer.finish or "stop", 9, 0, 3, 0)


class Plugin:
    def __init__(self, name: str, price: Any) -> None:
        self.name = name

    def open(self, call: Call) -> Any:
        return open_reply(self.name, "own", self._deltas(call))

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        answer = answer_to(" ".join(message.text for message in call.messages))
        yield Delta(answer.text, answer.reasoning)
        if answer.cut_after is None:
            yield Delta(finish=FinishReason(answer.finish or "stop"), usage=Usage(9, 3))


def respond(kind: str, wire: Wire, check: Callable[[Json], None]) -> Callable[[Request], Answer]:
    def answered(request: Request) -> Answer:
        try:
            check(request.body)
        except strict.Refused as exc:
            raise AssertionError(f"{kind}: {exc} in {request.body}") from exc
        answer = answer_to(json.dumps(request.body, ensure_ascii=False))
        end = ENDS[kind].get(answer.finish or "")
        reply = Answer(answer.text, answer.reasoning, end, cut_after=answer.cut_after)
        return replace(reply, instead=spoiled(wire.events(reply))) if MARK in reply.text else reply

    return answered


def spoiled(events: list[bytes]) -> tuple[bytes, ...]:
    """Replace `MARK` with invalid UTF-8, both literal and JSON-escaped."""
    escaped = json.dumps(MARK)[1:-1].encode()
    return tuple(each.replace(escaped, b"\xff\xfe").replace(MARK.encode(), b"\xff\xfe") for each in events)


def check_openai(body: Json) -> None:
    json_schema = body.get("response_format", {}).get("json_schema")
    if json_schema and json_schema["strict"] and body["model"].startswith("gpt"):
        strict._check_openai_schema(json_schema["schema"], json_schema["name"])


def check_claude(body: Json) -> None:
    strict._check_claude_schema(body.get("output_config", {}).get("format", {}).get("schema", {}))


def check_gemini(body: Json) -> None:
    for node in strict._nodes(body.get("generationConfig", {}).get("responseJsonSchema", {})):
        for keyword in node.keys() - strict.GEMINI_SCHEMA:
            raise strict.Refused(keyword)


KINDS = ("openai", "compatible", "anthropic", "gemini", "vllm", "python", "scripted")


def team_of(urls: dict[str, str]) -> Json:
    def remote(kind: str, model: str, path: str = "", of: str = "") -> Json:
        return {
            "name": of or kind, "kind": kind, "model": model, "base_url": urls[kind] + path, "retry": {"attempts": 1}
        }  # fmt: skip

    return {
        "workers": [
            scripted("helper", "A draft."),
            scripted("scripted", "{question}"),
            {"name": "python", "kind": "python", "factory": f"{__name__}:Plugin"},
            {"name": "vllm", "kind": "vllm", "model": "m"},
            remote("openai", "gpt-5.1", "/v1"),
            remote("openai", "qwen3", "/v1", of="compatible"),
            remote("anthropic", "claude-opus-4-8"),
            remote("gemini", "gemini-3-pro"),
        ],
        "models": {},
    }


@dataclass
class SchemaOutcomes:
    """Outcomes of the requests, and the faults among them."""

    outcomes: Counter[str]
    faults: list[str]


async def try_one(
    api: Served, index: int, kind: str, behaviour: str, way: int, outcomes: SchemaOutcomes
) -> None:
    case = CASES[index]
    words = f"case {index}: {behaviour}!"
    if kind == "scripted":  # a scripted worker repeats the question
        words = BEHAVIOURS[behaviour](case, 1).text
    form = {"name": "it", "schema": case.schema, "strict": True}
    body: Json = {
        "model": kind, "messages": [{"role": "user", "content": words}], "stream": way % 2 == 1,
        "response_format": {"type": "json_schema", "json_schema": form},
    }  # fmt: skip
    if way > 1 and kind != "scripted":
        body["podium"] = {"plan": [step("helper", "Draft."), step(kind, "Answer.", [0])]}
    answer = await api.http.post("/v1/chat/completions", json=body)
    text, finish = read(answer.status_code, answer.text, stream=way % 2 == 1)
    outcome = f"HTTP {answer.status_code}, {finish}"
    outcomes.outcomes[outcome] += 1
    line = f"{kind}, {behaviour}, way {way}: {outcome}: {text[:300]!r} for {json.dumps(case.schema)}"
    if finish == "stop" and not is_right_text(case.schema, text):
        outcomes.faults.append(f"invalid: {line}")
    if behaviour in SUCCEED and finish != "stop" and (kind, behaviour) not in CANNOT:
        outcomes.faults.append(f"no answer: {line}")
    if answer.status_code not in (200, 502) and finish not in PAID:
        outcomes.faults.append(f"status: {line}")


CANNOT = {("scripted", "repairs prose"), ("scripted", "repairs a value")}


def read(status: int, text: str, *, stream: bool) -> tuple[str, str]:
    """Return the answer, and its finish reason or error code."""
    if status != 200:
        return text, str(json.loads(text)["error"]["code"])
    if not stream:
        choice = json.loads(text)["choices"][0]
        return choice["message"]["content"], choice["finish_reason"]
    events = [each for each in parsed(text) if isinstance(each, dict)]
    errors = [each["error"]["code"] for each in events if "error" in each]
    ends = [c["finish_reason"] for each in events for c in each.get("choices", ()) if c["finish_reason"]]
    return answer_text(events), (errors or ends)[0]


async def try_all(seed: int, behaviours: int) -> SchemaOutcomes:
    """Send every case to every kind of worker, each with several behaviours."""
    rng, outcomes = random.Random(seed), SchemaOutcomes(Counter(), [])
    checks = {"openai": check_openai, "anthropic": check_claude, "gemini": check_gemini}
    wires = {"openai": OpenAIWire(), "anthropic": AnthropicWire(), "gemini": GeminiWire()}
    async with AsyncExitStack() as stack:
        urls: dict[str, str] = {}
        for kind, wire in wires.items():
            server = await stack.enter_async_context(serving(wire))
            server.respond = respond(kind, wire, checks[kind])
            urls[kind] = server.url
        keys = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "GEMINI_API_KEY": "k"}
        api = await stack.enter_async_context(served(team_of(urls), keys, engines={"vllm": Engine()}))
        for index in range(len(CASES)):
            tried = [(kind, each) for kind in KINDS for each in rng.sample(sorted(BEHAVIOURS), behaviours)]
            await asyncio.gather(
                *(try_one(api, index, kind, each, rng.randrange(4), outcomes) for kind, each in tried)
            )
        await api.service.pool.aclose()
    return outcomes


def fuzz(examples: int, behaviours: int = 3, seed: int = 0) -> tuple[int, SchemaOutcomes]:
    """Return the number of schemas and the outcomes of the requests."""
    CASES.clear()

    @settings(max_examples=examples * 2, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(ROOTS.map(whole))
    def collect(pair: SchemaAndValue) -> None:
        if len(CASES) < examples and is_right(*pair):
            CASES.append(Case(*pair))

    collect()
    return len(CASES), asyncio.run(try_all(seed, behaviours))


def main(argv: Sequence[str] | None = None) -> int:
    began_s = time.monotonic()
    tried, outcomes = fuzz(int(argv[0]) if argv else 300)
    print(
        f"{tried} schemas, {len(KINDS)} kinds of workers, {len(BEHAVIOURS)} behaviours: "
        f"{outcomes.outcomes.total()} requests in {time.monotonic() - began_s:.0f} s"
    )
    for outcome, count in outcomes.outcomes.most_common():
        print(f"  {outcome}: {count}")
    invalid = [each for each in outcomes.faults if each.startswith("invalid")]
    print(f"invalid answers that reached the client as a success: {len(invalid)}")
    print(f"other faults: {len(outcomes.faults) - len(invalid)}", *outcomes.faults[:10], sep="\n  ")
    return 1 if outcomes.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
