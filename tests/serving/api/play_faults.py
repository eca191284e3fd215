"""Play the faults of `provider_faults.py` to many clients over real sockets. `python -m
tests.serving.api.play_faults` plays all of them and prints what the clients saw. `--out FILE` writes it as a page
such as `docs/faults.md`. If a result is unexpected, it writes nothing and exits with 1.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2

from podium.command_line.process import machine
from serving.api.app import build_api
from serving.pool import Pool, build_pool
from serving.sessions.service import Service
from serving.settings.settings import parse
from tests.serving.api.fault_servers import Places, Played, open_places, play
from tests.serving.api.provider_faults import (
    CASES,
    FIRST,
    INSTEAD,
    OTHER_TEXT,
    PLAN,
    PLANNED_TEXT,
    POSITIONS,
    TEXT,
    Case,
)
from tests.serving.api.served import ASK, Json, answer_text, listening, parsed, scripted, step
from tests.states import until

STALL_S, PATIENCE_S = 1.0, 60.0
"""Stall timeout of cases that stall, and of all others. The long timeout tolerates a busy machine."""
AT_ONCE = 32
WORD = re.compile(r'"content": ?"(It|Whole)')
"""Beginning of every answer on the wire."""
WORDS = re.compile(r'"content": ?"[^"]')
"""Any text of an answer on the wire."""


@dataclass(frozen=True)
class FaultOutcome:
    """Actual and expected outcome for one client."""

    case: str
    position: str
    stream: bool
    outcome: str
    expected: str
    first_word_s: float | None
    """Seconds from the request to the first word, or None if it never came."""
    or_else: str = ""
    """Outcome that is also correct on a busy machine."""

    @property
    def is_expected(self) -> bool:
        return self.outcome in (self.expected, self.or_else)


def remote(name: str, url: str, case: Case, **settings: Any) -> Json:
    """Return a worker at `url`. If the case recovers, the worker accepts prefill, so that its server can continue an
    answer.
    """
    silence_s = STALL_S if case.is_silent else PATIENCE_S
    wire = {
        "kind": "openai",
        "model": "m",
        "base_url": f"{url}/v1",
        "stall_timeout_s": silence_s,
        "connect_timeout_s": silence_s,
        "retry": {"attempts": 2, "first_wait_s": 0.01, "max_wait_s": 0.05},
        "accepts": {"prefill": case.is_mended},
    }
    return {"name": name, "price": {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}} | wire | settings


@dataclass(frozen=True)
class Place:
    """A case, its position, and the model to request."""

    name: str
    position: str
    stream: bool
    model: str
    played: Played


OTHERS = [scripted("first", "A start."), scripted("last", "Whole.")]
"""Healthy workers that several cases share. No case makes them fail, so their circuits never open."""
LIMITS = {"first_byte_s": 2 * PATIENCE_S}
"""Errors before the first word must become statuses, even on a busy machine."""


async def wait_until_no_call_is_open(pool: Pool, within_s: float = 10.0) -> None:
    """Fail if a call of a worker or the conductor stays open or queued."""

    def busy_workers() -> list[str]:
        return [name for name, each in pool.limiters.items() if each.open_calls or each.queued]

    try:
        await until(lambda: not busy_workers(), within_s=within_s)
    except AssertionError:
        raise AssertionError(f"calls are left open: {busy_workers()}") from None


@asynccontextmanager
async def api_of(settings: Json) -> AsyncGenerator[tuple[httpx2.AsyncClient, Service]]:
    """Serve the settings, and check that no call stays open."""
    service = Service(build_pool(parse(settings), {}, {}))
    async with (
        listening(build_api(service)) as url,
        httpx2.AsyncClient(base_url=url, timeout=2 * PATIENCE_S) as http,
    ):
        yield http, service
        await wait_until_no_call_is_open(service.pool)
    await service.pool.aclose()


async def see_workers(
    cases: dict[str, Case], at: Places, *, half: bool, at_once: int = AT_ONCE
) -> list[FaultOutcome]:
    """Play the cases to clients of the faulty worker: alone, with a fallback, and as the middle one of three steps."""
    places, workers, workflows = list[Place](), list[Json](), dict[str, Json]()
    async with AsyncExitStack() as servers:
        for number, (name, case) in enumerate(cases.items()):
            for position in POSITIONS[:-1]:
                for stream in [bool(len(places) % 2)] if half else (False, True):
                    played = await servers.enter_async_context(play(case, at))
                    worker = f"w{number}-{position}-{int(stream)}"
                    fallbacks = [f"{worker}-fallback"] if position == "backed" else []
                    workers.append(remote(worker, played.url, case, fallbacks=fallbacks))
                    workers += [scripted(name, case.fallback_text) for name in fallbacks]
                    if position == "middle":
                        steps = [step("first"), step(worker, "Go on.", [0]), step("last", "End it.", [1])]
                        workflows[f"three-{worker}"] = steps
                        worker = f"three-{worker}"
                    places.append(Place(name, position, stream, worker, played))
        settings = {"workers": [*workers, *OTHERS], "workflows": workflows, "limits": LIMITS}
        async with api_of(settings) as (http, _):
            outcomes = await see_all(
                [lambda p=place: see(http, p, cases[p.name]) for place in places], at_once
            )
    return outcomes


LANES = 8
"""Number of APIs in parallel. Each gets one faulty conductor after another."""


async def see_conductors(
    cases: dict[str, Case], at: Places, *, half: bool, lanes: int = LANES
) -> list[FaultOutcome]:
    """Play the cases with the conductor as the faulty worker."""

    def settings_of(url: str, case: Case) -> Json:
        faulty_one = remote("a", url, case, in_pool=False)
        return {
            "conductor": {"worker": "a"},
            "workers": [faulty_one, scripted("b", OTHER_TEXT), scripted("c", PLANNED_TEXT)],
            "models": {"mini": {}},
            "limits": LIMITS,
        }

    async def lane(names: list[str]) -> list[FaultOutcome]:
        outcomes = list[FaultOutcome]()
        async with api_of({"workers": OTHERS}) as (http, service):
            for name in names:
                case = cases[name]
                for stream in [len(outcomes) % 2 == 0] if half else (False, True):
                    async with play(case, at, PLAN) as played:
                        pool = build_pool(parse(settings_of(played.url, case)), {}, {})
                        await service.swap(pool)
                        outcomes.append(
                            await see(http, Place(name, "conductor", stream, "mini", played), case)
                        )
                        # While the server still runs, because stopping it would end a call.
                        await wait_until_no_call_is_open(pool)
        return outcomes

    lists = await asyncio.gather(*(lane(list(cases)[n::lanes]) for n in range(lanes)))
    return [outcomes for some in lists for outcomes in some]


async def see_all(looks: list[Callable[[], Any]], at_once: int) -> list[Any]:
    """Return the results of all looks, with `at_once` of them at a time."""
    places = asyncio.Semaphore(at_once)

    async def one(look: Callable[[], Any]) -> Any:
        async with places:
            return await look()

    return await asyncio.gather(*map(one, looks))


async def see(http: httpx2.AsyncClient, place: Place, case: Case) -> FaultOutcome:
    """Return the client's outcome and the time to its first word. For a burst, count the outcomes, and take the time
    from the client after it.
    """
    outcomes = list[str]()
    if case.burst:
        storm = [
            each.outcome for each in await asyncio.gather(*(ask(http, place) for _ in range(case.burst)))
        ]
        outcomes = [f"{storm.count(each)} times {each}" for each in sorted(set(storm))]
        place.played.end_storm()
    look = await ask(http, place)
    summary = ", then ".join([*outcomes, look.outcome])
    expected = case.outcome(place.position, stream=place.stream)
    or_else = ""
    if place.position == "conductor" and case.is_mended:
        # A free worker may answer alone: a slow failure is not retried, and the circuit may close again after a
        # burst.
        answer = INSTEAD if expected.endswith(PLANNED_TEXT) else f"200 {PLANNED_TEXT}"
        or_else = expected.removesuffix(INSTEAD).removesuffix(f"200 {PLANNED_TEXT}") + answer
    return FaultOutcome(
        place.name, place.position, place.stream, summary, expected, look.first_word_s, or_else
    )


@dataclass(frozen=True)
class Look:
    """What a client saw of one request.

    Args:
        outcome: outcome in words.
        first_word_s: seconds from the request to the first word, or None if there was none.
        silence_s: longest silence after that, up to the next words or the end.
    """

    outcome: str
    first_word_s: float | None
    silence_s: float | None


async def ask(http: httpx2.AsyncClient, place: Place) -> Look:
    began_s, first_word_s, text = time.monotonic(), None, ""
    words_s = list[float]()
    body = ASK | {"model": place.model, "stream": place.stream}
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for piece in answer.aiter_text():
            text += piece
            if WORDS.search(piece):
                words_s.append(time.monotonic())
            if first_word_s is None and WORD.search(text):
                first_word_s = time.monotonic() - began_s
    ended_s = time.monotonic()
    silences_s = [after_s - word_s for word_s, after_s in pairwise([*words_s, ended_s])]
    outcome = _outcome(answer.status_code, text, stream=place.stream)
    return Look(outcome, first_word_s, max(silences_s, default=None))


def _outcome(status: int, text: str, *, stream: bool) -> str:
    if status != 200:
        return f"{status} {json.loads(text)['error']['code']}"
    if not stream:
        return f"200 {json.loads(text)['choices'][0]['message']['content']}"
    events = parsed(text)
    errors = [event["error"]["code"] for event in events if isinstance(event, dict) and "error" in event]
    return f"200 {answer_text(events)}… then {errors[0]}" if errors else f"200 {answer_text(events)}"


async def see_everything(*, half: bool = False, at_once: int = AT_ONCE) -> list[FaultOutcome]:
    """Play all cases in all positions.

    Args:
        half: alternate between streamed and not, instead of both for each case.
        at_once: number of concurrent clients.
    """
    async with open_places() as at:
        return [
            *await see_workers(CASES, at, half=half, at_once=at_once),
            *await see_conductors(CASES, at, half=half),
        ]


PAGE = """\
# Provider faults and what clients see

This page lists the faults of providers that the tests simulate. For each fault, it shows the answer or error that a client of Chat Completions gets, how long the client waits, and what a fallback changes. [Worker failures](operations/worker-failures.md) explains the rules that lead to these results.

A test makes one worker faulty, and sends requests to Podium. It repeats this for each fault, with the faulty worker in four roles:

| column | role of the faulty worker |
| --- | --- |
| alone | The client calls the worker by its name. The worker has no fallback. |
| backed | The client calls the worker by its name. The worker has a fallback. |
| middle | The worker runs the second of three steps. |
| conductor | The worker writes the plan for two healthy workers. |

Read the results as follows:

* Each cell shows the HTTP status that the client gets, followed by the answer or by the `code` of the error. If a request for a stream gets a different result, the cell shows that result after a slash. `…` marks the place where the stream broke.
* An *early* fault happens before the first word of the answer, and a *late* fault happens after it.
* If a call of the run was already billed, Podium returns a 400 instead of a 502 or 503, so that clients do not retry.
* The last column shows the longest time that any of {at_once} concurrent clients waited for the first word of its answer. Use this time only to compare rows, because the test uses short limits: each call has two attempts, and `stall_timeout_s` is {stall_s:.0f} s.

{table}

The test played {cases} faults. All {requests} results were as expected, and no call to a provider stayed open. `make faults` generated this page on {date} ({machine}).
"""
SHOWN = {
    OTHER_TEXT: "fallback's answer",
    PLANNED_TEXT: "planned answer",
    "Whole.": "answer",
    TEXT: "answer",
    f"{FIRST}…": "words…",
}
"""Texts of the scripted answers and their names on the page, longest first."""


def in_words(outcome: str) -> str:
    """Replace the texts in an outcome by their names on the page."""
    for text, words in SHOWN.items():
        outcome = outcome.replace(text, words)
    return "200 empty answer" if outcome == "200 " else outcome


def table(results: list[FaultOutcome]) -> str:
    """Return a Markdown table with a column per position. Faults with the same results share a row."""
    row_by_place = {(each.case, each.position, each.stream): each for each in results}
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in CASES:
        cells = [
            _cell(row_by_place[name, place, False], row_by_place[name, place, True]) for place in POSITIONS
        ]
        groups.setdefault((*cells, "silent" if CASES[name].is_silent else ""), []).append(name)
    rows = [
        f"| fault | {' | '.join(POSITIONS)} | first word within |",
        "| --- |" + " --- |" * len(POSITIONS) + " --: |",
    ]
    for (*cells, _), names in groups.items():
        times_s = [
            each.first_word_s for each in results if each.case in names and each.first_word_s is not None
        ]
        slowest = f"{max(times_s):.2f} s" if times_s else "–"
        rows.append(f"| {'; '.join(names)} | {' | '.join(cells)} | {slowest} |")
    return "\n".join(rows)


def _cell(whole: FaultOutcome, stream: FaultOutcome) -> str:
    return " / ".join(dict.fromkeys(in_words(each.outcome) for each in (whole, stream)))


def finish(rows: list[FaultOutcome], out: Path | None, at_once: int) -> int:
    """Print the table, or write the page if all results are as expected. Print the unexpected ones.

    Results of a busy machine are expected in a test, but not on the page.

    Returns:
        The exit status.
    """
    wrong = [each for each in rows if each.outcome != each.expected and (out or not each.is_expected)]
    if not out:
        print(table(rows))
    elif not wrong:
        page = PAGE.format(
            date=datetime.now(UTC).date(), machine=machine(), at_once=at_once, stall_s=STALL_S,
            table=table(rows), cases=len(CASES), requests=len(rows),
        )  # fmt: skip
        out.write_text(page, "utf-8")
    print(f"\n{len(CASES)} faults, {len(rows)} cells; not as expected: {len(wrong)}")
    for each in wrong:
        print(f"* {each}")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a Markdown file to write, in place of printing")
    parser.add_argument("--at-once", type=int, default=4, help="clients, default 4")
    options = parser.parse_args()
    os.environ.setdefault("OTEL_SDK_DISABLED", "true")
    return finish(asyncio.run(see_everything(at_once=options.at_once)), options.out, options.at_once)


if __name__ == "__main__":
    sys.exit(main())
