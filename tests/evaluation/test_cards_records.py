"""Cost and speed of workers from the records of runs."""

import asyncio
import json
import threading
from collections.abc import Generator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from evaluation import EvaluationError
from evaluation.cards.records import measure_records, read_records
from tests.serving.api.served import scripted, served, team


def step(worker: str = "a", **changes: Any) -> dict[str, Any]:
    return {
        "worker": worker,
        "served_by": worker,
        "status": "done",
        "usage": {"input_tokens": 9, "output_tokens": 101, "cached_input_tokens": 0, "reasoning_tokens": 0},
        "cost_usd": 0.002,
        "reasoning": None,
        "started_s": 0.1,
        "first_token_s": 1.0,
        "ended_s": 3.0,
        "inner": None,
    } | changes


def records(folder: Path, *steps: dict[str, Any]) -> str:
    path = folder / "workflows.json"
    path.write_text(json.dumps({"object": "list", "data": [{"id": "w", "steps": [each]} for each in steps]}))
    return str(path)


def test_speed_is_measured_from_the_first_token_to_the_last(tmp_path: Path):
    measurement = measure_records(read_records(records(tmp_path, *[step()] * 5)))["a"]
    assert measurement.tokens_per_s == pytest.approx(50)
    assert (measurement.calls, measurement.usd_per_call, measurement.overall) == (5, Decimal("0.002"), None)


def test_reasoning_tokens_count_for_speed_only_if_streamed(tmp_path: Path):
    thinking = {"input_tokens": 9, "output_tokens": 1101, "cached_input_tokens": 0, "reasoning_tokens": 1000}
    unseen = measure_records(read_records(records(tmp_path, *[step(usage=thinking)] * 5)))["a"]
    streamed = measure_records(read_records(records(tmp_path, *[step(usage=thinking, reasoning="Hm.")] * 5)))[
        "a"
    ]
    assert (unseen.tokens_per_s, streamed.tokens_per_s) == (pytest.approx(50), pytest.approx(550))


def test_no_speed_is_measured_from_too_few_calls_or_tokens(tmp_path: Path):
    short = {"output_tokens": 11}
    assert measure_records(read_records(records(tmp_path, *[step()] * 4)))["a"].tokens_per_s is None
    assert (
        measure_records(read_records(records(tmp_path, *[step(usage=short)] * 5)))["a"].tokens_per_s is None
    )


def test_an_unknown_cost_makes_the_mean_unknown_and_never_0(tmp_path: Path):
    measurements = measure_records(read_records(records(tmp_path, step(), step(cost_usd=None))))
    assert measurements["a"].usd_per_call is None


def test_the_worker_that_answered_is_measured_and_only_for_finished_steps(tmp_path: Path):
    inner = {"id": "inside", "steps": [step("c")]}
    steps = [step("a", served_by="b"), step("a", status="failed"), step("podium", inner=inner)]
    measurements = measure_records(read_records(records(tmp_path, *steps)))
    assert {worker: each.calls for worker, each in measurements.items()} == {"b": 1, "c": 1}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"id": "w", "steps": [step()]}),
        json.dumps([{"steps": [step()]}]),
        "\n".join([json.dumps({"steps": []}), json.dumps({"steps": [step()]})]),
    ],
    ids=["one workflow", "a list", "one a line"],
)
def test_a_file_may_contain_a_servers_response_or_its_workflows(tmp_path: Path, text: str):
    path = tmp_path / "saved.json"
    path.write_text(text)
    assert measure_records(read_records(str(path)))["a"].calls == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"answer": 1}', "GET /v1/workflows"),
        ("not JSON", "line 1: invalid JSON"),
        (None, "cannot be read"),
    ],
)
def test_an_invalid_record_file_is_rejected(tmp_path: Path, text: str | None, message: str):
    path = tmp_path / "saved.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(EvaluationError, match=message):
        read_records(str(path))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("cost_usd", value) for value in (-5, "NaN", float("inf"), "1E+999999999")),
        *(("ended_s", value) for value in (-1, float("nan"), float("inf"), 1e300)),
        *(("usage", {"output_tokens": value}) for value in (-1, 10**400)),
    ],
)
def test_an_invalid_figure_is_an_error_with_its_field(tmp_path: Path, field: str, value: Any):
    with pytest.raises(
        EvaluationError, match=rf"has no valid records: data\.0\.steps\.0\.{field}.*: Input should"
    ):
        read_records(records(tmp_path, step(**{field: value})))


@pytest.mark.parametrize("took_s", [5e-324, 2e-16, 0.0009])
def test_no_speed_is_measured_from_calls_below_a_millisecond(tmp_path: Path, took_s: float):
    steps = [step(first_token_s=0, ended_s=took_s)] * 5
    assert measure_records(read_records(records(tmp_path, *steps)))["a"].tokens_per_s is None
    measurements = measure_records(read_records(records(tmp_path, *steps, *[step()] * 5)))
    assert measurements["a"].tokens_per_s == pytest.approx(50)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"inner": ' * 200_000])
def test_a_deeply_nested_file_is_an_error_with_its_line(tmp_path: Path, text: str):
    path = tmp_path / "saved.json"
    path.write_text(text)
    with pytest.raises(EvaluationError, match="line 1: the JSON is nested too deeply"):
        read_records(str(path))


@pytest.fixture
def server() -> Generator[tuple[str, list[str]]]:
    """Serve an empty list of runs to one key, and 401 to others. Yield the address and the received authorizations."""
    authorizations: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            authorizations.append(self.headers["Authorization"])
            self.send_response(200 if authorizations[-1] == "Bearer sk-SECRET123" else 401)
            self.end_headers()
            self.wfile.write(b'{"data": []}')

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.05,)).start()
        yield f"127.0.0.1:{http.server_port}", authorizations
        http.shutdown()


def test_a_key_is_sent_without_its_trailing_newline(
    monkeypatch: pytest.MonkeyPatch, server: tuple[str, list[str]]
):
    monkeypatch.setenv("PODIUM_API_KEY", "sk-SECRET123\n")
    assert read_records(f"http://{server[0]}") == []
    assert server[1] == ["Bearer sk-SECRET123"]


def test_an_invalid_key_is_not_in_the_error_message(
    monkeypatch: pytest.MonkeyPatch, server: tuple[str, list[str]]
):
    monkeypatch.setenv("PODIUM_API_KEY", "sk-SECRET\n123")
    with pytest.raises(
        EvaluationError, match=r"Cannot read records from http://.*/v1/workflows \(LocalProtocolError\)"
    ):
        read_records(f"http://{server[0]}")


@pytest.mark.parametrize(
    "address", ["http://{}", "HTTP://{}/v1", "http://127.0.0.1:1", "http://x:hunter2:y@[::"]
)
def test_a_password_in_a_url_is_not_in_the_error_message(address: str, server: tuple[str, list[str]]):
    url = address.format(server[0]).replace("//1", "//bob:hunter2@1")
    assert "hunter2" in url
    with pytest.raises(
        EvaluationError, match=r"Cannot read records from (?i:http)://[^@]+/v1/workflows \(\w"
    ) as caught:
        read_records(url)
    assert "hunter2" not in caught.value.message


def test_an_unreachable_server_is_an_error():
    with pytest.raises(
        EvaluationError, match=r"Cannot read records from http://127.0.0.1:1/v1/workflows .*running"
    ):
        read_records("http://127.0.0.1:1")


async def test_a_running_servers_records_give_costs_and_speed():
    words = " ".join(["word"] * 60)
    paced = scripted(
        "a", words, tokens_per_s=200, price={"input_usd_per_mtok": 0, "output_usd_per_mtok": 100}
    )
    async with served(team(workers=[paced], workflows={})) as api:
        await asyncio.gather(*(api.ok({"model": "a"}) for _ in range(5)))
        measurements = measure_records(await asyncio.to_thread(read_records, api.url))
        newest = await api.newest()
    usage = newest["steps"][0]["usage"]["output_tokens"]
    assert list(measurements) == ["a"]
    assert (measurements["a"].calls, measurements["a"].usd_per_call) == (5, Decimal(usage) / 10_000)
    assert measurements["a"].tokens_per_s is not None
    assert 1 < measurements["a"].tokens_per_s < 220, (
        "no faster than it was told to write, however busy the machine"
    )
