"""Switch a LoRA adapter under load, on real vLLM. Count lost answers and answers of the wrong adapter.

Each adapter answers every question with its own word, so an answer shows which adapter produced it.
`training/constant_adapters.py` makes such adapters in seconds. The same few questions are sent throughout, so
that the prefix cache holds entries of the previous adapter. A switch works like `serve deploy`: the bench
sends the Serve config with another `user_config` to Ray's dashboard. The switch is done when `/v1/models`
shows the next adapter. From then on, that adapter must answer every request.
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp
import yaml

from loadtest.bench.figures import Figure, figure, reading
from loadtest.rig import ROOT, Json, RigError
from loadtest.rig.client import REQUEST_ERRORS, BenchClient, chat
from loadtest.rig.closed_loop import keep_asking
from loadtest.rig.processes import BUILD
from loadtest.rig.ray_server import BenchServer, fill_settings, podium, start_isolated

MODEL = "models/smollm2-135m"
WORKER = "writer"
WORDS = ("river", "stone", "music")
TURNS = (1, 0, 2, 1, 0, 2)
"""Order in which the adapters are used after the first one, as indices of `WORDS`."""
REPLICAS = 2
STREAMS = 6
"""Concurrent streams during the whole measurement."""
TOKENS = 8
QUESTIONS = [f"Say something of the {thing}. " + "Take your time. " * 60 for thing in ("sea", "wood", "road")]
BETWEEN_S = 6.0
"""Seconds from the end of one switch to the start of the next."""
SWITCHED_WITHIN_S = 120.0
POLL_S = 0.02
TOKEN = Path.home() / ".ray" / "auth_token"


@dataclass(frozen=True, slots=True)
class AdapterAnswer:
    """Answer to one request, with times by the client's clock. `text` is None if the stream broke."""

    asked_s: float
    first_s: float
    text: str | None


@dataclass(frozen=True, slots=True)
class Switch:
    """Switch from one adapter to another. An adapter is named by the word that it answers."""

    before: str
    after: str
    asked_s: float
    done_s: float

    def overlaps(self, answer: AdapterAnswer) -> bool:
        """Return whether the request waited for its first token during the switch."""
        return answer.asked_s < self.done_s and self.asked_s < answer.first_s


def may_say(answer: AdapterAnswer, switches: Sequence[Switch]) -> set[str]:
    """Return the words of the adapter at the time of the request, and of those that replaced it before a
    token.
    """
    earlier_words = [switch.after for switch in switches if switch.done_s <= answer.asked_s]
    during = [switch.after for switch in switches if switch.overlaps(answer)]
    return {earlier_words[-1] if earlier_words else switches[0].before, *during}


def wrong(answers: Sequence[AdapterAnswer], switches: Sequence[Switch]) -> list[AdapterAnswer]:
    """Return the complete answers that do not consist of the word of one allowed adapter."""

    def is_wrong(answer: AdapterAnswer, text: str) -> bool:
        return len(words := set(text.split())) != 1 or not words <= may_say(answer, switches)

    return [answer for answer in answers if answer.text is not None and is_wrong(answer, answer.text)]


def figures(answers: Sequence[AdapterAnswer], switches: Sequence[Switch]) -> list[Figure]:
    complete = [answer for answer in answers if answer.text is not None]
    during_ms: list[float] = []
    outside_ms: list[float] = []
    for answer in complete:
        waits_ms = during_ms if any(switch.overlaps(answer) for switch in switches) else outside_ms
        waits_ms.append(1000 * (answer.first_s - answer.asked_s))
    return [
        reading("adapters_lost", len(answers) - len(complete)),
        reading("adapters_wrong", len(wrong(answers, switches))),
        reading("adapters_answers", len(answers)),
        figure("adapters_switch_s", [switch.done_s - switch.asked_s for switch in switches], median),
        figure("adapters_first_word_quiet_ms", outside_ms),
        figure("adapters_first_word_switching_ms", during_ms),
    ]


async def load_while(
    client: BenchClient, worker: str, switch: Callable[[], Awaitable[list[Switch]]], tick: Callable[[], None]
) -> tuple[list[AdapterAnswer], list[Switch]]:
    """Keep `STREAMS` streams running while `switch` runs, and for `BETWEEN_S` seconds before and after it."""
    answers: list[AdapterAnswer] = []
    numbers = itertools.count()

    async def ask(_: int) -> None:
        question, asked_s = QUESTIONS[next(numbers) % len(QUESTIONS)], time.monotonic()
        try:
            result, _sent_s = await client.stream(chat(worker, question=question, max_tokens=TOKENS))
            first_s = asked_s + (result.first_token_ms or 0.0) / 1000
            answers.append(AdapterAnswer(asked_s, first_s, result.text))
        except REQUEST_ERRORS:
            answers.append(AdapterAnswer(asked_s, time.monotonic(), None))
        tick()

    async with keep_asking(ask, STREAMS):
        await asyncio.sleep(BETWEEN_S)
        switches = await switch()
        await asyncio.sleep(BETWEEN_S)
    return answers, switches


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """Measure once on a separate Serve. Takes about three minutes."""
    paths = await make_adapters(BUILD / "adapters")
    settings = fill_settings("adapters.yaml", ADAPTER=paths[WORDS[0]], REPLICAS=REPLICAS)
    async with start_isolated("adapters", [podium("podium", "/", settings)], dashboard=True) as (
        client,
        server,
    ):
        answers, switches = await load_while(client, WORKER, lambda: _switch(client, server, paths), tick)
    return figures(answers, switches)


async def make_adapters(folder: Path) -> dict[str, str]:
    """Make an adapter per word of `WORDS` in another process. It needs the model library. Return the paths by
    word.
    """
    command = ["-m", "training.constant_adapters", "--model", MODEL, "--to", str(folder), *WORDS]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    if process.returncode:
        raise RigError(f"The adapters could not be created: {errors.decode(errors='replace')[-500:]}")
    return dict(zip(WORDS, json.loads(output.decode().splitlines()[-1]), strict=True))


async def _switch(client: BenchClient, server: BenchServer, paths: dict[str, str]) -> list[Switch]:
    switches: list[Switch] = []
    before = WORDS[0]
    for turn in TURNS:
        after = WORDS[turn]
        asked_s = time.monotonic()
        await _deploy(client.session, server, paths[after])
        await _wait_until_in_use(client, Path(paths[after]).name)
        switches.append(Switch(before, after, asked_s, time.monotonic()))
        before = after
        await asyncio.sleep(BETWEEN_S)
    return switches


async def _deploy(session: aiohttp.ClientSession, server: BenchServer, adapter: str) -> None:
    """Deploy the config with a changed `user_config`, like `serve deploy`."""
    config: Json = yaml.safe_load((BUILD / "adapters.serve.yaml").read_text())
    user_config = {"workers": [{"name": WORKER, "adapter": adapter}]}
    config["applications"][0]["deployments"] = [{"name": "router", "user_config": user_config}]
    url = f"http://127.0.0.1:{server.dashboard_port}/api/serve/applications/"
    headers = {"Authorization": f"Bearer {TOKEN.read_text().strip()}"} if TOKEN.exists() else {}
    async with session.put(url, json=config, headers=headers) as response:
        if response.status != 200:
            raise RigError(
                f"The Serve config was rejected with status {response.status}: {(await response.read())[:300]!r}"
            )


async def _wait_until_in_use(client: BenchClient, name: str) -> None:
    for _ in range(int(SWITCHED_WITHIN_S / POLL_S)):
        if (await client.get(f"/v1/models/{WORKER}"))["podium"]["model"].endswith(f"+{name}"):
            return
        await asyncio.sleep(POLL_S)
    raise RigError(f"The server did not switch to the adapter {name} within {SWITCHED_WITHIN_S:.0f} s.")
