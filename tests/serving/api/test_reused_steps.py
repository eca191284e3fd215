"""Continued runs that reuse the result of a step. Every reader of the record counts that call once."""

from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from conductor.model.usage import Price, Usage
from conductor.run.codec import dump, load
from conductor.run.events import Event
from conductor.run.lifecycle import open_run, resume_run
from conductor.run.record import RunRecords
from evaluation.backends.over_http import outcome_of_workflow
from serving.api import event_json, record_json
from serving.api.event_json import in_words
from serving.telemetry import metrics
from serving.telemetry.measurement import of_run
from tests.conductor.team import NEVER, Player, ask_for, line, team
from tests.states import until

PRICE = Price(Decimal(1000), Decimal(2000))
DONE, ANSWER = Usage(1000, 10), Usage(5, 5)
COST_USD = 1.0 + 0.02 + 0.005 + 0.01


async def continued() -> tuple[RunRecords, list[Event]]:
    """Run until the first step is done, then continue in a second process whose plan repeats it."""
    first = Player("a", ["done once", DONE], price=PRICE)
    async with open_run(team(first, conductor=Player("boss", [line(0), NEVER])), ask_for()) as run:
        await until(lambda: any(step.status == "done" for step in run.record.steps))
        content = dump(run.records)
    again = Player("a", ["answer", ANSWER], price=PRICE)
    boss = Player("boss", line(0) + line(0, "sum", [0]))
    async with resume_run(team(again, conductor=boss), load(RunRecords, content)) as run:
        events = [event async for event in run.events()]
    return run.records, events


async def test_a_record_states_which_steps_reuse_an_earlier_result() -> None:
    records, _ = await continued()
    workflow = record_json.workflow(records.record)
    assert [step["reused_from"] for step in workflow["steps"]] == [None, 0, None]
    own = [step["cost_usd"] for step in workflow["steps"] if step["reused_from"] is None]
    assert workflow["cost_usd"] == pytest.approx(COST_USD) == sum(own)
    assert [step["reused_from"] for step in record_json.summary(records.record, trace=False)["steps"]] == [
        None,
        0,
        None,
    ]


async def test_a_reused_call_is_measured_once() -> None:
    records, _ = await continued()
    sums, counts = Counter[str](), Counter[str]()
    for measurement in of_run(records, {}):
        key = "/".join((measurement.instrument.name, *measurement.labels))
        sums[key] += measurement.value  # type: ignore[assignment]
        counts[key] += 1
    assert sums[f"{metrics.WORKER_TOKENS.name}/chat/a/input"] == DONE.input_tokens + ANSWER.input_tokens
    assert counts[f"{metrics.CALL_DURATION.name}/chat/podium/a/"] == 2
    assert sums[f"{metrics.STEPS.name}/a/done"] == 2


async def test_progress_shows_a_step_that_is_reused() -> None:
    _, events = await continued()
    progress = [event_json.progress(event) for event in events]
    reused = [each for each in progress if each and each["type"] == "step_reused"]
    assert [(each["plan"], each["step"], each["reused_from"]) for each in reused] == [(1, 0, 0)]
    assert "Step 1 is done.\n" in map(in_words, events)


async def test_an_evaluation_over_http_counts_it_once() -> None:
    records, _ = await continued()
    workflow: dict[str, Any] = record_json.workflow(records.record)
    outcome = outcome_of_workflow(workflow)
    assert outcome.calls == sum(each.usage is not None for each in records.record.calls)
