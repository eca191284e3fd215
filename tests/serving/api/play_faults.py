"""Plays the faults of `provider_faults.py` to clients, over real sockets, many at once.

`python -m tests.serving.api.play_faults` plays all of them and prints what was seen.
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
from tests.serving.api.provider_faults import CASES, FIRST_WORD, POSITIONS, TEXT, Case
from tests.serving.api.served import ASK, Json, listening, parsed, said, scripted, step
from tests.wires.faults import Fault, faulty
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, serving

WIRE = OpenAIWire()
STALL_S, PATIENCE_S = 1.0, 15.0
"""The silence of a server that plays silence, and of all others: a busy machine is none."""
AT_ONCE = 32
"""Clients."""


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


LANES = 8
"""APIs that stand side by side, each given one faulty conductor after another."""


async def see_conductors(cases: dict[str, Case], closed: str, plain: str, *, half: bool) -> list[Seen]:
    """Likewise where the faulty one is the conductor."""

    def settings_of(url: str, case: Case) -> Json:
        faulty_one = remote("a", url, case, in_pool=False)
        return {"conductor": {"worker": "a"}, "workers": [faulty_one, OTHERS[0]], "models": {"mini": {}}}

    async def lane(names: list[str]) -> list[Seen]:
        seen = list[Seen]()
        async with api_of({"workers": OTHERS}) as (http, service):
            for name in names:
                case = cases[name]
                async with play(case, closed, plain) as url:
                    await service.swap(build_pool(parse(settings_of(url, case)), {}, {}))
                    for stream in [len(seen) % 2 == 0] if half else (False, True):
                        seen.append(await see(http, Place(name, "conductor", stream, "mini"), case))
        return seen

    lists = await asyncio.gather(*(lane(list(cases)[n::LANES]) for n in range(LANES)))
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
    expected = case.outcomes(place.position, stream=place.stream)
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
