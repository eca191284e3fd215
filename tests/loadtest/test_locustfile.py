"""Locust's table of a run against a small server."""

import csv
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 4


class FakePodium(BaseHTTPRequestHandler):
    """Handler that answers chats, cuts every third stream, and has a worker that is always busy."""

    protocol_version = "HTTP/1.1"
    streams = 0

    def log_message(self, *_: object) -> None:
        pass

    def send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        planner = {"id": "planner", "podium": {"kind": "worker", "in_pool": False}}
        busy = {"id": "busy-worker", "podium": {"kind": "worker", "in_pool": True}}
        self.send(200, {"data": [{"id": "podium-mini", "podium": {"kind": "conductor"}}, planner, busy]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body["model"] == "busy-worker":
            self.send(
                503, {"error": {"message": "Come back.", "type": "upstream_error", "code": "worker_busy"}}
            )
        elif not body.get("stream"):
            self.send(200, {"choices": [{"message": {"content": "Paris."}}]})
        else:
            self.stream()

    def stream(self) -> None:
        type(self).streams += 1
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for text in ("Par", "is."):
            self.event(json.dumps({"choices": [{"delta": {"content": text}}]}))
        if self.streams % 3:
            self.event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = True

    def event(self, payload: str) -> None:
        data = f"data: {payload}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


@pytest.fixture(scope="module")
def tables(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[dict[str, dict[str, str]], list[dict[str, str]]]]:
    """Return Locust's rows by name, and its failures."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakePodium)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = tmp_path_factory.mktemp("locust") / "load"
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        "loadtest/locustfile.py",
        "--headless",
        "--csv",
        str(base),
    ]
    command += [
        "--host",
        f"http://127.0.0.1:{server.server_port}",
        "--run-time",
        f"{SECONDS}s",
        "--users",
        "16",
    ]
    process = subprocess.run(
        [*command, "--spawn-rate", "16"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    server.shutdown()
    server.server_close()
    assert process.returncode == 1, process.stderr  # some requests are meant to fail
    with Path(f"{base}_stats.csv").open() as stats, Path(f"{base}_failures.csv").open() as failures:
        yield {row["Name"]: row for row in csv.DictReader(stats)}, list(csv.DictReader(failures))


def test_streams_have_their_own_times(
    tables: tuple[dict[str, dict[str, str]], list[dict[str, str]]],
) -> None:
    rows, _ = tables
    whole, first, between = (
        int(rows[name]["Request Count"]) for name in ("whole answer", "first token", "between tokens")
    )
    assert whole == first == between > 0
    assert rows["first token"]["Type"] == "STREAM"
    assert int(rows["stream"]["Request Count"]) > whole, "cut streams have no whole answer"


def test_failures_are_grouped_by_kind(tables: tuple[dict[str, dict[str, str]], list[dict[str, str]]]) -> None:
    _, failures = tables
    kinds = {(row["Name"], row["Error"]) for row in failures}
    busy = ("pass-through", "RequestFailed('http_503 worker_busy')")
    assert {busy, ("stream", "RequestFailed('cut')")} <= kinds
    assert kinds - {busy} <= {(name, "RequestFailed('cut')") for name in ("stream", "ultra", "cancel")}


def test_a_user_who_cancels_is_not_a_failure(
    tables: tuple[dict[str, dict[str, str]], list[dict[str, str]]],
) -> None:
    rows, _ = tables
    assert int(rows["cancel"]["Request Count"]) > int(rows["cancel"]["Failure Count"])


def test_a_shape_is_chosen_by_one_option() -> None:
    code = "import sys; sys.argv = ['locust', '--shape', 'spike', '-u', '10', '--run-time', '60']\n"
    code += "from locust import argument_parser as a; from locust.env import Environment\n"
    code += "import loadtest.locustfile as f\n"
    code += (
        "e = Environment(parsed_options=a.parse_options()); e.create_local_runner(); f.begin(environment=e)\n"
    )
    code += "shape = e.shape_class; ticks = []\n"
    code += "for at_s in (0, 30, 50, 61): shape.get_run_time = lambda: at_s; ticks.append(shape.tick())\n"
    code += "print(type(shape).__name__, [tick and tick[0] for tick in ticks])"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert process.stdout.splitlines()[-1:] == ["Spike [2, 10, 2, None]"], process.stderr


def test_answered_chats_are_not_failures(
    tables: tuple[dict[str, dict[str, str]], list[dict[str, str]]],
) -> None:
    rows, _ = tables
    assert int(rows["chat"]["Request Count"]) > 0
    assert rows["chat"]["Failure Count"] == "0"


def test_a_load_test_has_default_limits() -> None:
    code = "import sys; sys.argv = ['locust', '-f', 'loadtest/locustfile.py', '--headless']\n"
    code += "from locust import argument_parser as a; import loadtest.locustfile\n"
    code += "o = a.parse_options(); print(o.run_time, o.num_users, o.podium_model, o.answer_tokens)"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert process.stdout.splitlines()[-1:] == ["60 8 podium-mini 64"], process.stderr
