"""`podium doctor --url` names the faults of a running server and their remedies."""

import asyncio
import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cluster.local.processes import free_port
from podium.cli import main
from serving.accounts.keys import ApiKey
from tests.podium.test_doctor import findings
from tests.serving.api.keyed import keyed


@contextmanager
def answering(answers: dict[str, str], ahead_s: float = 0) -> Generator[str]:
    """Serve these answers with a clock that is ahead."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            self.send_header("date", formatdate(time.time() + ahead_s, usegmt=True))
            self.end_headers()
            self.wfile.write(answers.get(self.path, "{}").encode())

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


ALIVE = {"/healthz": '{"status": "ok"}', "/v1/models": '{"data": []}', "/v1/replicas": '{"replicas": {}}'}


def readyz(**fields: Any) -> dict[str, str]:
    return ALIVE | {"/readyz": json.dumps(fields)}


@pytest.mark.parametrize(
    ("answers", "ahead_s", "check", "level", "message", "remedy"),
    [
        ({}, 0, "server", "wrong", "is not Podium", "podium exposure"),
        (readyz(status="ready"), 3600, "clock", "wrong", "s behind that of the server", "set-ntp"),
        (readyz(status="ready"), -3600, "clock", "wrong", "s ahead of that of the server", "set-ntp"),
        (readyz(status="ready", store="away"), 0, "ready", "wrong", "database is unreachable", "Start the database"),
        (readyz(status="starting", waiting_for=["big"]), 0, "ready", "warning", "is waiting for big", "takes minutes"),
        (
            readyz(status="degraded", conductor={"worker": "c", "reason": "its engine is not ready"}),
            0, "ready", "warning", "the conductor c writes no plans (its engine is not ready)", "podium runs --status failed",
        ),
        (readyz(status="unavailable", waiting_for=["e"]), 0, "ready", "wrong", "down: e", "too little memory"),
        (readyz(status="ready", refused_user_config="No."), 0, "ready", "wrong", "rejected new settings", "deploy them again"),
        (readyz(status="ready") | {"/v1/replicas": '{"replicas": {"e": {"starting": 1}}}'}, 0, "replicas", "wrong", "Deployments without a running replica: e", "ray status"),
    ],
)  # fmt: skip
def test_each_fault_of_a_server_is_reported_with_its_remedy(
    answers: dict[str, str], ahead_s: float, check: str, level: str, message: str, remedy: str, capsys: Any
) -> None:
    with answering(answers, ahead_s) as url:
        code = main(["doctor", "--url", url, "--json"])
    by_check = findings(capsys.readouterr().out)
    assert (by_check[check]["level"], code) == (level, int(level == "wrong"))
    assert message in by_check[check]["said"]
    assert remedy in by_check[check]["remedy"]


def test_an_unreachable_server_is_reported_with_the_start_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", f"http://127.0.0.1:{free_port()}"]) == 1
    problem, remedy = capsys.readouterr().out.splitlines()
    assert problem.startswith("WRONG   server     Cannot connect to http://127.0.0.1:")
    assert "podium serve" in remedy


async def test_a_healthy_server_passes_and_an_unusable_key_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with keyed(tmp_path) as it:
        for who, level in ((None, "wrong"), ("wrong", "wrong"), ("mine", "ok"), ("admin", "ok")):
            monkeypatch.setenv("PODIUM_API_KEY", it.secrets[who] if who else "")
            await asyncio.to_thread(main, ["doctor", "--url", it.api.url, "--json"])
            printed = capsys.readouterr().out
            by_check = findings(printed)
            assert by_check["key"]["level"] == level, by_check["key"]
            assert (
                by_check["server"]["level"]
                == by_check["ready"]["level"]
                == by_check["clock"]["level"]
                == "ok"
            )
            assert not who or it.secrets[who] not in printed
        assert by_check["replicas"]["said"] == "Every deployment has a running replica."


def test_control_characters_of_a_server_are_removed_from_lists_and_findings(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PODIUM_API_KEY", ApiKey.make().reveal())
    evil = "a\x1b]0;title\x07\x9b2J\u202e"
    team = {"id": evil, "name": evil, "created_at": "2026-11-24T00:00:00Z", "enabled": True}
    key = team | {"hint": evil, "scopes": ["run"], "team": team, "expires_at": None, "revoked_at": None}
    pages = {
        f"/v1/admin/{what}?limit=100": json.dumps({"data": [row], "has_more": False})
        for what, row in (("teams", team), ("keys", key))
    }
    with answering(pages | readyz(status="ready", refused_user_config=evil)) as url:
        for verb in (["teams", "list"], ["keys", "list", "--all"], ["doctor"]):
            main([*verb, "--url", url])
            shown = capsys.readouterr().out
            assert "\N{REPLACEMENT CHARACTER}]0;title" in shown, verb
            assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown), verb
