"""Measure from the records of runs how soon a worker is called after the conductor has written its step.

The scripted conductor writes 50 tokens/s, where a token is a word with the blanks before it. The record gives
`started_s` minus `planned_s` of the first step; `planned_s` is when the step's last byte arrived by the
router's own clock. A stricter measure starts when that byte was due, counted from the start of the plan. It
also contains the call to the conductor, the lateness of its timer, and the parsing.
"""

import re
from collections.abc import Callable, Sequence

from loadtest.bench.figures import Figure, figure, p95
from loadtest.rig import Json
from loadtest.rig.client import BenchClient, chat

RUNS = 24
TOKENS_PER_S = 50
TOKEN = re.compile(r"\s*\S+|\s+$")


def due_s(plan: Json) -> float:
    """Return the seconds from the start of the plan until the last byte of its first step is due."""
    first_step = plan["output"].splitlines()[0]
    return plan["started_s"] + (len(TOKEN.findall(first_step)) - 1) / TOKENS_PER_S


def figures(records: Sequence[Json]) -> list[Figure]:
    """Compute the benchmark's figures from complete records, as `GET /v1/workflows/{id}` returns them."""
    firsts = [(record["plans"][0], record["steps"][0]) for record in records]
    after_step_ms = [1000 * (step["started_s"] - step["planned_s"]) for _, step in firsts]
    after_due_ms = [1000 * (step["started_s"] - due_s(plan)) for plan, step in firsts]
    return [
        figure("first_call_after_step_ms", after_step_ms, p95),
        figure("first_call_after_scheduled_byte_ms", after_due_ms, p95),
        figure(
            "first_call_saved_ms", [1000 * (plan["ended_s"] - step["started_s"]) for plan, step in firsts]
        ),
    ]


async def measure(client: BenchClient, tick: Callable[[], None]) -> list[Figure]:
    """Run the scripted conductor `RUNS` times, sequentially."""
    records: list[Json] = []
    for _ in range(RUNS):
        podium, _ = await client.answer(chat("podium-mini"))
        records.append(await client.record(podium["workflow_id"]))
        tick()
    return figures(records)
