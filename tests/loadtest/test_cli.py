"""`podium load` and its report, against the scripted Podium."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from loadtest import report
from loadtest.cli import main
from loadtest.recording import Recording
from loadtest.scenarios import SCENARIOS
from loadtest.summary import summary

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "loadtest.cli", *arguments]


ALL_OF_A_LOOP = """
import sys
from loadtest.cli import main

url, folder, *names = sys.argv[1:]
for name in names:
    size = ["--rate", "8"] if name.startswith("open-") else ["--users", "3"]
    code = main([name, "--duration", "1s", *size, "--url", url, "--out", f"{folder}/{name}"])
    assert code == 0, (name, code)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("loop", "prefix"), [("closed", ""), ("open", "open-")])
def test_each_scenario_writes_its_report(loop: str, prefix: str, scripted_url: str, tmp_path: Path) -> None:
    """One second each, in one process, because imports take most of the time."""
    names = [name for name, scenario in SCENARIOS.items() if scenario.loop == loop]
    arguments = [sys.executable, "-c", ALL_OF_A_LOOP, scripted_url, str(tmp_path), *names]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    reports = {name: json.loads((tmp_path / name / "report.json").read_text()) for name in names}
    for name in names:
        is_whole(tmp_path / name, name, reports[name]["figures"]["requests"])
    check_phases_and_costs(reports[f"{prefix}ultra"]["figures"])
    has_plan_and_calls_from_records(reports[f"{prefix}chat"])


def is_whole(folder: Path, name: str, requests: dict[str, int]) -> None:
    kinds = {json.loads(line)["kind"] for line in (folder / "requests.jsonl").read_text().splitlines()}
    assert kinds, name
    assert kinds <= set(SCENARIOS[name].mix)
    assert requests["failed"] == requests["unfinished"] == 0, name
    assert requests["answered"] + requests["left"] == requests["due"], name
    page = (folder / "report.html").read_text()
    assert "<svg" in page
    assert "Definitions" in page
    assert not re.search("src=|<link|@import", page), "it needs nothing beside itself"


def check_phases_and_costs(figures: dict[str, Any]) -> None:
    phases = figures["phases_ms"]["all"]
    assert (
        phases["plan"]["p50"] < phases["steps"]["p50"] < phases["first_token"]["p50"] < phases["end"]["p50"]
    )
    took = figures["per_request"]
    assert took["calls"]["p50"] == 5, "a plan and four steps"
    assert took["tokens"]["p50"] > 0
    assert took["cost_usd_sum"] > 0
    assert 0.5 < took["critical_path_over_wall"]["p50"] <= 1


def has_plan_and_calls_from_records(content: dict[str, Any]) -> None:
    """Complete answers contain neither the plan nor the calls."""
    answered = content["figures"]["requests"]["answered"]
    assert content["records"] == {"looked_for": answered, "found": answered}
    assert content["figures"]["per_request"]["calls"]["p50"] == 5
    assert content["figures"]["phases_ms"]["all"]["plan"]["n"] == answered


@pytest.mark.parametrize("name", ["chat", pytest.param("open-stream", marks=pytest.mark.slow)])
def test_ctrl_c_still_writes_the_report(scripted_url: str, tmp_path: Path, name: str) -> None:
    arguments = command(name, "--url", scripted_url, "--duration", "10m", "--out", str(tmp_path))
    running = subprocess.Popen(
        arguments,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"COLUMNS": "200"},
    )
    try:
        until = time.monotonic() + 30
        n_running = json.loads(_get(f"{scripted_url}/readyz"))["running"]
        while not n_running and time.monotonic() < until:
            time.sleep(0.05)
            n_running = json.loads(_get(f"{scripted_url}/readyz"))["running"]
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=30)
    finally:
        running.kill()
    assert running.returncode == 130, stderr
    assert b"Traceback" not in stderr
    assert b"KeyboardInterrupt" not in stderr, "gevent prints what the run has understood already"
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["interrupted"]
    assert content["figures"]["requests"]["due"] > 0
    assert "Stopped with Ctrl-C" in (tmp_path / "report.html").read_text()


def _get(url: str) -> bytes:
    from loadtest.server_state import DIRECT

    with DIRECT.open(url, timeout=10) as response:
        return response.read()


def test_a_run_without_a_request_has_a_report(tmp_path: Path) -> None:
    content = {
        "title": "Nothing",
        "date": "",
        "command": "",
        "machine": "",
        "url": "",
        "served": [],
        "interrupted": False,
        "scenario": {
            "about": "",
            "loop": "open",
            "rate": 1.0,
            "seed": 0,
            "shape": "steady",
            "duration_s": 1.0,
        },
        "records": {"looked_for": 0, "found": 0},
        "figures": summary([], 0.0, {"end": 1.0}, interrupted=False),
    }
    page = report.write(tmp_path, content, Recording().samples, {})
    assert "No request was due" in page.read_text()
    assert json.loads((tmp_path / "report.json").read_text())["figures"]["requests"]["due"] == 0


def test_replicas_over_time_are_plotted_if_known() -> None:
    from loadtest.plots import report_plots

    assert list(report_plots([], {"replicas of router": [(0.0, 1), (5.0, 2)]}, 5.0)) == [
        "Replicas over the run"
    ]
    assert report_plots([], {}, 5.0) == {}


def test_an_unreachable_server_is_reported_with_the_remedy(tmp_path: Path) -> None:
    done = subprocess.run(
        command("open-chat", "--url", "http://127.0.0.1:9", "--out", str(tmp_path)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "No Podium server responds at http://127.0.0.1:9" in done.stdout
    assert "podium serve" in done.stdout
    assert not list(tmp_path.iterdir())


class Podium(BaseHTTPRequestHandler):
    """Handler that answers immediately and counts: the parts of Podium that a run needs."""

    n_requests = 0
    fills_the_disk: Callable[[], object] = staticmethod(lambda: None)

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.tell({"data": [{"id": "podium-mini"}], "running": 0})

    def do_POST(self) -> None:
        type(self).n_requests += 1
        self.fills_the_disk()
        self.rfile.read(int(self.headers["content-length"]))
        self.tell({"choices": [{"message": {"content": "Yes."}}]})

    def tell(self, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def podium_url() -> Iterator[str]:
    Podium.n_requests, Podium.fills_the_disk = 0, staticmethod(lambda: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Podium)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def a_second(url: str, out: Path, temporary: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("open-chat", "--url", url, "--duration", "1s", "--rate", "5", "--out", str(out)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"TMPDIR": str(temporary)},
    )


@pytest.mark.parametrize("out", ["a file", pytest.param("/proc/nope", marks=pytest.mark.slow)])
def test_an_unwritable_folder_is_reported_before_the_load_starts(
    podium_url: str, tmp_path: Path, out: str
) -> None:
    (tmp_path / "a file").touch()
    done = a_second(podium_url, tmp_path / out, tmp_path)
    assert done.returncode == 2, done.stdout
    assert "cannot write to" in done.stdout
    assert "Traceback" not in done.stderr
    assert Podium.n_requests == 0


@pytest.mark.slow
def test_results_are_saved_elsewhere_if_the_folder_disappears(podium_url: str, tmp_path: Path) -> None:
    out, temporary = tmp_path / "report", tmp_path / "temporary"
    temporary.mkdir()

    def goes_away() -> None:
        if out.is_dir():
            out.rmdir()
            out.touch()

    Podium.fills_the_disk = staticmethod(goes_away)
    done = a_second(podium_url, out, temporary)
    assert done.returncode == 1, done.stdout
    assert f"Cannot write the report to {out}" in done.stdout
    (folder,) = temporary.glob("podium-load-*")
    assert f"Report written to {folder}/report.html" in done.stdout
    assert len((folder / "requests.jsonl").read_text().splitlines()) == Podium.n_requests > 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["mixed", "--rate", "4"], "--rate applies only to the open loop, but mixed uses the closed loop"),
        (["open-mixed", "--users", "4"], "--users applies only to the closed loop"),
        (["mixed", "--duration", "soon"], "'soon' is not a duration"),
        (["mixed", "--objective", "middle=1s"], "unknown phase 'middle'"),
        (["open-mixed", "--rate", "0"], "'0' is not a number of requests per second"),
        (["open-mixed", "--url", "127.0.0.1:8123"], "such as http://127.0.0.1:8123"),
    ],
)
def test_a_wrong_option_is_reported(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert why in capsys.readouterr().err
