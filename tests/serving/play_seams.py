"""Break off answers on every wire and check how they continue. A client must read the whole answer, or its beginning
and an error. `python -m tests.serving.play_seams 1000` plays 1,000 cases per wire (`make prove-seams`).
"""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import httpx2

from serving.api.app import build_api
from serving.pool import build_pool
from serving.sessions.service import Service
from serving.settings.settings import parse
from tests.serving.api.served import Json, answer_text, listening, parsed
from tests.serving.cut_answers import Case, CutEngine, Model, case_of
from tests.wires.anthropic import AnthropicWire
from tests.wires.gemini import GeminiWire
from tests.wires.openai import OpenAIWire
from tests.wires.responses import ResponsesWire
from tests.wires.server import Wire, serving

STALL_S, PATIENCE_S, AT_ONCE = 3.0, 60.0, 16
"""Stall timeout of cases that stall, stall timeout of all others, and concurrent clients. The long timeout tolerates
a busy machine.
"""
CASES_PER_WORKER = 4
"""Few enough that the retry budget of a worker never runs out."""


@dataclass(frozen=True)
class Way:
    """A wire and how its workers continue an answer.

    Args:
        wire: wire of the upstream, or None for a local engine.
        settings: settings of the workers.
        path: path of the API on the server.
        first: number of events before the first word.
        prefills: whether the wire continues a final assistant turn.
        full: finish reason of an answer that reaches its token limit.
    """

    wire: Wire | None
    settings: Json
    path: str = ""
    first: int = 1
    prefills: bool = False
    full: str = "length"


WAYS = {
    "OpenAI chat, asked": Way(OpenAIWire(), {"kind": "openai", "model": "gpt-4o"}, "/v1"),
    "OpenAI Responses, asked": Way(
        ResponsesWire(),
        {"kind": "openai", "model": "gpt-4o", "api": "responses"},
        "/v1",
        full="max_output_tokens",
    ),
    "Gemini, asked": Way(
        GeminiWire(), {"kind": "gemini", "model": "gemini-2.0-flash"}, first=0, full="MAX_TOKENS"
    ),
    "Anthropic, asked": Way(
        AnthropicWire(), {"kind": "anthropic", "model": "claude-opus-4-8"}, first=3, full="max_tokens"
    ),
    "Anthropic, prefilled": Way(
        AnthropicWire(),
        {"kind": "anthropic", "model": "claude-sonnet-4-5"},
        first=3,
        prefills=True,
        full="max_tokens",
    ),
    "vLLM server, prefilled": Way(
        OpenAIWire(), {"kind": "openai", "model": "m", "accepts": {"prefill": True}}, "/v1", prefills=True
    ),
    "vLLM engine, prefilled": Way(None, {"kind": "vllm", "model": "m"}, prefills=True),
}
PRICE = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}


@dataclass
class Seams:
    whole: int = 0
    continued: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    """Answers that ended with an error, by cause: the model did not obey, the answer broke off twice, or `obeyed` if
    there was no reason to fail.
    """
    doubled: int = 0
    missing: int = 0
    contradicting: int = 0
    wrong: list[tuple[str, str, Case]] = field(default_factory=list[tuple[str, str, Case]])

    @property
    def is_right(self) -> bool:
        return not (self.wrong or self.outcomes["obeyed"])

    def look(self, text: str, error: str, case: Case) -> None:
        self.continued += any(kind in ("prefilled", "asked") for kind in case.calls) and not error
        self.whole += not error
        if error:
            why = "not obeyed" if case.may_fail else "obeyed" if case.second_cut is None else "broke twice"
            self.outcomes[why] += 1
        expected = case.truth[: len(text)] if error else case.truth
        for tag, a, b, c, d in SequenceMatcher(None, expected, text, autojunk=False).get_opcodes():
            self.missing += b - a if tag == "delete" else 0
            self.doubled += d - c if tag == "insert" else 0
            self.contradicting += max(b - a, d - c) if tag == "replace" else 0
        if text != expected or (error and "ends after" not in error and "case" not in error and text):
            self.wrong.append((text, error, case))


@asynccontextmanager
async def client_of(way: Way, cases: list[Case]) -> AsyncGenerator[httpx2.AsyncClient]:
    """Serve workers behind the wire, and yield a client of their API."""
    async with AsyncExitStack() as stack:
        own: Json = {
            "price": PRICE,
            "retry": {"attempts": 2, "first_wait_s": 0.01, "share": 1},
        } | way.settings
        if way.wire is not None:
            upstream = await stack.enter_async_context(serving(way.wire))
            upstream.respond = Model(cases, way.first, prefills=way.prefills, full=way.full).respond
            own |= {
                "base_url": upstream.url + way.path,
                "api_key_env": "SEAM_KEY",
            }
        silences = {worker_of(number, case): _silence_of(case) for number, case in enumerate(cases)}
        engines: Any = {} if way.wire else dict.fromkeys(silences, CutEngine(cases))
        workers = [own | {"name": name, "stall_timeout_s": silence_s} for name, silence_s in silences.items()]
        service = Service(build_pool(parse({"workers": workers}), {"SEAM_KEY": "seam-key-1"}, engines))
        url = await stack.enter_async_context(listening(build_api(service)))
        yield await stack.enter_async_context(httpx2.AsyncClient(base_url=url, timeout=60))
        await service.pool.aclose()


def worker_of(number: int, case: Case) -> str:
    return f"w{number // CASES_PER_WORKER}-{_silence_of(case):.0f}"


def _silence_of(case: Case) -> float:
    return STALL_S if case.fault == "stall_after" else PATIENCE_S


async def see(http: httpx2.AsyncClient, number: int, case: Case) -> tuple[str, str]:
    """Return the text that a client reads, and the error message after it."""
    body: Json = {"model": worker_of(number, case), "stream": True, "max_tokens": case.limit}
    body |= {"messages": [{"role": "user", "content": f"case-{number}-"}]}
    answer = await http.post("/v1/chat/completions", json=body)
    if answer.status_code != 200:
        return "", answer.text
    events = parsed(answer.text)
    errors = [each["error"]["message"] for each in events if isinstance(each, dict) and "error" in each]
    return answer_text(events), errors[0] if errors else ""


async def play(way: Way, n: int, seed: int) -> Seams:
    draw = random.Random(seed)
    cases, seams, places = [case_of(draw) for _ in range(n)], Seams(), asyncio.Semaphore(AT_ONCE)
    async with client_of(way, cases) as http:

        async def one(number: int) -> None:
            async with places:
                text, error = await see(http, number, cases[number])
            seams.look(text, error, cases[number])

        await asyncio.gather(*map(one, range(n)))
    return seams


def row(name: str, n: int, seams: Seams) -> str:
    counts = " / ".join(str(seams.outcomes[why]) for why in ("obeyed", "broke twice", "not obeyed"))
    return (
        f"| {name} | {n} | {seams.whole} | {seams.continued} | {counts} | "
        f"{seams.doubled} | {seams.missing} | {seams.contradicting} |"
    )


def main(argv: list[str]) -> int:
    os.environ.setdefault("OTEL_SDK_DISABLED", "true")
    n, seed = int(argv[0]) if argv else 1000, int(argv[1]) if argv[1:] else 1
    print(
        "| wire | cuts | whole | of these continued | told (obeyed / broke twice / not obeyed) | doubled | missing | contradicting |"
    )
    print("| --- |" + " --- |" * 7)
    began_s, right = time.monotonic(), True
    for name, way in WAYS.items():
        seams = asyncio.run(play(way, n, seed))
        right &= seams.is_right
        print(row(name, n, seams), flush=True)
        for wrong in seams.wrong[:3]:
            print(f"* {wrong}")
    print(f"\n{len(WAYS) * n} cuts in {time.monotonic() - began_s:.0f} s, seed {seed}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
