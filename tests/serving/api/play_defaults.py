"""Play faults that take long to detect against workers with default settings. `python -m
tests.serving.api.play_defaults` prints a table of what clients see. `--append FILE` appends it to a page, as `make
faults` does after `play_faults.py`. If a result is unexpected, it writes nothing and exits with 1. Takes two minutes,
because the longest default timeout is that long.
"""

import argparse
import asyncio
import os
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.serving.api.fault_servers import WIRE, open_places, play
from tests.serving.api.play_faults import OTHERS, Look, Place, api_of, ask, in_words
from tests.serving.api.provider_faults import FIRST_WORD, INSTEAD, MIDDLE, OTHER_TEXT, Case
from tests.serving.api.served import ASK, Json, scripted, step
from tests.wires.faults import COMMENTS, EVENT_STREAM, Fault
from tests.wires.server import Answer, serving

LATE_S = 20.0
REQUESTS = 200
MOST_ALONE, MOST_TOGETHER = 10, 71
"""Maximum calls of a dead primary: three until its circuit opens, or what its 64 slots took by then. Both include a
few probes, because a slow machine takes long for all requests.
"""
PRICE = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}


@dataclass(frozen=True)
class Named:
    """A fault, its position, and the expected result.

    Args:
        case: the fault.
        now: expected outcome for the client.
        is_middle: play it in the middle one of three steps, instead of by name with a fallback.
        stands_alone: use no fallback.
        good_first: number of good answers before the fault.
        settings: settings of the worker.
    """

    case: Case
    now: str = INSTEAD
    is_middle: bool = False
    stands_alone: bool = False
    good_first: int = 0
    settings: Json = field(default_factory=dict)


FAULTS = {
    "no response at all": Named(Case(Fault(b""))),
    "no response at all, after twenty good ones": Named(
        Case((*[Answer()] * 20, Answer(stall_after=0))), good_first=20
    ),
    f"the first token after {LATE_S:.0f} s": Named(Case((Answer(pause_after=FIRST_WORD, late_s=LATE_S),))),
    "comments and nothing else": Named(Case(Fault(drips=COMMENTS["comments"]))),
    "headers that drip": Named(Case(Fault(EVENT_STREAM, drips=b"x"))),
    "a stream cut in the middle": Named(Case((Answer(pause_after=MIDDLE, cut_after=MIDDLE),))),
    "a stream that stalls in the middle": Named(Case((Answer(pause_after=MIDDLE, stall_after=MIDDLE),))),
    "a malformed stream": Named(Case((Answer(pause_after=MIDDLE, garble_after=MIDDLE),))),
    "a stream cut in a middle step, twice": Named(
        Case((Answer(pause_after=MIDDLE, cut_after=MIDDLE),) * 2 + (Answer(),)),
        now="200 Whole.",
        is_middle=True,
    ),
    "a stream cut in a middle step, once": Named(
        Case((Answer(pause_after=MIDDLE, cut_after=MIDDLE), Answer())),
        now="200 Whole.",
        is_middle=True,
        stands_alone=True,
    ),
    "a content filter": Named(
        Case((Answer(status=400, error_code="content_filter"),)),
        now="400 content_filter",
    ),
    "a content filter, `on_content_filter: fall_back`": Named(
        Case((Answer(status=400, error_code="content_filter"),)),
        settings={"on_content_filter": "fall_back"},
    ),
}


def _worker(name: str, url: str, **settings: Any) -> Json:
    """Return a priced worker with default settings except its address."""
    return {"name": name, "kind": "openai", "model": "m", "base_url": f"{url}/v1", "price": PRICE} | settings


async def see_faults() -> dict[str, Look]:
    """Play each fault and return what the client saw."""
    places, workers, workflows = list[Place](), list[Json](), dict[str, Json]()
    async with open_places() as at, AsyncExitStack() as servers:
        for number, (name, named) in enumerate(FAULTS.items()):
            played = await servers.enter_async_context(play(named.case, at))
            worker = model = f"w{number}"
            fallbacks = [] if named.stands_alone else [f"{worker}-fallback"]
            workers.append(_worker(worker, played.url, fallbacks=fallbacks, **named.settings))
            workers += [scripted(each, OTHER_TEXT) for each in fallbacks]
            if named.is_middle:
                model = f"three-{worker}"
                workflows[model] = [
                    step("first"), step(worker, "Go on.", [0]), step("last", "End it.", [1])
                ]  # fmt: skip
            places.append(Place(name, "backed", True, model, played))
        async with api_of({"workers": [*workers, *OTHERS], "workflows": workflows}) as (http, _):
            outcomes = await asyncio.gather(*(_ask_when_it_happens(http, place) for place in places))
    return {place.name: look for place, look in zip(places, outcomes, strict=True)}


async def _ask_when_it_happens(http: httpx2.AsyncClient, place: Place) -> Look:
    for _ in range(FAULTS[place.name].good_first):
        await ask(http, place)
    return await ask(http, place)


async def count_calls_of_a_dead_primary(at_once: int) -> int:
    """Return the number of calls of a worker that always fails and has a fallback. All `REQUESTS` must be answered."""
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
## Default settings

The next table shows what clients of streams see if the workers have default settings instead of short limits. Each faulty worker has a fallback, except in the row that ends with "once". The fallbacks cannot continue an interrupted text from its last character, because they do not support `prefill`.

The last column shows the longest time without text after the first word. During this time, the client gets only heartbeats. If a model stops sending in the middle of its answer, its fallback takes over after `stall_timeout_s`, which is 120 s. After 20 answers of the model, Podium uses [a shorter limit](operations/worker-failures.md#timeouts-retries-and-the-circuit). The same section explains the wait of 13 s for the first word.

{table}

A worker that fails every call has little effect if it has a fallback. In a test, all {requests} requests to such a worker were answered. When the requests were sent one after another, {alone} of them reached the failing worker before Podium stopped calling it. When all were sent at the same time, {together} reached it.

[What a kill costs](operations/durable-runs.md#what-a-kill-costs) shows what clients see when one of Podium's own processes fails.
"""


def wrong_of(looks: dict[str, Look], alone: int, together: int) -> list[str]:
    """Return the unexpected results.

    Args:
        looks: results by fault.
        alone: calls of a dead primary for sequential requests.
        together: calls of a dead primary for concurrent requests.
    """
    wrong = [
        f"{name}: {look.outcome}, not {FAULTS[name].now}"
        for name, look in looks.items()
        if look.outcome != FAULTS[name].now
    ]
    if alone > MOST_ALONE or together > MOST_TOGETHER:
        wrong.append(f"a dead primary: {alone} calls one after the other, {together} at once")
    return wrong


def table(looks: dict[str, Look]) -> str:
    rows = [
        "| fault | result for the client | first word after | longest silence |",
        "| --- | --- | --: | --: |",
    ]
    for name, look in looks.items():
        times = " | ".join(map(_ms, (look.first_word_s, look.silence_s)))
        rows.append(f"| {name} | {in_words(look.outcome)} | {times} |")
    return "\n".join(rows)


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1000 * seconds:.0f} ms"


async def play_all() -> tuple[dict[str, Look], int, int]:
    looks = await see_faults()
    return looks, await count_calls_of_a_dead_primary(1), await count_calls_of_a_dead_primary(REQUESTS)


def finish(looks: dict[str, Look], alone: int, together: int, page: Path | None) -> int:
    """Print the section, or append it to the page if all results are as expected. Print the unexpected ones.

    Returns:
        The exit status.
    """
    section = SECTION.format(table=table(looks), requests=REQUESTS, alone=alone, together=together)
    wrong = wrong_of(looks, alone, together)
    if not page:
        print(section)
    elif not wrong:
        with page.open("a", encoding="utf-8") as file:
            file.write(section)
    print(f"not as expected: {len(wrong)}", *wrong, sep="\n* ")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--append", type=Path, help="a Markdown file to write it to, in place of printing")
    options = parser.parse_args()
    os.environ.setdefault("OTEL_SDK_DISABLED", "true")
    return finish(*asyncio.run(play_all()), options.append)


if __name__ == "__main__":
    sys.exit(main())
