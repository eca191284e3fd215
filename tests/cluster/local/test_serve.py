"""The commands that `make serve` prints when it is ready can be copied and run."""

import json
import re
import shlex
import textwrap
from pathlib import Path

import pytest

from cluster.local.environment import serve_environment
from cluster.local.serve import main, ready_text
from cluster.local.server import LOG_BYTES, Server, rotate

URL = "http://127.0.0.1:8000"
MODELS = json.dumps(
    {
        "data": [
            {"id": name, "podium": {"kind": kind}} for name, kind in (("a", "worker"), ("mini", "conductor"))
        ]
    }
).encode()


class Ready(Server):
    """Server that answers without being started. `asks`: whether it requires a key."""

    def __init__(self, *, asks: bool) -> None:
        super().__init__(port=8000)
        self.asks = asks

    def read(self, path: str) -> bytes | None:
        return None if self.asks else MODELS


def printed(*, asks: bool) -> str:
    return ready_text(Ready(asks=asks), Path("build/serve.log"))


@pytest.mark.parametrize("asks", [False, True])
def test_the_printed_program_compiles(asks: bool) -> None:
    text = printed(asks=asks)
    program = textwrap.dedent(text[text.index("  from openai") :])
    assert ("YOUR_KEY" in program) == asks
    names = compile(program, "printed", "exec").co_names
    assert {"OpenAI", "client", "stream"} <= set(names)


@pytest.mark.parametrize("asks", [False, True])
def test_the_printed_command_sends_json_and_a_key_if_required(asks: bool) -> None:
    command = re.search(r"  curl .*?\n.*?\n", printed(asks=asks))
    assert command
    words = shlex.split(command.group().replace("\\\n", ""))
    assert words[1] == f"{URL}/v1/chat/completions"
    assert ("authorization: Bearer YOUR_KEY" in words) == asks
    assert json.loads(words[-1])["model"] == ("podium-mini" if asks else "mini")


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_wrong_port_is_reported_with_the_valid_range(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--port", port])
    assert "a port number from 0 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asks", "line"), [(False, f"Web console: {URL}/console/"), (True, "Run `make console` to build it")]
)
def test_the_output_names_the_web_console_or_how_to_build_it(asks: bool, line: str) -> None:
    assert line in printed(asks=asks)


def test_the_output_names_the_store_and_how_to_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PODIUM_STORE_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    server = Ready(asks=False)
    assert "Store of keys, budgets and runs: /data/podium/podium.db\n(shared by all servers" in ready_text(
        server, Path("x")
    )
    (tmp_path / "own.yaml").write_text(
        "workers: [{name: a, kind: scripted, replies: [x]}]\nstore: {path: own.db}\n"
    )
    server.settings = tmp_path / "own.yaml"
    assert f"runs: {tmp_path}/own.db\n\n" in ready_text(server, Path("x")), (
        "relative to the file, wherever it is served"
    )
    server.environment["PODIUM_STORE_URL"] = "postgresql://me:secret@db:5432/podium"
    text = ready_text(server, Path("x"))
    assert "runs: db:5432/podium\n" in text
    assert "secret" not in text


def test_the_targets_file_for_prometheus_is_removed_with_the_server(tmp_path: Path) -> None:
    server = Server(port=0)
    server.targets = tmp_path / "targets.json"
    server._write_prometheus_target()
    (target,) = json.loads(server.targets.read_text())
    assert target["targets"] == [f"127.0.0.1:{server.metrics_port}"]
    server.stop()
    assert not server.targets.exists()


def test_a_servers_log_is_rotated_while_processes_write_to_it(tmp_path: Path) -> None:
    log = tmp_path / "serve-8000.log"
    with log.open("ab") as one, log.open("ab") as other:
        for round_number in range(3):
            one.write(b"a" * 100)
            other.write(b"b" * 100)
            one.flush()
            other.flush()
            rotate(log, max_bytes=150)
            other.write(b"%d" % round_number)
            other.flush()
            assert log.read_bytes() == b"%d" % round_number
    older = tmp_path / "serve-8000.log.1"
    assert (older.stat().st_size, oct(older.stat().st_mode & 0o777)) == (201, "0o600")
    assert {each.name for each in tmp_path.iterdir()} == {log.name, older.name}


def test_rays_own_logs_are_rotated_at_the_same_size() -> None:
    """Ray rotates a worker's output only if this variable is set."""
    environment = serve_environment()
    assert int(environment["RAY_ROTATION_MAX_BYTES"]) == LOG_BYTES
    assert int(environment["RAY_ROTATION_BACKUP_COUNT"]) == 1
