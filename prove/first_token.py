"""The time to the first answer token through `podium-mini` over asking the worker's own server: `python -m
prove.first_token`.

Over HTTP, with a key and a store: a scripted conductor writes a plan as fast as 20 tokens at 50 a second, whose only step is the
user's own words to a worker; that is a server here, whose first token is late by so much. Without guesses
(docs/decisions/0063) the least is the plan's time and the worker's, and `added` is what is more; with right ones it is the
later of both; and wrong ones are to change nothing but what they waste.
"""

import asyncio
import time
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import aiohttp
from rich.table import Table

from loadtest.sse import Reader
from program.process import machine, wide_console
from prove.routers import Json, ProofError, Router, make_key, open_session, prepare_process, running_router
from prove.slow_tail import SlowTail
from serving.database.address import sqlite_address
from serving.workers.scripted import TOKEN

PLAN = '{{ "worker" : "{}" , "subtask" : "" , "access" : [ ] }}\n'
PLAN_S = 0.4
"""As 20 tokens at 50 a second."""
FIRST_TOKENS_S = (0.1, 0.5, 2.0)
ROUNDS, WARM_UP = 10, 3
Guesses = Literal["none", "right", "wrong"]
LEARNED = 2
"""Plans that ask the other worker before each that does not, where guesses are to be wrong."""
ASKED: Json = {"messages": [{"role": "user", "content": "Why?"}], "stream": True}


@dataclass(frozen=True)
class Turn:
    """One question to both, in seconds since it was sent: the first token of the worker's own server, that through
    Podium, and by the run's record when the plan's step was there; what became of a guess, and the tokens that it took for
    nothing, where it was made and its server said so.
    """

    direct_s: float
    through_s: float
    planned_s: float
    guess: str = ""
    wasted_tokens: int | None = None

    @property
    def over_direct(self) -> float:
        """Through Podium over the worker's own server."""
        return self.through_s / self.direct_s

    @property
    def over_later(self) -> float:
        """Over the later of the worker's first token, had it been asked at once, and the plan's step."""
        return self.through_s / max(self.direct_s, self.planned_s)

    @property
    def overhead_s(self) -> float:
        """More than the plan's step and the worker take one after the other."""
        return self.through_s - self.planned_s - self.direct_s


def _settings(url: str, guesses: Guesses, turns: int) -> Json:
    right, wrong = PLAN.format("asked"), PLAN.format("other")
    conductor = {
        "name": "conductor",
        "kind": "scripted",
        "replies": [*[wrong] * LEARNED, right] * turns if guesses == "wrong" else [right],
        "tokens_per_s": len(TOKEN.findall(right)) / PLAN_S,
    }
    free = {"input_usd_per_mtok": 0, "output_usd_per_mtok": 0}
    worker = {"kind": "openai", "model": "slow-tail", "base_url": url, "price": free}
    speculation = {"min_plans": LEARNED, "min_agreement": 0.5}
    return {
        "conductor": {
            "worker": "conductor",
            "format": "steps",
            "speculation": None if guesses == "none" else speculation,
        },
        "workers": [
            {**conductor, "in_pool": False},
            *({"name": name, **worker} for name in ("asked", "other")),
        ],
        "models": {"podium-mini": {"max_steps": 4, "rounds": 1}},
    }


async def _first_token_s(session: aiohttp.ClientSession, url: str, model: str) -> tuple[float, str]:
    """Until the first words of a whole stream; and the run's id, of Podium."""
    began_s = time.perf_counter()
    reader = Reader(began_s)
    async with session.post(f"{url}/chat/completions", json={"model": model, **ASKED}) as response:
        if response.status != 200:
            raise ProofError(f"{url}: {response.status} {(await response.read())[:300]!r}")
        async for line in response.content:
            reader.take(line)
        first_ms = reader.end().first_token_ms
        assert first_ms is not None
        return first_ms / 1000, response.headers.get("x-podium-workflow-id", "")


async def _ask_both(session: aiohttp.ClientSession, router: Router, url: str) -> Turn:
    direct_s, _ = await _first_token_s(session, url, "asked")
    through_s, id = await _first_token_s(session, f"{router.url}/v1", "podium-mini")
    record = await _finished(session, router, id)
    guess: Json = record["plans"][0].get("guess") or {}
    usage: Json = guess.get("usage") or {}
    wasted = usage["input_tokens"] + usage["output_tokens"] if usage else None
    return Turn(direct_s, through_s, record["steps"][0]["planned_s"], guess.get("outcome", ""), wasted)


async def _finished(session: aiohttp.ClientSession, router: Router, id: str) -> Json:
    while True:
        async with session.get(f"{router.url}/v1/workflows/{id}") as response:
            record = await response.json()
        if record.get("status") == "finished":  # it is stored a moment after the answer was sent
            return record
        await asyncio.sleep(0.02)


async def measure(folder: Path, first_s: float, guesses: Guesses, rounds: int = ROUNDS) -> list[Turn]:
    """So many turns of a worker whose first token comes after `first_s`, after a few that do not count.

    Raises:
        ProofError: somebody did not answer, or a guess that was to be made was not.
    """
    address = sqlite_address(folder / f"{first_s}-{guesses}.db")
    key = await make_key(address)
    async with (
        SlowTail(first_s=0, slow_s=first_s, share=1.0).running() as url,
        running_router("first-token", address, _settings(url, guesses, WARM_UP + rounds)) as router,
        open_session(key) as session,
    ):
        turns: list[Turn] = []
        for _ in range(WARM_UP + rounds):
            for _ in range(LEARNED if guesses == "wrong" else 0):
                _, id = await _first_token_s(session, f"{router.url}/v1", "podium-mini")
                await _finished(session, router, id)
            turns.append(await _ask_both(session, router, url))
    wanted = {"none": "", "right": "kept", "wrong": "lost"}[guesses]
    if any(turn.guess != wanted for turn in turns[WARM_UP:]):
        raise ProofError(f"guesses were to be {guesses}: {[turn.guess for turn in turns]}")
    return turns[WARM_UP:]


def _row(first_s: float, guesses: Guesses, turns: list[Turn]) -> list[str]:
    columns = [(t.direct_s, t.planned_s, t.through_s) for t in turns]
    times = (median(each) for each in zip(*columns, strict=True))
    ratios = (median(t.over_direct for t in turns), median(t.over_later for t in turns))
    known = [t.wasted_tokens for t in turns if t.wasted_tokens is not None]
    return [
        f"{first_s:g}",
        guesses,
        *(f"{each:.3f}" for each in times),
        *(f"{each:.2f}" for each in ratios),
        f"{1000 * median(t.overhead_s for t in turns):.1f}",
        f"{median(known):.0f}" if known else "not known" if guesses == "wrong" else "0",
    ]


async def main(rounds: int) -> None:
    """Print rows for each worker, without guesses and with: medians."""
    table = Table(title=f"First answer token through podium-mini, medians of {rounds}; {machine()}")
    for column in (
        "worker, s",
        "guesses",
        "asked directly, s",
        "plan's step, s",
        "through, s",
        "over directly",
    ):
        table.add_column(column, justify="right")
    for column in ("over the later", "added, ms", "tokens wasted"):
        table.add_column(column, justify="right")
    with TemporaryDirectory() as folder:
        for first_s in FIRST_TOKENS_S:
            for guesses in get_args(Guesses):
                turns = await measure(Path(folder), first_s, guesses, rounds)
                table.add_row(*_row(first_s, guesses, turns))
    wide_console().print(table)


if __name__ == "__main__":
    parser = ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each row, {ROUNDS} by default")
    prepare_process()
    asyncio.run(main(parser.parse_args().rounds))
