"""Metrics of runs. Metering must never break a run."""

import json
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from serving.deployments.ray_meter import Series
from serving.telemetry import metrics
from serving.telemetry.logs import JsonLines
from serving.telemetry.measurement import Measurement
from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK, PRICE, plan, scripted, served, step, team
from tests.states import until

GOOD = plan(step("a"), step("b"), step("c", access=[0, 1]))
SLOW = [scripted(name, price=PRICE, delay_s=0.1) for name in ("a", "b", "c")]
"""Workers whose steps take time."""


class RecordingMeter:
    def __init__(self) -> None:
        self.measurements: list[Measurement] = []

    def take(self, measurement: Measurement) -> None:
        self.measurements.append(measurement)

    def sums(self, instrument: metrics.Instrument) -> dict[tuple[str, ...], float]:
        sums = Counter[tuple[str, ...]]()
        for measurement in self.measurements:
            if measurement.instrument is instrument:
                sums[measurement.labels] += measurement.value
        return dict(sums)


def test_every_instrument_has_a_prometheus_name_and_labels_of_low_cardinality() -> None:
    assert len({each.prometheus_name for each in metrics.INSTRUMENTS}) == len(metrics.INSTRUMENTS) > 15
    for each in metrics.INSTRUMENTS:
        assert re.fullmatch(r"(gen_ai|podium)_[a-z_]+", each.prometheus_name)
        assert not set(each.labels) & {"podium.workflow_id", "podium.step", "podium.plan"}
        assert (each.kind == "histogram") == bool(each.buckets)
        assert list(each.buckets) == sorted(each.buckets)
    assert metrics.WORKFLOW_DURATION.prometheus_name == "gen_ai_workflow_duration_seconds"


async def test_a_run_is_measured_from_its_record() -> None:
    meter = RecordingMeter()
    async with served(team(GOOD, workers=SLOW), meter=meter) as api:
        answer = await api.ok(max_cost_usd=1)
        await until(lambda: meter.measurements, "the run is measured")
    assert list(meter.sums(metrics.WORKFLOW_DURATION)) == [("mini", "finished", "")]
    assert meter.sums(metrics.PLANS) == {("conductor", "run", ""): 1}
    assert meter.sums(metrics.PLAN_STEPS) == {("mini",): 3}
    assert meter.sums(metrics.PLAN_DEPTH) == {("mini",): 2}
    assert meter.sums(metrics.STEPS) == {("a", "done"): 1, ("b", "done"): 1, ("c", "done"): 1}
    assert meter.sums(metrics.COST) == {("mini",): pytest.approx(answer["podium"]["cost_usd"])}
    assert meter.sums(metrics.TEAM_COST) == {("none",): pytest.approx(answer["podium"]["cost_usd"])}
    assert meter.sums(metrics.BUDGET_USED) == {("mini",): pytest.approx(answer["podium"]["cost_usd"])}
    tokens = meter.sums(metrics.WORKER_TOKENS)
    assert tokens["chat", "c", "output"] == answer["usage"]["completion_tokens"]
    assert ("plan", "podium.scripted", "conductor", "") in meter.sums(metrics.CALL_DURATION)
    (began_s,) = meter.sums(metrics.FIRST_ANSWER).values()
    assert 0 < began_s <= meter.sums(metrics.WORKFLOW_DURATION)["mini", "finished", ""]
    assert meter.sums(metrics.OVER_CRITICAL_PATH)["mini",] >= 1
    assert {
        m.instrument.name for m in meter.measurements if len(m.labels) != len(m.instrument.labels)
    } == set()


async def test_costs_are_counted_per_team(tmp_path: Path) -> None:
    meter = RecordingMeter()
    async with keyed(tmp_path, meter=meter) as it:
        for who in ("mine", "only run", "other team", "alone"):
            assert (await it.ask(who, "POST", "/v1/chat/completions", ASK)).status_code == 200
        await until(lambda: len(meter.sums(metrics.TEAM_COST)) == 3, "every run is measured")
        spent = meter.sums(metrics.TEAM_COST)
    assert set(spent) == {(it.ids["search"],), (it.ids["sales"],), ("none",)}
    assert spent[it.ids["search"],] == pytest.approx(2 * spent["none",])


def test_the_number_of_series_per_instrument_is_limited() -> None:
    series = Series()
    tags = [series.tags(metrics.STEPS, (f"worker{n % 3000}", "done")) for n in range(6000)]
    assert len({tuple(each.items()) for each in tags}) == metrics.MOST_SERIES + 1
    assert tags[0] == tags[3000] == {"podium_worker": "worker0", "podium_status": "done"}
    assert tags[-1] == {"podium_worker": "other", "podium_status": "other"}
    assert series.tags(metrics.COST, ("mini",)) == {"gen_ai_workflow_name": "mini"}, "each by itself"


async def test_a_streamed_answer_has_a_first_chunk_time_however_late() -> None:
    late = scripted("a", "late", delay_s=0.3)
    meter = RecordingMeter()
    async with served(team(workers=[late], workflows={}, limits={"first_byte_s": 0.05}), meter=meter) as api:
        await api.events({"model": "a"})
        await until(lambda: meter.measurements, "the run is measured")
    (began_s,) = meter.sums(metrics.FIRST_ANSWER).values()
    assert began_s >= 0.3


async def test_rejected_plans_failed_attempts_retries_and_failovers_have_own_counts() -> None:
    quick = {"attempts": 2, "first_wait_s": 0.001}
    workers = [
        scripted("a", {"error": "busy"}, "fine", "fine", "fine", retry=quick, price=PRICE),
        scripted("b", {"error": "refused"}, fallbacks=["a"], retry=quick),
        scripted("c", {"error": "unavailable"}, retry=quick),
    ]
    meter = RecordingMeter()
    async with served(team("no plan", GOOD, workers=workers), meter=meter) as api:
        assert (await api.post()).status_code == 400
        await until(lambda: meter.measurements, "the run is measured")
    assert meter.sums(metrics.PLANS) == {("conductor", "rejected", "no_plan"): 1, ("repair", "run", ""): 1}
    errors = meter.sums(metrics.WORKER_ERRORS)
    assert errors["b", "WorkerRefused", "failed_over"] == 1
    assert errors["a", "WorkerBusy", "retried"] >= 1
    assert errors["c", "WorkerUnavailable", "retried"] == errors["c", "WorkerUnavailable", "gave_up"] == 1
    assert meter.sums(metrics.WORKFLOW_DURATION).keys() == {("mini", "failed", "WorkerUnavailable")}


async def test_a_rejected_question_is_not_counted_as_a_failure() -> None:
    factory, meter = "serving.workers.programs.calculator:Calculator", RecordingMeter()
    program = {"name": "calculator", "kind": "python", "factory": factory, "card": "sums"}
    for fallbacks, status in (["a"], 200), ([], 400):
        workers = [program | {"fallbacks": fallbacks}, scripted("a")]
        async with served(team(workers=workers, workflows={}), meter=meter) as api:
            assert (await api.post({"model": "calculator"})).status_code == status
    await until(lambda: len(meter.measurements) >= 2, "both runs are measured")
    assert meter.sums(metrics.WORKER_ERRORS) == {}


async def test_a_plan_only_request_does_not_count_as_an_answer() -> None:
    meter = RecordingMeter()
    async with served(team(GOOD), meter=meter) as api:
        await api.ok(path="/v1/plans")
        await until(lambda: meter.measurements, "the run is measured")
    assert meter.sums(metrics.WORKFLOW_DURATION).keys() == {("mini", "planned", "")}
    assert meter.sums(metrics.FIRST_ANSWER) == {}


async def test_running_and_queued_calls_are_measured() -> None:
    stalling = scripted("a", {"text": "x y", "stall_after_tokens": 1}, max_concurrency=1)
    async with served(team(workers=[stalling], workflows={})) as api:

        def level(instrument: metrics.Instrument) -> float:
            return sum(m.value for m in api.service.levels() if m.instrument is instrument)

        body = ASK | {"model": "a", "stream": True}
        async with (
            api.http.stream("POST", "/v1/chat/completions", json=body),
            api.http.stream("POST", "/v1/chat/completions", json=body),
        ):
            await until(
                lambda: (level(metrics.OPEN), level(metrics.QUEUED)) == (1, 1),
                "one waits for the other",
            )
            assert level(metrics.RUNNING) == 2
        await until(lambda: (level(metrics.OPEN), level(metrics.QUEUED)) == (0, 0), "both are gone")


async def test_a_broken_meter_is_logged_and_breaks_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def take(self, measurement: Measurement) -> None:
            raise RuntimeError("no agent")

    async with served(team(GOOD), meter=Broken()) as api:
        await api.ok()
        await until(lambda: "Cannot record the metrics of a run" in caplog.text, "it is told")


async def test_a_run_is_one_json_line_with_its_trace_and_without_texts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "podium")
    async with served(team("no plan", GOOD, workers=SLOW)) as api:
        answer = await api.ok()
        await until(lambda: "workflow finished" in caplog.text, "it is logged")
    text = JsonLines().format(next(r for r in caplog.records if r.getMessage() == "workflow finished"))
    line: dict[str, Any] = json.loads(text)
    assert "\n" not in text
    assert "sky" not in text, "what was asked"
    assert line["id"] == answer["podium"]["workflow_id"]
    assert (line["level"], line["plans"], line["steps"], line["rejected"]) == ("INFO", 2, 3, ["no_plan"])
    assert line["workers"] == ["a", "b", "c", "conductor"]
    assert line["wall_s"] >= line["critical_path_s"] > 0
    assert re.fullmatch(r"[0-9a-f]{32}", line["trace_id"])


def test_an_exception_is_logged_on_one_line() -> None:
    try:
        raise ValueError("one\ntwo")
    except ValueError as exc:
        record = logging.makeLogRecord(
            {"msg": "internal error", "levelname": "ERROR", "exc_info": (ValueError, exc, None)}
        )
    text = JsonLines().format(record)
    assert "\n" not in text
    assert json.loads(text)["exception"] == "ValueError: one\ntwo"
