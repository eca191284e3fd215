"""The adapter of a worker is switched under load, on real vLLM: is an answer lost, and does any come from the wrong adapter?

Each adapter answers everything with a word of its own (`training/marked.py` makes them in seconds), so an answer says who gave it.
The same few questions are asked throughout, so that the prefix cache would have the old adapter's work at hand. A switch is what
`serve deploy` does: the Serve config again, with another `user_config`, to Ray's dashboard. It is done when `/v1/models` names the
new adapter: from then on every request must be answered by it.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp
import yaml

from bench.client import Client, Json, chat
from bench.figures import Figure, counted, figure
from bench.isolated import alone, settings_file
from bench.server import APP, BUILD, ROOT, BenchError, Serve, application
from loadtest.sse import BrokenStreamError

MODEL = "models/smollm2-135m"
WORKER = "writer"
WORDS = ("river", "stone", "music")
TURNS = (1, 0, 2, 1, 0, 2)
"""Which word is switched to, after the first."""
REPLICAS = 2
STREAMS = 6
"""Open at once, from the first to the last second."""
TOKENS = 8
QUESTIONS = [f"Say something of the {thing}. " + "Take your time. " * 60 for thing in ("sea", "wood", "road")]
BETWEEN_S = 6.0
"""From one switch's end to the next one's beginning."""
SWITCHED_WITHIN_S = 120.0
LOOK_S = 0.02
TOKEN = Path.home() / ".ray" / "auth_token"


@dataclass(frozen=True, slots=True)
class Answer:
    """One request, by the client's clock; its text is None where it broke."""

    asked_s: float
    first_s: float
    text: str | None


@dataclass(frozen=True, slots=True)
class Switch:
    """From one word's adapter to another's: when it was asked for, and when it was said to be done."""

    before: str
    after: str
    asked_s: float
    done_s: float

    def meets(self, answer: Answer) -> bool:
        """Whether the request was there while the switch went on."""
        return answer.asked_s < self.done_s and self.asked_s < answer.first_s


def may_say(answer: Answer, switches: Sequence[Switch]) -> set[str]:
    """The words of the adapters that may answer: the one in use when it was asked, and any that came while it waited."""
    done = [switch.after for switch in switches if switch.done_s <= answer.asked_s]
    met = [switch for switch in switches if switch.meets(answer)]
    return {done[-1] if done else switches[0].before, *(switch.after for switch in met)}


def wrong(answers: Sequence[Answer], switches: Sequence[Switch]) -> list[Answer]:
    """Whole answers that are not one word of an adapter that may answer."""
    told = [answer for answer in answers if answer.text is not None]
    return [
        answer
        for answer in told
        if len(words := set((answer.text or "").split())) != 1 or not words <= may_say(answer, switches)
    ]


def figures(answers: Sequence[Answer], switches: Sequence[Switch]) -> list[Figure]:
    """From every request and every switch."""
    whole = [answer for answer in answers if answer.text is not None]
    met = [answer for answer in whole if any(switch.meets(answer) for switch in switches)]
    quiet_ms, met_ms = (
        [1000 * (each.first_s - each.asked_s) for each in some]
        for some in ([answer for answer in whole if answer not in met], met)
    )
    return [
        counted("adapters_lost", len(answers) - len(whole)),
        counted("adapters_wrong", len(wrong(answers, switches))),
        counted("adapters_answers", len(answers)),
        figure("adapters_switch_s", [switch.done_s - switch.asked_s for switch in switches], median),
        figure("adapters_first_word_quiet_ms", quiet_ms),
        figure("adapters_first_word_switching_ms", met_ms),
    ]


async def under_load(
    client: Client, worker: str, switching: Callable[[], Awaitable[list[Switch]]], tick: Callable[[], None]
) -> tuple[list[Answer], list[Switch]]:
    """`STREAMS` streams, one after another in each line, as long as `switching` goes on, and a little longer."""
    answers: list[Answer] = []
    enough = asyncio.Event()

    async def line(number: int) -> None:
        while not enough.is_set():
            number += 1
            asked_s = time.monotonic()
            try:
                body = chat(worker, question=QUESTIONS[number % len(QUESTIONS)], max_tokens=TOKENS)
                seen, _ = await client.stream(body)
                answers.append(Answer(asked_s, asked_s + (seen.first_token_ms or 0.0) / 1000, seen.text))
            except (BrokenStreamError, BenchError, aiohttp.ClientError, TimeoutError):
                answers.append(Answer(asked_s, time.monotonic(), None))
            tick()

    lines = [asyncio.create_task(line(number)) for number in range(STREAMS)]
    try:
        await asyncio.sleep(BETWEEN_S)
        switches = await switching()
        await asyncio.sleep(BETWEEN_S)
    finally:
        enough.set()
        await asyncio.gather(*lines)
    return answers, switches


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """One run on a Serve of its own; about three minutes."""
    made = await marked(BUILD / "adapters")
    settings = settings_file("adapters.yaml", "adapters.yaml", ADAPTER=made[WORDS[0]], REPLICAS=REPLICAS)
    served = [application("podium", "/", APP, settings=str(settings))]
    async with alone("adapters", served, dashboard=True) as (client, serve):
        answers, switches = await under_load(client, WORKER, lambda: _switching(client, serve, made), tick)
    return figures(answers, switches)


async def marked(folder: Path) -> dict[str, str]:
    """An adapter for each of `WORDS`, by its word: made in another process, which needs the model library.

    Raises:
        BenchError: they could not be made.
    """
    command = ["-m", "training.marked", "--model", MODEL, "--to", str(folder), *WORDS]
    making = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    told, faults = await making.communicate()
    if making.returncode:
        raise BenchError(f"the adapters could not be made: {faults.decode(errors='replace')[-500:]}")
    return dict(zip(WORDS, json.loads(told.decode().splitlines()[-1]), strict=True))


async def _switching(client: Client, serve: Serve, made: dict[str, str]) -> list[Switch]:
    switches: list[Switch] = []
    before = WORDS[0]
    for turn in TURNS:
        after = WORDS[turn]
        asked_s = time.monotonic()
        await _deploy(client.session, serve, made[after])
        await _in_use(client, Path(made[after]).name)
        switches.append(Switch(before, after, asked_s, time.monotonic()))
        before = after
        await asyncio.sleep(BETWEEN_S)
    return switches


async def _deploy(session: aiohttp.ClientSession, serve: Serve, adapter: str) -> None:
    """What `serve deploy` does with the config, its `user_config` changed."""
    config: Json = yaml.safe_load((BUILD / "adapters.serve.yaml").read_text())
    user_config = {"workers": [{"name": WORKER, "adapter": adapter}]}
    config["applications"][0]["deployments"] = [{"name": "router", "user_config": user_config}]
    url = f"http://127.0.0.1:{serve.dashboard_port}/api/serve/applications/"
    key = {"Authorization": f"Bearer {TOKEN.read_text().strip()}"} if TOKEN.exists() else {}
    async with session.put(url, json=config, headers=key) as response:
        if response.status != 200:
            raise BenchError(f"the config was not taken: {response.status} {(await response.read())[:300]!r}")


async def _in_use(client: Client, name: str) -> None:
    for _ in range(int(SWITCHED_WITHIN_S / LOOK_S)):
        if (await client.get(f"/v1/models/{WORKER}"))["podium"]["model"].endswith(f"+{name}"):
            return
        await asyncio.sleep(LOOK_S)
    raise BenchError(f"{name} was not in use within {SWITCHED_WITHIN_S:.0f} s")
