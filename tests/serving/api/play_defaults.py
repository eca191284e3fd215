"""Plays the faults that the first release did worst at, where no limit is set: what a client sees now.

`python -m tests.serving.api.play_defaults` prints the table; `--append FILE` writes it below a page, as `make faults` does below
that of `play_faults.py`. It takes two minutes, since the longest default is that long.
"""

import argparse
import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.serving.api.fault_servers import WIRE, open_places, play
from tests.serving.api.play_faults import OTHERS, Place, api_of, ask
from tests.serving.api.provider_faults import FIRST_WORD, MIDDLE, OTHER_TEXT, Case
from tests.serving.api.served import ASK, Json, scripted, step
from tests.wires.faults import COMMENTS, EVENT_STREAM, Fault
from tests.wires.server import Answer, serving

LATE_S = 20.0
REQUESTS = 200
PRICE = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}


@dataclass(frozen=True)
class Named:
    """A fault, where it stands, and what the first release did.

    Args:
        case: what is played.
        before: what a client saw then.
        is_middle: the middle one of three steps; else it is asked by its name, and has a fallback.
        stands_alone: it has no fallback.
        good_first: so many answers are good, before it happens.
        settings: of the worker.
    """

    case: Case
    before: str
    is_middle: bool = False
    stands_alone: bool = False
    good_first: int = 0
    settings: Json = field(default_factory=dict)


LOST = "one clear error, the answer was lost"
FAULTS = {
    "no response at all": Named(Case(Fault(b"")), "the fallback's answer after 92 s, three silent tries"),
    "no response at all, after twenty good ones": Named(
        Case((*[Answer()] * 20, Answer(stall_after=0))),
        "the fallback's answer after 92 s, three silent tries",
        good_first=20,
    ),
    f"the first token after {LATE_S:.0f} s": Named(
        Case((Answer(pause_after=FIRST_WORD, late_s=LATE_S),)), "waited for, without a limit"
    ),
    "comments and nothing else": Named(
        Case(Fault(drips=COMMENTS["comments"])), "kept alive until the deadline, 600 s"
    ),
    "headers that drip": Named(Case(Fault(EVENT_STREAM, drips=b"x")), "kept alive until the deadline, 600 s"),
    "a stream cut in the middle": Named(Case((Answer(pause_after=MIDDLE, cut_after=MIDDLE),)), LOST),
    "a stream that stalls in the middle": Named(
        Case((Answer(pause_after=MIDDLE, stall_after=MIDDLE),)), LOST
    ),
    "a malformed stream": Named(Case((Answer(pause_after=MIDDLE, garble_after=MIDDLE),)), LOST),
    "a stream cut in a middle step, twice": Named(
        Case((Answer(pause_after=MIDDLE, cut_after=MIDDLE),) * 2 + (Answer(),)),
        "the run ended, though nothing was shown",
        is_middle=True,
    ),
    "a stream cut in a middle step, once": Named(
        Case((Answer(pause_after=MIDDLE, cut_after=MIDDLE), Answer())),
        "the run ended, though nothing was shown",
        is_middle=True,
        stands_alone=True,
    ),
    "a content filter": Named(
        Case((Answer(status=400, error_code="content_filter"),)), "the fallback was asked; no setting"
    ),
    "a content filter, `on_content_filter: tell`": Named(
        Case((Answer(status=400, error_code="content_filter"),)),
        "the fallback was asked; no setting",
        settings={"on_content_filter": "tell"},
    ),
}


def _worker(name: str, url: str, **settings: Any) -> Json:
    """A priced worker of which nothing is set but where it is."""
    return {"name": name, "kind": "openai", "model": "m", "base_url": f"{url}/v1", "price": PRICE} | settings


async def see_faults() -> list[tuple[str, str, str, float | None]]:
    """Of each fault: its name, what was seen before and now, and after how many seconds its first word."""
    places, workers, workflows = list[Place](), list[Json](), dict[str, Json]()
    async with open_places() as at, AsyncExitStack() as servers:
        for number, (name, named) in enumerate(FAULTS.items()):
            played = await servers.enter_async_context(play(named.case, at))
            worker = asked = f"w{number}"
            fallbacks = [] if named.stands_alone else [f"{worker}-fallback"]
            workers.append(_worker(worker, played.url, fallbacks=fallbacks, **named.settings))
            workers += [scripted(each, OTHER_TEXT) for each in fallbacks]
            if named.is_middle:
                asked = f"three-{worker}"
                workflows[asked] = [
                    step("first"), step(worker, "Go on.", [0]), step("last", "End it.", [1])
                ]  # fmt: skip
            places.append(Place(name, "backed", True, asked, played))
        async with api_of({"workers": [*workers, *OTHERS], "workflows": workflows}) as (http, _):
            seen = await asyncio.gather(*(_ask_when_it_happens(http, place) for place in places))
    return [
        (place.name, FAULTS[place.name].before, outcome, first_s)
        for place, (outcome, first_s) in zip(places, seen, strict=True)
    ]


async def _ask_when_it_happens(http: httpx2.AsyncClient, place: Place) -> tuple[str, float | None]:
    for _ in range(FAULTS[place.name].good_first):
        await ask(http, place)
    return await ask(http, place)


async def count_calls_of_a_dead_primary(at_once: int) -> int:
    """How many calls hit a worker that fails at every one, where it has a fallback and `REQUESTS` are answered."""
    async with serving(WIRE) as upstream:
        upstream.respond = lambda _: Answer(status=503)
        settings: Json = {"workers": [_worker("w", upstream.url, fallbacks=["b"]), scripted("b", OTHER_TEXT)]}
        async with api_of(settings) as (http, _):
            lanes = asyncio.Semaphore(at_once)

            async def one() -> int:
                async with lanes:
                    return (await http.post("/v1/chat/completions", json=ASK | {"model": "w"})).status_code

            statuses = await asyncio.gather(*(one() for _ in range(REQUESTS)))
        assert set(statuses) == {200}, "the fallback answers all"
        return len(upstream.requests)


SECTION = """
## Where nothing is set

The faults that the first release did worst at, played to workers of which nothing is set but where they are: no limit, no number of tries. Each has a fallback that takes no prefill, unless it stands alone. All are streamed.

{table}

What a killed router, engine, proxy, controller or node costs: [operations](operations.md#what-a-kill-costs).
"""


async def write_section() -> str:
    """As Markdown."""
    rows = ["| fault | the first release | now | first word |", "| --- | --- | --- | --: |"]
    for name, before, outcome, first_s in await see_faults():
        rows.append(
            f"| {name} | {before} | {outcome} | {'–' if first_s is None else f'{1000 * first_s:.0f} ms'} |"
        )
    alone, together = await count_calls_of_a_dead_primary(1), await count_calls_of_a_dead_primary(REQUESTS)
    rows.append(
        f"| a dead primary, {REQUESTS} requests | 600 calls hit it | one after the other {alone} calls, all at once {together} | |"
    )
    return SECTION.format(table="\n".join(rows))


def main() -> None:
    """Print it, or write it below a page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--append", type=Path, help="a Markdown file to write it to, in place of printing")
    asked = parser.parse_args()
    os.environ.setdefault("OTEL_SDK_DISABLED", "true")
    section = asyncio.run(write_section())
    if asked.append:
        with asked.append.open("a", encoding="utf-8") as page:
            page.write(section)
    else:
        print(section)


if __name__ == "__main__":
    main()
