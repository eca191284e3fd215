"""What a provider can do wrong, and what a client of ours sees then: the table of `test_fault_suite.py`.

`python -m tests.serving.api.provider_faults` plays all of it and prints what was seen.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from serving.api.app import build_api
from serving.pool import build_pool
from serving.runs.service import Service
from serving.settings.settings import parse
from tests.serving.api.served import ASK, Json, listening, parsed, said, scripted, step
from tests.wires.faults import BROKEN_FRAMING, COMMENTS, NOT_HTTP, SILENT, Fault, faulty
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, serving, sse

STALL_S, PATIENCE_S = 1.0, 15.0
"""The silence of a server that plays silence, and of all others: a busy machine is none."""
AT_ONCE = 32
"""Clients."""
WIRE = OpenAIWire()
TEXT = "It is four."
FIRST = "It"
FIRST_WORD = 1
WHOLE = f"200 {TEXT}"
INSTEAD = "200 Instead."


@dataclass(frozen=True)
class Case:
    """One fault.

    Args:
        does: what the server plays: answers one after another (the last again and again), bytes, or an address
            where nothing is.
        code: what an error says of it; empty where the answer is whole.
        speaks: whether some of the answer comes before it.
        is_mended: whether the call made once more succeeds, before its first word (a retry) or, unseen, after it.
    """

    does: tuple[Answer, ...] | Fault | str
    code: str = "worker_unavailable"
    speaks: bool = False
    is_mended: bool = False
    is_silent: bool = False

    @property
    def status(self) -> int:
        return {"worker_busy": 503, "context_length_exceeded": 400, "content_filter": 400}.get(self.code, 502)

    def expected(self, position: str, *, stream: bool) -> set[str]:
        """What the client may see. A stream has begun before its steps have, so it ends with an error event; whether a
        word that came just before a fault was read before it, and whether a retry or a fallback was sooner,
        is up to the machine.
        """
        if position == "conductor":
            return {INSTEAD}
        whole = "200 Whole." if position == "middle" else WHOLE
        if not self.code:
            return {whole}
        may_show = self.speaks and stream and position != "middle"
        shown = {f"200 {FIRST}… then {self.code}"} if may_show else set[str]()
        if position == "backed":
            return shown | {INSTEAD} | ({whole} if self.is_mended else set())
        error = f"200 … then {self.code}" if stream else f"{self.status} {self.code}"
        return shown | ({whole} if self.is_mended else {error})


def _status(status: int, code: str = "worker_unavailable", **more: Any) -> Case:
    return Case((Answer(status=status, **more),), code)


REFUSED, BUSY = "worker_refused", "worker_busy"
SOON, LATE = {"retry-after": "0"}, {"retry-after": "60"}
STATUSES = {
    **{f"{status}": _status(status) for status in (408, 409, 425, 499, 500, 501, 502, 503, 504, 520)},
    **{f"{status}": _status(status, REFUSED) for status in (400, 401, 402, 403, 404, 405, 418, 422, 451)},
    **{f"{status}": _status(status, REFUSED, headers={"location": "/"}) for status in (301, 307)},
    "413": _status(413, "context_length_exceeded"),
    "429": _status(429, BUSY),
    "429, Retry-After 0": _status(429, BUSY, headers=SOON),
    "429, Retry-After 60": _status(429, BUSY, headers=LATE),
    "429, Retry-After is no time": _status(429, BUSY, headers={"retry-after": "soon"}),
    "429, out of credit": _status(429, REFUSED, error_code="insufficient_quota"),
    "503, Retry-After 60": _status(503, BUSY, headers=LATE),
    "529": _status(529, BUSY),
    "400, a content filter": _status(400, "content_filter", error_code="content_filter"),
    "400, the prompt is too long": _status(400, "context_length_exceeded", error="maximum context length"),
    "500, a page of HTML": _status(500, body=b"<html>Oh no</html>"),
    "503, no body": _status(503, body=b""),
    "500, half of a JSON": _status(500, body=b'{"error": {"mess'),
}
STREAMS = {
    "a reset before the first word": Case((Answer(cut_after=FIRST_WORD),)),
    "a reset in the middle": Case((Answer(cut_after=2),), speaks=True),
    "an end before the first word": Case((Answer(end_after=FIRST_WORD),)),
    "an end in the middle": Case((Answer(end_after=2),), speaks=True),
    "silence before the first word": Case((Answer(stall_after=FIRST_WORD),), is_silent=True),
    "silence in the middle": Case((Answer(stall_after=2),), speaks=True, is_silent=True),
    "no JSON before the first word": Case((Answer(garble_after=FIRST_WORD),)),
    "no JSON in the middle": Case((Answer(garble_after=2),), speaks=True),
    "an error event before the first word": Case((Answer(error_after=FIRST_WORD),), "worker_failed"),
    "no event at all": Case((Answer(end_after=0),)),
    "a finish reason that nobody knows": Case((Answer(finish="tired"),), speaks=True),
    "an event that is a list": Case((Answer(instead=(sse([1]),)),)),
    "choices that are no list": Case((Answer(instead=(sse({"choices": 7}),)),)),
}
LIES = {
    "a usage below zero": Case((Answer(output_tokens=-5),), ""),
    "a usage of 10^30": Case((Answer(output_tokens=10**30),), ""),
    "a usage of nothing": Case((Answer(input_tokens=0, output_tokens=0),), ""),
    "a model's name of a megabyte": Case((Answer(model="m" * 2**20),), ""),
    "the connection cut after the finish": Case((Answer(cut_after=5),), ""),
}
FLAPS = {
    "500, then well": Case((Answer(status=500), Answer()), is_mended=True),
    "429 with Retry-After 0, then well": Case(
        (Answer(status=429, headers=SOON), Answer()), BUSY, is_mended=True
    ),
    "a reset before the first word, then well": Case((Answer(cut_after=1), Answer()), is_mended=True),
    "no JSON before the first word, then well": Case((Answer(garble_after=1), Answer()), is_mended=True),
    "a reset in the middle, then well": Case((Answer(cut_after=2), Answer()), speaks=True, is_mended=True),
    "an end in the middle, then well": Case((Answer(end_after=2), Answer()), speaks=True, is_mended=True),
    "no JSON in the middle, then well": Case((Answer(garble_after=2), Answer()), speaks=True, is_mended=True),
}
PLACES = {
    "nobody listens": Case("http://127.0.0.1:{closed}"),
    "a name that leads nowhere": Case("http://nowhere.invalid"),
    "TLS where there is none": Case("https://127.0.0.1:{plain}"),
}
CASES: dict[str, Case] = {
    **STATUSES,
    **STREAMS,
    **LIES,
    **FLAPS,
    **PLACES,
    **{name: Case(fault, is_silent=True) for name, fault in (NOT_HTTP | SILENT).items()},
    **{f"{name}, at once": Case(Fault(tail=tail), is_silent=True) for name, tail in BROKEN_FRAMING.items()},
    **{f"{name}, at once": Case(Fault(drips=drip), is_silent=True) for name, drip in COMMENTS.items()},
    **{
        f"{name}, with the first word": Case(Fault(speaks=True, tail=tail), is_silent=True)
        for name, tail in BROKEN_FRAMING.items()
    },
    **{
        f"{name}, in the middle": Case(Fault(speaks=True, drips=drip), speaks=True, is_silent=True)
        for name, drip in COMMENTS.items()
    },
}
POSITIONS = ("alone", "backed", "middle", "conductor")
"""Asked by its name; with a fallback; the middle one of three steps; as the conductor."""


@dataclass(frozen=True)
class Seen:
    """What one client saw."""

    case: str
    position: str
    stream: bool
    outcome: str
    expected: set[str]
    first_word_s: float | None
    """From the request on; None: no word came."""

    @property
    def is_expected(self) -> bool:
        return self.outcome in self.expected


@asynccontextmanager
async def play(case: Case, closed: str, plain: str) -> AsyncGenerator[str]:
    """The address where it is played; answers come in turn."""
    if isinstance(case.does, str):
        yield case.does.format(closed=closed, plain=plain)
    elif isinstance(case.does, Fault):
        words = b"".join(WIRE.events(Answer(text=TEXT))[: FIRST_WORD + 1])
        async with faulty(case.does, words) as upstream:
            upstream.heard.set()
            yield upstream.url
    else:
        *first, last = case.does
        async with serving(WIRE, *first) as upstream:
            upstream.respond = lambda _: last
            yield upstream.url


def remote(name: str, url: str, case: Case, **settings: Any) -> Json:
    """A worker at `url`."""
    retry = {"attempts": 2, "first_wait_s": 0.01, "max_wait_s": 0.05}
    silence_s = STALL_S if case.is_silent else PATIENCE_S
    wire = {
        "kind": "openai",
        "model": "m",
        "base_url": f"{url}/v1",
        "stall_timeout_s": silence_s,
        "retry": retry,
    }
    return {"name": name, "price": {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}} | wire | settings


@dataclass(frozen=True)
class Place:
    """A case where it is played, and how it is asked."""

    name: str
    position: str
    stream: bool
    model: str


OTHERS = [scripted("b", "Instead."), scripted("first", "A start."), scripted("last", "Whole.")]


@asynccontextmanager
async def api_of(settings: Json) -> AsyncGenerator[tuple[httpx2.AsyncClient, Service]]:
    """Serve them; no call is open and no money held at the end."""
    service = Service(build_pool(parse(settings), {}, {}))
    async with listening(build_api(service)) as url, httpx2.AsyncClient(base_url=url, timeout=60) as http:
        yield http, service
    await service.pool.aclose()


async def see_workers(cases: dict[str, Case], closed: str, plain: str, *, half: bool) -> list[Seen]:
    """Play the cases to clients that ask the faulty worker, alone or with a fallback, or three steps around it."""
    places, workers, workflows = list[Place](), list[Json](), dict[str, Json]()
    async with AsyncExitStack() as servers:
        for number, (name, case) in enumerate(cases.items()):
            for position in POSITIONS[:-1]:
                for stream in [bool(len(places) % 2)] if half else (False, True):
                    url = await servers.enter_async_context(play(case, closed, plain))
                    worker = f"w{number}-{position}-{int(stream)}"
                    fallbacks = {"fallbacks": ["b"]} if position == "backed" else {}
                    workers.append(remote(worker, url, case, **fallbacks))
                    if position == "middle":
                        steps = [step("first"), step(worker, "Go on.", [0]), step("last", "End it.", [1])]
                        workflows[f"three-{worker}"] = steps
                        worker = f"three-{worker}"
                    places.append(Place(name, position, stream, worker))
        settings = {"workers": [*workers, *OTHERS], "workflows": workflows}
        async with api_of(settings) as (http, service):
            seen = await see_all([lambda p=place: see(http, p, cases[p.name]) for place in places])
            assert all(not limiter.open_calls for limiter in service.pool.limiters.values())
    return seen


async def see_conductors(cases: dict[str, Case], closed: str, plain: str, *, half: bool) -> list[Seen]:
    """Likewise where the faulty one is the conductor."""

    async def one(name: str) -> list[Seen]:
        case = cases[name]
        async with play(case, closed, plain) as url:
            settings = {
                "conductor": {"worker": "a"},
                "workers": [remote("a", url, case, in_pool=False), OTHERS[0]],
                "models": {"mini": {}},
            }
            async with api_of(settings) as (http, _):
                return [
                    await see(http, Place(name, "conductor", stream, "mini"), case)
                    for stream in ([len(name) % 2 == 0] if half else (False, True))
                ]

    lists = await see_all([lambda n=name: one(n) for name in cases])
    return [seen for some in lists for seen in some]


async def see_all(looks: list[Callable[[], Any]]) -> list[Any]:
    """What all of them see, so many at once."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(look: Callable[[], Any]) -> Any:
        async with places:
            return await look()

    return await asyncio.gather(*map(one, looks))


async def see(http: httpx2.AsyncClient, place: Place, case: Case) -> Seen:
    """What the client sees in words, and when its first word came."""
    began_s, first_word_s, pieces = time.monotonic(), None, list[str]()
    body = ASK | {"model": place.model, "stream": place.stream}
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for piece in answer.aiter_text():
            pieces.append(piece)
            if first_word_s is None and ("Instead" in piece or "It" in piece or "Whole" in piece):
                first_word_s = time.monotonic() - began_s
    outcome = _outcome(answer.status_code, "".join(pieces), stream=place.stream)
    expected = case.expected(place.position, stream=place.stream)
    return Seen(place.name, place.position, place.stream, outcome, expected, first_word_s)


def _outcome(status: int, text: str, *, stream: bool) -> str:
    if status != 200:
        return f"{status} {json.loads(text)['error']['code']}"
    if not stream:
        return f"200 {json.loads(text)['choices'][0]['message']['content']}"
    events = parsed(text)
    errors = [event["error"]["code"] for event in events if isinstance(event, dict) and "error" in event]
    return f"200 {said(events)}… then {errors[0]}" if errors else f"200 {said(events)}"


async def see_everything(*, half: bool = False) -> list[Seen]:
    """All cases in all positions.

    Args:
        half: each streamed or not, in turn, instead of both.
    """
    async with serving(WIRE) as gone:
        closed = gone.url.rsplit(":", 1)[1]
    async with serving(WIRE) as upstream:
        plain = upstream.url.rsplit(":", 1)[1]
        return [
            *await see_workers(CASES, closed, plain, half=half),
            *await see_conductors(CASES, closed, plain, half=half),
        ]


def table(seen: list[Seen]) -> str:
    """As Markdown: a row a fault, a column a position; streamed after a slash where it differs."""
    found = {(each.case, each.position, each.stream): each for each in seen}
    rows = [f"| fault | {' | '.join(POSITIONS)} |", "| --- |" + " --- |" * len(POSITIONS)]
    for name in CASES:
        cells = list[str]()
        for position in POSITIONS:
            whole, stream = (found[name, position, streamed].outcome for streamed in (False, True))
            cells.append(whole if whole == stream else f"{whole} / {stream}")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Play, and print the table and what was not as expected."""
    os.environ.setdefault("OTEL_SDK_DISABLED", "true")
    began_s = time.monotonic()
    seen = asyncio.run(see_everything())
    print(table(seen))
    wrong = [each for each in seen if not each.is_expected]
    print(
        f"\n{len(CASES)} faults, {len(seen)} requests in {time.monotonic() - began_s:.0f} s; not as expected: {len(wrong)}"
    )
    for each in wrong:
        print(f"* {each}")


if __name__ == "__main__":
    main()
