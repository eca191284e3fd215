"""Distribution of arrivals, shapes, and an open loop against a server that is too slow."""

import asyncio
import itertools
import random
import statistics
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loadtest import open_loop
from loadtest.arrivals import SHAPES, arrivals
from loadtest.recording import NOT_STARTED, Recording
from loadtest.request_options import RequestOptions
from loadtest.scenarios import SCENARIOS, Scenario


def drawn(rate: float, duration_s: float, shape: str = "steady", seed: int = 1) -> list[float]:
    return list(arrivals(rate, duration_s, shape, random.Random(seed)))


def test_arrivals_are_a_poisson_process() -> None:
    times = drawn(50, 400)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    counts = [sum(second <= at_s < second + 1 for at_s in times[:5000]) for second in range(95)]
    assert len(times) == pytest.approx(50 * 400, rel=4 / (50 * 400) ** 0.5)  # 4 standard deviations
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1, abs=0.05), "exponential gaps"
    assert statistics.variance(counts) / statistics.mean(counts) == pytest.approx(1, abs=0.5), (
        "variance is the mean"
    )
    assert times == sorted(times)


def test_equal_seeds_give_equal_arrivals() -> None:
    assert drawn(5, 60) == drawn(5, 60) != drawn(5, 60, seed=2)


def test_a_shape_reduces_the_arrivals() -> None:
    spiked = drawn(100, 100, "spike")
    high, low = sum(40 <= at_s < 60 for at_s in spiked), sum(at_s < 40 for at_s in spiked)
    assert high == pytest.approx(2000, rel=0.1)
    assert low == pytest.approx(800, rel=0.15)
    ramped = drawn(100, 100, "ramp")
    assert sum(at_s < 50 for at_s in ramped) == pytest.approx(1250, rel=0.15)


def test_shapes_stay_within_the_requested_load() -> None:
    for shape in SHAPES.values():
        assert all(0 <= shape(part / 100) <= 1 for part in range(101))
        assert max(shape(part / 100) for part in range(101)) == 1
    assert {scenario.shape for scenario in SCENARIOS.values()} == set(SHAPES)


class Slow(BaseHTTPRequestHandler):
    """Handler that answers once `let` is set."""

    protocol_version = "HTTP/1.1"
    let = threading.Event()

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.let.wait(30)
        answer = b'{"choices": [{"message": {"content": "Yes."}}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@pytest.fixture
def slow_url() -> Iterator[str]:
    Slow.let.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    Slow.let.set()
    server.shutdown()
    server.server_close()


async def test_an_open_loop_does_not_wait_and_counts_requests_not_started(slow_url: str) -> None:
    scenario = Scenario("", {"chat": 1}, "open", duration_s=0.2, rate=200, at_most=5)
    recording = Recording()
    driving = asyncio.create_task(
        asyncio.to_thread(open_loop.run, scenario, slow_url, RequestOptions(), recording)
    )
    due = drawn(200, 0.2, seed=scenario.seed)
    while len(recording.samples) < len(due):  # all were due, although none was answered
        await asyncio.sleep(0.01)
    Slow.let.set()
    await driving
    outcomes = [each.outcome for each in recording.samples]
    assert [each.due_s for each in recording.samples] == due
    assert outcomes.count(NOT_STARTED) == len(due) - 5
    assert outcomes.count("ok") == 5
    first = recording.samples[0]
    assert first.phases_ms["end"] >= (due[-1] - first.due_s) * 1000, "timed from when it was due"


async def test_an_unreachable_server_is_counted_as_a_connection_error() -> None:
    recording = Recording()
    scenario = Scenario("", {"chat": 1}, "open", duration_s=0.1, rate=50)
    await asyncio.to_thread(open_loop.run, scenario, "http://127.0.0.1:9", RequestOptions(), recording)
    assert {each.outcome for each in recording.samples} == {"ClientConnectorError"}
