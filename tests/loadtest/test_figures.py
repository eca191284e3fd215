"""Figures from hand-made samples: percentiles, phases, goodput and records."""

import itertools
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loadtest import percentile
from loadtest.objective import is_good, parse_duration, parse_objective
from loadtest.recording import LEFT, NOT_STARTED, OK, UNFINISHED, Recording, Sample
from loadtest.records import CONCURRENT, fill
from loadtest.server_state import numbers
from loadtest.sse import SseReader
from loadtest.summary import spread, summary
from tests.loadtest.test_sse import data, delta

LIMITS_MS = {"first_token": 2000.0, "end": 30_000.0}


def sample(kind: str = "stream", outcome: str = OK, **phases_ms: float) -> Sample:
    return Sample(kind, 0.0, 0.0, outcome, phases_ms)


def test_a_percentile_is_the_nearest_rank() -> None:
    hundred = [float(number) for number in range(1, 101)]
    assert [percentile(hundred, percent) for percent in (50, 90, 95, 99)] == [50, 90, 95, 99]
    assert percentile([7.0], 50) == percentile([7.0], 99) == 7.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0


def test_a_distribution_ignores_unknown_values() -> None:
    assert spread([None, 2.0, 4.0]) == {"n": 2, "mean": 3.0, "p50": 2, "p90": 4, "p95": 4, "p99": 4, "max": 4}
    assert spread([None]) is None


def test_phases_are_summarised_per_kind_of_answered_request() -> None:
    samples = [
        sample("ultra", plan=200, steps=500, first_token=900, end=1000),
        sample("stream", first_token=100, end=300),
        sample("stream", "cut", first_token=1, end=1),
    ]
    phases = summary(samples, 10, LIMITS_MS, interrupted=False)["phases_ms"]
    assert list(phases) == ["all", "stream", "ultra"]
    assert (phases["all"]["end"]["n"], phases["all"]["end"]["p50"], phases["all"]["end"]["max"]) == (
        2,
        300,
        1000,
    )
    assert phases["stream"]["plan"] is None
    assert phases["ultra"]["steps"]["p50"] == 500


def test_goodput_judges_every_request_except_cancelled_ones() -> None:
    samples = [
        sample(first_token=1900, end=29_000),
        sample(first_token=2100, end=3000),
        sample("chat", end=5000),
        sample(outcome="http_503 worker_busy"),
        sample(outcome=NOT_STARTED),
        sample(outcome=LEFT),
        sample(outcome=UNFINISHED),
    ]
    figures = summary(samples, 10, LIMITS_MS, interrupted=False)
    assert figures["goodput"] | {"objective_ms": None} == {
        "objective_ms": None,
        "judged": 6,
        "good": 2,
        "good_in_ran_s": 1,
        "part": 0.3333,
        "per_s": 0.1,
    }
    assert summary(samples, 10, LIMITS_MS, interrupted=True)["goodput"]["judged"] == 5
    assert figures["errors"] == {"http_503 worker_busy": 1}
    counted = figures["requests"]
    assert [counted[name] for name in ("due", "answered", "failed", "left", "not_started", "unfinished")] == [
        7,
        3,
        1,
        1,
        1,
        1,
    ]


def test_rates_count_only_requests_that_ended_within_the_load() -> None:
    """Twelve answers per second for six seconds, and as many from the queue afterwards: the rate is twelve."""
    in_time = [Sample("chat", second, second, OK, {"end": 900.0}) for second in range(6) for _ in range(12)]
    late = [Sample("chat", 5.5, 5.5, OK, {"end": 600.0}) for _ in range(72)]
    figures = summary(in_time + late, 6.0, LIMITS_MS, interrupted=False)
    counted = figures["requests"]
    assert (counted["answered"], counted["answered_in_ran_s"], counted["answered_per_s"]) == (144, 72, 12.0)
    good = figures["goodput"]
    assert (good["good"], good["good_in_ran_s"], good["part"], good["per_s"]) == (144, 72, 1.0, 12.0)


def test_an_unknown_cost_is_counted_separately_and_is_not_zero() -> None:
    priced, unknown = sample(end=1), sample(end=1)
    priced.cost_usd, priced.wall_s, priced.critical_path_s = 0.25, 2.0, 1.5
    priced.phases_ms["end"] = 2250
    figures = summary([priced, unknown], 1, LIMITS_MS, interrupted=False)
    per_request = figures["per_request"]
    assert (figures["outside_run_ms"]["n"], figures["outside_run_ms"]["max"]) == (1, 250)
    assert (per_request["cost_usd_sum"], per_request["cost_unknown"]) == (0.25, 1)
    assert per_request["critical_path_over_wall"]["p50"] == 0.75
    assert summary([unknown], 1, LIMITS_MS, interrupted=False)["per_request"]["cost_usd_sum"] is None


def test_an_objective_names_phases_and_durations() -> None:
    assert parse_objective("first_token=500ms, end=1m") == {"first_token": 500, "end": 60_000}
    assert [parse_duration(text) for text in ("500ms", "60s", "10m", "1h", "2.5")] == [
        0.5,
        60,
        600,
        3600,
        2.5,
    ]
    with pytest.raises(ValueError, match=r"unknown phase 'middle'\. Choose from plan, steps"):
        parse_objective("middle=2s")
    for wrong in ("soon", "0s", "-1s", "", "2 weeks"):
        with pytest.raises(ValueError, match=r"is not a duration\. Use a value such as 500ms"):
            parse_duration(wrong)
    assert not is_good(sample(outcome="cut", end=1.0), parse_objective("end=1s"))


def test_phases_calls_tokens_and_costs_are_read_from_a_stream() -> None:
    reader = SseReader(0.0)
    for line in [
        data(choices=[], podium={"type": "plan_began", "worker": "conductor", "at_s": 0.0}),
        data(choices=[], podium={"type": "step_began", "step": 0, "at_s": 0.1}),
        data(choices=[], podium={"type": "plan_ended", "at_s": 0.2}),
        data(choices=[], podium={"type": "step_began", "step": 1, "at_s": 0.5}),
        delta("Yes."),
        data(
            choices=[], podium={"workflow_id": "wf_1", "cost_usd": 0.5, "wall_s": 2.0, "critical_path_s": 1.0}
        ),
        data(choices=[], usage={"total_tokens": 9}),
        b"data: [DONE]\n",
    ]:
        reader.take(line)
    stream_sample = Sample("ultra", 0.0, 0.0)
    stream_sample.take_stream(reader.end())
    assert (stream_sample.phases_ms["plan"], stream_sample.phases_ms["steps"]) == (200, 500)
    assert list(stream_sample.phases_ms) == ["plan", "steps", "first_token", "end"]
    assert (stream_sample.calls, stream_sample.tokens, stream_sample.cost_usd, stream_sample.workflow_id) == (
        3,
        9,
        0.5,
        "wf_1",
    )
    assert (stream_sample.wall_s, stream_sample.critical_path_s, stream_sample.fallback) == (2.0, 1.0, False)


def test_an_answers_figures_come_from_its_record_and_missing_ones_are_counted() -> None:
    whole, missing = Sample("chat", 0.0, 0.0), Sample("chat", 0.0, 0.0)
    for each, name in ((whole, "wf_1"), (missing, "wf_2")):
        each.take_answer(
            {"choices": [1], "usage": {"total_tokens": 5}, "podium": {"workflow_id": name}}, 1000
        )
    record = {
        "status": "finished",
        "plans": [{"worker": "conductor", "ended_s": 0.25}],
        "steps": [{"started_s": 0.1}, {"started_s": 0.5}, {"started_s": None}],
    }

    def read(url: str) -> object:
        if url.endswith("wf_2"):
            raise OSError
        return record

    assert fill([whole, missing], "http://podium", read) == (2, 1)
    assert (whole.phases_ms, whole.calls) == ({"end": 1000, "plan": 250, "steps": 500}, 3)
    assert missing.calls is None


def whole_answers(count: int) -> list[Sample]:
    answers = [Sample("chat", 0.0, 0.0) for _ in range(count)]
    for number, each in enumerate(answers):
        each.take_answer({"choices": [1], "podium": {"workflow_id": f"wf_{number}"}}, 1000)
    return answers


def test_records_of_an_unresponsive_server_are_fetched_concurrently() -> None:
    ever = threading.Event()
    urls: list[str] = []

    def read(url: str) -> object:
        urls.append(url)
        ever.wait()
        raise OSError

    try:
        assert fill(whole_answers(200), "http://podium", read, within_s=0.2) == (200, 0)
        assert len(urls) == CONCURRENT
    finally:
        ever.set()


def test_ctrl_c_skips_the_remaining_records() -> None:
    ever, calls = threading.Event(), itertools.count()

    def read(_: str) -> object:
        if next(calls) == 0:
            # A signal to this thread would not wake the main thread.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        ever.wait(30)
        raise OSError

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert fill(whole_answers(20), "http://podium", read) == (20, 0)
    finally:
        ever.set()
        signal.signal(signal.SIGINT, before)


class CutAnswer(BaseHTTPRequestHandler):
    """Handler that answers with the status in its path, and closes the connection in the middle."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("content-length", "99")
        self.end_headers()
        self.wfile.write(b'{"status": ')


@pytest.mark.parametrize("status", [200, 503])
def test_an_incomplete_record_counts_as_missing(status: int) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), CutAnswer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            assert fill(whole_answers(2), f"http://127.0.0.1:{server.server_port}/{status}") == (2, 0)
        finally:
            server.shutdown()


def test_a_request_is_recorded_however_it_ends() -> None:
    recording = Recording()
    with pytest.raises(KeyboardInterrupt), recording.request("chat"):
        raise KeyboardInterrupt
    assert [each.outcome for each in recording.samples] == [UNFINISHED]
    assert recording.in_flight == 0


def test_replica_counts_are_read_from_the_servers_status() -> None:
    assert numbers({"running": 3}) == {"active runs": 3}
    assert numbers({"replicas": {"router": 2, "conductor": {"running": 1, "target": 4}, "odd": "many"}}) == {
        "replicas of router": 2,
        "replicas of conductor": 1,
    }
    assert numbers(["not", "an", "object"]) == {}


def test_an_answer_without_choices_is_a_failure() -> None:
    for answer in (None, [], {"choices": []}, "<html>"):
        bad_sample = Sample("chat", 0.0, 0.0)
        bad_sample.take_answer(answer, 5)
        assert bad_sample.is_failure
        assert bad_sample.outcome == "no_choice"
